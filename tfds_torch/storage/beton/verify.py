"""Reads a whole `.beton` file again, and reports the parts that could not be checked."""

import io
import json
import os
from dataclasses import dataclass

import numpy as np
from PIL.JpegImagePlugin import JpegImageFile

from tfds_torch.errors import CorruptRecordError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.beton.fields import BetonField, BetonJson, payload_fields
from tfds_torch.storage.beton.format import ALLOCATION, JPEG
from tfds_torch.storage.beton.head import Head, damaged
from tfds_torch.storage.beton.ids import BetonIds
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.reader import BetonReader
from tfds_torch.storage.beton.source import BetonSource

_SAMPLES_AT_A_TIME = 1024


@dataclass(frozen=True)
class BetonReport:
    """The parts of a file that were checked and found whole.

    Attributes:
        num_pages: number of pages of which all bytes were compared: with checksums, or with the zeros between payloads.
        num_jpeg: number of JPEG files whose header has the same size as the sample's row.
        unchecked: parts that could not be checked, one sentence each.
    """

    path: str
    num_samples: int
    num_pages: int
    num_jpeg: int
    unchecked: tuple[str, ...]


def verify(path: str | os.PathLike[str], handlers: dict[str, BetonField] | None = None) -> BetonReport:
    """Read all of a file, and compare everything with its checksums, pointers and counts.

    Args:
        path: the file to check.
        handlers: field -> its type, for fields of a custom type (255).

    Raises:
        ShardError: the file is missing, or cannot be read.
        CorruptRecordError: the file is damaged.
        ConfigError: a custom field has no handler.
    """
    source = BetonSource(path, handlers)
    source.check()
    head, reader = source.head, source.reader
    unchecked: list[str] = []
    num_pages = 0
    if head.manifest is None:
        unchecked.append(
            "FFCV itself wrote the file, or an earlier version of tfds_torch: payloads, metadata and header have no "
            "checksums that are read. Only pointers, sizes and counts were checked."
        )
    else:
        num_pages = head.manifest.facts.num_pages
        _check_payloads(head, reader)
        BetonIds(head)
    num_jpeg = sum(_check_field(head, reader, name, field) for name, field in head.fields.items())
    if num_jpeg:
        unchecked.append("Of JPEG files the headers were read; their pixels were not decoded.")
    source.close()
    return BetonReport(os.path.abspath(path), len(source), num_pages, num_jpeg, tuple(unchecked))


def _check_payloads(head: Head, reader: BetonReader) -> None:
    """Compare every payload with its checksum, and the bytes between payloads with zeros."""
    assert head.manifest is not None  # noqa: S101 (the caller asked)
    for name in payload_fields(head.fields):
        for start in range(0, head.layout.num_samples, _SAMPLES_AT_A_TIME):
            reader.compare(name, np.arange(start, min(start + _SAMPLES_AT_A_TIME, head.layout.num_samples)))
    table = reader.mapped.part(head.table_at, head.stamp[0]).view(ALLOCATION)
    table = table[np.argsort(table["pointer"], kind="stable")]
    starts = np.append(table["pointer"].astype(np.int64), head.manifest.at)
    stops = np.insert((table["pointer"] + table["size"]).astype(np.int64), 0, head.layout.metadata_end)
    for place in np.flatnonzero(starts > stops).tolist():
        _check_zeros(head, reader, int(stops[place]), int(starts[place]))


def _check_zeros(head: Head, reader: BetonReader, start: int, stop: int) -> None:
    """Raise CorruptRecordError where the bytes start..stop-1, which belong to nothing, are not zero."""
    if reader.mapped.part(start, stop).any():
        raise damaged(head.path, f"there is something between {start} and {stop}, where nothing belongs")


def _check_field(head: Head, reader: BetonReader, name: str, field: BetonField) -> int:
    """Read all values of a field, and return how many are JPEG files."""
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
    except Exception as error:  # For broken files Pillow raises a dozen types of exceptions.
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
    return damaged(head.path, f"the value of {quoted(name)} of sample {number} {what}")
