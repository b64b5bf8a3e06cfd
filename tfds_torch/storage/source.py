"""Source: the encoded examples of one split and their ids, by number; the registry of the formats that have one."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, TypeVar, overload

import numpy as np

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.runtime.examples_at_work import Notes
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.network import Network


@dataclass(frozen=True, slots=True)
class FileInstruction:
    """Consecutive records of one shard file, or consecutive images of one split of an image folder.

    Attributes:
        path: the shard, a local path or a URL that tensorflow can read; or the split's folder.
        skip: number of records before the first one.
        take: number of records.
        first_index: index of the first one in the split.
        num_in_shard: number of records in the whole shard according to `dataset_info.json`; or of images in the split.
    """

    path: str
    skip: int
    take: int
    first_index: int
    num_in_shard: int


def is_local(path: str) -> bool:
    """Return whether a path names a file of this machine rather than a URL (`gs://...`)."""
    return "://" not in path


_Self = TypeVar("_Self")

Columns = Mapping[str, Any]
"""Stored field -> its n values: an array [n, ...] where they have one size, else a sequence of n values."""


@dataclass(frozen=True)
class FieldSpec:
    """One field of an example.

    Attributes:
        shape: shape of one value; None where a side varies. With more than one None, values are nested lists of arrays.
        dtype: dtype of numpy; `object` for bytes and texts.
        default: the value for an example that lacks the field; None: such an example is an error.
    """

    shape: tuple[int | None, ...]
    dtype: Any
    default: Any = None


@dataclass(slots=True, eq=False, repr=False)
class LazyIds(Sequence[str]):
    """Ids of examples, each computed when it is looked at: equal to the list of them, and pickled as that list.

    Attributes:
        names_of: function: example numbers, int64 [m] -> their m ids.
        numbers: int64 [n], numbers of the examples.
    """

    names_of: Callable[[Int64Array], Sequence[str]]
    numbers: Int64Array

    __hash__ = None  # type: ignore[assignment]  # Like a list.

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, place: int) -> str: ...

    @overload
    def __getitem__(self, place: slice) -> "LazyIds": ...

    def __getitem__(self, place: int | slice) -> "str | LazyIds":
        if isinstance(place, slice):
            return LazyIds(self.names_of, self.numbers[place])
        return self.names_of(self.numbers[place].reshape(1))[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names_of(self.numbers))

    def __contains__(self, one: object) -> bool:
        return one in list(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | tuple | LazyIds):
            return NotImplemented
        return len(self) == len(other) and list(self) == list(other)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)

    def __repr__(self) -> str:
        first = f", {quoted(self[0])} first" if len(self) else ""
        return f"<{len(self)} ids{first}>"


class Source(Protocol):
    """The encoded examples of one split, by number.

    It can be pickled, and is built without reading a file: files are opened when the first example is read. A forked
    process continues to use a source of its parent. Threads may share a source.
    """

    @property
    def name(self) -> str:
        """Name of the dataset, for messages: `name/config:version`."""

    @property
    def identity(self) -> object:
        """Plain JSON values, equal where number n means the same example; without paths and times."""

    @property
    def stamps(self) -> object:
        """Plain JSON values that differ once a file has changed; raises ShardError where a file is missing."""

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The fields of an example, as they are stored."""

    @property
    def instructions(self) -> Sequence[FileInstruction]:
        """The split as consecutive examples of files, none of them empty, in the order of their numbers."""

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example, in bytes."""

    @property
    def obstacle(self) -> str | None:
        """Why examples cannot be read by number, as a clause; None: they can."""

    @property
    def can_stream(self) -> bool:
        """Whether tf.data can stream the records of the files."""

    @property
    def has_shards(self) -> bool:
        """Whether a file holds many examples, so that whole files can be distributed to pipelines."""

    @property
    def block_records(self) -> int | None:
        """Number of neighbouring examples that are best read together from remote files; None: any order is as good."""

    @property
    def networks(self) -> Collection[Network]:
        """The networks over which remote files come in this process; empty: all files lie on this machine."""

    @property
    def is_one_threaded(self) -> bool:
        """Whether a process may read only with the thread that asks for the examples."""

    def __len__(self) -> int:
        """Return the number of examples."""

    def with_checksums(self, verify_checksums: bool) -> "Source":
        """Return this source with values compared with checksums, or not, where files have checksums."""

    def in_blocks(self, block_records: int | None) -> "Source":
        """Return this source for an order in blocks (None: without them); remote files are fetched in these blocks."""

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Announce the windows of an order, so that remote files are fetched ahead; a new call replaces the last one.

        Args:
            windows: yields lazily, in the order of reading, the ranges of neighbouring examples from which each window
                of an order in blocks takes its examples: first numbers, and those behind the last ones, int64 [n] both.
        """

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Compare local files with the promises of the dataset; files that were checked before, only with their stamps.

        Args:
            streamed: paths of `instructions` whose records will be streamed, where `can_stream` is true; None: any
                example will be read by number.

        Raises:
            ShardError: a file is missing, is not a regular file, or holds another number of examples than promised.
            CorruptRecordError: a file ends inside a record, or a header is damaged.
        """

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return encoded values of examples in the order asked.

        Args:
            index: int64 [n], numbers of the examples; a number may occur twice. With n = 0 the result has no rows.
            fields: names of the wanted fields of `specs`.

        Raises:
            ExampleNotFoundError: an index outside the split.
            ShardError: a file is missing, changed, or cannot be read.
            CorruptRecordError: an example is damaged, or lacks a field.
        """

    def parse(self, records: Sequence[bytes], index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return encoded values of records that were read elsewhere; called where `can_stream` is true.

        Args:
            records: n encoded records.
            index: int64 [n], numbers of their examples, for messages.
            fields: names of the wanted fields of `specs`.

        Raises:
            CorruptRecordError: a record is not an example, or lacks a field.
        """

    def announce(self, index: Int64Array) -> None:
        """Take the numbers of examples, int64 [n], that will be read soon; return at once."""

    def ids(self, index: Int64Array) -> Sequence[str]:
        """Return the ids of examples, int64 [n]: a list, or LazyIds."""

    def find(self, id: str) -> int:
        """Return the number of the example that has an id; no example is read.

        Raises:
            ExampleNotFoundError: no example has it; the message names the nearest id.
        """

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for an example whose content cannot be decoded; it names the place of the example, and why.

        Args:
            index: number of the example.
            reason: why it cannot be decoded, a sentence.
        """

    def close(self) -> None:
        """Close the files; the next read opens them again."""


@dataclass(frozen=True)
class ItemCalls:
    """Seeds and notes that are set before each call of a user's function for one of n examples.

    Attributes:
        seeds: n seeds of random numbers, 0 to 2**63 - 1; None: random numbers are not seeded.
        notes: how each example is noted as the current one; None: no example is noted.
    """

    seeds: Sequence[int] | None = None
    notes: Notes | None = None

    def of(self, places: Int64Array) -> "ItemCalls":
        """Return the calls for the examples at some places, int64 [m]."""
        some = places.tolist()
        seeds = None if self.seeds is None else [self.seeds[place] for place in some]
        if self.notes is None:
            return ItemCalls(seeds)
        return ItemCalls(seeds, Notes([self.notes.values[place] for place in some], self.notes.cells))


class DrawingSource(Protocol):
    """A source that may call functions of users, which may draw random numbers."""

    @property
    def calls_functions(self) -> bool:
        """Whether reading an example calls functions of users."""

    def read_calling(self, index: Int64Array, fields: Sequence[str], calls: ItemCalls | None) -> Columns:
        """Return the values that `Source.read` returns, with seeds and notes set before each item.

        Args:
            index: int64 [n], numbers of the examples; see `Source.read`.
            fields: names of the wanted fields; see `Source.read`.
            calls: seeds and notes to set before each item; None: nothing is set.
        """


def not_found(source: Source, id: str, reason: str) -> ExampleNotFoundError:
    """Return the error for an id that no example of a source has; `reason` is a clause."""
    return ExampleNotFoundError(f"{source.name}: there is no example {quoted(id)}: {reason}")


def such_as(source: Source) -> str:
    """Return an example of a source's ids, for messages; "" where the source has no examples."""
    return f", such as {quoted(source.ids(np.zeros(1, np.int64))[0])}" if len(source) else ""


class ReadByNumber:
    """The part of `Source` that is the same for all formats whose examples are only read by number."""

    has_shards = True
    is_one_threaded = False
    can_stream = False
    obstacle: str | None = None
    block_records: int | None = None
    networks: Collection[Network] = ()

    def with_checksums(self: _Self, verify_checksums: bool) -> _Self:
        """Return this source: its files have no checksums, or these are always verified."""
        return self

    def in_blocks(self: _Self, block_records: int | None) -> _Self:
        """Return this source, which reads equally well in any order."""
        return self

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Do nothing: this source does not fetch windows ahead."""

    def parse(self: Source, records: Sequence[bytes], index: Int64Array, fields: Sequence[str]) -> Columns:
        """Raise ConfigError: there are no records that other code could read."""
        raise ConfigError(f"{self.name} has no records: its examples are read by number only.")


_FORMATS = {
    "tfrecord": "tfds_torch.storage.tfrecord.source:TfrecordSource",
    "array_record": "tfds_torch.storage.array_record.source:ArrayRecordSource",
    "image_folder": "tfds_torch.storage.map_style.image_folder:ImageFolderSource",
    "beton": "tfds_torch.storage.beton.source:BetonSource",
    "webdataset": "tfds_torch.storage.webdataset.source:WebDatasetSource",
    "map_style": "tfds_torch.storage.map_style.source:MapStyleSource",
}
"""Format -> its Source. A new format is a folder of this room and a line here."""

_NOT_OF_TFDS = {"image_folder", "beton", "webdataset", "map_style"}
"""Formats in which TFDS prepares no dataset."""

_REFUSED = {
    "parquet": "TFDS 4.9.10 writes them with records missing (1,000 written, 400 found), so they are not to be relied "
    "on. Prepare the dataset again as 'tfrecord' or 'array_record': tfds.builder(<name>, data_dir=<another root>, "
    "file_format='tfrecord').download_and_prepare()",
    "riegeli": "they have no random access. Convert the dataset: tfds convert_format --dataset_version_dir=<its "
    "version directory> --out_file_format=tfrecord --out_dir=<another one>",
}


def source_type(file_format: str) -> Any:
    """Return the class of a format's Source; raise ConfigError for a format that is not read."""
    if file_format not in _FORMATS:
        readable = " and ".join(map(repr, sorted(set(_FORMATS) - _NOT_OF_TFDS, reverse=True)))
        why = _REFUSED.get(
            file_format,
            "Convert the dataset: tfds convert_format --dataset_version_dir=<its version directory> "
            "--out_file_format=tfrecord --out_dir=<another one>",
        )
        what = f"Files of the format {quoted(file_format)} are not read (what can be read is {readable})"
        raise ConfigError(f"{what}{': ' if file_format in _REFUSED else '. '}{why}.")
    module, _, name = _FORMATS[file_format].partition(":")
    return getattr(import_module(module), name)
