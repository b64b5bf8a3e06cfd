"""Shard files compared with the numbers of examples that `dataset_info.json` promises.

A shard that was cut on a record boundary reads as a shorter file without any error, so the records are counted before
the first one is used. The counts are kept in the cache folder, keyed by path, size and modification time: every file is
scanned once, not once per process and epoch.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.own_folder import ForeignFolderError, cache_folder, check_own_folder, own_folder
from tfds_torch.storage.open_files import stamp_of
from tfds_torch.storage.shard_errors import shard_status, wrong_count
from tfds_torch.storage.tfrecord.framing import count_records

_LOCK_TIMEOUT_S = 10.0
_logger = logging.getLogger(__name__)
_Counts = dict[str, list[int]]  # path -> [size in bytes, mtime in ns, number of records]


def check_shards(num_expected: Mapping[str, int], dataset: str) -> None:
    """Raise unless every file exists, is whole, and holds the expected number of records."""
    for folder in sorted({os.path.dirname(path) for path in num_expected}):
        _check_folder(folder, {p: n for p, n in num_expected.items() if os.path.dirname(p) == folder}, dataset)


def _check_folder(folder: str, num_expected: Mapping[str, int], dataset: str) -> None:
    cache = _cache_file(folder)
    known, new = _load(cache), {}
    for path, expected in num_expected.items():
        entry, stamp = known.get(path), list(stamp_of(shard_status(path)))
        if not entry or entry[:2] != stamp:
            entry = new[path] = [*stamp, count_records(path)]
        found = entry[2]
        if found != expected:
            raise wrong_count(path, found, expected, dataset)
    if new:
        _store(cache, new)


def _cache_file(folder: str) -> Path:
    name = hashlib.blake2b(os.fspath(folder).encode(), digest_size=16).hexdigest()
    return cache_folder("shard_counts") / f"{name}.json"


def _load(cache: Path) -> _Counts:
    """Return the stored counts; no counts where the folder belongs to another user, or they make no sense."""
    try:
        check_own_folder(cache.parent)
        counts = json.loads(cache.read_bytes())
    except ForeignFolderError as error:
        _logger.warning(
            "Shard records are counted again: their counts are kept in %s, which is not this user's own: %s.",
            error.filename,
            error.strerror,
        )
        return {}
    except (OSError, ValueError, RecursionError):
        return {}
    usable = isinstance(counts, dict) and all(
        isinstance(entry, list) and len(entry) == 3 and all(isinstance(value, int) for value in entry)
        for entry in counts.values()
    )
    return counts if usable else {}


def _store(cache: Path, new: _Counts) -> None:
    """Add counts to the cache; without a writable cache folder the next process scans again."""
    try:
        own_folder(cache.parent)
        with FileLock(cache.with_name(f"{cache.name}.lock"), timeout=_LOCK_TIMEOUT_S, mode=0o600):
            write_atomically(cache, json.dumps(_load(cache) | new).encode(), follows_link=False)
    except ForeignFolderError:
        pass  # `_load` has warned.
    except (OSError, Timeout) as error:
        _logger.info("The counts of shard records could not be cached in %s: %s", cache, error)
