"""A file that keeps what an index says of its shards: whole and for exactly these shards, or not used at all.

Layout, little-endian: magic (8 bytes), format version (u32), CRC32C of everything behind it (u32); size of the table
(u64), the table (text that tells the shards with their sizes and modification times), zeros up to a multiple of 8;
the content, as the format of the shards has it.
"""

import itertools
import mmap
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import google_crc32c

from tfds_torch.runtime.own_files import open_own

_HEAD, _TABLE_SIZE = struct.Struct("<8sII"), struct.Struct("<Q")
_TABLE_START = _HEAD.size + _TABLE_SIZE.size
_MAGIC, _VERSION = b"tfdsidx\n", 1
_CHUNK_BYTES = 1 << 20  # Checksums go piece by piece: memory stays small.


class UnusableIndexError(Exception):
    """An index file that must be built again; never leaves this room."""


class DamagedIndexError(UnusableIndexError):
    """An index file that is not what was written, or was never one."""


def map_index(path: Path, table: bytes) -> tuple[mmap.mmap, int]:
    """Opens an index file read-only, in memory that all processes share.

    Args:
        path: of the file.
        table: what it must be about.

    Returns:
        The file, and where its content begins.

    Raises:
        FileNotFoundError: there is none.
        UnusableIndexError: it is about other shards, or these have changed.
        DamagedIndexError: it is damaged, or no index file of this version.
        ForeignFileError: it is not this user's own.
        OSError: it cannot be read.
    """
    # Nothing in the file is believed before its checksum, and nothing is allocated by what it says.
    with open(open_own(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        crc = _check_head(file.read(_HEAD.size))
        if size < _TABLE_START:
            raise DamagedIndexError("it was cut")
        content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    if crc != _checksum(content):
        raise DamagedIndexError("it does not have its checksum: it was cut or changed")
    (table_bytes,) = _TABLE_SIZE.unpack_from(content, _HEAD.size)
    if table_bytes != len(table) or content[_TABLE_START : _TABLE_START + table_bytes] != table:
        raise UnusableIndexError("the shards have changed, or are others")
    start = front_bytes(table)
    if size < start:
        raise DamagedIndexError("it was cut")
    return content, start


def store_index(path: Path, table: bytes, content: Iterable[bytes]) -> None:
    """Writes an index file; readers see all of it or what was there before.

    Args:
        path: of the file.
        table: what it is about.
        content: in pieces.

    Raises:
        OSError: it cannot be written; nothing is left behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    file = NamedTemporaryFile(dir=path.parent, prefix=f"{path.name}.", suffix=".tmp", delete=False)  # noqa: SIM115
    try:
        with file:
            _write(file, table, content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except BaseException:
        Path(file.name).unlink(missing_ok=True)
        raise


def front_bytes(table: bytes) -> int:
    """Returns the size of all that lies before the content of an index file."""
    size = _TABLE_START + len(table)
    return size + -size % 8


def remove_leftovers(path: Path) -> None:
    """Removes what killed writers left beside an index file; to be called by the only writer."""
    for leftover in path.parent.glob(f"{path.name}.*.tmp"):
        leftover.unlink(missing_ok=True)


def _write(file: IO[bytes], table: bytes, content: Iterable[bytes]) -> None:
    front = (_TABLE_SIZE.pack(len(table)) + table).ljust(front_bytes(table) - _HEAD.size, b"\0")
    file.write(bytes(_HEAD.size))
    crc = 0
    for piece in itertools.chain([front], content):
        crc = google_crc32c.extend(crc, piece)
        file.write(piece)
    file.seek(0)
    file.write(_HEAD.pack(_MAGIC, _VERSION, crc))


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
