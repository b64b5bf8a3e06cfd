"""Members of tar files: what has no place in one is refused before anything is written."""

import gc
import io
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.export.tar_members import Member
from tfds_torch.parsers.parser_web_dataset import ParserWebDataset


@pytest.mark.parametrize(
    ("sample", "names"),
    [
        ({"A": np.zeros(2), "a": np.ones(2)}, {}),
        ({"A": np.zeros(2), "b": np.ones(2)}, {"b": "a"}),
        ({"A": "x", "b": "y"}, {"b": "A"}),
    ],
)
def test_fields_that_readers_cannot_tell_apart_are_refused(
    tmp_path: Path, sample: dict[str, Any], names: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match=r"another field has the name '[aA]\.(npy|txt)' already"):
        export_dataset([sample] * 3, tmp_path / "out", format="webdataset", names=names, num_workers=1)
    assert not (tmp_path / "out").exists()


def test_a_tiff_which_no_reader_decodes_comes_back_as_bytes_and_is_not_taken_for_an_image(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGB", (3, 2)).save(file, "TIFF")
    samples = [{"scan": file.getvalue(), "label": 1}]
    report = export_dataset(samples, tmp_path / "out", format="webdataset", num_workers=1)
    assert report.fields == {"label": "cls", "scan": "scan.bin"}
    (url,) = map(str, (tmp_path / "out").glob("*.tar"))
    parser = ParserWebDataset(url, fields={"scan": "scan.bin", "label": "cls"})
    (example,) = parser.encoded_examples(np.array([0]), ["scan"])
    assert example.features["scan"] == file.getvalue()
    with pytest.raises(ConfigError, match=r"Field 'image': .* is not the beginning of a JPEG, PNG, GIF, BMP or WebP"):
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
    example = parser.encoded_examples(np.array([1]), list(NAMED))
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
    names = {"picture": "png", "target": "cls"}
    report = export_dataset(samples, tmp_path / "out", format="webdataset", names=names, num_workers=1)
    assert report.fields == {"picture": "png", "target": "cls"}


@pytest.mark.parametrize(("first", "value"), [(3, 0.5), (0.5, 3), (2, np.float32(1.5)), (1, 2**63)])
def test_numbers_of_one_field_keep_their_values_and_types(tmp_path: Path, first: Any, value: Any) -> None:
    export_dataset([{"n": first}, {"n": value}], tmp_path / "out", format="webdataset", num_shards=1, num_workers=1)
    (url,) = (tmp_path / "out").glob("*.tar")
    with tarfile.open(url) as tar:
        found = [np.load(io.BytesIO(tar.extractfile(member).read())) for member in tar]  # type: ignore[union-attr]
    assert [one.item() for one in found] == [first, value]
    assert [one.dtype for one in found] == [np.asarray(first).dtype, np.asarray(value).dtype]


@pytest.mark.parametrize("value", [None, "x", [1, "x"], 2**64])
def test_what_is_not_a_number_in_a_field_of_numbers_is_an_error_and_not_another_type(
    tmp_path: Path, value: Any
) -> None:
    message = r"Field 'n': .* is not a number, or an array of numbers, of at most 64 bits\."
    with pytest.raises(ConfigError, match=message):
        export_dataset([{"n": 1}] * 3 + [{"n": value}], tmp_path / "out", format="webdataset", num_workers=1)
