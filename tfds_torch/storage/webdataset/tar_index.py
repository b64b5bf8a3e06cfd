"""The index of tars: where samples lie and what their members are called; built from headers once, kept in a file.

The table of the index file is JSON: path, size and modification time of every tar. Its content is a head in JSON, and
the arrays of a `TarIndex`, one behind the other.
"""

import hashlib
import itertools
import json
import logging
import mmap
import re
import struct
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.index_cache import DamagedIndexError, IndexCache, UnusableIndexError, index_path
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_files import LOCAL, ShardFiles, file_name, read_beside
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.webdataset.tar_members import BLOCK_BYTES, find_members

_logger = logging.getLogger(__name__)
_OF_THE_TAR = re.compile(rb"__[^/]*__($|/)")  # For example `__index__`, which belongs to no sample.
_OF_A_TOOL = re.compile(rb"(.*/)?__MACOSX/")
_LONGEST_SHOWN = 100
_MOST_EXTENSIONS = 2**16
_KEYS_AT_ONCE = 2**16
_MOST_SHOWN = 3
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


@dataclass(frozen=True)
class TarIndex:
    """The samples of tars, and their members; N samples with M members in all.

    Attributes:
        counts: number of samples of each tar.
        extensions: names of the members' extensions, each once.
        has_distinct_keys: whether no key is in two tars.
        num_skipped: number of files in each tar that belong to no sample.
        skipped: names of a few of these, for messages.
        digest: hash of keys, extensions and sizes; equal where number n means the same sample.
        first: int64 [N + 1], first member of each sample, and M.
        key_stops: int64 [N], where each key ends in `keys`.
        offset: int64 [M], offset of each member's content in its tar, in bytes.
        size: int64 [M], size of each member's content, in bytes.
        header_crc: uint32 [M], CRC32C of the header before the content.
        extension: uint16 [M], position of each member's extension in `extensions`.
        keys: uint8 [bytes], keys of all samples, one behind the other.
    """

    counts: tuple[int, ...]
    extensions: tuple[str, ...]
    has_distinct_keys: bool
    num_skipped: tuple[int, ...]
    skipped: tuple[str, ...]
    digest: str
    first: Int64Array
    key_stops: Int64Array
    offset: Int64Array
    size: Int64Array
    header_crc: NDArray[np.uint32]
    extension: NDArray[np.uint16]
    keys: NDArray[np.uint8]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.key_stops)

    def keys_of(self, index: Int64Array) -> list[bytes]:
        """Return the keys of samples, int64 [n]."""
        stops = self.key_stops[index].tolist()
        starts = np.where(index > 0, self.key_stops[index - 1], 0).tolist()
        return [self.keys[start:stop].tobytes() for start, stop in zip(starts, stops, strict=True)]

    def block_starts(self, start: int, stop: int, block_records: int) -> Int64Array:
        """Return the offsets in a tar at which blocks of neighbouring samples begin, int64 [k].

        Args:
            start: first sample of the tar.
            stop: the sample behind its last one.
            block_records: number of samples in a block; blocks are counted from sample 0 of all tars.
        """
        samples = np.arange(start + -start % block_records, stop, block_records, dtype=np.int64)
        return self.offset[self.first[samples]] - BLOCK_BYTES

    def find_key(self, key: bytes, start: int, stop: int) -> int | None:
        """Return the number of the sample with a key, among samples start..stop-1; None: there is no such sample."""
        ends = self.key_stops[start:stop]
        begins = np.concatenate([self.key_stops[start - 1 : start] if start else [0], ends[:-1]]).astype(np.int64)
        found = np.flatnonzero(ends - begins == len(key))
        for at in reversed(range(len(key))):  # The last bytes of keys differ most.
            found = found[self.keys[begins[found] + at] == key[at]]
        return start + int(found[0]) if len(found) else None

    def members_of(self, extensions: Sequence[str]) -> Int64Array:
        """Return int64 [N]: each sample's member with the first of these extensions that it has; -1: it has none."""
        rows = np.full(len(self), -1, np.int64)
        for name in reversed(extensions):
            if name in self.extensions:
                members = np.flatnonzero(self.extension == self.extensions.index(name))
                rows[np.searchsorted(self.first, members, side="right") - 1] = members
        return rows


def open_index(
    paths: Sequence[str],
    stamps: Sequence[Stamp],
    name: str,
    files: ShardFiles = LOCAL,
    note_scan: Callable[[int], object] = lambda _: None,
) -> TarIndex:
    """Map the index of these tars, or build it; where several processes start together, one builds it.

    Args:
        paths: absolute paths of the tars, or their URLs.
        stamps: size in bytes and version of each tar.
        name: one name for them all, for messages.
        files: access to the tars.
        note_scan: function that is called with the number of each tar that was scanned.

    Raises:
        ShardError: a tar is missing, compressed, does not have its stamp, or holds members that cannot be read by
            number; see `find_members`.
        CorruptRecordError: a tar was cut, or is not a tar.
    """
    sizes = [size for size, _ in stamps]

    def scan(place: int, advance: Advance) -> TarIndex:
        beside = read_beside(files, paths[place], index_beside(paths[place], stamps[place]))
        if beside is not None:
            return beside
        found = scan_tar(paths[place], advance, stamps[place], files)
        note_scan(place)
        return found

    return _index_cache(
        paths,
        stamps,
        name,
        lambda: join_indexes(scan_shards(scan, sizes, name, files.networks), paths),
        index_path(_FORMAT, paths),
    ).open()


def index_beside(path: str, stamp: Stamp) -> IndexCache[TarIndex]:
    """Return the index file that lies beside a tar; it names the tar by its file name alone."""
    name = file_name(path)

    def build() -> TarIndex:
        raise UnusableIndexError("it is read, not built")

    return _index_cache([name], [stamp], name, build, Path(name))


def _index_cache(
    names: Sequence[str], stamps: Sequence[Stamp], name: str, build: Callable[[], TarIndex], path: Path
) -> IndexCache[TarIndex]:
    shards, sizes = [[name, *stamp] for name, stamp in zip(names, stamps, strict=True)], [size for size, _ in stamps]
    return IndexCache(
        path,
        name,
        table=json.dumps({"format": _FORMAT, "shards": shards}).encode(),
        build=build,
        encode=_encode,
        decode=lambda content, start: _decode(content, start, sizes),
    )


def scan_tar(
    path: str, advance: Advance | None = None, stamp: Stamp | None = None, files: ShardFiles = LOCAL
) -> TarIndex:
    """Return the index of one tar; see `find_members` for the arguments and errors."""
    first, stops, offsets, sizes = array("q"), array("q"), array("q"), array("q")
    crcs, extensions, keys = array("I"), array("H"), bytearray()
    numbers: dict[bytes, int] = {}
    current, held = b"", set[int]()
    num_skipped, skipped = 0, list[str]()
    for member in find_members(path, advance, stamp, files):
        if _OF_THE_TAR.match(member.name):
            continue
        found = _split_name(member.name)
        if found is None:
            num_skipped += 1
            if len(skipped) < _MOST_SHOWN:
                shown = repr(text_of(member.name))
                skipped.append(shown if len(shown) <= _LONGEST_SHOWN else f"{shown[:_LONGEST_SHOWN]}...")
            continue
        key, extension = found
        number = numbers.setdefault(extension, len(numbers))
        if key != current or not first:
            current, held = key, set()
            if first:
                stops.append(len(keys))
            first.append(len(offsets))
            keys += key
        if number in held:
            raise ShardError(
                f"{path}: the sample {quoted(text_of(key))} has two members {quoted(text_of(extension))}: the second "
                f"one, {quoted(member.name)}, is at offset {member.offset}. Give each sample a key of its own."
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
    index = TarIndex(
        counts=(len(stops),),
        extensions=tuple(map(text_of, numbers)),
        has_distinct_keys=True,
        num_skipped=(num_skipped,),
        skipped=tuple(skipped),
        digest="",
        first=np.frombuffer(first, np.int64),
        key_stops=np.frombuffer(stops, np.int64),
        offset=np.frombuffer(offsets, np.int64),
        size=np.frombuffer(sizes, np.int64),
        header_crc=np.frombuffer(crcs, np.uint32),
        extension=np.frombuffer(extensions, np.uint16),
        keys=np.frombuffer(keys, np.uint8),
    )
    _check_not_split(index, path)
    return index


def _split_name(name: bytes) -> tuple[bytes, bytes] | None:
    """Return key and extension of a member: `train/0017` and `seg.png` of `train/0017.seg.PNG`.

    Returns:
        None for a member that belongs to no sample: its name has no extension (`README`) or nothing in front of it
        (`.DS_Store`, macOS's `._0017.png`), or it lies in macOS's `__MACOSX`. WebDataset skips such members outside of
        folders.
    """
    folder, slash, base = name.rpartition(b"/")
    stem, _, extension = base.partition(b".")
    if not stem or not extension or (b"__MACOSX/" in name and _OF_A_TOOL.match(name)):
        return None
    # As text: bytes only have lower case for ASCII.
    lower = extension.lower() if extension.isascii() else text_of(extension).lower().encode("utf-8", "surrogateescape")
    return folder + slash + stem, lower


def text_of(name: bytes) -> str:
    """Return a key or an extension as text; bytes that are not UTF-8 come back when it is encoded the same way."""
    return name.decode("utf-8", "surrogateescape")


def join_indexes(tars: Sequence[TarIndex], paths: Sequence[str]) -> TarIndex:
    """Return one index of several tars, in their order."""
    extensions = tuple(sorted({name for tar in tars for name in tar.extensions}))
    if len(extensions) >= _MOST_EXTENSIONS:
        raise ShardError(f"{paths[0]} and the other tars have more than {_MOST_EXTENSIONS - 1:,} extensions.")
    number = {name: place for place, name in enumerate(extensions)}
    renumbered = [np.array([number[name] for name in tar.extensions] or [0], np.uint16)[tar.extension] for tar in tars]
    num_members = np.cumsum([0, *(len(tar.offset) for tar in tars)])
    num_key_bytes = np.cumsum([0, *(len(tar.keys) for tar in tars)])
    first = [tar.first[:-1] + before for tar, before in zip(tars, num_members, strict=False)]
    stops = [tar.key_stops + before for tar, before in zip(tars, num_key_bytes, strict=False)]
    kept = ("offset", "size", "header_crc", "keys")
    joined: dict[str, Any] = {name: np.concatenate([getattr(tar, name) for tar in tars]) for name in kept}
    joined |= {
        "first": np.concatenate([*first, num_members[-1:]]),
        "key_stops": np.concatenate(stops),
        "extension": np.concatenate(renumbered),
    }
    counts = tuple(tar.counts[0] for tar in tars)
    num_skipped = tuple(tar.num_skipped[0] for tar in tars)
    skipped = tuple(name for tar in tars for name in tar.skipped)[:_MOST_SHOWN]
    digest = hashlib.blake2b(json.dumps([counts, extensions]).encode(), digest_size=16)
    for name in ("first", "key_stops", "size", "extension", "keys"):
        digest.update(memoryview(joined[name]).cast("B"))
    index = TarIndex(counts, extensions, True, num_skipped, skipped, digest.hexdigest(), **joined)
    _check_borders(index, paths)
    # Keys of one tar were found to be distinct when it was scanned.
    return index if len(tars) == 1 else replace(index, has_distinct_keys=_find_repeated_key(index) is None)


def _check_not_split(index: TarIndex, path: str) -> None:
    """Raise ShardError for a sample of a tar that has further members after other samples."""
    repeated = _find_repeated_key(index)
    if repeated is None:
        return
    (key,) = index.keys_of(np.array([repeated]))
    member = index.first[repeated]
    raise ShardError(
        f"{path}: the sample {quoted(text_of(key))} is split: its member "
        f"{quoted(index.extensions[index.extension[member]])} at "
        f"offset {index.offset[member]} comes after other samples. Write the tar again with the members of a sample "
        f"one behind the other (tar --sort=name)."
    )


def _find_repeated_key(index: TarIndex) -> int | None:
    """Return a sample whose key an earlier sample has; None: all keys are distinct.

    Of several such samples it is the second one with the earliest such key. Memory: about 20 bytes for each sample,
    rather than all keys.
    """
    hashes = np.empty(len(index), np.int64)
    for start in range(0, len(index), _KEYS_AT_ONCE):
        part = np.arange(start, min(start + _KEYS_AT_ONCE, len(index)))
        hashes[part] = [hash(key) for key in index.keys_of(part)]
    ordered = np.sort(hashes)
    alike = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(alike):
        return None
    for start in range(0, len(index), _KEYS_AT_ONCE):
        part = hashes[start : start + _KEYS_AT_ONCE]
        nearest = alike[np.minimum(np.searchsorted(alike, part), len(alike) - 1)]
        for number in (start + np.flatnonzero(nearest == part)).tolist():
            same_hash = np.flatnonzero(hashes[number:] == hashes[number]) + number
            key, *others = index.keys_of(same_hash)
            if key in others:
                return int(same_hash[1 + others.index(key)])
    return None


def _check_borders(index: TarIndex, paths: Sequence[str]) -> None:
    """Raise ShardError for a sample that begins in one tar and ends in the next one."""
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
                f"{paths[after]}: the sample {quoted(text_of(key))} is split: it begins at the end of "
                f"{paths[before]}. Write both again, with all members of a sample in one tar."
            )


def _encode(index: TarIndex) -> Iterator[bytes]:
    """Yield the content of the index file: size of a head in JSON, the head, zeros up to a multiple of 8, arrays."""
    head = {name: getattr(index, name) for name in ("counts", "extensions", "has_distinct_keys", "num_skipped")}
    head |= {"skipped": index.skipped, "digest": index.digest}
    text = json.dumps(head | {"num_members": len(index.offset), "num_key_bytes": len(index.keys)}).encode()
    yield (_HEAD_SIZE.pack(len(text)) + text).ljust(_array_start(len(text)), b"\0")
    for name, dtype in _ARRAYS.items():
        yield getattr(index, name).astype(dtype, copy=False).tobytes()


def _array_start(head_bytes: int) -> int:
    size = _HEAD_SIZE.size + head_bytes
    return size + -size % 8


def _decode(content: mmap.mmap | bytes, start: int, tar_sizes: Sequence[int]) -> TarIndex:
    try:
        (head_bytes,) = _HEAD_SIZE.unpack_from(content, start)
        head = json.loads(content[start + _HEAD_SIZE.size : start + _HEAD_SIZE.size + head_bytes])
        counts, members, at = tuple(head["counts"]), head["num_members"], start + _array_start(head_bytes)
        lengths = {"first": sum(counts) + 1, "key_stops": sum(counts), "keys": head["num_key_bytes"]}
        arrays: dict[str, Any] = {}
        for name, dtype in _ARRAYS.items():
            length = lengths.get(name, members)
            arrays[name] = np.frombuffer(content, dtype, length, at) if length else np.empty(0, dtype)
            at += arrays[name].nbytes
        skipped = tuple(head["num_skipped"]), tuple(head["skipped"])
        index = TarIndex(
            counts, tuple(head["extensions"]), head["has_distinct_keys"], *skipped, head["digest"], **arrays
        )
        is_sound = at == len(content) and _is_inside(index, tar_sizes)
    except (ValueError, KeyError, TypeError, struct.error, OverflowError, MemoryError) as error:
        raise DamagedIndexError("it does not hold the index of tars") from error
    if not is_sound:
        raise DamagedIndexError("it cannot be that of these tars")
    return index


def _is_inside(index: TarIndex, tar_sizes: Sequence[int]) -> bool:
    """Return whether all positions lie inside of the arrays and tars they point into, against a forged index."""
    first, stops = np.diff(index.first, prepend=-1), np.diff(index.key_stops, prepend=0)
    ends = np.repeat(np.repeat(tar_sizes, index.counts), first[1:])
    return bool(
        first[0] == 1
        and (first > 0).all()
        and (stops > 0).all()
        and index.first[-1] == len(index.offset)
        and stops.sum() == len(index.keys)
        and (index.offset >= BLOCK_BYTES).all()
        and (index.size >= 0).all()
        and (index.offset <= ends - index.size).all()
        and (index.extension < max(1, len(index.extensions))).all()
    )
