"""Where the samples of tars lie: found once from the headers, then mapped from the cache folder."""

import hashlib
import itertools
import json
import mmap
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.index_cache import IndexCache, index_path
from tfds_torch.storage.index_file import DamagedIndexError, front_bytes, map_index, store_index
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.webdataset.sample_names import is_metadata, split_name, text_of
from tfds_torch.storage.webdataset.tar_members import find_members

_HEAD_SIZE = struct.Struct("<Q")
_FORMAT = "webdataset 1"
_MOST_EXTENSIONS = 2**16


@dataclass(frozen=True)
class TarIndex:
    """The samples of tars, and their members; N samples of M members.

    Attributes:
        counts: samples of each tar.
        extensions: of the members, each once.
        has_distinct_keys: whether no key is in two tars.
        digest: of keys, extensions and sizes: equal where number n means the same sample.
        first: int64 [N + 1], first member of each sample, and M.
        key_stops: int64 [N], where each key ends in `keys`.
        offset: int64 [M], of each member's content in its tar, in bytes.
        size: int64 [M], of each member's content, in bytes.
        header_crc: uint32 [M], CRC32C of the header before it.
        extension: uint16 [M], position in `extensions`.
        keys: uint8 [bytes], of all samples, one behind the other.
    """

    counts: tuple[int, ...]
    extensions: tuple[str, ...]
    has_distinct_keys: bool
    digest: str
    first: Int64Array
    key_stops: Int64Array
    offset: Int64Array
    size: Int64Array
    header_crc: NDArray[np.uint32]
    extension: NDArray[np.uint16]
    keys: NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.key_stops)

    def keys_of(self, index: Int64Array) -> list[bytes]:
        """Returns the keys of samples, int64 [n]."""
        stops = self.key_stops[index].tolist()
        starts = np.where(index > 0, self.key_stops[index - 1], 0).tolist()
        return [self.keys[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]

    def find_key(self, key: bytes, start: int, stop: int) -> int | None:
        """Returns the number of the sample with a key, of those from start to stop - 1; None: there is none."""
        ends = self.key_stops[start:stop]
        begins = np.concatenate([self.key_stops[start - 1 : start] if start else [0], ends[:-1]]).astype(np.int64)
        found = np.flatnonzero(ends - begins == len(key))
        for at in reversed(range(len(key))):  # The last bytes differ most.
            found = found[self.keys[begins[found] + at] == key[at]]
        return start + int(found[0]) if len(found) else None

    def members_of(self, extensions: Sequence[str]) -> Int64Array:
        """Returns int64 [N]: of each sample the member with the first of these extensions that it has, or -1."""
        rows = np.full(len(self), -1, np.int64)
        for name in reversed(extensions):
            if name in self.extensions:
                members = np.flatnonzero(self.extension == self.extensions.index(name))
                rows[np.searchsorted(self.first, members, side="right") - 1] = members
        return rows


def open_index(paths: Sequence[str], stamps: Sequence[Stamp], name: str) -> TarIndex:
    """Maps the index of these tars, or builds it; of processes that start together one builds.

    Args:
        paths: absolute, of the tars.
        stamps: size and modification time of each.
        name: of them all, for messages.

    Raises:
        ShardError: a tar is missing, compressed, or holds what cannot be read by number; see `find_members`.
        CorruptRecordError: a tar was cut, or is none.
    """
    shards = [[path, *stamp] for path, stamp in zip(paths, stamps, strict=True)]
    table = json.dumps({"format": _FORMAT, "shards": shards}).encode()
    sizes = [size for size, _ in stamps]

    def scan(place: int, advance: Advance) -> TarIndex:
        return _scan_tar(paths[place], advance)

    return IndexCache(
        index_path(_FORMAT, paths),
        name,
        load=lambda path: _load(path, table, sizes),
        build=lambda: _join(scan_shards(scan, sizes, name), paths),
        store=lambda path, index: store_index(path, table, _pieces(index)),
        num_bytes=lambda index: front_bytes(table) + sum(map(len, _pieces(index))),
    ).open()


def _scan_tar(path: str, advance: Advance) -> TarIndex:
    """Returns the index of one tar."""
    first, stops, offsets, sizes = array("q"), array("q"), array("q"), array("q")
    crcs, extensions, keys = array("L"), array("H"), bytearray()
    numbers: dict[bytes, int] = {}
    seen: set[bytes] = set()
    current, held = b"", set[int]()
    for member in find_members(path, advance):
        if is_metadata(member.name):
            continue
        key, extension = split_name(member.name, path)
        number = numbers.setdefault(extension, len(numbers))
        if key != current or not first:
            if key in seen:
                raise ShardError(
                    f"{path}: the sample {text_of(key)!r} is split: its member {member.name!r} at offset "
                    f"{member.offset} comes after other samples. Write the tar again with the members of a sample one "
                    f"behind the other (tar --sort=name)."
                )
            seen.add(key)
            current, held = key, set()
            if first:
                stops.append(len(keys))
            first.append(len(offsets))
            keys += key
        if number in held:
            raise ShardError(
                f"{path}: the sample {text_of(key)!r} has two members {text_of(extension)!r}: the second one, "
                f"{member.name!r}, is at offset {member.offset}. Give each sample a key of its own."
            )
        held.add(number)
        offsets.append(member.offset)
        sizes.append(member.size)
        crcs.append(member.header_crc)
        extensions.append(number)
        if len(numbers) >= _MOST_EXTENSIONS:
            raise ShardError(f"{path} has more than {_MOST_EXTENSIONS - 1:,} extensions: its keys hold dots.")
    if first:
        stops.append(len(keys))
    first.append(len(offsets))
    return TarIndex(
        counts=(len(stops),),
        extensions=tuple(map(text_of, numbers)),
        has_distinct_keys=True,
        digest="",
        first=np.array(first, np.int64),
        key_stops=np.array(stops, np.int64),
        offset=np.array(offsets, np.int64),
        size=np.array(sizes, np.int64),
        header_crc=np.array(crcs, np.uint32),
        extension=np.array(extensions, np.uint16),
        keys=np.frombuffer(bytes(keys), np.uint8),
    )


def _join(tars: Sequence[TarIndex], paths: Sequence[str]) -> TarIndex:
    """Returns one index of several tars, in their order."""
    extensions = tuple(sorted({name for tar in tars for name in tar.extensions}))
    if len(extensions) >= _MOST_EXTENSIONS:
        raise ShardError(f"{paths[0]} and the other tars have more than {_MOST_EXTENSIONS - 1:,} extensions.")
    number = {name: place for place, name in enumerate(extensions)}
    renumbered = [np.array([number[name] for name in tar.extensions] or [0], np.uint16)[tar.extension] for tar in tars]
    num_members = np.cumsum([0, *(len(tar.offset) for tar in tars)])
    num_key_bytes = np.cumsum([0, *(len(tar.keys) for tar in tars)])
    first = [tar.first[:-1] + before for tar, before in zip(tars, num_members, strict=False)]
    stops = [tar.key_stops + before for tar, before in zip(tars, num_key_bytes, strict=False)]
    joined: dict[str, Any] = {
        "first": np.concatenate([*first, num_members[-1:]]),
        "key_stops": np.concatenate(stops),
        "offset": np.concatenate([tar.offset for tar in tars]),
        "size": np.concatenate([tar.size for tar in tars]),
        "header_crc": np.concatenate([tar.header_crc for tar in tars]),
        "extension": np.concatenate(renumbered),
        "keys": np.concatenate([tar.keys for tar in tars]),
    }
    counts = tuple(tar.counts[0] for tar in tars)
    index = TarIndex(counts, extensions, True, _digest(counts, extensions, joined), **joined)
    _check_borders(index, paths)
    every = index.keys_of(np.arange(len(index)))
    return TarIndex(counts, extensions, len(set(every)) == len(every), index.digest, **joined)


def _digest(counts: Sequence[int], extensions: Sequence[str], arrays: dict[str, Any]) -> str:
    digest = hashlib.blake2b(json.dumps([counts, extensions]).encode(), digest_size=16)
    for name in ("first", "key_stops", "size", "extension", "keys"):
        digest.update(memoryview(arrays[name]).cast("B"))
    return digest.hexdigest()


def _check_borders(index: TarIndex, paths: Sequence[str]) -> None:
    """Raises ShardError for a sample that begins in one tar and ends in the next one."""
    stops = np.cumsum(index.counts).tolist()
    starts = [0, *stops[:-1]]
    filled = [tar for tar in range(len(stops)) if starts[tar] < stops[tar]]
    for before, after in itertools.pairwise(filled):
        last, first = stops[before] - 1, starts[after]
        key, other = index.keys_of(np.array([last, first]))
        if key != other:
            continue
        held, more = ({*index.extension[index.first[n] : index.first[n + 1]].tolist()} for n in (last, first))
        if not held & more:
            raise ShardError(
                f"{paths[after]}: the sample {text_of(key)!r} is split: it begins at the end of {paths[before]}. Write "
                f"both again, with all members of a sample in one tar."
            )


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


def _pieces(index: TarIndex) -> Iterator[bytes]:
    """Yields the content of the index file: size of a head in JSON, the head, zeros up to a multiple of 8, arrays."""
    head = json.dumps(
        {
            "counts": index.counts,
            "extensions": index.extensions,
            "has_distinct_keys": index.has_distinct_keys,
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
    return TarIndex(counts, tuple(head["extensions"]), head["has_distinct_keys"], head["digest"], **arrays)


def _is_sound(index: TarIndex, tar_sizes: Sequence[int]) -> bool:
    """Whether all positions lie inside of what they point into."""
    if len(index.counts) != len(tar_sizes) or int(index.first[0]) != 0 or int(index.first[-1]) != len(index.offset):
        return False
    rising = bool((np.diff(index.first) > 0).all() and (np.diff(index.key_stops, prepend=0) > 0).all())
    if not rising or (len(index) and int(index.key_stops[-1]) != len(index.keys)):
        return False
    ends = np.repeat(np.repeat(tar_sizes, index.counts), np.diff(index.first))
    inside = (index.offset >= 512) & (index.size >= 0) & (index.size <= ends) & (index.offset <= ends - index.size)
    return bool(inside.all() and (index.extension < max(1, len(index.extensions))).all())
