"""MixtureSource: the examples of several parsers as one Source, and fields that each member decodes in its own way."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, tee
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import SAMPLES, FieldDecoder, ImagesBeside, Samples, TensorImageField
from tfds_torch.engines.window_fields import WindowImageField
from tfds_torch.errors import CorruptRecordError, ExampleNotFoundError
from tfds_torch.images.beside import Kind
from tfds_torch.images.decoding import BadImageError
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.plan.order import ExampleRanges, Int64Array
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.network import Network
from tfds_torch.storage.source import (
    Columns,
    DrawingSource,
    FieldSpec,
    FileInstruction,
    ItemCalls,
    LazyIds,
    ReadByNumber,
    not_found,
)
from tfds_torch.storage.stored_pixels import MergedPixels, StoredPixels

MEMBER = "member"
"""The field that says which member an example is of, int64."""

IMAGE = "image"

_ENCODED = "encoded:"  # Before the name of a field that is handed over as it is stored.
_OF_MEMBER = "of member:"  # Before a member's number and the name of a field that only this member need have.
_MOST_NAMED = 3
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Part:
    """The examples of one member among n examples.

    Attributes:
        member: its number.
        places: int64 [k], their positions among the n, ascending.
        index: int64 [k], their numbers in the member.
        columns: stored field of the member -> k encoded values.
    """

    member: int
    places: Int64Array
    index: Int64Array
    columns: Columns

    def cut(self, start: int, stop: int) -> "Part":
        """Return the part at the places start..stop-1; its places are counted from `start` on."""
        first, last = np.searchsorted(self.places, (start, stop)).tolist()
        columns = {name: values[first:last] for name, values in self.columns.items()}
        return Part(self.member, self.places[first:last] - start, self.index[first:last], columns)


@dataclass(frozen=True)
class EncodedParts:
    """A field of n examples, as their members store it."""

    size: int
    parts: Sequence[Part]

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, some: slice) -> "EncodedParts":
        start, stop, _ = some.indices(self.size)
        parts = [part.cut(start, stop) for part in self.parts]
        return EncodedParts(max(0, stop - start), [part for part in parts if len(part.places)])

    def merged(self, values_of: Callable[[Part], Any]) -> Any:
        """Return the n values that a function makes of the parts.

        The values of a single part come as they are; arrays of one dtype and size become one array; images that are
        stored as pixels of one size stay so; else the result is a list.
        """
        values = [values_of(part) for part in self.parts]
        if len(values) == 1:
            return values[0]
        places = [part.places for part in self.parts]
        if values and all(isinstance(one, StoredPixels) and one.shape == values[0].shape for one in values):
            return MergedPixels(values, places)
        kinds = {(one.dtype, one.shape[1:]) if isinstance(one, np.ndarray) else None for one in values}
        if len(kinds) == 1 and None not in kinds:
            array = np.empty_like(values[0], shape=(self.size, *values[0].shape[1:]))  # Also their order in memory.
            array[np.concatenate(places)] = np.concatenate(values)
            return array
        merged: list[Any] = [None] * self.size
        for place, value in zip(np.concatenate([*places, _NONE]).tolist(), chain.from_iterable(values), strict=True):
            merged[place] = value
        return merged


def _decode_part(decoder: FieldDecoder, part: Part, samples: Samples | None) -> Any:
    """Return the values of one member's examples; raise BadImageError with the position among all."""
    try:
        own = {} if samples is None else {SAMPLES: samples.at(part.places)}
        return decoder.decode({**part.columns, **own})
    except BadImageError as error:  # Its position is that in the part.
        raise type(error)(int(part.places[error.position]), error.reason) from None


@dataclass(frozen=True)
class MixedField:
    """A field that each member decodes in its own way.

    Attributes:
        key: its name in `MixtureSource.read`.
        members: decodes the values of each member, by its number.
        array: shape and dtype of one value, where all are of one size and come as an array; None: they come as a list.
    """

    key: str
    members: tuple[FieldDecoder, ...]
    array: tuple[tuple[int, ...], Any] | None = None

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,)

    def decode(self, columns: Columns) -> Any:
        """Return n values: an array [n, ...] where the members declare one size, else a list.

        Images of windows are an array wherever they are of one size: in a list the axis of channels would be unknown.
        """
        stored = columns[self.key]
        if isinstance(stored, EncodedParts):
            samples = columns.get(SAMPLES)
            values = stored.merged(lambda part: _decode_part(self.members[part.member], part, samples))
        else:  # All members store it alike.
            decoder = self.members[0]
            values = decoder.decode({**columns, decoder.keys[0]: stored})
        if self.array is None:
            is_array = isinstance(self.members[0], WindowImageField) and isinstance(values, np.ndarray)
            return values if is_array else list(values)
        shape, dtype = self.array
        return np.asarray(values, dtype).reshape(len(values), *shape)


@dataclass(frozen=True)
class MixedImagesField(MixedField, ImagesBeside):
    """Images beside the image, of all members."""

    def decode(self, columns: Columns) -> list[NDArray[Any]]:
        """Return n images [h, w, C]; raise BadImageError."""
        return list(super().decode(columns))

    def are_pictures(self, columns: Columns) -> list[bool]:  # noqa: D102
        asked = tuple(_PicturesOf(member) for member in self.members if isinstance(member, ImagesBeside))
        return list(MixedField(self.key, asked).decode(columns))

    def of_kind(self, kind: Kind | None, jpeg_decoder: str) -> "MixedImagesField":  # noqa: D102
        members = tuple(one.of_kind(kind, jpeg_decoder) for one in self.members if isinstance(one, ImagesBeside))
        return replace(self, members=members)


@dataclass(frozen=True)
class _PicturesOf:
    """Which images of a field are pictures, as a field."""

    images: ImagesBeside

    @property
    def keys(self) -> tuple[str, ...]:
        return self.images.keys

    def decode(self, columns: Columns) -> list[bool]:
        return self.images.are_pictures(columns)


@dataclass(frozen=True)
class MemberField:
    """A field that only one member's transforms read: other members' examples have None.

    Attributes:
        key: its name in `MixtureSource.read`, of `member_key`.
        member: the member's number.
        decoder: decodes its values.
    """

    key: str
    member: int
    decoder: FieldDecoder

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,)

    def decode(self, columns: Columns) -> list[Any]:
        """Return n values."""
        stored, samples = columns[self.key], columns.get(SAMPLES)
        found: list[Any] = [None] * len(stored)
        for part in stored.parts:
            if part.member == self.member:
                values = _decode_part(self.decoder, part, samples)
                for place, value in zip(part.places.tolist(), values, strict=True):
                    found[place] = value
        return found


class _NoField:
    """The values of the other members for a field that only one member has."""

    keys: tuple[str, ...] = ()

    def decode(self, columns: Columns) -> list[Any]:
        raise NotImplementedError  # Only its keys are asked for.


_NOTHING = _NoField()


class _StoredFields(NamedTuple):
    """The decoders of a field, by member; and whether all members store it alike, in one field."""

    decoders: list[FieldDecoder]
    is_alike: bool

    def column_of(self, part: Part) -> Any:
        """Return the encoded values of a part, where each member has one stored field, or images as tensors."""
        decoder = self.decoders[part.member]
        if isinstance(decoder, TensorImageField):
            return decoder.images(part.columns)
        return part.columns[decoder.keys[0]]


def member_key(member: int, name: str) -> str:
    """Return the key under which a field of one member is read, which the others need not have."""
    return f"{_OF_MEMBER}{member}:{name}"


def encoded_key(name: str) -> str:
    """Return the key under which a field is read as it is stored."""
    return f"{_ENCODED}{name}"


class MixtureSource(ReadByNumber):
    """The examples of several datasets: those of the first one, then those of the next one.

    Stored fields are the members' fields by name; how they are stored is each member's own. It can be pickled, and
    used by several threads, as far as the members' sources can.

    Args:
        members: name -> dataset.
        mean_example_bytes: mean size of an encoded example, as the mixture mixes them.
        metrics: gets the examples and the seconds of reading of each member; None: nothing is reported.
    """

    specs: Mapping[str, FieldSpec] = MappingProxyType({MEMBER: FieldSpec((), np.int64)})
    """The spec of the member's number: all other fields are stored in each member's own way."""

    def __init__(
        self, members: Mapping[str, Dataset], mean_example_bytes: int, metrics: StageMetrics | None = None
    ) -> None:
        self.members, self.mean_example_bytes = dict(members), mean_example_bytes
        self._metrics = metrics
        self._names = list(members)
        self._sources = [one.source for one in members.values()]
        self.is_one_threaded = any(source.is_one_threaded for source in self._sources)
        self._offsets = np.cumsum([0, *map(len, self._sources)]).astype(np.int64)
        self._stored: dict[str, _StoredFields] = {}

    def reporting_to(self, metrics: StageMetrics | None) -> "MixtureSource":
        """Return this source, reporting to other `metrics`."""
        source = MixtureSource(self.members, self.mean_example_bytes, metrics)
        source._stored = self._stored
        return source

    @property
    def name(self) -> str:
        """`mixture(a + b)`."""
        shown = self._names if len(self._names) <= _MOST_NAMED + 1 else self._names[:_MOST_NAMED]
        others = [f"{len(self._names) - len(shown)} more"] if len(shown) < len(self._names) else []
        return f"mixture({' + '.join([*shown, *others])})"

    @property
    def identity(self) -> object:  # noqa: D102
        return [(name, one.fingerprint) for name, one in self.members.items()]

    @property
    def stamps(self) -> object:  # noqa: D102
        return [source.stamps for source in self._sources]

    @property
    def block_records(self) -> int | None:  # type: ignore[override]
        """The fewest examples that a member has in a block; see `Source`."""
        return min((size for source in self._sources if (size := source.block_records) is not None), default=None)

    @property
    def networks(self) -> Collection[Network]:  # type: ignore[override]
        """The networks that the files of all members come through; see `Source`."""
        return {one for source in self._sources for one in source.networks}

    @property
    def instructions(self) -> Sequence[FileInstruction]:  # noqa: D102
        return [
            replace(one, first_index=one.first_index + offset)
            for source, offset in zip(self._sources, self._offsets.tolist(), strict=False)
            for one in source.instructions
        ]

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def check(self, streamed: object = None) -> None:  # noqa: D102
        for source in self._sources:
            source.check()

    def close(self) -> None:  # noqa: D102
        for source in self._sources:
            source.close()

    # Reading

    @property
    def calls_functions(self) -> bool:
        """Whether a member may call functions of users; see `DrawingSource`."""
        return any(getattr(one, "calls_functions", False) for one in self._sources)

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return fields of examples in the order asked, each as its member stores it.

        Args:
            index: int64 [n], of examples; one may be asked for twice.
            fields: `member`: int64 [n]; `image`: n encoded images; any other field that all members have: n encoded
                values where all of them store it alike, else EncodedParts.

        Raises:
            As each member's source.
        """
        return self.read_calling(index, fields, None)

    def read_calling(self, index: Int64Array, fields: Sequence[str], calls: ItemCalls | None) -> Columns:
        """Return the same as `read`; `calls` are for members that call functions; see `DrawingSource`."""
        wanted = [name for name in fields if name != MEMBER]
        stored = {name: self._stored_fields(name) for name in wanted}
        parts, members = [], self._members_of(index)
        for member, places in self._by_member(members):
            own = index[places] - self._offsets[member]
            asked = list(dict.fromkeys(key for name in wanted for key in stored[name].decoders[member].keys))
            began_s = time.perf_counter()
            source, columns = self._sources[member], cast(Columns, {})
            if asked and calls is not None and getattr(source, "calls_functions", False):
                columns = cast(DrawingSource, source).read_calling(own, asked, calls.of(places))
            elif asked:
                columns = source.read(own, asked)
            if self._metrics is not None and len(own):
                self._metrics.add_member(member, len(own), time.perf_counter() - began_s)
            parts.append(Part(member, places, own, columns))
        encoded = EncodedParts(len(index), parts)
        found: dict[str, Any] = {MEMBER: members} if MEMBER in fields else {}
        for name in wanted:
            is_one_column = stored[name].is_alike or name == IMAGE
            found[name] = encoded.merged(stored[name].column_of) if is_one_column else encoded
        return found

    def announce(self, index: Int64Array) -> None:  # noqa: D102
        for member, places in self._by_member(self._members_of(index)):
            self._sources[member].announce(index[places] - self._offsets[member])

    def follow(self, windows: Iterable[ExampleRanges]) -> None:
        """Let members whose files are remote fetch blocks ahead; see `Source`."""
        far = [member for member, source in enumerate(self._sources) if source.block_records is not None]
        for member, own in zip(far, tee(windows, len(far)), strict=True):
            self._sources[member].follow(self._of_member(member, *ranges) for ranges in own)

    def _of_member(self, member: int, start: Int64Array, stop: Int64Array) -> ExampleRanges:
        """Return the parts of ranges that are a member's, by its own numbers."""
        first, end = self._offsets[member : member + 2].tolist()
        is_there = (start < end) & (stop > first)
        start, stop = start[is_there], stop[is_there]
        return np.maximum(start - first, 0), np.minimum(stop, end) - first

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:  # noqa: D102
        member = int(self._members_of(np.array([index], np.int64))[0])
        return self._sources[member].undecodable(index - int(self._offsets[member]), reason)

    def _stored_fields(self, name: str) -> "_StoredFields":
        """Return the decoders of a field of all members."""
        found = self._stored.get(name)
        if found is None:
            found = self._stored[name] = self._find_stored_fields(name)
        return found

    def _find_stored_fields(self, name: str) -> "_StoredFields":
        is_encoded, own = name.startswith(_ENCODED), name.removeprefix(_ENCODED)
        members = self.members.values()
        if name.startswith(_OF_MEMBER):
            number, own = name.removeprefix(_OF_MEMBER).split(":", 1)
            return _StoredFields(
                [one.field(own) if place == int(number) else _NOTHING for place, one in enumerate(members)],
                is_alike=False,
            )
        decoders = [one.encoded_field(own).decoder if is_encoded else one.field(own) for one in members]
        first = decoders[0]
        is_alike = len(first.keys) == 1 and all(decoder == first for decoder in decoders)
        return _StoredFields(decoders, is_alike)

    def _members_of(self, index: Int64Array) -> Int64Array:
        """Return the members of examples, int64 [n]."""
        outside = (index < 0) | (index >= len(self))
        if outside.any():
            raise ExampleNotFoundError(
                f"{self.name}: there is no example {index[outside][0]}: it has {len(self)} examples."
            )
        return np.searchsorted(self._offsets, index, side="right") - 1

    def _by_member(self, members: Int64Array) -> list[tuple[int, Int64Array]]:
        """Return each member of some examples, and its places, int64 [k], ascending; for no examples, every member."""
        if not len(members):
            return [(member, members) for member in range(len(self._sources))]
        order = np.argsort(members, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(members[order])) + 1)
        return [(int(members[part[0]]), part) for part in parts if len(part)]

    # Names

    def ids(self, index: Int64Array) -> Sequence[str]:
        """Return `<member>/<id>` of examples, int64 [n]."""
        return LazyIds(self._ids_of, index)

    def _ids_of(self, index: Int64Array) -> list[str]:
        ids = [""] * len(index)
        for member, places in self._by_member(self._members_of(index)):
            own = self._sources[member].ids(index[places] - self._offsets[member])
            for place, one in zip(places.tolist(), own, strict=True):
                ids[place] = f"{self._names[member]}/{one}"
        return ids

    def find(self, id: str) -> int:  # noqa: D102
        name, _, rest = id.partition("/")
        if name not in self.members:
            known = ", ".join(self._names[:_MOST_NAMED]) + (", ..." if len(self._names) > _MOST_NAMED else "")
            hint = did_you_mean(name, self._names)
            raise not_found(self, id, f"ids are <member>/<id in the member>, and the members are {known}.{hint}")
        member = self._names.index(name)
        source = self._sources[member]
        try:
            return int(self._offsets[member]) + source.find(rest)
        except ExampleNotFoundError as error:
            raise ExampleNotFoundError(f"{self.name}, member {quoted(name)}: {error}") from None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_stored": {}, "_metrics": None}
