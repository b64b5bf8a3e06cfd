"""What is exported is what was there: ids, bytes, types and order, whatever the workers."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tfds_fixtures import Datasets

from export.conftest import FAKES
from export.made_sources import Numbered, Sized, image_of
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.storage.beton.fields import BetonArray, BetonBytes, BetonFloat, BetonInt, BetonJson, BetonTensor
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.verify import verify


def read_all(path: Path, target_key: str | None = "label") -> list[dict[str, Any]]:
    """Returns all samples of a file, as they are stored, with their ids."""
    parser = ParserBeton(path, target_key=target_key)
    return stored(parser, parser.dataset.encoded_names())


def stored(parser: DatasetParser, names: list[str], numbers: Any = None) -> list[dict[str, Any]]:
    numbers = np.arange(parser.num_examples) if numbers is None else np.asarray(numbers)
    own = {"image": "image", "label": "label"}
    return [
        {"id": one.id} | {name: getattr(one, name) for name in own if getattr(one, name) is not None} | one.features
        for one in parser.dataset.encoded_examples(numbers, names)
    ]


def is_equal(one: Any, other: Any) -> bool:
    """Whether what came back is what was there; JSON has lists for arrays, and texts for bytes."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, np.ndarray | list | tuple) and isinstance(other, list):
        return len(one) == len(other) and all(map(is_equal, one, other))
    if isinstance(one, bytes) and isinstance(other, str):
        return one == other.encode()
    return bool(one == other)


@pytest.mark.parametrize(
    ("name", "split"), [("digits", "train[:150]"), ("digits", "test[40:55]+train[:9]"), ("photos", "train")]
)
@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_parsers_examples_come_back_whole(
    exported_root: Path, tmp_path: Path, name: str, split: str, num_workers: int
) -> None:
    parser = ParserTfds(exported_root, name, split)
    # JPEG would not keep the pixels of PNG.
    how: dict[str, Any] = {"fields": {"image": BetonBytes()}, "rename": {"image": "file"}} if name == "digits" else {}
    path = tmp_path / "a.beton"
    report = export_dataset(parser, path, format="beton", num_workers=num_workers, chunk_size=7, **how)
    assert report.num_reencoded == 0
    assert report.num_samples == parser.num_examples == verify(path).num_samples
    there = [{"image": one.pop("file", None)} | one for one in read_all(path)]
    was = stored(parser, parser.dataset.encoded_names())
    assert [one["id"] for one in there] == list(parser.ids(np.arange(parser.num_examples)))
    assert all(is_equal(one, other) for one, other in zip(was, there, strict=True))
    assert all(isinstance(one["image"], bytes) for one in there)
    assert list(report.fields) == [
        "image" if name == "photos" else "file",
        "label",
        *parser.dataset.encoded_names()[2:],
    ]


@pytest.mark.parametrize("name", FAKES)
def test_made_up_datasets_come_back_whole(exported_root: Path, tmp_path: Path, name: str) -> None:
    target_key = "label" if name == "oxford_iiit_pet" else None
    parser = ParserTfds(exported_root, name, target_key=target_key)
    renamed = {"segmentation_mask": "mask"} if name == "oxford_iiit_pet" else {}
    export_dataset(parser, tmp_path / "a.beton", format="beton", rename=renamed, num_workers=2, chunk_size=4)
    there = read_all(tmp_path / "a.beton", target_key)
    was = [
        {renamed.get(key, key): value for key, value in one.items()}
        for one in stored(parser, parser.dataset.encoded_names())
    ]
    assert len(there) == 23
    assert all(is_equal(one, other) for one, other in zip(was, there, strict=True))
    if renamed:
        assert there[0]["mask"].startswith(b"\x89PNG")  # A mask is not made a JPEG.
        assert there[0]["head_bbox"].dtype == np.float32
        assert ParserBeton(tmp_path / "a.beton").class_names == parser.class_names
    else:
        assert any(one["objects"]["bbox"] for one in there)


def test_features_of_every_kind_come_back_or_are_named(datasets: Datasets, tmp_path: Path) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train[:40]")
    with pytest.raises(ConfigError, match="of the fields, 1 cannot be stored as asked for") as caught:
        export_dataset(parser, tmp_path / "a.beton", format="beton")
    assert "'frames': images inside of a sequence" in str(caught.value)
    assert os.listdir(tmp_path) == []
    export_dataset(parser, tmp_path / "a.beton", format="beton", fields={"frames": None}, num_workers=2, chunk_size=9)
    there = read_all(tmp_path / "a.beton")
    was = stored(parser, [name for name in parser.dataset.encoded_names() if name != "frames"])
    assert all(is_equal(one, other) for one, other in zip(was, there, strict=True))
    assert {type(one["depth"]) for one in there} == {bytes}
    assert there[0]["zipped"].dtype == np.int32
    assert there[3]["caption"].endswith("grün")


@settings(max_examples=6)
@given(data=st.data())
def test_any_indices_and_shuffle_give_these_samples_in_this_order(
    exported_root: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    parser = ParserTfds(exported_root, "digits", "test")
    indices = data.draw(st.lists(st.integers(0, parser.num_examples - 1), min_size=1, max_size=30))
    seed = data.draw(st.none() | st.integers(0, 99))
    num_workers, chunk_size = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
    path = tmp_path_factory.mktemp("any") / "a.beton"
    export_dataset(
        parser,
        path,
        format="beton",
        fields={"image": "raw"},
        indices=indices,
        shuffle_seed=seed,
        num_workers=num_workers,
        chunk_size=chunk_size,
    )
    ids = [one["id"] for one in read_all(path)]
    wanted = list(parser.ids(np.array(indices)))
    assert ids == wanted if seed is None else sorted(ids) == sorted(wanted)
    pixels = np.stack([one.image for one in ParserBeton(path).examples_by_index(range(len(indices)))])
    source = {one.id: one.image for one in parser.examples_by_index(indices)}
    assert (pixels == np.stack([source[id] for id in ids])).all()


def test_a_shuffle_depends_on_its_seed_alone(exported_root: Path, tmp_path: Path) -> None:
    parser = ParserTfds(exported_root, "digits", "test[:60]")
    orders = []
    for name, seed, num_workers in (("a", 1, 1), ("b", 1, 3), ("c", 2, 1)):
        path = tmp_path / name
        export_dataset(parser, path, format="beton", shuffle_seed=seed, num_workers=num_workers, chunk_size=5)
        orders.append([one["id"] for one in read_all(path)])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) != orders[0]


def test_one_worker_writes_the_same_bytes_again(exported_root: Path, tmp_path: Path) -> None:
    parser = ParserTfds(exported_root, "photos")
    for name in ("a", "b"):
        export_dataset(parser, tmp_path / name, format="beton", num_workers=1)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_what_ffcv_cannot_read_is_encoded_anew_and_counted(exported_root: Path, tmp_path: Path) -> None:
    parser = ParserTfds(exported_root, "digits", "test[:30]")
    report = export_dataset(parser, tmp_path / "a.beton", format="beton", num_workers=2, chunk_size=4)
    assert report.num_reencoded == 30
    assert read_all(tmp_path / "a.beton")[0]["image"].startswith(b"\xff\xd8")


def test_a_beton_file_is_exported_like_any_other(exported_root: Path, tmp_path: Path) -> None:
    parser = ParserTfds(exported_root, "photos")
    export_dataset(parser, tmp_path / "a.beton", format="beton", num_workers=1)
    again = ParserBeton(tmp_path / "a.beton")
    export_dataset(again, tmp_path / "b.beton", format="beton", num_workers=2, chunk_size=5)
    assert all(map(is_equal, read_all(tmp_path / "a.beton"), read_all(tmp_path / "b.beton")))
    assert ParserBeton(tmp_path / "b.beton").class_names == parser.class_names
    with pytest.raises(ConfigError, match="is the source of this export: choose another path"):
        export_dataset(again, tmp_path / "a.beton", format="beton", overwrite=True)
    os.link(tmp_path / "a.beton", tmp_path / "link.beton")
    with pytest.raises(ConfigError, match="is the source of this export"):
        export_dataset(again, tmp_path / "link.beton", format="beton", overwrite=True)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_dataset_of_tuples_gets_the_usual_names(tmp_path: Path, num_workers: int) -> None:
    reported: list[tuple[int, int]] = []
    path = tmp_path / "a.beton"
    report = export_dataset(
        Numbered(40),
        path,
        format="beton",
        num_workers=num_workers,
        chunk_size=3,
        progress=lambda *two: reported.append(two),
    )
    assert list(report.fields) == ["image", "label"]
    assert report.num_workers == num_workers
    assert reported[-1] == (40, 40)
    assert reported == sorted(set(reported))
    there = read_all(path)
    assert [one["label"] for one in there] == [number % 7 for number in range(40)]
    assert all(is_equal(image_of(number), one["image"]) for number, one in enumerate(there))
    assert json.loads(json.dumps(report.to_dict()))["num_samples"] == 40
    assert report.num_bytes == path.stat().st_size
    assert report.samples_per_s > 0
    assert report.verified is None


@pytest.mark.parametrize("num_workers", [1, 2])
def test_what_can_only_be_iterated_is_iterated_once(tmp_path: Path, num_workers: int) -> None:
    report = export_dataset(Sized(31), tmp_path / "a.beton", format="beton", num_workers=num_workers, chunk_size=4)
    assert list(report.fields) == ["image", "label", "text", "score"]
    there = read_all(tmp_path / "a.beton")
    assert [one["text"] for one in there] == [f"sample {number}" for number in range(31)]
    assert [one["score"] for one in there] == [number / 7 for number in range(31)]
    indices = [30, 2, 2, 17]
    export_dataset(Sized(31), tmp_path / "b.beton", format="beton", indices=indices, num_workers=num_workers)
    assert [one["label"] for one in read_all(tmp_path / "b.beton")] == indices


@pytest.mark.parametrize(("promised", "message"), [(30, "is 30, and there are more samples"), (32, "ended after 31")])
def test_a_length_that_is_wrong_is_an_error(tmp_path: Path, promised: int, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        export_dataset(Sized(31, promised), tmp_path / "a.beton", format="beton", chunk_size=4)
    assert os.listdir(tmp_path) == []


def test_values_of_every_type_get_a_field_that_holds_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    sample = {
        "flag": True,
        "count": np.uint16(7),
        "mean": np.float32(0.1),
        "text": "grün",
        "bytes": b"\0\1",
        "list": [1, [2, "b"]],
        "nothing": None,
        "nested": {"a": np.arange(3), "b": b"text"},
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "tensor": torch.arange(4, dtype=torch.float32),
        "scalar": torch.tensor(5),
        "empty": np.zeros((0, 4), np.float32),
        "pixels": np.zeros((4, 5, 3), np.uint8),
        "objects": np.array(["a", "bc"]),
    }
    report = export_dataset([sample] * 5, tmp_path / "a.beton", format="beton", num_workers=1)
    fields = BetonSource(tmp_path / "a.beton").head.fields
    assert {name: type(field) for name, field in fields.items()} == {
        "flag": BetonInt,
        "count": BetonInt,
        "mean": BetonFloat,
        "text": BetonJson,
        "bytes": BetonBytes,
        "list": BetonJson,
        "nothing": BetonJson,
        "nested": BetonJson,
        "array": BetonArray,
        "tensor": BetonTensor,
        "scalar": BetonInt,
        "empty": BetonJson,
        "pixels": BetonImage,
        "objects": BetonJson,
    }
    assert list(report.fields) == list(sample)
    (one, *_) = read_all(tmp_path / "a.beton")
    assert (one["flag"], one["count"], one["mean"]) == (1, 7, float(np.float32(0.1)))
    assert (one["text"], one["bytes"], one["list"]) == ("grün", b"\0\1", [1, [2, "b"]])
    assert one["nothing"] is None
    assert one["nested"] == {"a": [0, 1, 2], "b": "text"}
    assert is_equal(sample["array"], one["array"])
    assert is_equal(sample["tensor"].numpy(), one["tensor"])
    assert (one["scalar"], one["empty"], one["objects"]) == (5, [], ["a", "bc"])


def test_torchs_datasets_of_both_kinds_are_exported(tmp_path: Path, exported_root: Path) -> None:
    from torch.utils.data import Subset

    from tfds_torch.torch_data.image_dataset import ImageDataset
    from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset

    parser = ParserTfds(exported_root, "digits", "test[:20]")
    images = [one.image for one in parser.examples_by_index(range(20))]
    subset = Subset(IndexedImageDataset(parser), [3, 1])
    for name, dataset, numbers in (("a", ImageDataset(parser), range(20)), ("b", subset, [3, 1])):
        export_dataset(dataset, tmp_path / name, format="beton", num_workers=2, chunk_size=3)
        there = read_all(tmp_path / name)
        assert all(is_equal(images[number], one["image"]) for number, one in zip(numbers, there, strict=True))


def test_no_samples_make_an_empty_file(tmp_path: Path, exported_root: Path) -> None:
    parser = ParserTfds(exported_root, "photos")
    report = export_dataset(parser, tmp_path / "a.beton", format="beton", indices=[])
    assert report.num_samples == verify(tmp_path / "a.beton").num_samples == 0
    report = export_dataset([], tmp_path / "b.beton", format="beton", fields={"image": "jpg", "label": "int"})
    assert list(report.fields) == ["image", "label"]
    with pytest.raises(ConfigError, match="no field to be written: there is no sample that has any"):
        export_dataset([], tmp_path / "c.beton", format="beton")


def test_a_class_map_gives_the_labels_of_the_file(exported_root: Path, tmp_path: Path) -> None:
    parser = ParserTfds(exported_root, "photos", class_map={"china": 5, "flower": 2})
    export_dataset(parser, tmp_path / "a.beton", format="beton")
    assert {one["label"] for one in read_all(tmp_path / "a.beton")} == {2, 5}
