"""verify: everything is read, and what could not be checked is said."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from storage.beton.made_files import PAGE, flip, places_of, unpack, write_samples

from tfds_torch.errors import CorruptRecordError
from tfds_torch.storage.beton.fields import BetonBytes, BetonJson, Encoded
from tfds_torch.storage.beton.head import read_head
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.verify import verify
from tfds_torch.storage.beton.writer import BetonWriter


def test_a_whole_file_is_reported_with_its_counts(tmp_path: Path) -> None:
    write_samples(tmp_path / "a.beton")
    report = verify(tmp_path / "a.beton")
    assert (report.path, report.num_samples, report.num_pages, report.num_jpeg, report.unchecked) == (
        *(str(tmp_path / "a.beton"), 7, 1, 0, ()),
    )


def test_of_a_file_of_0_2_0_checksums_are_said_to_be_unread(tmp_path: Path) -> None:
    report = verify(unpack("golden_tfds_torch_0.2.0.beton.gz", tmp_path))
    assert (report.num_samples, report.num_pages, report.num_jpeg) == (12, 0, 6)
    assert "an earlier version of tfds_torch" in report.unchecked[0]


@pytest.mark.parametrize("place", ["metadata_end", "between", "page_end"])
def test_something_where_nothing_belongs_is_found(place: str, tmp_path: Path) -> None:
    path = tmp_path / "a.beton"
    write_samples(path)
    layout, (pointer, size) = read_head(str(path)).layout, places_of(path, "text")[0]
    assert size == 0  # A payload of no bytes takes one, so that no other begins where it does.
    at = {"metadata_end": layout.metadata_end, "between": pointer, "page_end": layout.pages_end(1) - 1}[place]
    flip(path, at, 0x80)
    with pytest.raises(CorruptRecordError, match=r"there is something between \d+ and \d+, where nothing belongs"):
        verify(path)


def test_ids_that_end_at_other_places_are_found(tmp_path: Path) -> None:
    """In order, so that only their checksum can tell: two samples would have parts of each other's id."""
    path = tmp_path / "a.beton"
    write_samples(path)
    manifest = read_head(str(path)).manifest
    assert manifest is not None
    flip(path, manifest.id_stops_at + 8 * 3)
    with pytest.raises(CorruptRecordError, match="its ids do not have their checksum"):
        verify(path)


def test_pixels_of_jpeg_files_are_said_to_be_unchecked(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "a.beton", {"image": BetonImage("jpg")}, 1, page_size=PAGE) as writer:
        writer.add((np.zeros((4, 4, 3), np.uint8),))
    assert "their pixels were not decoded" in verify(tmp_path / "a.beton").unchecked[0]


class WrongSize(BetonImage):
    """Says that its images are one pixel wider than they are."""

    def encode(self, value: object, number: int) -> Encoded:
        encoded = super().encode(value, number)
        mode, width, height = encoded.facts
        return encoded._replace(facts=(mode, width + 1, height))


class NotJpeg(BetonImage):
    def encode(self, value: object, number: int) -> Encoded:
        return super().encode(value, number)._replace(payload=b"no image")


class NotJson(BetonJson):
    def encode(self, value: object, number: int) -> Encoded:
        return Encoded((5,), b"{'a'}")


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (5, 4)).save(file, "JPEG")
    return file.getvalue()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (WrongSize(), "the value of 'a' of sample 0 is said to have 4 x 6 pixels, and has 4 x 5"),
        (NotJpeg(), "the value of 'a' of sample 0 is not a JPEG file"),
        (NotJson(), "the value of 'a' of sample 0 is not JSON"),
    ],
)
def test_values_that_are_not_what_their_type_says_are_found(field: BetonImage, message: str, tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "a.beton", {"a": field, "b": BetonBytes()}, 1, page_size=PAGE) as writer:
        writer.add((jpeg(), b"b"))
    with pytest.raises(CorruptRecordError, match=message):
        verify(tmp_path / "a.beton")
