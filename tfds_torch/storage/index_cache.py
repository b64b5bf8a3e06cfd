"""An index in the user's cache folder: of processes that start together one builds it, and all of them map its file."""

import hashlib
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import platformdirs
from filelock import BaseFileLock, Timeout

from tfds_torch.runtime.own_files import ForeignFileError, own_folder, own_lock
from tfds_torch.storage.index_file import DamagedIndexError, UnusableIndexError

_LONG_WAIT_S = 10.0
_LONGEST_WAIT_S = 1800.0
_logger = logging.getLogger(__name__)

_Index = TypeVar("_Index")


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
