"""The TFRecord format, read without tensorflow.

A record is: length (u64), masked CRC32C of the length (u32), data, masked CRC32C of the data (u32), little-endian.
There is no count and no end mark: only counting shows that a file was cut between two records.
Source: tensorflow/core/lib/io/record_writer.h.
"""

import os
import struct
from array import array
from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.crc32c import crc32c
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_files import LOCAL, ShardFiles
from tfds_torch.storage.shard_scans import Advance, ShardFile, expect_jumps, size_of


class TfrecordWriter:
    """Writes records of a TFRecord file, one after the other."""

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write

    def add(self, record: bytes) -> None:
        """Write a record."""
        self._write(record_header(len(record)))
        self._write(record)
        self._write(checksum(record))


def framed_bytes(record_bytes: int) -> int:
    """Return the bytes that a record takes in a file."""
    return FRAME_SIZE + record_bytes


HEADER_SIZE, FOOTER_SIZE = 12, 4
FRAME_SIZE = HEADER_SIZE + FOOTER_SIZE
_unpack_header = struct.Struct("<QI").unpack_from

# Small records are found in large windows of the file. Of large records only the headers are read, so that a cold disk
# does not deliver the data in between. Measured: a cold header costs what 30 to 80 KB of cold sequential reading cost.
_WINDOW_BYTES = 256 * 1024
_LARGE_RECORD_BYTES = 32 * 1024


def count_records(path: str | os.PathLike[str]) -> int:
    """Return the number of records in a file, from their headers alone."""
    return len(scan_offsets(path)) - 1


def scan_offsets(
    path: str | os.PathLike[str],
    advance: Advance | None = None,
    stamp: Stamp | None = None,
    files: ShardFiles = LOCAL,
) -> Int64Array:
    """Find every record of a file from the headers, whose checksums are verified.

    Args:
        path: a TFRecord file.
        advance: function that is called many times, with the offset in bytes that the scan has reached.
        stamp: size and modification time that the file must have; see `open_shard`.
        files: access to the file.

    Returns:
        int64 [number of records + 1]: offset of every record's header, and the file's size.

    Raises:
        ShardError: there is no such file, it is not a regular one or not the one of the stamp, or it cannot be read.
        CorruptRecordError: the file ends inside a record, or a length does not have its checksum.
    """
    path = os.fspath(path)
    with files.scan(path, stamp) as file:
        return _scan(path, file, advance)


def read_records(
    path: str | os.PathLike[str],
    advance: Advance | None = None,
    stamp: Stamp | None = None,
    files: ShardFiles = LOCAL,
) -> Iterator[bytes]:
    """Yield the data of every record of a file, with both checksums verified; see `scan_records`."""
    for record in scan_records(path, advance, stamp, files):
        yield record.tobytes()


def scan_records(
    path: str | os.PathLike[str],
    advance: Advance | None = None,
    stamp: Stamp | None = None,
    files: ShardFiles = LOCAL,
) -> Iterator[NDArray[np.uint8]]:
    """Yield the data of every record of a file, uint8 [n], with both checksums verified.

    A record is valid until the next one is asked for: all lie in one buffer, because fresh memory for each would cost
    as much time as reading it.

    Args:
        path: a TFRecord file.
        advance: function that is called after every record, with the offset in bytes that was reached.
        stamp: size and modification time that the file must have; see `open_shard`.
        files: access to the file.

    Raises:
        ShardError: there is no such file, it is not a regular one or not the one of the stamp, or it cannot be read.
        CorruptRecordError: the file ends inside a record, or a length or a record does not have its checksum.
    """
    path = os.fspath(path)
    with files.scan(path, stamp) as file:
        size = size_of(file)
        offset, number, header, buffer = 0, 0, file.read(HEADER_SIZE), np.empty(0, np.uint8)
        while offset < size:
            end = _record_end(path, header, 0, offset, number, size)
            length = end - offset - FRAME_SIZE
            wanted = length + FOOTER_SIZE + HEADER_SIZE  # The next header is read along: one call less for each record.
            if wanted > len(buffer):
                buffer = np.empty(wanted + wanted // 4, np.uint8)
            found = _fill(file, buffer[:wanted])
            if found < length + FOOTER_SIZE:
                raise _cut(path, offset, number, size_of(file))
            data, behind = buffer[:length], buffer[length:found].tobytes()
            if behind[:FOOTER_SIZE] != checksum(data):
                raise CorruptRecordError(
                    f"{path}: record {number} at offset {offset} ({length} bytes) does not have its checksum: the "
                    f"file is corrupt. Prepare the dataset again."
                )
            yield data
            offset, number, header = end, number + 1, behind[FOOTER_SIZE:]
            if advance is not None:
                advance(offset)


def _fill(file: ShardFile, buffer: NDArray[np.uint8]) -> int:
    """Read into a buffer; return how many bytes were read, fewer only where the file ends."""
    found = 0
    while found < len(buffer) and (more := file.readinto(buffer[found:].data)):
        found += more
    return found


@lru_cache(maxsize=4096)
def record_header(length: int) -> bytes:
    """Return the 12 bytes before the data of a record: its length and their checksum."""
    encoded = length.to_bytes(8, "little")
    return encoded + checksum(encoded)


def checksum(data: bytes | NDArray[np.uint8]) -> bytes:
    """Return the 4 bytes that follow a length or the data of a record: its masked CRC32C."""
    return _masked_crc32c(data).to_bytes(4, "little")


def _masked_crc32c(data: bytes | NDArray[np.uint8]) -> int:
    """Return the masked CRC32C of a length or of the data of a record, as the u32 that follows it."""
    crc: int = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _scan(path: str, file: ShardFile, advance: Advance | None) -> Int64Array:
    size = size_of(file)
    expect_jumps(file)
    offsets = array("q")
    offset, record_bytes = 0, _LARGE_RECORD_BYTES  # The first header alone decides which way to begin.
    while offset < size:
        start, number = offset, len(offsets)
        file.seek(offset)
        window = file.read(HEADER_SIZE if record_bytes >= _LARGE_RECORD_BYTES else _WINDOW_BYTES)
        while True:
            end = _record_end(path, window, offset - start, offset, len(offsets), size)
            offsets.append(offset)
            offset = end
            if offset - start + HEADER_SIZE > len(window):
                break
        # A running mean: one odd record among many does not change the way.
        record_bytes += ((offset - start) // (len(offsets) - number) - record_bytes) // (4 if number else 1)
        if advance is not None:
            advance(offset)
    offsets.append(size)
    return np.frombuffer(offsets, np.int64)


def _record_end(path: str, window: bytes, position: int, offset: int, number: int, size: int) -> int:
    """Return the offset after a record whose header is at `position` of a window."""
    if len(window) - position < HEADER_SIZE:
        raise _cut(path, offset, number, min(size, offset + len(window) - position))
    length, stored = _unpack_header(window, position)
    if _masked_crc32c(window[position : position + 8]) != stored:
        raise CorruptRecordError(
            f"{path}: the length of record {number} at offset {offset} does not have its checksum: the file is "
            f"corrupt. Prepare the dataset again."
        )
    end: int = offset + FRAME_SIZE + length
    if end > size:
        raise _cut(path, offset, number, size)
    return end


def _cut(path: str, offset: int, number: int, size: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path}: the file ends at byte {size}, inside record {number}, which begins at offset {offset}: it was cut. "
        f"Prepare the dataset again."
    )
