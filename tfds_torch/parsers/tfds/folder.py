"""Folder: the files of a dataset's metadata in one place, of this machine or of an object store as it is.

It imports no TFDS: commands read the metadata of a parser through it, wherever the dataset lies.
"""

import errno
import os
import stat
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tfds_torch.engines.tensorflow_runtime import quiet_tensorflow
from tfds_torch.errors import DatasetNotFoundError
from tfds_torch.runtime.printable import QUOTED, shortened
from tfds_torch.storage.object_files import ObjectFiles
from tfds_torch.storage.remote.store import ObjectStore, RefusedError
from tfds_torch.storage.remote.urls import LISTED_SCHEMES, join, split, without_secrets
from tfds_torch.storage.shard_files import LOCAL, ShardFiles
from tfds_torch.storage.source import Source, is_local

if TYPE_CHECKING:
    from tfds_torch.parsers.tfds.parser import ParserTfds

INFO, FEATURES = "dataset_info.json", "features.json"
LABELS = "label.labels.txt"
"""The file of class names that most datasets have; only the features tell which other files there are."""
MOST_BYTES = 64 * 2**20
"""The largest file of metadata: 2,000,000 shards take half of it."""

_SIDE_BY_SIDE = 8


class UnreadableError(DatasetNotFoundError):
    """A file or a folder that exists and cannot be read; it need not be damaged."""


class DamagedError(DatasetNotFoundError):
    """A file of metadata whose content is not as TFDS writes it."""

    @classmethod
    def of(cls, folder: object, file: str, reason: object) -> "DamagedError":
        """Return the error of a file in a folder."""
        return cls(
            f"The dataset in {folder} cannot be opened: its {file} is damaged ({one_line(reason)}). Prepare it again."
        )


def one_line(reason: object) -> str:
    """Return the first line of a reason, cut; with the type of an exception that is not this package's."""
    first = shortened((str(reason).splitlines() or [""])[0], 2 * QUOTED).rstrip(".")
    return ": ".join(filter(None, (type(reason).__name__, first))) if isinstance(reason, Exception) else first


class Folder:
    """A folder of this machine.

    Args:
        path: the path of the folder.

    Attributes:
        path: the path of the folder, or its URL.
        is_local: whether it is one of this machine.
        lists: whether the folders in it can be listed.
    """

    is_local = True
    lists = True

    def __init__(self, path: str) -> None:
        self.path = path

    def __str__(self) -> str:
        return self.path

    def below(self, *names: str) -> "Folder":
        """Return a folder in this one, or further down."""
        return Folder(os.path.join(self.path, *names))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file; None if there is none of that name.

        Raises:
            UnreadableError: the file is there and cannot be read, with the reason and its remedy.
            DamagedError: the file is larger than any of TFDS's.
            ShardError: a store refuses the object, or does not answer.
        """
        path = os.path.join(self.path, name)
        try:
            found = os.stat(path)
            if stat.S_ISDIR(found.st_mode):
                return None
            if not stat.S_ISREG(found.st_mode):  # Opening a FIFO would wait for its writer.
                raise UnreadableError(f"{path} cannot be read: it is not a regular file. Prepare the dataset again.")
            if found.st_size > MOST_BYTES:
                reason = f"{name} has {found.st_size:,} bytes, and {MOST_BYTES:,} is the most"
                raise DamagedError.of(self, name, reason)
            with open(path, "rb") as file:
                return file.read()
        except (OSError, ValueError) as error:
            if _is_absent(error):
                return None
            raise _unreadable(path, error) from None

    def shards(self) -> ShardFiles:
        """Return where the shards beside the metadata are read from."""
        return LOCAL

    def names(self) -> list[str]:
        """Return the names of the files and folders in this one, sorted; those of folders end in "/".

        An object store lists folders, and of the objects only those that were read.

        Raises:
            UnreadableError, ShardError: the folder is there, and cannot be listed.
        """
        try:
            with os.scandir(self.path) as entries:
                return sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
        except (OSError, ValueError) as error:
            if _is_absent(error):
                return []
            raise _unreadable(self.path, error) from None

    def folders(self) -> list[str]:
        """Return the names of the folders in this one, but hidden ones; see `names`."""
        return [name[:-1] for name in self.names() if name.endswith("/") and not name.startswith(".")]

    def expect(self, names: Sequence[str]) -> None:
        """Announce which files are read next: an object store is asked for all of them at once."""


class _TensorflowFolder(Folder):
    """A folder that tensorflow reads, by a gs:// URL."""

    is_local = False

    def below(self, *names: str) -> Folder:
        return _TensorflowFolder(join(self.path, *names))

    def read(self, name: str) -> bytes | None:
        content: bytes | None = self._ask(lambda path: (path / name).read_bytes() if (path / name).is_file() else None)
        return content

    def names(self) -> list[str]:
        def list_names(folder: Any) -> list[str]:
            there = folder.iterdir() if folder.is_dir() else ()
            return sorted(f"{one.name}/" if one.is_dir() else one.name for one in there)

        found: list[str] = self._ask(list_names)
        return found

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        from tensorflow_datasets.core import Path

        try:
            with quiet_tensorflow():
                return ask(Path(self.path))
        except Exception as error:  # Those of tensorflow have no common base that can be named without it.
            raise _unreadable(self.path, error) from None


class _ObjectFolder(Folder):
    """A folder of an object store. Those below it share what was fetched, so that no object is fetched twice.

    Args:
        url: the URL of the folder.
        store: reads its objects.
        fetched: content of each object that was asked for, by URL: None if it is missing, an error if it is refused.
        doubtful: URLs of objects whose answer had no value that tells versions of the object apart.
    """

    is_local = False

    def __init__(
        self, url: str, store: ObjectStore, fetched: dict[str, bytes | RefusedError | None], doubtful: set[str]
    ) -> None:
        super().__init__(url.rstrip("/"))
        self._store, self._fetched, self._doubtful = store, fetched, doubtful
        self.lists = split(url).scheme in LISTED_SCHEMES

    def __str__(self) -> str:
        return without_secrets(self.path)

    def shards(self) -> ShardFiles:
        return ObjectFiles(self._store, is_doubtful=bool(self._doubtful))

    def below(self, *names: str) -> Folder:
        return _ObjectFolder(join(self.path, *names), self._store, self._fetched, self._doubtful)

    def read(self, name: str) -> bytes | None:
        self.expect([name])
        content = self._fetched[join(self.path, name)]
        if isinstance(content, RefusedError):
            raise content
        return content

    def names(self) -> list[str]:
        folders = self._store.folders(self.path) if self.lists else []
        there = [url.rpartition("/") for url, content in self._fetched.items() if isinstance(content, bytes)]
        return sorted([*(f"{name}/" for name in folders), *(name for url, _, name in there if url == self.path)])

    def expect(self, names: Sequence[str]) -> None:
        urls = dict.fromkeys(join(self.path, name) for name in names)
        unknown = [url for url in urls if url not in self._fetched]
        if unknown:
            with ThreadPoolExecutor(min(_SIDE_BY_SIDE, len(unknown)), "tfds_torch-metadata") as threads:
                self._fetched |= dict(zip(unknown, threads.map(self._fetch, unknown), strict=True))

    def _fetch(self, url: str) -> bytes | RefusedError | None:
        try:
            content, is_versioned = self._store.read_versioned(url)
        except RefusedError as error:
            return RefusedError(
                f"{error} Where folders may not be listed, stores say the same of what is not there: check the URL, "
                f"the name and the version, too."
            )
        if not is_versioned:
            self._doubtful.add(url)
        return content


def folder_at(path: str, store: ObjectStore | None = None) -> Folder:
    """Return the folder of a path or a URL.

    Args:
        path: a path or a URL; a path is made absolute, so that it stays right when the process changes its directory.
        store: reads the objects of a URL; without one, tensorflow does.
    """
    if is_local(path):
        return Folder(os.path.abspath(os.path.expanduser(path)))
    return _TensorflowFolder(path) if store is None else _ObjectFolder(path, store, {}, set())


def metadata_of(parser: "ParserTfds") -> Folder:
    """Return the folder of the metadata of a parser's dataset."""
    return folder_of(os.fspath(parser.data_dir), parser.source)


def folder_of(path: str, source: Source) -> Folder:
    """Return a dataset's folder, read through the store that its shards are read through."""
    files = getattr(source, "files", None)
    return folder_at(path, files.store if isinstance(files, ObjectFiles) else None)


def _is_absent(error: Exception) -> bool:
    """Return whether an error says that there is no such file, or that no file can have such a name."""
    absent = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
    return isinstance(error, ValueError) or (isinstance(error, OSError) and error.errno in absent)


def _unreadable(path: str, error: Exception) -> UnreadableError:
    reason = getattr(error, "strerror", None) or one_line(error)
    remedy = "Check the disk or the network that it lies on."
    if isinstance(error, PermissionError):
        remedy = "Ask for the right to read it: see its permissions, and those of the folders above."
    return UnreadableError(f"{shortened(path, 5 * QUOTED)} cannot be read: {reason}. {remedy}")
