"""MixtureTransforms: each member's own transforms, and behind them those of the mixture."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tfds_torch.engines.fields import FieldDecoder
from tfds_torch.engines.transform_chain import Chains, TransformChain
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.mixture_source import MEMBER, MemberField, member_key
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.parsers.transformed import TransformedFields
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec

if TYPE_CHECKING:
    from tfds_torch.parsers.mixture import MixedDataset


class MixtureTransforms(TransformedFields):
    """The fields of a mixture's examples behind the transforms; see `TransformedFields`.

    A field that a member's transforms may make is a field of the mixture where all other members store or may make it.
    """

    def __init__(self, dataset: "MixedDataset", forms: dict[Any, Any]) -> None:
        super().__init__(dataset, forms)
        self._members = list(dataset.members.values())
        self._member_names = list(dataset.members)

    @property
    def identities(self) -> list[str]:  # noqa: D102
        every = zip(self._member_names, self._members, strict=True)
        of_members = [f"{name}: {one}" for name, member in every for one in member.transformed.identities]
        return [*of_members, *super().identities]

    @property
    def specs(self) -> dict[str, FieldSpec | None]:  # noqa: D102
        found: dict[str, FieldSpec | None] = {}
        for one in self._members:
            found |= {name: spec for name, spec in one.transformed.specs.items() if found.get(name) is None}
        return {**{name: spec for name, spec in found.items() if self._may_be_made(name)}, **super().specs}

    @property
    def reads_any(self) -> bool:  # noqa: D102
        return super().reads_any or any(one.transformed.reads_any for one in self._members)

    @property
    def takes_rng(self) -> bool:  # noqa: D102
        return super().takes_rng or any(one.transformed.takes_rng for one in self._members)

    def may_give(self, name: str) -> bool:  # noqa: D102
        return self.may_give_itself(name) or self._may_be_made(name)

    def may_give_itself(self, name: str) -> bool:
        """Return whether the mixture's own transforms may make a field."""
        return super().may_give(name)

    def is_there(self, name: str) -> bool:  # noqa: D102
        return super().is_there(name) or self._may_be_made(name)

    def _may_be_made(self, name: str) -> bool:
        """Return whether members' transforms may make a field that all other members store."""
        may_give = [one.transformed.may_give(name) for one in self._members]
        every = zip(self._members, may_give, strict=True)
        return name != MEMBER and any(may_give) and all(given or one.is_stored(name) for one, given in every)

    def chains(self, fields: Sequence[str], *, in_batches: bool = True, is_preprocessed: bool = True) -> Chains | None:
        """Return the functions that examples go through for some fields: those of members, and those behind them.

        Fields that all members store alike are decoded together. Each member has its own column for the other fields
        that its transforms read, and for a stored field that the transforms of other members make.
        """
        self.check()
        most = max(len(one.transforms) for one in self._members)
        own = self.chain(fields, most, is_preprocessed=is_preprocessed)
        wanted = [name for name in (fields if own is None else own.inner) if name not in (*METADATA_FIELDS, MEMBER)]
        are_whole = not is_preprocessed and self._dataset.preprocess is not None
        chains = [one.transformed.chain(wanted, is_preprocessed=is_preprocessed) for one in self._members]
        if not any(chains):
            return None if own is None else self._join((own,), own.inner, fields, in_batches=in_batches)
        common = [name for name in wanted if self._dataset.is_stored(name)]
        inner, parts, first = [*common, MEMBER], list[TransformChain](), list[str]()
        for number, (one, chain) in enumerate(zip(self._members, chains, strict=True)):
            part = chain or one.transformed.make_chain((), [name for name in wanted if one.is_stored(name)], wanted)
            own_fields = [name for name in part.inner if name not in common]
            self._check_boxes_stay(one, own_fields)
            columns = {name: member_key(number, name) for name in own_fields}
            inner.extend(columns.values())
            first.extend(columns[name] for name in own_fields if one.is_channels_first(name))
            forms = None if are_whole else part.forms  # The preprocess is the mixture's.
            reserved = part.reserved | self._dataset.reserved_names
            parts.append(
                replace(part, asked=tuple(wanted), columns=columns, member=number, forms=forms, reserved=reserved)
            )
        every = (*parts, *([] if own is None else [own]))
        return self._join(every, inner, fields, in_batches=in_batches, channels_first=first, member=MEMBER)

    def column_field(self, name: str) -> FieldDecoder:  # noqa: D102
        for number, one in enumerate(self._members):
            prefix = member_key(number, "")
            if name.startswith(prefix):
                return MemberField(name, number, one.field(name.removeprefix(prefix)))
        return super().column_field(name)

    def _check_boxes_stay(self, member: Dataset, fields: Sequence[str]) -> None:
        """Raise ConfigError where boxes that one member alone has would have to move with the image."""
        preprocess = self._dataset.preprocess
        if preprocess is None or preprocess.keeps_positions:
            return
        moving = [part.field for group in member.moving_boxes(fields, preprocess) for part in group.boxes]
        if moving:
            raise ConfigError(
                f"{self._dataset.dataset_name}: a transform reads {quoted(moving[0])} of {member.dataset_name}, boxes "
                f"that other members lack, and {quoted(preprocess)} moves boxes that all members have. Crop and flip "
                f"in the transforms instead, or give all members the field."
            )
