"""The index of tars from its file in the cache folder, which is built where there is none that can be used.

The table of the file is JSON: path, size and modification time of every tar. Its content is a head in JSON, and the
arrays of a `TarIndex`, one behind the other.
"""

import json
import mmap
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.storage.index_cache import (
    DamagedIndexError,
    IndexCache,
    front_bytes,
    index_path,
    map_index,
    store_index,
)
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.webdataset.index_building import join_indexes, scan_tar
from tfds_torch.storage.webdataset.tar_header import BLOCK_BYTES
from tfds_torch.storage.webdataset.tar_index import TarIndex

_HEAD_SIZE = struct.Struct("<Q")
_FORMAT = "webdataset 2"
_ARRAYS = {
    "first": "<i8",
    "key_stops": "<i8",
    "offset": "<i8",
    "size": "<i8",
    "header_crc": "<u4",
    "extension": "<u2",
    "keys": "u1",
}
"""The arrays of an index in the order of their file, the widest first, so that each lies at a multiple of its width."""


def open_index(paths: Sequence[str], stamps: Sequence[Stamp], name: str) -> TarIndex:
    """Maps the index of these tars, or builds it; of processes that start together one builds.

    Args:
        paths: absolute, of the tars.
        stamps: size and modification time of each.
        name: of them all, for messages.

    Raises:
        ShardError: a tar is missing, compressed, not the one of its stamp, or holds what cannot be read by number;
            see `find_members`.
        CorruptRecordError: a tar was cut, or is not a tar.
    """
    shards = [[path, *stamp] for path, stamp in zip(paths, stamps, strict=True)]
    table = json.dumps({"format": _FORMAT, "shards": shards}).encode()
    sizes = [size for size, _ in stamps]

    def scan(place: int, advance: Advance) -> TarIndex:
        return scan_tar(paths[place], advance, stamps[place])

    return IndexCache(
        index_path(_FORMAT, paths),
        name,
        load=lambda path: _load(path, table, sizes),
        build=lambda: join_indexes(scan_shards(scan, sizes, name), paths),
        store=lambda path, index: store_index(path, table, _pieces(index)),
        num_bytes=lambda index: front_bytes(table) + sum(map(len, _pieces(index))),
    ).open()


def _pieces(index: TarIndex) -> Iterator[bytes]:
    """Yields the content of the index file: size of a head in JSON, the head, zeros up to a multiple of 8, arrays."""
    head = json.dumps(
        {
            "counts": index.counts,
            "extensions": index.extensions,
            "has_distinct_keys": index.has_distinct_keys,
            "num_skipped": index.num_skipped,
            "skipped": index.skipped,
            "digest": index.digest,
            "num_members": len(index.offset),
            "num_key_bytes": len(index.keys),
        }
    ).encode()
    yield (_HEAD_SIZE.pack(len(head)) + head).ljust(_array_start(len(head)), b"\0")
    for name, dtype in _ARRAYS.items():
        yield getattr(index, name).astype(dtype, copy=False).tobytes()


def _array_start(head_bytes: int) -> int:
    size = _HEAD_SIZE.size + head_bytes
    return size + -size % 8


def _load(path: Path, table: bytes, tar_sizes: Sequence[int]) -> TarIndex:
    content, start = map_index(path, table)
    try:
        index = _parse(content, start)
    except (ValueError, KeyError, TypeError, struct.error, OverflowError) as error:
        raise DamagedIndexError("it does not hold the index of tars") from error
    if not _is_sound(index, tar_sizes):
        raise DamagedIndexError("it cannot be that of these tars")
    return index


def _parse(content: mmap.mmap, start: int) -> TarIndex:
    (head_bytes,) = _HEAD_SIZE.unpack_from(content, start)
    if head_bytes > len(content) - start:
        raise ValueError
    head = json.loads(content[start + _HEAD_SIZE.size : start + _HEAD_SIZE.size + head_bytes])
    counts, members, at = tuple(head["counts"]), head["num_members"], start + _array_start(head_bytes)
    num_samples = sum(counts)
    lengths = {"first": num_samples + 1, "key_stops": num_samples, "keys": head["num_key_bytes"]}
    arrays: dict[str, Any] = {}
    for name, dtype in _ARRAYS.items():
        length = lengths.get(name, members)
        arrays[name] = np.frombuffer(content, dtype, length, at) if length else np.empty(0, dtype)
        at += arrays[name].nbytes
    if at != len(content):
        raise ValueError
    skipped = tuple(head["num_skipped"]), tuple(head["skipped"])
    return TarIndex(counts, tuple(head["extensions"]), head["has_distinct_keys"], *skipped, head["digest"], **arrays)


def _is_sound(index: TarIndex, tar_sizes: Sequence[int]) -> bool:
    """Whether all positions lie inside of what they point into."""
    if len(index.counts) != len(tar_sizes) or int(index.first[0]) != 0 or int(index.first[-1]) != len(index.offset):
        return False
    if len(index.num_skipped) != len(tar_sizes) or not all(type(one) is int and one >= 0 for one in index.num_skipped):
        return False
    if not all(isinstance(name, str) for name in index.skipped):
        return False
    rising = bool((np.diff(index.first) > 0).all() and (np.diff(index.key_stops, prepend=0) > 0).all())
    if not rising or (len(index) and int(index.key_stops[-1]) != len(index.keys)):
        return False
    ends = np.repeat(np.repeat(tar_sizes, index.counts), np.diff(index.first))
    inside = (
        (index.offset >= BLOCK_BYTES) & (index.size >= 0) & (index.size <= ends) & (index.offset <= ends - index.size)
    )
    return bool(inside.all() and (index.extension < max(1, len(index.extensions))).all())
