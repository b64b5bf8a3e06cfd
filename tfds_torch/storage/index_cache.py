"""Indices of shards in the user's cache folder: of processes that start together, one builds an index, all map it.

A file is only used if it is whole and about exactly its shards. Layout, little-endian: magic (8 bytes), format version
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
from typing import Generic, TypeVar

import google_crc32c
from filelock import BaseFileLock, FileLock, Timeout

from tfds_torch.runtime.own_folder import ForeignFolderError, cache_folder, own_folder

_HEAD, _TABLE_SIZE = struct.Struct("<8sII"), struct.Struct("<Q")
_TABLE_START = _HEAD.size + _TABLE_SIZE.size
_MAGIC, _VERSION = b"tfdsidx\n", 1
_CHUNK_BYTES = 1 << 20  # Checksums are computed piece by piece: memory stays small.
_LONG_WAIT_S = 10.0
_LONGEST_WAIT_S = 1800.0
_logger = logging.getLogger(__name__)

_Index = TypeVar("_Index")


class UnusableIndexError(Exception):
    """An index file that must be built again; never leaves this room."""


class DamagedIndexError(UnusableIndexError):
    """An index file that was damaged, or was never one."""


def index_path(dataset: str, paths: Sequence[str]) -> Path:
    """Return where the index of a dataset's shards is kept."""
    key = "\0".join((dataset, *paths)).encode(errors="surrogateescape")
    name = hashlib.blake2b(key, digest_size=16).hexdigest()
    return cache_folder("record_index") / f"{name}.index"


@dataclass(frozen=True)
class IndexCache(Generic[_Index]):
    """One index, which is read from its file, or built.

    Attributes:
        path: path of the index file.
        dataset: name of the dataset, for messages.
        table: text that names the shards with their sizes and times; a file with another one is built again.
        build: function that makes the index from the shards.
        encode: function: index -> the content of its file, in pieces.
        decode: function: mapped file or its bytes, and the offset of its content -> index; raises DamagedIndexError.
    """

    path: Path
    dataset: str
    table: bytes
    build: Callable[[], _Index]
    encode: Callable[[_Index], Iterable[bytes]]
    decode: Callable[[mmap.mmap | bytes, int], _Index]

    def open(self, is_right: Callable[[_Index], bool] = lambda _: True) -> _Index:
        """Return the index from its file; build the index where there is no usable file.

        Args:
            is_right: function that says whether an index is right, where the caller knows more than the stamps.
        """
        try:
            own_folder(self.path.parent)
            stored = self._load(warns=True)
            if stored is not None and is_right(stored):
                return stored
            lock = self._wait_for_lock()
        except (OSError, NotImplementedError, Timeout) as error:
            _logger.warning(
                "The index of %s cannot be kept in %s (%s): this process builds one of its own, and so will every "
                "other.",
                self.dataset,
                self.path.parent,
                error.strerror if isinstance(error, ForeignFolderError) else error,
            )
            return self.build()
        try:
            # Another process may have built the index while this one waited.
            stored = self._load(warns=False)
            return stored if stored is not None and is_right(stored) else self._store(self.build())
        finally:
            lock.release()

    def load(self) -> _Index:
        """Open the file read-only, in memory that all processes share.

        Raises:
            FileNotFoundError: there is no file.
            UnusableIndexError: the index is about other shards, or the shards have changed.
            DamagedIndexError: the file is damaged, or not an index file of this version.
            OSError: the file cannot be read.
        """
        # Nothing in the file is used before its checksum was verified, and no allocation depends on its numbers.
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_head(file.read(_HEAD.size))
            if size < _TABLE_START:
                raise DamagedIndexError("it was cut")
            content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        return self._take(content)

    def to_bytes(self, index: _Index) -> bytes:
        """Return the bytes of an index file that holds an index."""
        pieces = [self._front(), *self.encode(index)]
        crc = 0
        for piece in pieces:
            crc = google_crc32c.extend(crc, piece)
        return b"".join([_HEAD.pack(_MAGIC, _VERSION, crc), *pieces])

    def from_bytes(self, content: bytes) -> _Index:
        """Return the index from the bytes of its file; raise the errors of `load` where it cannot be used."""
        _check_head(content)
        if len(content) < _TABLE_START:
            raise DamagedIndexError("it was cut")
        return self._take(content)

    def _take(self, content: mmap.mmap | bytes) -> _Index:
        if _check_head(content[: _HEAD.size]) != _checksum(content):
            raise DamagedIndexError("it does not have its checksum: it was cut or changed")
        (table_bytes,) = _TABLE_SIZE.unpack_from(content, _HEAD.size)
        if table_bytes != len(self.table) or content[_TABLE_START : _TABLE_START + table_bytes] != self.table:
            raise UnusableIndexError("the shards have changed, or are others")
        return self.decode(content, _HEAD.size + len(self._front()))

    def store(self, index: _Index) -> None:
        """Write the file; readers see either all of it or the previous file. Only one process may write at a time."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for leftover in self.path.parent.glob(f"{self.path.name}.*.tmp"):  # Files that killed writers left behind.
            leftover.unlink(missing_ok=True)
        file = NamedTemporaryFile(  # noqa: SIM115
            dir=self.path.parent, prefix=f"{self.path.name}.", suffix=".tmp", delete=False
        )
        try:
            with file:
                file.write(bytes(_HEAD.size))
                crc = 0
                for piece in itertools.chain([self._front()], self.encode(index)):
                    crc = google_crc32c.extend(crc, piece)
                    file.write(piece)
                file.seek(0)
                file.write(_HEAD.pack(_MAGIC, _VERSION, crc))
                file.flush()
                os.fsync(file.fileno())
            os.replace(file.name, self.path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise

    def _front(self) -> bytes:
        """Return the bytes between the head and the content: the table, filled up to a multiple of 8."""
        size = _TABLE_START + len(self.table)
        return (_TABLE_SIZE.pack(len(self.table)) + self.table).ljust(size + -size % 8 - _HEAD.size, b"\0")

    def _load(self, *, warns: bool) -> _Index | None:
        try:
            return self.load()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except DamagedIndexError as error:
            level, problem = logging.WARNING, str(error)
        except UnusableIndexError as error:
            level, problem = logging.INFO, str(error)
        except OSError as error:
            level, problem = logging.WARNING, f"it cannot be read: {error.strerror}"
        if warns:
            _logger.log(level, "The index %s of %s is built again: %s.", self.path, self.dataset, problem)
        return None

    def _wait_for_lock(self) -> BaseFileLock:
        lock = FileLock(self.path.with_name(f"{self.path.name}.lock"), mode=0o600)
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
        """Write the index, and return it from its file; return it as it is if it could not be written."""
        try:
            self.store(index)
        except OSError as error:
            _logger.warning(
                "The index of %s stays in this process's memory, and others build it again: writing %s failed (%s). It "
                "needs %d bytes, free are %d.",
                self.dataset,
                self.path,
                error.strerror,
                _HEAD.size + len(self._front()) + sum(map(len, self.encode(index))),
                shutil.disk_usage(self.path.parent).free,
            )
            return index
        stored = self._load(warns=True)
        return index if stored is None else stored


def _check_head(head: bytes) -> int:
    """Return the checksum that everything behind the head must have."""
    if len(head) < _HEAD.size or head[: len(_MAGIC)] != _MAGIC:
        raise DamagedIndexError("it is not an index file")
    _, version, crc = _HEAD.unpack(head[: _HEAD.size])
    if version != _VERSION:
        raise DamagedIndexError(f"its format version is {version}, ours is {_VERSION}")
    return int(crc)


def _checksum(content: mmap.mmap | bytes) -> int:
    crc = 0
    for at in range(_HEAD.size, len(content), _CHUNK_BYTES):
        crc = google_crc32c.extend(crc, content[at : at + _CHUNK_BYTES])
    return crc
