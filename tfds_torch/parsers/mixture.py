"""ParserMixture: several datasets as one, in exact proportions, or one after the other."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import EncodedField, FieldDecoder
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadRequest, ReplacementRange
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.mixture_fields import LABEL_NAME, MixtureFields, common_boxes, common_class_names
from tfds_torch.parsers.mixture_members import (
    OF_BLOCKS,
    check_agreement,
    check_members,
    check_read_options,
    read_member_columns,
    with_common_blocks,
)
from tfds_torch.parsers.mixture_source import IMAGE, MEMBER, MixtureSource
from tfds_torch.parsers.mixture_transforms import MixtureTransforms
from tfds_torch.parsers.options import DecodeOptions, EpochOptions
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.protocol import METADATA_FIELDS, ElementSpec
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.parsers.statistics import MemberStatistics, read_statistics
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.order import MOST_SLOTS
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import make_segments
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted

SPLIT = "all"
"""The split of a mixture, for messages and states: its members have their own splits."""

_COUNTED_AT_ONCE = 1 << 16
_MOST_WARNED = 5
_OF_EACH_MEMBER = 8  # Examples of each member that are read at a time: single ones take several times as long.

Weights = Mapping[str, float] | str
"""Member -> weight; or "sizes"."""


class MixedDataset(Dataset):
    """The examples of several datasets, one dataset after the other.

    Args:
        members: name -> dataset; a dataset's subset counts.
        decoding: how examples are read and decoded; image_mode is that of the members.
        mean_example_bytes: mean size of an encoded example, as an order mixes them.
        selected: which examples there are; None: all, or those that the order names.

    Attributes:
        members: see above.

    Raises:
        ConfigError: the members have no common field, or their labels mean different things.
    """

    source: MixtureSource
    is_by_number = True
    reserved_names = frozenset((*METADATA_FIELDS, MEMBER))

    def __init__(
        self,
        members: Mapping[str, Dataset],
        decoding: DecodeOptions,
        mean_example_bytes: int,
        selected: Subset | None = None,
    ) -> None:
        self.members = dict(members)
        source = MixtureSource(self.members, mean_example_bytes)
        self._fields = MixtureFields(self.members, source.name)
        self._fields.check()
        image_key, target_key = (name if self._fields.has(name) else None for name in (IMAGE, LABEL_NAME))
        self._class_names = None if target_key is None else common_class_names(self.members)
        self.declares_boxes = all(one.declares_boxes for one in self.members.values())
        super().__init__(source, SPLIT, decoding, image_key, target_key, selected)

    @property
    def specs(self) -> Mapping[str, Any]:
        """Field -> shape and dtype of one value as the first member declares it."""
        return self.stored_spec.fields

    @property
    def stored_spec(self) -> ElementSpec:
        """The fields that all members store, with shape and dtype of one value as the first one declares it."""
        return self._fields.stored_spec

    def provenance(self) -> Provenance:
        """Return the members, each of which knows where its examples lie; see `Dataset`."""
        return Provenance(promised_by="the record of each member", members=self.members)

    @property
    def has_windows(self) -> bool:
        """Whether the examples of all members are windows of episodes."""
        return all(one.has_windows for one in self.members.values())

    @property
    def cameras(self) -> Mapping[str, Preprocess]:
        """`<member>/<field>` -> how its images are cut and resized while they are decoded, of windows."""
        every = {member: one.cameras for member, one in self.members.items()}
        return {f"{member}/{name}": one for member, cameras in every.items() for name, one in cameras.items()}

    @property
    def has_optional_label(self) -> bool:
        """Whether examples of a member may have no label."""
        return any(one.has_optional_label for one in self.members.values())

    @property
    def _declared_target(self) -> str | None:
        own = next(iter(self.members.values()))._declared_target
        return None if "label" in self.stored_spec.fields else own

    @property
    def class_names(self) -> list[str] | None:
        """Names of the classes, by label, where all members have the same; else None."""
        return None if self._class_names is None else list(self._class_names)

    def is_undecoded(self, name: str) -> bool:
        """Return whether a field comes as the stored bytes in all members, as their `decode` asks for."""
        return name != MEMBER and self._fields.is_undecoded(name)

    def moving_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> tuple[BoxRows, ...]:
        """Return which boxes move with the image.

        Raises:
            ConfigError: some members declare boxes that others do not.
        """
        common = [name for name in fields if name != MEMBER and self.is_stored(name)]
        return common_boxes(self.members, common, preprocess)

    def unmoved_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> list[str]:
        """Return the fields whose boxes stay those of the whole image in any member."""
        own = [name for name in fields if name != MEMBER]
        found = {name for one in self.members.values() for name in one.unmoved_boxes(own, preprocess)}
        return [name for name in own if name in found]

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example, in the order of `index`: `<member>/<its name in the member>`.

        Args:
            basename: whether to leave out folders, and so the member.
            absolute: whether to prefix the folder of each member's files, in the place of its name.
        """
        names = {name: one.filenames(basename, absolute) for name, one in self.members.items()}
        if basename or absolute:
            return [one for some in names.values() for one in some]
        return [f"{name}/{one}" for name, some in names.items() for one in some]

    def with_read(self, read: ReadOptions) -> Self:
        """Return this dataset, read with another number of threads or of batches ahead.

        Raises:
            ConfigError: another option is given: it belongs to the members.
        """
        check_read_options(read)
        return super().with_read(replace(read, **{name: getattr(self.read, name) for name in OF_BLOCKS}))

    def statistics(self, fields: Sequence[str], *, stored: bool = False) -> MemberStatistics:
        """Return member -> statistics of fields of numbers; the members have windows. See `Dataset`."""
        members = {name: one.as_stored(fields) if stored else one for name, one in self.members.items()}
        return MemberStatistics({name: read_statistics(one, fields) for name, one in members.items()})

    def as_stored(self, fields: Sequence[str]) -> Self:
        """Return this dataset of members without transforms; see `Dataset`."""
        own = [name for name in fields if name != MEMBER]
        stored = super().as_stored(fields)
        return stored._with(members={name: one.as_stored(own) for name, one in self.members.items()})

    def columns_at(self, fields: Sequence[str], index: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return fields of the members' windows by their numbers in the mixture; `member` is that of each."""
        own = next((name for name in fields if self.transformed.may_give_itself(name)), None)
        if own is not None:
            raise ConfigError(
                f"{self.dataset_name}: columns() are those of the members, and the mixture's own transform may give "
                f"{quoted(own)}. Give each member the transform, or ask with stored=True."
            )
        return read_member_columns(self.members, fields, index)

    def request(self, request: ReadRequest) -> ReadRequest:
        """Return a request whose damaged examples are replaced by those of the same member, as each allows it."""
        ranges, start = [], 0
        for one in self.members.values():
            stop = start + len(one.source)
            ranges.append(ReplacementRange(start, stop, one.read.most_replaced, one.selected))
            start = stop
        return replace(
            request,
            source=self.source.reporting_to(request.context.metrics),
            replacing=tuple(ranges),
            read_at_once=_OF_EACH_MEMBER * len(self.members),
        )

    @property
    def transformed(self) -> MixtureTransforms:
        """The fields behind the members' transforms, and behind the mixture's own, which get the common fields."""
        return MixtureTransforms(self, self._forms)

    def is_channels_first(self, name: str) -> bool:
        """Return whether the values of a field are images [..., C, H, W], in all members."""
        return name != MEMBER and all(one.is_channels_first(name) for one in self.members.values())

    def image_axes(self, name: str) -> int:
        """Return the number of axes of a field that is images; see `Dataset`."""
        return 0 if name == MEMBER else next(iter(self.members.values())).image_axes(name)

    @property
    def _stored_target(self) -> None:
        return None  # Members have their own class maps.

    @property
    def _folder(self) -> str:
        raise NotImplementedError  # Members have their own folders: see `filenames`.

    @property
    def _stored_class_names(self) -> list[str] | None:
        return self.class_names

    @property
    def _has_integer_target(self) -> bool:
        return self._fields.has_integer_label

    @property
    def _all_fields(self) -> Sequence[str]:
        return [*sorted(self._fields.names), MEMBER]

    def _field(self, name: str) -> FieldDecoder:
        return self._fields.field(name)

    def _encoded_field(self, name: str) -> EncodedField:
        return self._fields.encoded_field(name)

    def _find_stored(self, name: str) -> tuple[object, bool]:
        description = self._fields.describe(name)
        return str(description), description.kind == "image" or (name == IMAGE and description.kind == "bytes")


@explain_keywords
class ParserMixture(DatasetParser):
    """Read several datasets as one: by weights, with exact proportions, or without weights, one after the other.

    With weights, the first n examples (of each part of a schedule) have within 1 of n x weight of each member, whatever
    n, over epochs; so any global batch has within 2 of its share. Every member goes through its own passes, each in its
    own order (or in blocks, where its parser has `block_records`), with every example once in each. The examples do not
    depend on the number of ranks and workers, and a state continues anywhere.

    Without weights the members are one dataset, their examples one after the other: evaluation needs that, and training
    shuffles over all of them.

    The fields are those that all members have, with equal shapes and dtypes, after their class maps; and `member`
    (int64), the position of an example's member in `member_names`. An example's id is `<member>/<id>`. Its `index`
    counts over all members in their order: the number of examples of the members before, plus its index in its member.

    Building a mixture reads no file. Each member's parser opens its files; threads and buffers are shared. Read options
    about damage, checksums and blocks are each member's own.

    Examples:
        >>> from tfds_torch import ParserMixture, ParserTfds, demo
        >>> train, test = (ParserTfds(demo.prepare("digits"), "digits", split=split) for split in ("train", "test"))
        >>> weights = {"train": 0.75, "test": 0.25}
        >>> mixture = ParserMixture({"train": train, "test": test}, weights, is_training=True, batch_size=32)
        >>> mixture.counts(1000)
        {'train': 750, 'test': 250}

    Args:
        members: name -> parser; or pairs of these. Parsers that read by index: ParserTfds over local files,
            ParserBeton, ParserWebDataset. The options of an epoch (the arguments from here on) are the mixture's: a
            member either leaves them out, or has the same.
        weights: name -> number >= 0; or "sizes", the members' numbers of examples; or a schedule, a list of (n, one of
            these), from example n of the mixture on, counted from 0. None: a concatenation. Weights that do not fit
            into a period of 65,536 examples are rounded to 1/65,536; a warning names those that move by more than 1 %.
        shuffle: whether every pass has its own order; None: as `is_training`.
        is_training: whether the mixture is for training; evaluation takes no weights.
        batch_size: examples of a rank's batch, >= 1. Required in training, and in evaluation with several workers.
        repeats: how many times as long an epoch is; 0 and 1 mean once.
        seed: seed of all orders, >= 0.
        remainder: as in ParserTfds.
        preprocess: as in ParserTfds, of all members' images.
        temperature: T > 0: weights are taken to the power 1/T.
        epoch_size: examples of an epoch, in training: the next ones of an endless row; None: as `stop` says, and
            without weights one pass over all members.
        stop: where an epoch ends without `epoch_size`: "first_exhausted", when the first member's pass ends, or
            "all_exhausted", when every member's first one has. Later epochs are as long.
        read: `num_threads`, `prefetch_batches` and `jpeg_decoder`.
        transform: as in ParserTfds, for the examples of all members, behind the transforms that a member has itself. A
            field that the transforms of all members make alike is a field of the mixture.

    Raises:
        ConfigError: an argument cannot work; a member has another option of an epoch than the mixture; or the members
            have no common field, or their labels mean different things.
    """

    dataset: MixedDataset

    def __init__(
        self,
        members: Mapping[str, DatasetParser] | Sequence[tuple[str, DatasetParser]],
        weights: Weights | Sequence[tuple[int, Weights]] | None = None,
        shuffle: bool | None = None,
        is_training: bool = False,
        batch_size: int | None = None,
        repeats: int = 0,
        *,
        seed: int = 42,
        remainder: Remainder | str | None = None,
        preprocess: Preprocess | None = None,
        temperature: float = 1.0,
        epoch_size: int | None = None,
        stop: str = "first_exhausted",
        read: ReadOptions = ReadOptions(),
        transform: Any = None,
    ) -> None:
        self._members = check_members(members)
        epoch = EpochOptions(
            shuffle=shuffle,
            is_training=is_training,
            batch_size=batch_size,
            repeats=repeats,
            seed=seed,
            remainder=remainder,
            epoch_size=epoch_size,
        )
        datasets = {name: parser.dataset for name, parser in self._members.items()}
        image_mode = next(iter(datasets.values())).image_mode
        decoding = DecodeOptions(preprocess=preprocess, image_mode=image_mode, read=read, transform=transform)
        check_read_options(read)
        check_agreement(self._members, epoch, decoding)
        subset: Subset | None = None
        order: Mixed | None = None
        if weights is None:
            _refuse_idle(temperature, stop)
            if epoch.is_shuffled:
                decoding = replace(decoding, read=with_common_blocks(read, datasets))
            subset = _subset_of(datasets)
        else:
            if not is_training:
                raise ConfigError(
                    f"ParserMixture: weights={quoted(weights)} in evaluation would leave examples out, or count them "
                    f"twice. Leave out weights=: evaluation then has every example of every member exactly once. In "
                    f"training, give is_training=True."
                )
            order = _mix(datasets, epoch, weights, temperature, stop)
        super().__init__(MixedDataset(datasets, decoding, _mean_example_bytes(datasets, order), subset), epoch, order)

    @property
    def members(self) -> Mapping[str, DatasetParser]:
        """Name -> parser, as they were given."""
        return MappingProxyType(self._members)

    @property
    def member_names(self) -> list[str]:
        """The names of the members; the field `member` is a position in this list."""
        return list(self._members)

    @property
    def member_sizes(self) -> dict[str, int]:
        """Name -> number of examples of one pass."""
        return {name: one.num_examples for name, one in self.dataset.members.items()}

    @property
    def weights(self) -> list[tuple[int, dict[str, float]]] | None:
        """The schedule of weights as it is kept: (first example, name -> share), rounded; None: a concatenation."""
        if not isinstance(self.order, Mixed):
            return None
        return [
            (one.start, {name: n / one.period for name, n in zip(self.members, one.counts, strict=True)})
            for one in self.order.segments
        ]

    def counts(self, n: int) -> dict[str, int]:
        """Return how many of the first n examples of the mixture, over epochs, each member has.

        With weights that takes no longer for a larger n. Of a shuffled concatenation the examples are counted.

        Args:
            n: number of examples, in 0..2**62.

        Raises:
            ConfigError: n is not an integer in 0..2**62.
        """
        n = check_integer("counts: n", n, 0, MOST_SLOTS)
        if isinstance(self.order, Mixed):
            return dict(zip(self.members, self.order.counts(n).tolist(), strict=True))
        sizes = np.array(list(self.member_sizes.values()), np.int64)
        ends = np.cumsum([len(parser.source) for parser in self.members.values()])
        passes, rest = divmod(n, self.num_examples)
        counts = passes * sizes
        if not self.shuffle and self.selected is None:
            counts += np.clip(rest - (ends - sizes), 0, sizes)
        else:
            for start in range(0, rest, _COUNTED_AT_ONCE):
                slots = np.arange(n - rest + start, n - rest + min(start + _COUNTED_AT_ONCE, rest), dtype=np.int64)
                _, index = self.order.at(slots)
                counts += np.bincount(np.searchsorted(ends, index, side="right"), minlength=len(sizes))
        return dict(zip(self.members, counts.tolist(), strict=True))

    def statistics(self, fields: Sequence[str], *, stored: bool = False) -> MemberStatistics:
        """Return member -> statistics of fields of numbers, as `ParserTfds.statistics`; members have windows.

        Args:
            fields: names of fields, as in `ParserTfds.statistics`.
            stored: as in `ParserTfds.statistics`.

        Raises:
            ConfigError: a member has no windows, or as ParserTfds raises it.
            ShardError, CorruptRecordError: as reading raises them.
        """
        return self.dataset.statistics(fields, stored=stored)

    def columns(self, fields: Sequence[str], *, stored: bool = False) -> dict[str, NDArray[Any]]:
        """Return fields of the members' windows as arrays over all of them, and `member`; see `Dataset`.

        Args:
            fields: names of fields that all members have, as in `ParserTfds.columns`; or `member`, int64 [n].
            stored: whether to return the fields that the datasets store, also where a Transform makes others.

        Returns:
            Name -> array [n, ...], n windows in the order of `indices`.

        Raises:
            ConfigError: the mixture has weights, a member has no windows, or a field cannot be a column.
            ShardError, CorruptRecordError: as reading raises them.
        """
        if self.has_weights:
            raise ConfigError(
                f"columns: {self.dataset_name} has weights, and so no row for each window. Ask its members, as in "
                f"mixture.members[{quoted(self.member_names[0])}].columns({quoted(list(fields))})."
            )
        return super().columns(fields, stored=stored)


def _mix(members: Mapping[str, Dataset], epoch: EpochOptions, weights: object, temperature: object, stop: str) -> Mixed:
    """Return the order in which members are mixed; warn where rounding moves a weight."""
    sizes = {name: one.num_examples for name, one in members.items()}
    segments, rounded = make_segments(sizes, weights, temperature)
    if rounded:
        some = ", ".join(
            f"{quoted(one.name)}{f' from example {one.start:,} on' if one.start else ''}: {one.asked:.6g} became "
            f"{one.found:.6g}"
            for one in rounded[:_MOST_WARNED]
        )
        more = f", and {len(rounded) - _MOST_WARNED} more" if len(rounded) > _MOST_WARNED else ""
        warnings.warn(
            f"ParserMixture: weights are rounded to 1/65,536, which moves some by more than 1 %: {some}{more}.",
            UserWarning,
            stacklevel=5,
        )
    order_of = tuple(
        Member(name, len(one.source), one.read.blocks if epoch.is_shuffled else None, one.selected)
        for name, one in members.items()
    )
    if epoch.epoch_size is not None:
        if stop != "first_exhausted":
            raise ConfigError(
                f"ParserMixture: epoch_size={quoted(epoch.epoch_size)} and stop={quoted(stop)} both say where an epoch "
                f"ends: give one of them."
            )
        return Mixed(order_of, segments, epoch.epoch_size, epoch.seed, epoch.is_shuffled)
    order = Mixed(order_of, segments, 1, epoch.seed, epoch.is_shuffled)
    return replace(order, epoch_size=order.slots_until(stop))


def _mean_example_bytes(members: Mapping[str, Dataset], order: Mixed | None) -> int:
    sizes = [parser.source.mean_example_bytes for parser in members.values()]
    counts = [parser.num_examples for parser in members.values()] if order is None else order.segments[0].counts
    return sum(size * count for size, count in zip(sizes, counts, strict=True)) // sum(counts)


def _subset_of(members: Mapping[str, Dataset]) -> Subset | None:
    """Return the examples of a concatenation of subsets, in the mixture's numbers; None: all examples of all splits."""
    if all(parser.selected is None for parser in members.values()):
        return None
    starts = np.cumsum([0, *(len(parser.source) for parser in members.values())], dtype=np.int64).tolist()
    numbers = [start + parser.indices for start, parser in zip(starts, members.values(), strict=False)]
    return Subset(np.concatenate(numbers))


def _refuse_idle(temperature: object, stop: object) -> None:
    """Raise ConfigError for arguments that have no effect without weights."""
    given = {"temperature": (temperature, 1.0), "stop": (stop, "first_exhausted")}
    for name, (value, default) in given.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool) or value != default:
            raise ConfigError(
                f"ParserMixture: {name}={quoted(value)} has no effect without weights: an epoch of a concatenation has "
                f"every example of every member. Give weights, for example weights='sizes', or leave it out."
            )
