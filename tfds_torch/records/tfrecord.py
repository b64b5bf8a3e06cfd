"""The TFRecord format, read without tensorflow.

A record is: length (u64), masked CRC32C of the length (u32), data, masked CRC32C of the data (u32), little-endian.
There is no count and no end mark: a file cut between two records is only recognised by counting.
Source: tensorflow/core/lib/io/record_writer.h.
"""

import os
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import google_crc32c

from tfds_torch.errors import CorruptRecordError, ShardError

_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")


def count_records(path: str | os.PathLike[str]) -> int:
    """Returns the number of records in a file, from their headers alone.

    Args:
        path: a local TFRecord file.

    Raises:
        ShardError: there is no such file, or it cannot be read.
        CorruptRecordError: the file ends inside a record, or a length does not have its checksum.
    """
    return sum(1 for _ in _scan(Path(path), with_data=False))


def read_records(path: str | os.PathLike[str]) -> Iterator[bytes]:
    """Yields the data of every record of a local file, with both checksums verified.

    Raises:
        ShardError: there is no such file, or it cannot be read.
        CorruptRecordError: the file ends inside a record, or a length or data does not have its checksum.
    """
    return _scan(Path(path), with_data=True)


def _scan(path: Path, *, with_data: bool) -> Iterator[bytes]:
    try:
        with path.open("rb", buffering=0) as file:
            yield from _scan_file(path, file, os.fstat(file.fileno()).st_size, with_data=with_data)
    except FileNotFoundError:
        raise ShardError(f"The shard file {path} is missing. Prepare the dataset again.") from None
    except OSError as error:
        raise ShardError(f"The shard file {path} cannot be read: {error.strerror}.") from error


def _scan_file(path: Path, file: FileIO, size: int, *, with_data: bool) -> Iterator[bytes]:
    offset, number = 0, 0
    while offset < size:
        file.seek(offset)
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise _cut(path, offset, number, size)
        length, checksum = _HEADER.unpack(header)
        if _masked_crc32c(header[:8]) != checksum:
            raise CorruptRecordError(
                f"{path}: the length of record {number} at offset {offset} does not have its checksum: the file is "
                f"corrupt. Prepare the dataset again."
            )
        end = offset + _HEADER.size + length + _CHECKSUM.size
        if end > size:
            raise _cut(path, offset, number, size)
        data = b""
        if with_data:
            data, stored = file.read(length), file.read(_CHECKSUM.size)
            if len(data) + len(stored) < length + _CHECKSUM.size:
                raise _cut(path, offset, number, os.fstat(file.fileno()).st_size)
            (checksum,) = _CHECKSUM.unpack(stored)
            if _masked_crc32c(data) != checksum:
                raise CorruptRecordError(
                    f"{path}: record {number} at offset {offset} ({length} bytes) does not have its checksum: the file "
                    f"is corrupt. Prepare the dataset again."
                )
        yield data
        offset, number = end, number + 1


def _cut(path: Path, offset: int, number: int, size: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{path}: the file ends at byte {size}, inside record {number}, which begins at offset {offset}: it was cut. "
        f"Prepare the dataset again."
    )


def _masked_crc32c(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
