"""Files in which the fetchers of a machine publish their readers' needs: needed blocks, and objects that are read.

`<cache>/readers/<name>.lock` is locked while its fetcher lives; `<name>.json` beside it is always replaced as a whole.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.storage.remote.layout import is_at, objects_folder
from tfds_torch.storage.remote.readers import Needs, Readers

_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class _Found:
    """The content of another fetcher's file, and the version of the file."""

    version: tuple[int, int, int]
    needs: Needs


class PublishedReaders:
    """The needs of all fetchers that share a cache folder.

    Args:
        cache: the folder.
        readers: readers of this fetcher.
    """

    def __init__(self, cache: str, readers: Readers) -> None:
        self._folder, self._readers = os.path.join(cache, "readers"), readers
        os.makedirs(self._folder, 0o700, exist_ok=True)
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._lock = _locked_file(self._path(self._name, "lock"))
        self._version = -1
        self._objects = objects_folder(cache)
        self._others: dict[str, _Found] = {}

    def publish(self) -> None:
        """Publish the needs of this fetcher's readers; do nothing where they did not change."""
        if self._version == self._readers.version:
            return
        self._version = self._readers.version
        path = self._path(self._name, "json")
        mine = self._readers.needs()
        blocks = [
            (os.path.basename(folder), start, stop, distance)
            for (folder, start, stop), distance in mine.distances.items()
        ]
        found = {"blocks": blocks, "objects": sorted(map(os.path.basename, mine.objects)), "kept_part": mine.kept_part}
        with open(os.open(f"{path}.new", _NEW | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(f"{path}.new", path)

    def all_needs(self) -> Needs:
        """Return the needs of the readers of all live fetchers; remove files that dead fetchers left behind."""
        mine = self._readers.needs()
        distances, objects = dict(mine.distances), set(mine.objects)
        parts = [mine.kept_part] if objects else []
        others, self._others = self._others, {}
        for name in self._live_others():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                found = self._others[name] = self._read(name, others.get(name))
                for key, distance in found.needs.distances.items():
                    distances[key] = min(distance, distances.get(key, distance))
                objects |= found.needs.objects
                parts += [found.needs.kept_part] if found.needs.objects else []
        return Needs(distances, objects, min(parts, default=1.0))

    def disk_bytes(self) -> int:
        """Return the most bytes that these files take on the disk: a file lies there twice while it is replaced."""
        num_bytes = 0
        with contextlib.suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    num_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
        return 2 * num_bytes

    def close(self) -> None:
        """Remove the published files."""
        self._remove(self._name)
        os.close(self._lock)

    def _read(self, name: str, known: "_Found | None") -> "_Found":
        """Return the needs that another fetcher published; read its file again where it was replaced."""
        with open(self._path(name, "json"), encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            version = status.st_ino, status.st_mtime_ns, status.st_size
            if known is not None and known.version == version:
                return known
            found = json.load(file)
        distances = {
            (os.path.join(self._objects, str(name)), int(start), int(stop)): int(distance)
            for name, start, stop, distance in found["blocks"]
        }
        objects = frozenset(os.path.join(self._objects, str(name)) for name in found["objects"])
        return _Found(version, Needs(distances, objects, float(found["kept_part"])))

    def _live_others(self) -> Iterator[str]:
        for path in Path(self._folder).glob("*.lock"):
            if path.stem == self._name:
                continue
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            except OSError:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield path.stem
            else:
                self._remove(path.stem)
            finally:
                os.close(descriptor)

    def _remove(self, name: str) -> None:
        for kind in ("json", "json.new", "lock"):
            with contextlib.suppress(OSError):
                os.unlink(self._path(name, kind))

    def _path(self, name: str, kind: str) -> str:
        return os.path.join(self._folder, f"{name}.{kind}")


def _locked_file(path: str) -> int:
    """Return the descriptor of a new, locked file; make it again where another fetcher removed it before the lock."""
    while True:
        descriptor = os.open(path, _NEW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)
