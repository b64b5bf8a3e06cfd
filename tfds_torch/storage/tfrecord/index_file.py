"""The file that keeps the offsets of a split's records: whole and for exactly these shards, or not used at all.

Layout, little-endian: magic (8 bytes), format version (u32), CRC32C of everything behind it (u32); size of the table
(u64), the table (JSON: dataset, and path, size, modification time and number of records of every shard), zeros up to a
multiple of 8; int64 offsets: for each shard those of its records and the shard's size, 8 bytes per example.
"""

import itertools
import json
import mmap
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import google_crc32c
import numpy as np

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.tfrecord.framing import FRAME_SIZE

_HEAD, _TABLE_SIZE = struct.Struct("<8sII"), struct.Struct("<Q")
_TABLE_START = _HEAD.size + _TABLE_SIZE.size
_MAGIC, _VERSION = b"tfdsidx\n", 1
_CHUNK_BYTES = 1 << 20  # Checksums and comparisons go piece by piece: memory stays small.


@dataclass(frozen=True)
class IndexedShards:
    """What an index is about.

    Attributes:
        dataset: "name/config:version".
        paths: absolute, of the shards.
        stamps: size and modification time of each.
        counts: number of records of each.
    """

    dataset: str
    paths: tuple[str, ...]
    stamps: tuple[Stamp, ...]
    counts: tuple[int, ...]

    def table(self) -> bytes:
        """Returns the JSON text that says all this."""
        shards = [
            [path, *stamp, count] for path, stamp, count in zip(self.paths, self.stamps, self.counts, strict=True)
        ]
        return json.dumps({"dataset": self.dataset, "shards": shards}).encode()


class UnusableIndexError(Exception):
    """An index file that must be built again; never leaves this room."""


class DamagedIndexError(UnusableIndexError):
    """An index file that is not what was written, or was never one."""


def load_offsets(path: Path, shards: IndexedShards) -> Int64Array:
    """Opens an index file read-only, in memory that all processes share.

    Returns:
        int64 [sum of (count + 1)]: for each shard the offsets of its records, and its size.

    Raises:
        FileNotFoundError: there is none.
        UnusableIndexError: it is about other shards, or these have changed.
        DamagedIndexError: it is damaged, or no index file of this version.
        OSError: it cannot be read.
    """
    # Nothing in the file is believed before its checksum, and nothing is allocated by what it says.
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        crc = _check_head(file.read(_HEAD.size))
        if size < _TABLE_START:
            raise DamagedIndexError("it was cut")
        content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    if crc != _checksum(content):
        raise DamagedIndexError("it does not have its checksum: it was cut or changed")
    expected = shards.table()
    (table_bytes,) = _TABLE_SIZE.unpack_from(content, _HEAD.size)
    if table_bytes != len(expected) or content[_TABLE_START : _TABLE_START + table_bytes] != expected:
        raise UnusableIndexError("the shards have changed, or are others")
    start = _padded(_TABLE_START + table_bytes)
    if size != file_bytes(shards):
        raise DamagedIndexError("it does not have the size that belongs to these shards")
    offsets = np.frombuffer(content, "<i8", offset=start)
    _check_offsets(offsets, shards)
    return offsets


def store_offsets(path: Path, shards: IndexedShards, offsets: Int64Array) -> None:
    """Writes an index file; readers see all of it or what was there before.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    file = NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp", delete=False)  # noqa: SIM115
    try:
        with file:
            _write(file, shards.table(), offsets.astype("<i8", copy=False))
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def file_bytes(shards: IndexedShards) -> int:
    """Returns the size of the index file of these shards."""
    return _padded(_TABLE_START + len(shards.table())) + 8 * sum(count + 1 for count in shards.counts)


def remove_leftovers(path: Path) -> None:
    """Removes what killed writers left beside an index file; to be called by the only writer."""
    for leftover in path.parent.glob(f"{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def _write(file: IO[bytes], table: bytes, offsets: Int64Array) -> None:
    front = (_TABLE_SIZE.pack(len(table)) + table).ljust(_padded(_TABLE_START + len(table)) - _HEAD.size, b"\0")
    steps = _CHUNK_BYTES // offsets.itemsize
    pieces = (offsets[at : at + steps].tobytes() for at in range(0, len(offsets), steps))
    file.write(bytes(_HEAD.size))
    crc = 0
    for piece in itertools.chain([front], pieces):
        crc = google_crc32c.extend(crc, piece)
        file.write(piece)
    file.seek(0)
    file.write(_HEAD.pack(_MAGIC, _VERSION, crc))


def _padded(size: int) -> int:
    return size + -size % 8


def _check_head(head: bytes) -> int:
    """Returns the checksum that everything behind the head must have."""
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise DamagedIndexError("it is no index file")
    _, version, crc = _HEAD.unpack(head)
    if version != _VERSION:
        raise DamagedIndexError(f"its format version is {version}, ours is {_VERSION}")
    return int(crc)


def _checksum(content: mmap.mmap) -> int:
    crc = 0
    for at in range(_HEAD.size, len(content), _CHUNK_BYTES):
        crc = google_crc32c.extend(crc, content[at : at + _CHUNK_BYTES])
    return crc


def _check_offsets(offsets: Int64Array, shards: IndexedShards) -> None:
    """Offsets that could not be a shard's, although they have their checksum, were not written by us."""
    first = 0
    for (size, _), count in zip(shards.stamps, shards.counts, strict=True):
        own = offsets[first : first + count + 1]
        steps = _CHUNK_BYTES // 8
        rising = all(bool((np.diff(own[at : at + steps + 1]) >= FRAME_SIZE).all()) for at in range(0, count, steps))
        if own[0] != 0 or own[-1] != size or not rising:
            raise DamagedIndexError("its offsets cannot be those of these shards")
        first += count + 1
