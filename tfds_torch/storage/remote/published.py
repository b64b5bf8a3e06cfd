"""What the fetchers of a machine tell each other of their readers: blocks that are still needed, objects that are read.

`<cache>/readers/<name>.lock` is locked as long as its fetcher lives; `<name>.json` beside it is replaced as a whole.
"""

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.runtime.own_files import own_folder
from tfds_torch.storage.remote.block_job import BlockKey
from tfds_torch.storage.remote.readers import Readers

_NEW = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class Needs:
    """What readers need: blocks, the folders of their objects, and the part of the blocks that stays."""

    blocks: frozenset[BlockKey]
    objects: frozenset[str]
    kept_part: float


class PublishedReaders:
    """The needs of all fetchers that share a cache folder.

    Args:
        cache: the folder.
        readers: of this fetcher.
    """

    def __init__(self, cache: str, readers: Readers) -> None:
        self._folder, self._readers = os.path.join(cache, "readers"), readers
        own_folder(Path(self._folder))
        self._name = f"{os.getpid()}-{secrets.token_hex(6)}"
        self._lock = os.open(self._path(self._name, "lock"), _NEW, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._version = -1

    def publish(self) -> None:
        """Lets the others know what this fetcher's readers need; does nothing where nothing changed."""
        if self._version == self._readers.version:
            return
        self._version = self._readers.version
        path = self._path(self._name, "json")
        with open(os.open(f"{path}.new", _NEW | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            found = {"blocks": list(self._readers.needed), "objects": sorted(self._readers.objects)}
            json.dump(found | {"kept_part": self._readers.kept_part}, file)
        os.replace(f"{path}.new", path)

    def all_needs(self) -> Needs:
        """Returns what the readers of all live fetchers need; what dead ones left behind is removed."""
        blocks, objects = set(self._readers.needed), set(self._readers.objects)
        parts = [self._readers.kept_part] if objects else []
        for name in self._live_others():
            with contextlib.suppress(OSError, ValueError), open(self._path(name, "json"), encoding="utf-8") as file:
                found = json.load(file)
                blocks.update((folder, start, stop) for folder, start, stop in found["blocks"])
                objects.update(found["objects"])
                parts += [found["kept_part"]] if found["objects"] else []
        return Needs(frozenset(blocks), frozenset(objects), min(parts, default=1.0))

    def close(self) -> None:
        """Removes what was published."""
        self._remove(self._name)
        os.close(self._lock)

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
