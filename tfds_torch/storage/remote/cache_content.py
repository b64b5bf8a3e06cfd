"""What a cache folder holds, object by object, and removing it; for commands."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.own_files import ForeignFileError, check_own_folder, read_own
from tfds_torch.storage.remote.layout import objects_folder
from tfds_torch.storage.remote.stored_blocks import StoredBlock, remove_block, remove_empty_folder, stored_blocks
from tfds_torch.storage.remote.urls import is_below


@dataclass(frozen=True)
class CachedObject:
    """One version of an object, as far as it is cached.

    Attributes:
        url: without query and secrets; None: its description is missing.
        size: of the object, bytes.
        num_blocks: that are cached.
        num_bytes: that they take.
        num_parts: blocks that are being fetched, or were by processes that died.
        fetched_at: time of the latest change, seconds.
        folder: in the cache.
    """

    url: str | None
    size: int | None
    num_blocks: int
    num_bytes: int
    num_parts: int
    fetched_at: float
    folder: str


def cached_objects(cache: Path, prefix: str | None = None) -> list[CachedObject]:
    """Returns what a cache holds, sorted by URL.

    Args:
        cache: the folder; where there is none, nothing is cached.
        prefix: of their URLs; None: all.

    Raises:
        ConfigError: the folder is not this user's own.
    """
    blocks: dict[str, list[StoredBlock]] = {}
    for block in _own_blocks(cache):
        blocks.setdefault(block.key[0], []).append(block)
    found = [_described(folder, of_object) for folder, of_object in blocks.items()]
    chosen = [one for one in found if prefix is None or (one.url is not None and is_below(one.url, prefix))]
    return sorted(chosen, key=lambda one: (one.url or "", one.fetched_at))


def clear_cache(cache: Path, prefix: str | None = None) -> list[CachedObject]:
    """Removes what a cache holds, and returns it; what processes fetch at this moment stays, and so do other files."""
    chosen = cached_objects(cache, prefix)
    folders = {one.folder for one in chosen}
    for block in _own_blocks(cache):
        if block.key[0] in folders:
            remove_block(block)
    for folder in folders:
        remove_empty_folder(folder)
    return chosen


def _own_blocks(cache: Path) -> Sequence[StoredBlock]:
    if not os.path.lexists(cache):
        return ()
    try:
        if cache.is_symlink():
            raise ForeignFileError(1, "it is a symbolic link", str(cache))
        check_own_folder(cache)
        if os.path.lexists(objects_folder(cache)):
            check_own_folder(Path(objects_folder(cache)))
        return list(stored_blocks(str(cache)))
    except ForeignFileError as error:
        raise ConfigError(f"The cache folder {error.filename} is left alone: {error.strerror}.") from error
    except OSError as error:
        raise ConfigError(f"The cache folder {cache} cannot be read: {error.strerror}.") from error


def _described(folder: str, blocks: Sequence[StoredBlock]) -> CachedObject:
    url: str | None = None
    size: int | None = None
    with suppress(OSError, ValueError, KeyError, TypeError):
        values = json.loads(read_own(Path(folder, "object.json")))
        url, size = str(values["url"]), int(values["size"])
    whole = [block for block in blocks if not block.is_part]
    num_bytes = sum(block.num_bytes for block in whole)
    latest = max(block.fetched_at for block in blocks)
    return CachedObject(url, size, len(whole), num_bytes, len(blocks) - len(whole), latest, folder)
