"""Indices of shards in the user's cache folder: of processes that start together one builds an index, all map its file.

A file is about exactly its shards and whole, or it is not used. Layout, little-endian: magic (8 bytes), format version
(u32), CRC32C of everything behind it (u32); size of the table (u64), the table (text that names the shards with their
sizes and modification times), zeros up to a multiple of 8; the content, as the format of the shards has it.
"""

import hashlib
import itertools
import logging
import mmap
import os
import shutil
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, Generic, TypeVar

import google_crc32c
import platformdirs
from filelock import BaseFileLock, Timeout

from tfds_torch.runtime.own_files import ForeignFileError, open_own, own_folder, own_lock

_HEAD, _TABLE_SIZE = struct.Struct("<8sII"), struct.Struct("<Q")
_TABLE_START = _HEAD.size + _TABLE_SIZE.size
_MAGIC, _VERSION = b"tfdsidx\n", 1
_CHUNK_BYTES = 1 << 20  # Checksums go piece by piece: memory stays small.
_LONG_WAIT_S = 10.0
_LONGEST_WAIT_S = 1800.0
_logger = logging.getLogger(__name__)

_Index = TypeVar("_Index")


class UnusableIndexError(Exception):
    """An index file that must be built again; never leaves this room."""


class DamagedIndexError(UnusableIndexError):
    """An index file that is not what was written, or was never one."""


def index_path(dataset: str, paths: Sequence[str]) -> Path:
    """Returns where the index of a dataset's shards is kept."""
    key = "\0".join((dataset, *paths)).encode(errors="surrogateescape")
    name = hashlib.blake2b(key, digest_size=16).hexdigest()
    return platformdirs.user_cache_path("tfds_torch") / "record_index" / f"{name}.index"


@dataclass(frozen=True)
class IndexCache(Generic[_Index]):
    """One index, from its file or built.

    Attributes:
        path: of its file.
        dataset: what it is about, for messages.
        load: opens the file; raises FileNotFoundError, UnusableIndexError or OSError.
        build: makes the index from the shards.
        store: writes the file, whole or not at all; raises OSError.
        num_bytes: size of the file of an index.
    """

    path: Path
    dataset: str
    load: Callable[[Path], _Index]
    build: Callable[[], _Index]
    store: Callable[[Path, _Index], None]
    num_bytes: Callable[[_Index], int]

    def open(self, is_right: Callable[[_Index], bool] | None = None) -> _Index:
        """Returns the index from its file, which is built where there is none that can be used.

        Args:
            is_right: whether an index is that of the shards, where more is known than stamps tell.
        """
        try:
            # This package makes the folder, so it may close it: that of a user with umask 002 is open to a group.
            own_folder(self.path.parent, closes=True)
            stored = self._load(say=True)
            if stored is not None and (is_right is None or is_right(stored)):
                return stored
            lock = self._wait_for_lock()
        except (OSError, NotImplementedError, Timeout) as error:
            _logger.warning(
                "The index of %s cannot be kept in %s (%s): this process builds one of its own, and so will every "
                "other.",
                self.dataset,
                self.path.parent,
                error.strerror if isinstance(error, ForeignFileError) else error,
            )
            return self.build()
        try:
            # Another process may have built it while this one waited.
            stored = self._load(say=False)
            if stored is not None and (is_right is None or is_right(stored)):
                return stored
            return self._store(self.build())
        finally:
            lock.release()

    def _load(self, *, say: bool) -> _Index | None:
        try:
            return self.load(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedIndexError as error:
            level, problem = logging.WARNING, str(error)
        except UnusableIndexError as error:
            level, problem = logging.INFO, str(error)
        except ForeignFileError as error:
            level, problem = logging.WARNING, f"it is not this user's own: {error.strerror}"
        except OSError as error:
            level, problem = logging.WARNING, f"it cannot be read: {error.strerror}"
        if say:
            _logger.log(level, "The index %s of %s is built again: %s.", self.path, self.dataset, problem)
        return None

    def _wait_for_lock(self) -> BaseFileLock:
        lock = own_lock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            lock.acquire(timeout=_LONG_WAIT_S)
        except Timeout:
            _logger.warning(
                "Another process has been indexing %s for %.0f s: waiting for it (lock %s).",
                self.dataset,
                _LONG_WAIT_S,
                lock.lock_file,
            )
            lock.acquire(timeout=_LONGEST_WAIT_S)
        return lock

    def _store(self, index: _Index) -> _Index:
        """Returns the index from the file it was written to, or as it is if it could not be written."""
        try:
            self.store(self.path, index)
        except OSError as error:
            _logger.warning(
                "The index of %s stays in this process's memory, and others build it again: writing %s failed (%s). It "
                "needs %d bytes, free are %d.",
                self.dataset,
                self.path,
                error.strerror,
                self.num_bytes(index),
                shutil.disk_usage(self.path.parent).free,
            )
            return index
        stored = self._load(say=True)
        return index if stored is None else stored


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
