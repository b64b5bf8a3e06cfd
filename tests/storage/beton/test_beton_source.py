"""BetonSource: the Source protocol over a `.beton` file."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage.beton.made_files import FIELDS, PAGE, sample_of, write_images, write_samples

from tfds_torch.errors import ConfigError, ExampleNotFoundError, ShardError
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.beton.fields import BetonCustom, BetonInt, Encoded
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.source import FieldSpec
from tfds_torch.storage.stored_pixels import StoredPixels


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("beton") / "a.beton"
    write_samples(found, name="shapes/small:1.0.0", class_names={"label": ["a", "b", "ä"]})
    return found


@pytest.fixture
def source(path: Path) -> BetonSource:
    return BetonSource(path)


def test_it_says_what_it_holds_before_it_is_opened(source: BetonSource, path: Path) -> None:
    assert (len(source), source.name) == (7, "shapes/small:1.0.0")
    assert source.class_names == {"label": ["a", "b", "ä"]}
    assert list(source.specs) == list(FIELDS)
    assert source.specs["box"] == FieldSpec((2, 2), np.dtype("float32"))
    assert source.specs["label"] == FieldSpec((), np.int64)
    assert [(item.path, item.take) for item in source.instructions] == [(str(path), 7)]
    assert source._reader is None


def test_samples_are_read_in_any_order_and_twice(source: BetonSource) -> None:
    columns = source.read(np.array([3, 0, 3]), ["text", "image", "label"])
    assert columns["text"] == [b"text" * 3, b"", b"text" * 3]
    assert [(image == sample_of(n)["image"]).all() for n, image in zip((3, 0, 3), columns["image"], strict=True)]
    assert columns["label"].tolist() == [0, 0, 0]
    assert source.read(np.empty(0, np.int64), ["text"])["text"] == []


def test_images_of_one_size_stay_in_the_mapped_file(source: BetonSource) -> None:
    images = source.read(np.array([3, 0, 3]), ["image"])["image"]
    assert isinstance(images, StoredPixels)
    assert images.shape == (6, 5, 3)
    out = np.empty((3, 6, 5, 3), np.uint8)
    images.copy_into(out)
    assert (out == np.stack([sample_of(n)["image"] for n in (3, 0, 3)])).all()


def test_images_of_several_sizes_and_kinds_come_as_they_are_stored(tmp_path: Path) -> None:
    pixels = [sample_of(n, (4 + n, 5))["image"] for n in range(4)]
    field = BetonImage("smart", smart_threshold=80)
    with BetonWriter(tmp_path / "a.beton", {"image": field}, 4, page_size=PAGE) as writer:
        for one in pixels:
            writer.add((one,))
    images = BetonSource(tmp_path / "a.beton").read(np.arange(4), ["image"])["image"]
    assert [isinstance(image, bytes) for image in images] == [False, False, True, True]
    assert (images[1] == pixels[1]).all()
    assert images[2].startswith(b"\xff\xd8")


def test_ids_are_those_that_were_written(source: BetonSource) -> None:
    assert list(source.ids(np.array([6, 0]))) == ["folder/6.png", "folder/0.png"]
    assert [source.find(f"folder/{n}.png") for n in range(7)] == list(range(7))
    for wrong in ("folder/7.png", "6.png", "folder/6.pn", "older/6.png", "", "folder/0.pngfolder/1.png"):
        with pytest.raises(ExampleNotFoundError, match=r"has 7, such as 'folder/0.png'"):
            source.find(wrong)


def test_without_ids_they_are_the_file_and_a_number(tmp_path: Path) -> None:
    write_samples(tmp_path / "b.beton", with_ids=False)
    source = BetonSource(tmp_path / "b.beton")
    assert list(source.ids(np.array([5]))) == ["b.beton__5"]
    assert source.find("b.beton__5") == 5
    for wrong in ("b.beton__7", "b.beton__05", "b.beton__", "5", "b.beton__" + "9" * 30, "b.beton__²"):
        with pytest.raises(ExampleNotFoundError):
            source.find(wrong)


def test_ids_may_be_any_texts_also_none_and_the_same(tmp_path: Path) -> None:
    ids = ["ä/€", "", "same", "same", "a\0b", "\udce4"]
    with BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, len(ids)) as writer:
        for number, id in enumerate(ids):
            writer.add((number,), id=id)
    source = BetonSource(tmp_path / "a.beton")
    assert list(source.ids(np.arange(len(ids)))) == ids
    assert [source.find(id) for id in ids] == [0, 1, 2, 2, 4, 5]


def test_what_is_not_there_is_an_error(source: BetonSource) -> None:
    with pytest.raises(ConfigError, match=r"has no field 'labl': its fields are image, label"):
        source.read(np.arange(2), ["labl"])
    for index in (-1, 7):
        with pytest.raises(ExampleNotFoundError, match=rf"has no sample {index}: it has 7, counted from 0"):
            source.read(np.array([0, index]), ["label"])
    with pytest.raises(ConfigError, match="has no records"):
        source.parse([b""], np.arange(1), ["label"])


def read_labels(source: BetonSource) -> list[int]:
    return [int(label) for label in source.read(np.arange(len(source)), ["label"])["label"]]


def test_it_goes_to_other_processes_and_goes_on_after_a_fork(source: BetonSource) -> None:
    expected = read_labels(source)
    assert source.find("folder/3.png") == 3  # Ids lie in mapped memory, which is not to be pickled.
    assert read_labels(pickle.loads(pickle.dumps(source))) == expected
    assert subprocess_call.call(read_labels, source) == expected
    child = os.fork()
    if child == 0:
        os._exit(0 if read_labels(source) == expected and len(source.read(np.arange(3), ["text"])["text"]) == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_closed_source_opens_its_file_again(source: BetonSource) -> None:
    first = read_labels(source)
    source.close()
    source.close()
    assert read_labels(source) == first


def test_announcing_is_harmless_where_the_file_is_gone(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.beton")
    source = BetonSource(tmp_path / "a.beton")
    source.announce(np.arange(3))
    source.close()
    (tmp_path / "a.beton").unlink()
    source.announce(np.arange(3))
    with pytest.raises(ShardError, match="is missing"):
        source.check()


def test_only_what_is_read_is_announced(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, announced = BetonSource(path), []
    monkeypatch.setattr(
        "tfds_torch.storage.open_files.MappedFile.advise", lambda self, starts, sizes: announced.extend(sizes.tolist())
    )
    source.announce(np.arange(7))
    source.read(np.arange(2), ["label", "image"])
    source.announce(np.arange(7))
    assert announced == []
    source.read(np.arange(2), ["text"])
    source.announce(np.array([1, 3]))
    assert announced == [4, 12]


def test_a_file_that_was_exchanged_by_the_same_samples_is_read_on(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.beton")
    source = BetonSource(tmp_path / "a.beton")
    source.check()
    write_samples(tmp_path / "a.beton", overwrite=True)
    source.check()
    assert read_labels(source) == [n % 3 for n in range(7)]


def test_a_file_that_was_exchanged_by_others_is_an_error(tmp_path: Path) -> None:
    write_images(tmp_path / "a.beton", 5)
    source = BetonSource(tmp_path / "a.beton")
    source.check()
    write_images(tmp_path / "a.beton", 6, overwrite=True)
    with pytest.raises(ShardError, match="changed while it was in use: it holds other samples now"):
        source.check()
    other = pickle.loads(pickle.dumps(source))  # Its head was read before.
    with pytest.raises(ShardError, match=r"changed while it was in use: it had .* bytes and has"):
        other.check()


def test_the_identity_is_that_of_the_samples_and_not_of_the_file(tmp_path: Path) -> None:
    def identity(name: str, **options: Any) -> str:
        write_samples(tmp_path / name, **options)
        return repr(BetonSource(tmp_path / name).identity)

    assert identity("a.beton") == identity("b.beton")
    assert identity("c.beton", with_ids=False) not in (identity("d.beton"), identity("e.beton", num_samples=6))
    assert identity("f.beton", fingerprint="x") == identity("g.beton", fingerprint="x")
    assert identity("h.beton", fingerprint="x") != identity("i.beton", fingerprint="y")


class Pair(BetonCustom):
    """Two small numbers in the row, and a text behind a pointer."""

    pointer_at = 1
    row_type = np.dtype([("first", "<u2"), ("pointer", "<u8"), ("second", "<u2")])

    def encode(self, value: Any, number: int) -> Encoded:
        return Encoded((value[0], value[1]), value[2].encode())

    def decode(self, rows: Any, payloads: Any) -> list[Any]:
        return [
            (first, second, text.decode()) for (first, _, second), text in zip(rows.tolist(), payloads, strict=True)
        ]


def test_a_custom_field_is_read_by_its_handler(tmp_path: Path) -> None:
    values = [(1, 2, "eins"), (3, 4, ""), (5, 6, "drei")]
    with BetonWriter(tmp_path / "a.beton", {"label": BetonInt(), "pair": Pair()}, 3, page_size=PAGE) as writer:
        for number, value in enumerate(values):
            writer.add((number, value))
    with pytest.raises(ConfigError, match=r"the field 'pair' is of a type of its own: give its BetonCustom, handlers="):
        BetonSource(tmp_path / "a.beton")
    with pytest.raises(ConfigError, match=r"has no field 'pari', for which there is a handler"):
        BetonSource(tmp_path / "a.beton", {"pair": Pair(), "pari": Pair()})
    source = BetonSource(tmp_path / "a.beton", {"pair": Pair()})
    source.check()
    assert source.read(np.array([2, 1, 0]), ["pair"])["pair"] == values[::-1]
