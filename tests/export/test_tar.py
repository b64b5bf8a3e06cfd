"""Members of tar files: their names and types; what has no place in a tar is refused before anything is written."""

import gc
import io
import os
import tarfile
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pytest
from PIL import Image

from export.made_sources import Numbered
from tfds_torch.errors import ConfigError
from tfds_torch.export.api import export_dataset
from tfds_torch.export.tar import Member
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.parsers.webdataset import ParserWebDataset
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.writer import BetonWriter
from tfds_torch.storage.image_formats import READABLE_FORMATS


@pytest.mark.parametrize(
    ("sample", "rename"),
    [
        ({"A": np.zeros(2), "a": np.ones(2)}, {}),
        ({"A": np.zeros(2), "b": np.ones(2)}, {"b": "a"}),
        ({"A": "x", "b": "y"}, {"b": "A"}),
    ],
)
def test_fields_that_readers_cannot_tell_apart_are_refused(
    tmp_path: Path, sample: dict[str, Any], rename: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"another field has the name '[aA]\.(npy|txt)' already"):
        export_dataset([sample] * 3, tmp_path / "out", format="webdataset", rename=rename, num_workers=1)
    assert not (tmp_path / "out").exists()


def test_a_tga_which_no_reader_decodes_comes_back_as_bytes_and_is_not_taken_for_an_image(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "TGA")
    samples = [{"scan": file.getvalue(), "label": 1}]
    report = export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)
    assert report.fields == {"label": "cls", "scan": "scan.bin"}
    (url,) = map(str, (tmp_path / "out").glob("*.tar"))
    parser = ParserWebDataset(url, fields={"scan": "scan.bin", "label": "cls"})
    (example,) = parser.dataset.encoded_examples(np.array([0]), ["scan"])
    assert example.features["scan"] == file.getvalue()
    with pytest.raises(ConfigError, match=f"Field 'image': .* is not the beginning of a {READABLE_FORMATS} image"):
        Member("image", "", "image").encode({"image": file.getvalue()})


def image_file(form: str) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (3, 2), (200, 10, 90)).save(file, form)
    return file.getvalue()


NAMED: dict[str, Any] = {
    "png": image_file("PNG"),
    "cls": 7,
    "txt": "grün",
    "json": {"a": [1, None]},
    "npy": np.arange(3, dtype=np.float32),
    "bin": b"\x00\x01",
}


def test_a_field_that_is_named_as_an_extension_of_its_type_keeps_it_and_readers_find_it(tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    report = export_dataset([NAMED] * 3, tmp_path / "out", format="webdataset", num_shards=1, num_workers=1)
    assert report.fields == {name: name for name in NAMED}
    (url,) = map(str, (tmp_path / "out").glob("*.tar"))
    with tarfile.open(url) as tar:
        assert tar.getnames()[: len(NAMED)] == [f"000000000.{name}" for name in NAMED]
    parser = ParserWebDataset(url, fields={name: name for name in NAMED})
    example = parser.dataset.encoded_examples(np.array([1]), list(NAMED))
    found = next(iter(example)).features
    assert found["png"] == NAMED["png"]
    assert (found["cls"], found["txt"], found["json"]) == (7, "grün".encode(), {"a": [1, None]})
    assert found["bin"] == b"\x00\x01"
    np.testing.assert_array_equal(found["npy"], NAMED["npy"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # It leaves its files to the garbage collector.
        sample, *_ = webdataset.WebDataset(url, shardshuffle=False, empty_check=False).decode("rgb8")
        gc.collect()
    assert (sample["cls"], sample["txt"], sample["json"]) == (7, "grün", {"a": [1, None]})
    assert sample["png"].tolist() == [[[200, 10, 90]] * 3] * 2
    np.testing.assert_array_equal(sample["npy"], NAMED["npy"])


@pytest.mark.parametrize(
    ("sample", "members"),
    [
        ({"jpg": image_file("JPEG"), "cls": np.int64(3)}, {"jpg", "cls"}),
        ({"jpeg": image_file("JPEG"), "JSON": [1]}, {"jpeg", "JSON"}),
        ({"webp": image_file("WEBP"), "gif": image_file("GIF"), "bmp": image_file("BMP")}, {"webp", "gif", "bmp"}),
        ({"jpg": image_file("PNG")}, {"jpg.png"}),  # Of another type: its name would be wrong of the content.
        ({"png": np.zeros((2, 3, 3), np.uint8)}, {"png"}),
        ({"png": Image.new("L", (2, 2))}, {"png"}),
        ({"cls": "cat"}, {"cls.txt"}),
        ({"cls": 0.5}, {"cls.npy"}),
        ({"cls": True, "json": 5}, {"cls.json", "json"}),
        ({"txt": [1]}, {"txt.json"}),
        ({"image": image_file("PNG"), "png": image_file("PNG")}, {"image.png", "png"}),
        ({"label": 1, "cls": 2}, {"label.cls", "cls"}),
        ({"image": image_file("PNG"), "label": 1, "a": image_file("PNG")}, {"png", "cls", "a.png"}),
        ({"n": 3, "x": 0.5, "yes": True, "none": None}, {"n.npy", "x.npy", "yes.json", "none.json"}),
    ],
)
def test_members_are_called_by_the_type_of_their_values(
    tmp_path: Path, sample: dict[str, Any], members: set[str]
) -> None:
    export_dataset([sample], tmp_path / "out", format="webdataset", num_workers=1)
    (url,) = (tmp_path / "out").glob("*.tar")
    with tarfile.open(url) as tar:
        assert {name.partition(".")[2] for name in tar.getnames()} == members


def test_a_new_name_that_is_an_extension_is_kept(tmp_path: Path) -> None:
    samples = [{"picture": image_file("PNG"), "target": 3}]
    rename = {"picture": "png", "target": "cls"}
    report = export_dataset(samples, tmp_path / "out", format="webdataset", rename=rename, num_workers=1)
    assert report.fields == {"picture": "png", "target": "cls"}


@pytest.mark.parametrize(("first", "value"), [(3, 0.5), (0.5, 3), (2, np.float32(1.5)), (1, 2**63)])
def test_numbers_of_one_field_keep_their_values_and_types(tmp_path: Path, first: Any, value: Any) -> None:
    export_dataset([{"n": first}, {"n": value}], tmp_path / "out", format="webdataset", num_shards=1, num_workers=1)
    (url,) = (tmp_path / "out").glob("*.tar")
    with tarfile.open(url) as tar:
        found = [np.load(io.BytesIO(tar.extractfile(member).read())) for member in tar]
    assert [one.item() for one in found] == [first, value]
    assert [one.dtype for one in found] == [np.asarray(first).dtype, np.asarray(value).dtype]


@pytest.mark.parametrize("value", [None, "x", [1, "x"], 2**64])
def test_what_is_not_a_number_in_a_field_of_numbers_is_an_error_and_not_another_type(
    tmp_path: Path, value: Any
) -> None:
    message = r"Field 'n': .* is not a number, or an array of numbers, of at most 64 bits\."
    with pytest.raises(ConfigError, match=message):
        export_dataset([{"n": 1}] * 3 + [{"n": value}], tmp_path / "out", format="webdataset", num_workers=1)


# Keys, and room for names


def write_tar(path: Path, keys: list[bytes]) -> ParserWebDataset:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for key in keys:
            member = tarfile.TarInfo(os.fsdecode(key) + ".cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"7"))
    return ParserWebDataset(str(path))


def keys_of(folder: Path) -> list[str]:
    (path,) = folder.glob("*.tar")
    with tarfile.open(path) as tar:
        return [name.partition(".")[0] for name in tar.getnames()]


def test_a_key_that_is_not_utf_8_comes_back_from_its_escapes(tmp_path: Path) -> None:
    keys = [b"caf\xe9", b"caf\xc3\xa9", b"a/\xff\xfe", b"100%"]
    source = write_tar(tmp_path / "a.tar", keys)
    export_dataset(source, tmp_path / "out", format="webdataset", key="id", num_workers=1)
    assert keys_of(tmp_path / "out")[:2] == ["caf%E9", "caf%C3%A9"]
    assert list(map(unquote_to_bytes, keys_of(tmp_path / "out"))) == keys


@pytest.mark.parametrize(("kind", "extension"), [("array", "npy"), ("text", "txt"), ("mixed", "json")])
def test_a_field_name_that_no_tar_has_room_for_is_refused_beforehand(tmp_path: Path, kind: str, extension: str) -> None:
    value = {"array": np.zeros(2), "text": "a", "mixed": [1]}[kind]
    longest = 100 - len("000000000.") - len(f".{extension}")
    samples: Any = [{"x" * longest: value, "label": 3}]
    report = export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)
    assert report.num_samples == 1
    samples = [{"x" * (longest + 1): value, "label": 3}]
    with pytest.raises(ConfigError, match=r"(?s)Nothing was written: .*leaves 90 after the key '000000000'.*'x+': its"):
        export_dataset(samples, tmp_path / "new", format="webdataset", num_workers=1)
    assert not (tmp_path / "new").exists()
    rename = {"x" * (longest + 1): "short"}
    assert export_dataset(samples, tmp_path / "new", format="webdataset", rename=rename, num_workers=1).num_shards == 1


def test_keys_that_no_tar_has_room_for_are_refused_beforehand(tmp_path: Path) -> None:
    source = write_tar(tmp_path / "a.tar", [b"a", b"\xff" * 32, b"b" * 30])
    export_dataset(source, tmp_path / "out", format="webdataset", key="id", num_workers=1)
    source = write_tar(tmp_path / "b.tar", [b"a", b"\xff" * 33, b"b" * 30])
    with pytest.raises(ConfigError, match=r"Nothing was written: .*leaves 0 after the key '(%FF){33}'"):
        export_dataset(source, tmp_path / "new", format="webdataset", key="id", num_workers=1)
    assert not (tmp_path / "new").exists()


def test_ids_of_samples_that_have_none_are_refused_beforehand(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"samples of Numbered have no id\. Use key='number'"):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", key="id", num_workers=1)
    assert os.listdir(tmp_path) == []


def test_an_id_that_two_samples_of_a_shard_have_is_refused(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "a.beton", {"label": BetonInt()}, num_samples=4) as writer:
        for number, sample_id in enumerate("xyzz"):
            writer.add((number,), id=sample_id)
    source = ParserBeton(tmp_path / "a.beton")
    with pytest.raises(ConfigError, match=r"another sample has the same id\. Use key='number'"):
        export_dataset(source, tmp_path / "out", format="webdataset", key="id", num_shards=1, num_workers=1)
    assert not list((tmp_path / "out").glob("*.tar"))
    export_dataset(source, tmp_path / "apart", format="webdataset", key="id", max_count=3, num_workers=1)
    tars = ParserWebDataset(str(tmp_path / "apart" / "a_beton-all-{000000..000001}.tar"), {"label": "cls"})
    assert [tars[number].label for number in range(len(tars))] == [0, 1, 2, 3]
