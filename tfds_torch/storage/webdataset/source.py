"""WebDatasetSource: the samples of WebDataset's tars as a Source."""

import copy
import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.plan.order import ExampleRanges, Int64Array, unique
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.network import Network
from tfds_torch.storage.open_files import ProcessLock, Stamp
from tfds_torch.storage.shard_files import LOCAL, RangeReader, ShardFiles, schedule_of
from tfds_torch.storage.source import (
    Columns,
    FieldSpec,
    FileInstruction,
    LazyIds,
    ReadByNumber,
    not_found,
    such_as,
)
from tfds_torch.storage.webdataset.name_hints import dot_hint, folder_hint
from tfds_torch.storage.webdataset.reader import TarReader
from tfds_torch.storage.webdataset.shard_paths import look_at, shard_paths
from tfds_torch.storage.webdataset.tar_index import TarIndex, open_index, text_of
from tfds_torch.storage.webdataset.tar_members import BLOCK_BYTES, TAR_REMEDY

_logger = logging.getLogger(__name__)
_REMEDY = "leave out such samples with missing='skip', or read None for what they lack with missing='none'; or "


class _FieldMembers(NamedTuple):
    """Where the values of a field lie.

    Attributes:
        members: int64 [N], number of the member of each sample; -1: the sample lacks a member.
        num_without: number of samples that lack a member.
    """

    members: Int64Array
    num_without: int


class WebDatasetSource(ReadByNumber):
    """A `Source` of tars. Making it maps their index, which is built where there is no index; see `open_index`.

    Values are the bytes of members, and None where a sample lacks a member. An extension of no field can be read by
    its name. The id of a sample is its key; where two tars hold the same key, ids are `<tar>/<key>` for all samples,
    with the tar's path below the folder of them all.

    Args:
        urls: paths or URLs of the tars, as `shard_paths` takes them.
        fields: name -> extension, or several separated by ";", of which the first that a sample has is taken.
        files: access to the tars.
        is_complete: whether every sample must have the fields that others have.

    Raises:
        ConfigError: `urls` names no tar, or there is no such field.
        ShardError: a tar is missing, or holds members that cannot be read by number; a sample lacks a field that others
            have, where it must not.
        CorruptRecordError: a tar was cut, or a file is not a tar.
    """

    def __init__(
        self, urls: object, fields: Mapping[str, str], files: ShardFiles = LOCAL, *, is_complete: bool = True
    ) -> None:
        self.paths, self.files = shard_paths(urls), files
        self._blocks_of_order: int | None = None
        self._scanned: list[int] = []  # Tars that were fetched as wholes.
        self.alternatives = {name: _alternatives(name, extensions) for name, extensions in fields.items()}
        self._stamps = self._look()
        self._index: TarIndex | None = None
        self._members: dict[str, _FieldMembers] = {}
        self._reader: TarReader | None = None
        self._read_last: tuple[str, ...] = ()
        self._lock = ProcessLock()
        self._digest = self.index.digest
        self._report_skipped()
        for name in fields if is_complete else ():
            self.check_field(name)

    def __getstate__(self) -> dict[str, Any]:
        # The process that opens the tars first cuts the tars that were fetched as wholes.
        state = {**self.__dict__, "_index": None, "_members": {}, "_reader": None, "_scanned": list(self._scanned)}
        state.pop("_starts", None)
        return state

    @property
    def index(self) -> TarIndex:
        """The index of the samples; it is mapped again in a process that got a pickled source."""
        index = self._index
        if index is None:
            with self._lock:
                if self._index is None:
                    self._index = self._open_index()
                index = self._index
        return index

    @property
    def name(self) -> str:
        """The file name of one tar; the first and last file name of several tars."""
        names = self._tar_names
        return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"

    @property
    def identity(self) -> object:
        """A digest of keys, extensions and sizes of the samples, whichever members are read."""
        return [self._digest]

    @property
    def stamps(self) -> object:
        """Size and time of each tar."""
        return self._look()

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields of the samples, all of bytes."""
        return MappingProxyType({name: FieldSpec((), object) for name in self.alternatives if self.has(name)})

    @property
    def instructions(self) -> Sequence[FileInstruction]:
        """The tars that hold samples."""
        return tuple(
            FileInstruction(path, 0, count, start, count)
            for path, count, start in zip(self.paths, self.index.counts, self._starts, strict=False)
            if count
        )

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of a sample, all its members and their headers included."""
        return sum(size for size, _ in self._stamps) // max(1, len(self))

    @property
    def networks(self) -> Collection[Network]:  # type: ignore[override]
        """The networks over which remote files come; see `Source`."""
        return self.files.networks

    @property
    def block_records(self) -> int | None:  # type: ignore[override]
        """Number of neighbouring samples that are best read together; see `Source`."""
        return self.files.block_records(self.mean_example_bytes)

    def in_blocks(self, block_records: int | None) -> "WebDatasetSource":
        """Return this source, read in an order of such blocks; see `Source`."""
        if self.files.are_local or block_records == self._blocks_of_order:
            return self
        other = copy.copy(self)  # Like a pickled source, the copy has no open file.
        other._blocks_of_order, other._index, other._lock = block_records, self._index, ProcessLock()
        return other

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_skipped(self) -> int:
        """Number of files that belong to no sample, like those that tar tools leave."""
        return sum(self.index.num_skipped)

    def alternatives_of(self, name: str) -> tuple[str, ...]:
        """Return the extensions of a field: those in `fields`, else its name where that is one; empty: neither."""
        return self.alternatives.get(name) or ((name,) if name in self.index.extensions else ())

    def has(self, name: str) -> bool:
        """Return whether the samples have a field, or some of them."""
        return self._members_of(name).num_without < len(self)

    def num_without(self, name: str) -> int:
        """Return how many samples lack a field."""
        return self._members_of(name).num_without

    def complete(self, names: Sequence[str]) -> NDArray[np.bool_]:
        """Return which samples have all the given fields, bool [N]."""
        found = np.ones(len(self), np.bool_)
        for name in names:
            found &= self._members_of(name).members >= 0
        return found

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Compare the tars with their sizes and times, and open them; see `Source`."""
        # Objects are compared with their stamps whenever a part of them is fetched.
        stamps = look_at(self.paths) if self.files.are_local else self._stamps
        if stamps != self._stamps:
            was, self._stamps = self._stamps, stamps
            try:
                index = self._open_index()
            except ShardError:
                self._stamps = was
                raise
            with self._lock:
                self._index, self._reader, self._members = index, None, {}
        self._opened()

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return encoded values of samples in the order asked; see `Source`."""
        index = self._checked(index)
        of_fields = [self._members_of(name) for name in fields]
        for name, own in zip(fields, of_fields, strict=True):
            if 0 < len(self) == own.num_without:
                wanted = " or ".join(f".{one}" for one in self.alternatives_of(name))
                raise ConfigError(
                    f"{self.name}: no sample has the field {quoted(name)}, a member {wanted}. "
                    f"Read fields that are there: {', '.join(self.specs) or 'none'}."
                )
        self._read_last = tuple(fields)
        # All fields together, because the members of a sample lie side by side.
        members = np.concatenate([np.empty(0, np.int64), *(own.members[index] for own in of_fields)])
        found: list[Any] = self._opened().read(members[members >= 0])
        if len(found) < len(members):
            contents = iter(found)
            found = [next(contents) if is_there else None for is_there in (members >= 0).tolist()]
        return {name: found[at * len(index) : (at + 1) * len(index)] for at, name in enumerate(fields)}

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Fetch the blocks of an order's next windows ahead; see `Source`."""
        if not self.files.are_local:
            self._opened().follow(schedule_of(windows, self._blocks_in))

    def _blocks_in(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Yield the blocks in which samples start..stop-1 lie: the tar, and the number of the block among its cuts."""
        (tar,) = self._tar_of(np.array([start], np.int64)).tolist()
        while start < stop:
            end, cuts = min(stop, self._starts[tar + 1]), self._cuts(tar)
            if start < end:
                offsets = self.index.offset[self.index.first[[start, end - 1]]] - BLOCK_BYTES
                low, high = (np.searchsorted(cuts, offsets, side="right") - 1).tolist()
                yield from ((tar, number) for number in range(low, high + 1))
            start, tar = max(start, end), tar + 1

    def announce(self, index: Int64Array) -> None:
        """Ask the system to read members ahead, of the fields that were read last; only reading reports errors."""
        try:
            index = self._checked(index)
            if self._read_last:
                members = np.concatenate([self._members_of(name).members[index] for name in self._read_last])
                self._opened().advise(members[members >= 0])
        except ShardError:
            pass

    def ids(self, index: Int64Array) -> LazyIds:
        """Return the keys of samples, or `<tar>/<key>` where keys are in several tars."""
        return LazyIds(self._name_samples, self._checked(index))

    def find(self, id: str) -> int:
        """Return the number of the sample that has an id; no tar is read."""
        if self.index.has_distinct_keys:
            places = [(0, len(self), id)]
        else:
            rest = [(tar, id.removeprefix(f"{name}/")) for tar, name in enumerate(self._tar_names)]
            places = [(self._starts[tar], self._starts[tar + 1], key) for tar, key in rest if key != id]
        for start, stop, key in places:
            try:
                found = self.index.find_key(key.encode("utf-8", "surrogateescape"), start, stop) if key else None
            except UnicodeEncodeError:  # The id has a lone surrogate, which no key has.
                found = None
            if found is not None:
                return found
        raise not_found(self, id, f"it has {len(self)} samples{such_as(self)}.")

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for a sample whose content cannot be decoded; see `Source`."""
        return CorruptRecordError(
            f"{self.describe(index)} (index {index}) cannot be decoded: it is damaged, or was written that way. "
            f"{reason}"
        )

    def describe(self, index: int) -> str:
        """Return tar and key of a sample, for messages."""
        one = np.array([index], np.int64)
        (tar,), (key,) = self._tar_of(one).tolist(), self.index.keys_of(one)
        return f"{self.paths[tar]}: sample {quoted(text_of(key))}"

    def close(self) -> None:
        """Close the tars; the next read opens them again."""
        with self._lock:
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _opened(self) -> TarReader:
        index, reader = self.index, self._reader
        if reader is None:
            with self._lock:
                reader = self._reader = self._reader or TarReader(index, self.paths, self._open_files())
        return reader

    def _open_files(self) -> RangeReader:
        while self._scanned:
            tar = self._scanned.pop()
            self.files.cut(self.paths[tar], self._stamps[tar], self._cuts(tar))
        return self.files.open(self.paths, self._stamps, self._cuts, remedy=TAR_REMEDY)

    def _cuts(self, tar: int) -> Int64Array:
        """Return the offsets at which the blocks of a tar begin, 0 first, its size last."""
        block_records = self._blocks_of_order or self.block_records or 1
        starts = self.index.block_starts(self._starts[tar], self._starts[tar + 1], block_records)
        return unique(np.concatenate([starts, np.array([0, self._stamps[tar][0]], np.int64)])).values

    def _look(self) -> tuple[Stamp, ...]:
        return look_at(self.paths) if self.files.are_local else tuple(self.files.stamps(self.paths))

    def _open_index(self) -> TarIndex:
        index = open_index(self.paths, self._stamps, self.name, self.files, self._scanned.append)
        if index.digest != self.__dict__.get("_digest", index.digest):
            raise ShardError(
                f"{self.name} changed while it was in use: the tars hold other samples now. Start again with files "
                f"that no process writes to."
            )
        return index

    def _members_of(self, name: str) -> _FieldMembers:
        alternatives = self.alternatives_of(name)
        if not alternatives:
            raise ConfigError(
                f"{self.name} has no field {quoted(name)}: its fields are {', '.join(self.alternatives)}."
            )
        found = self._members.get(name)
        if found is None:
            members = self.index.members_of(alternatives)
            found = self._members[name] = _FieldMembers(members, int(np.count_nonzero(members < 0)))
        return found

    def check_field(self, name: str, among: Int64Array | None = None, remedy: str = _REMEDY) -> None:
        """Raise ShardError for a field that some samples have, and others lack.

        Args:
            name: name of the field.
            among: the samples that must have it, int64 [n]; None: all samples.
            remedy: advice, which is a part of the message.
        """
        (members, num_without), alternatives = self._members_of(name), self.alternatives_of(name)
        if not 0 < num_without < len(members):
            return
        numbers = np.arange(len(members)) if among is None else among
        without = numbers[members[numbers] < 0]
        if not len(without):
            return
        index, wanted = int(without[0]), " or ".join(f".{one}" for one in alternatives)
        known = ";".join(alternatives)
        held = slice(*self.index.first[index : index + 2].tolist())
        has = ", ".join(repr(self.index.extensions[one]) for one in self.index.extension[held].tolist())
        raise ShardError(
            f"{self.describe(index)} has no member {wanted} for the field {quoted(name)}, as "
            f"{len(members) - num_without} other samples have; it has {has}. {len(without)} of {len(numbers)} samples "
            f"lack it. Where the field goes by another extension as well, name its extension in "
            f"fields={{{quoted(name)}: '{known};...'}}; otherwise {remedy}leave the field out of fields=, or write the "
            f"tars again with it.{self._hint(alternatives, held)}"
        )

    def _hint(self, wanted: Sequence[str], held: slice) -> str:
        """Return a hint on the wanted extensions, which a sample lacks; `held` are its members."""
        ends = tuple(f".{extension}" for extension in wanted)
        own = [self.index.extensions[one] for one in self.index.extension[held].tolist()]
        alike = [one for one in own if one.endswith(ends)]
        return folder_hint(self.index, wanted) or (dot_hint(alike) if alike else "")

    def _report_skipped(self) -> None:
        """Log how many files belong to no sample; raise ShardError where no file belongs to a sample."""
        if not self.num_skipped:
            return
        shown = ", ".join(self.index.skipped)
        if not len(self):
            raise ShardError(
                f"{self.name} has no samples: the names of all its files ({self.num_skipped}, such as {shown}) lack "
                f"an extension or begin with a dot. Names are <key>.<extension>, such as '0017.jpg' and '0017.cls': "
                f"write the tars again with such names."
            )
        _logger.warning(
            "%s: files that belong to no sample are skipped: %d, such as %s. Names are <key>.<extension>.",
            self.name,
            self.num_skipped,
            shown,
        )

    def _checked(self, index: Int64Array) -> Int64Array:
        index = np.asarray(index, np.int64)
        outside = (index < 0) | (index >= len(self))
        if outside.any():
            raise ExampleNotFoundError(
                f"{self.name} has no example {index[outside][0]}: it has {len(self)} samples, counted from 0."
            )
        return index

    def _name_samples(self, index: Int64Array) -> list[str]:
        keys = map(text_of, self.index.keys_of(index))
        if self.index.has_distinct_keys:
            return list(keys)
        names = self._tar_names
        return [f"{names[one]}/{key}" for one, key in zip(self._tar_of(index).tolist(), keys, strict=True)]

    def _tar_of(self, index: Int64Array) -> Int64Array:
        return np.searchsorted(np.array(self._starts, np.int64), index, side="right") - 1

    @cached_property
    def _starts(self) -> list[int]:
        """First sample of each tar, and the number of all samples."""
        return [0, *accumulate(self.index.counts)]

    @cached_property
    def _tar_names(self) -> list[str]:
        """The paths of the tars below the folder that holds them all."""
        paths = [path.partition("://")[2] or path for path in self.paths]
        folder = os.path.dirname(paths[0])
        if len(paths) > 1:
            folder = os.path.commonpath([os.path.dirname(path) for path in paths])
        return [os.path.relpath(path, folder) for path in paths]


def _alternatives(name: str, extensions: object) -> tuple[str, ...]:
    parts = (
        [part.strip().lower().removeprefix(".") for part in extensions.split(";")]
        if isinstance(extensions, str)
        else []
    )
    if not parts or "" in parts:
        raise ConfigError(
            f"fields[{quoted(name)}]={quoted(extensions)} must be an extension, or several with ';' between them, "
            f"such as 'jpg;jpeg;png'."
        )
    return tuple(dict.fromkeys(parts))
