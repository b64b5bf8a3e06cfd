"""Re-reads a whole `.beton` file, and says what of it could not be checked."""

import io
import json
import os
from dataclasses import dataclass

import numpy as np
from PIL.JpegImagePlugin import JpegImageFile

from tfds_torch.errors import CorruptRecordError
from tfds_torch.storage.beton.fields import BetonField, BetonJson
from tfds_torch.storage.beton.format import JPEG
from tfds_torch.storage.beton.head import Head, damaged
from tfds_torch.storage.beton.ids import BetonIds
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.manifest import checksum_of_array, is_whole
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.source import BetonSource

_SAMPLES_AT_A_TIME = 1024


@dataclass(frozen=True)
class BetonReport:
    """What was checked of a file that is whole as far as can be told.

    Attributes:
        path: of the file.
        num_samples: that it holds.
        num_pages: whose checksums were right.
        num_jpeg: JPEG files whose header has the size that the sample says.
        unchecked: what could not be checked, in sentences.
    """

    path: str
    num_samples: int
    num_pages: int
    num_jpeg: int
    unchecked: tuple[str, ...]


def verify(path: str | os.PathLike[str], handlers: dict[str, BetonField] | None = None) -> BetonReport:
    """Reads all of a file, and holds everything against what it says about itself.

    Args:
        path: of the file.
        handlers: field -> its type, for those of a type of their own (255).

    Raises:
        ShardError: the file is missing, or cannot be read.
        CorruptRecordError: it is damaged.
        ConfigError: a custom field has no handler.
    """
    source = BetonSource(path, handlers)
    source.check()
    head, reader = source.head, source.reader
    unchecked: list[str] = []
    num_pages = 0
    if head.manifest is None:
        unchecked.append(
            "The file has no manifest, as those of FFCV itself: payloads, metadata and header have no checksums. Only "
            "pointers, sizes and counts were checked."
        )
    else:
        num_pages = _check_pages(head, reader)
        _check_ids(head, reader)
    num_jpeg = sum(_check_field(head, reader, name, field) for name, field in head.fields.items())
    if num_jpeg:
        unchecked.append("Of JPEG files the headers were read; their pixels were not decoded.")
    source.close()
    return BetonReport(os.path.abspath(path), len(source), num_pages, num_jpeg, tuple(unchecked))


def _check_pages(head: Head, reader: BetonReader) -> int:
    assert head.manifest is not None  # noqa: S101 (nobody else asks)
    facts, at = head.manifest.facts, head.manifest.page_checksums_at
    content = reader.memory[at : at + facts.page_checksums[0]]
    if not is_whole(facts.page_checksums, content):
        raise damaged(head.path, "the checksums of its pages do not have their own")
    for page, crc in enumerate(content.view("<u4").tolist()):
        start = head.layout.pages_at + page * head.layout.page_size
        if checksum_of_array(reader.memory[start : start + head.layout.page_size]) != crc:
            raise damaged(head.path, f"page {page}, at {start}, does not have its checksum")
    pages_at = head.layout.pages_at if facts.num_pages else head.layout.metadata_end
    padding = reader.memory[head.layout.metadata_end : pages_at]
    if padding.any():
        raise damaged(head.path, "there is something between its metadata and its first page")
    return facts.num_pages


def _check_ids(head: Head, reader: BetonReader) -> None:
    assert head.manifest is not None  # noqa: S101 (nobody else asks)
    manifest = head.manifest
    for part, at in ((manifest.facts.id_stops, manifest.id_stops_at), (manifest.facts.ids, manifest.ids_at)):
        if part is not None and not is_whole(part, reader.memory[at : at + part[0]]):
            raise damaged(head.path, "its ids do not have their checksum")
    BetonIds(head)


def _check_field(head: Head, reader: BetonReader, name: str, field: BetonField) -> int:
    """Reads all values of a field, and returns how many are JPEG files."""
    num_jpeg, num_samples = 0, head.layout.num_samples
    for start in range(0, num_samples, _SAMPLES_AT_A_TIME):
        index = np.arange(start, min(start + _SAMPLES_AT_A_TIME, num_samples))
        if isinstance(field, BetonImage) and not reader.has_jpeg(name):
            continue
        values = reader.read(name, index)
        if isinstance(field, BetonImage):
            rows = reader.rows_of(name)[index].tolist()
            for number, value, (mode, width, height, _) in zip(index.tolist(), values, rows, strict=True):
                if mode == JPEG:
                    _check_jpeg(head, name, number, value, (width, height))
                    num_jpeg += 1
        elif isinstance(field, BetonJson):
            for number, value in zip(index.tolist(), values, strict=True):
                _check_json(head, name, number, value)
    return num_jpeg


def _check_jpeg(head: Head, name: str, number: int, image: bytes, size: tuple[int, int]) -> None:
    try:
        found = JpegImageFile(io.BytesIO(image)).size
    except MemoryError:
        raise
    except Exception as error:  # Of broken files Pillow raises a dozen types.
        raise _bad_value(head, name, number, f"is not a JPEG file ({error})") from None
    if found != size:
        what = f"is said to have {size[1]} x {size[0]} pixels, and has {found[1]} x {found[0]}"
        raise _bad_value(head, name, number, what)


def _check_json(head: Head, name: str, number: int, text: bytes) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad_value(head, name, number, f"is not JSON ({error})") from None


def _bad_value(head: Head, name: str, number: int, what: str) -> CorruptRecordError:
    return damaged(head.path, f"the value of {name!r} of sample {number} {what}")
