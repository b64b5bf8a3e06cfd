"""From the members of tars to an index of their samples."""

import hashlib
import itertools
import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tfds_torch.errors import ShardError
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_scans import Advance
from tfds_torch.storage.webdataset.sample_names import is_metadata, show_name, split_name, text_of
from tfds_torch.storage.webdataset.tar_index import TarIndex
from tfds_torch.storage.webdataset.tar_members import find_members

_MOST_EXTENSIONS = 2**16
_KEYS_AT_ONCE = 2**16
_MOST_SHOWN = 3


def scan_tar(path: str, advance: Advance | None = None, stamp: Stamp | None = None) -> TarIndex:
    """Returns the index of one tar.

    Args:
        path: of the tar.
        advance: as `find_members` takes it.
        stamp: as `open_shard` takes it.

    Raises:
        ShardError: its members are not samples, or cannot be read by number; see `find_members`.
        CorruptRecordError: it was cut, or is not a tar.
    """
    first, stops, offsets, sizes = array("q"), array("q"), array("q"), array("q")
    crcs, extensions, keys = array("I"), array("H"), bytearray()
    numbers: dict[bytes, int] = {}
    current, held = b"", set[int]()
    num_skipped, skipped = 0, list[str]()
    for member in find_members(path, advance, stamp):
        if is_metadata(member.name):
            continue
        found = split_name(member.name)
        if found is None:
            num_skipped += 1
            if len(skipped) < _MOST_SHOWN:
                skipped.append(show_name(member.name))
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


def join_indexes(tars: Sequence[TarIndex], paths: Sequence[str]) -> TarIndex:
    """Returns one index of several tars, in their order.

    Raises:
        ShardError: a sample begins in one tar and ends in the next one.
    """
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
    num_skipped = tuple(tar.num_skipped[0] for tar in tars)
    skipped = tuple(name for tar in tars for name in tar.skipped)[:_MOST_SHOWN]
    digest = _digest(counts, extensions, joined)
    index = TarIndex(counts, extensions, True, num_skipped, skipped, digest, **joined)
    _check_borders(index, paths)
    # Those of one tar were found to be distinct when it was scanned.
    return index if len(tars) == 1 else replace(index, has_distinct_keys=_find_repeated_key(index) is None)


def _digest(counts: Sequence[int], extensions: Sequence[str], arrays: dict[str, Any]) -> str:
    digest = hashlib.blake2b(json.dumps([counts, extensions]).encode(), digest_size=16)
    for name in ("first", "key_stops", "size", "extension", "keys"):
        digest.update(memoryview(arrays[name]).cast("B"))
    return digest.hexdigest()


def _check_not_split(index: TarIndex, path: str) -> None:
    """Raises ShardError for a sample of a tar that goes on after other samples."""
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
    """Returns a sample whose key an earlier one has; None: all keys are distinct.

    Of several it is the next one with the earliest such key. Memory: some 20 bytes a sample, and not all keys.
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
                f"{paths[after]}: the sample {quoted(text_of(key))} is split: it begins at the end of "
                f"{paths[before]}. Write both again, with all members of a sample in one tar."
            )
