"""TransformedFields: which fields a dataset has behind its transforms, and the functions that are called for some."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tfds_torch.engines.fields import FieldDecoder
from tfds_torch.engines.forms import Forms
from tfds_torch.engines.transform_chain import OF_EXAMPLES, Chains, Step, TransformChain, plan_steps
from tfds_torch.errors import ConfigError
from tfds_torch.images.views import Views
from tfds_torch.parsers.protocol import METADATA_FIELDS, find_spec
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec

if TYPE_CHECKING:
    from tfds_torch.parsers.dataset import Dataset


class OnlyInEpochsError(ConfigError):
    """A transform that is needed can only be called in an epoch."""


class TransformedFields:
    """The fields of a dataset's examples behind its transforms. It is made where it is needed, and calls no transform.

    Args:
        dataset: the dataset, whose stored fields go through its transforms.
        forms: the values that transforms make, as far as their forms are learnt; filled while examples go through.
    """

    def __init__(self, dataset: "Dataset", forms: dict[Any, Any]) -> None:
        self._dataset, self._forms = dataset, forms
        self._transforms = dataset.transforms

    # Which fields there are

    @property
    def identities(self) -> list[str]:
        """The transforms as ranks and states compare them, in turn; in a mixture, also those of its members."""
        return [one.identity for one in self._transforms]

    @property
    def specs(self) -> dict[str, FieldSpec | None]:
        """The fields that transforms declare, with their specs."""
        return {name: spec for one in self._transforms for name, spec in one.named.items()}

    @property
    def reads_any(self) -> bool:
        """Whether a transform does not name the fields it reads, and so may read any; in a mixture, also a member's."""
        return any(one.reads is None for one in self._transforms)

    @property
    def takes_rng(self) -> bool:
        """Whether a transform takes the example's generator; in a mixture, also a member's."""
        return any(one.takes_rng for one in self._transforms)

    def may_give(self, name: str) -> bool:
        """Return whether a transform makes a field, or names none that it makes; in a mixture, also all members'."""
        is_free = name not in self._dataset.reserved_names
        return is_free and any(one.may_give(name) for one in self._transforms)

    def is_there(self, name: str) -> bool:
        """Return whether examples have a field before they go through these transforms."""
        return self._dataset.is_stored(name)

    def check(self) -> None:
        """Raise ConfigError where a transform reads a field that does not exist, or makes one that it cannot make."""
        for place, one in enumerate(self._transforms):
            for name in one.reads_of(()) if one.reads is not None else ():
                is_given = any(other.may_give(name) for other in self._transforms[:place])
                if name not in OF_EXAMPLES and not is_given and not self.is_there(name):
                    self._check_comes_later(place, name)
                    self._dataset.field(name)
            for name in one.named:
                if name in self._dataset.reserved_names:
                    raise ConfigError(
                        f"{self._dataset.dataset_name}: the transform {one.name} gives {quoted(name)}, which examples "
                        f"have anyway. Give the field another name."
                    )

    def _check_comes_later(self, place: int, name: str) -> None:
        """Raise ConfigError where a later transform makes the field that the one at a place reads."""
        reader, *others = self._transforms[place:]
        later = next((one for one in others if name in one.named), None)
        if later is not None:
            raise ConfigError(
                f"{self._dataset.dataset_name}: the transform {reader.name} reads {quoted(name)}, which the later one "
                f"{later.name} gives. Put that one first in transform=[...]."
            )

    # The functions that are called

    def chains(self, fields: Sequence[str], *, in_batches: bool = True, is_preprocessed: bool = True) -> Chains | None:
        """Return the functions that examples go through for some fields; None where they need none.

        Args:
            fields: the fields that are asked for.
            in_batches: whether whole batches are made, in which values whose size varies are lists.
            is_preprocessed: whether images are cut and resized; where they are not, though there is a preprocess, the
                values that the functions return may have any form.

        Raises:
            ConfigError: a transform reads a field that is not there, or several views of an image.
        """
        self.check()
        chain = self.chain(fields, is_preprocessed=is_preprocessed)
        return None if chain is None else self._join((chain,), chain.inner, fields, in_batches=in_batches)

    def without_epoch(self, fields: Sequence[str], what: str, remedy: str) -> Chains | None:
        """Return the functions that make some fields outside of an epoch; None where they are as stored.

        Args:
            fields: the fields that are asked for.
            what: the name of the caller, for messages.
            remedy: how the caller gets the stored fields, a sentence.

        Raises:
            OnlyInEpochsError: a function does not name the fields that it reads, reads an image, or draws random
                numbers.
        """
        chains = self.chains(fields, in_batches=False)
        for chain in () if chains is None else chains.parts:
            for step in chain.steps:
                why = _why_only_in_epochs(step, chain.images)
                if why is not None:
                    name = step.transform.name
                    raise OnlyInEpochsError(
                        f"{chain.dataset}: {what} cannot run the transform {name}: it {why}. {remedy}"
                    )
        return chains

    def chain(
        self, fields: Sequence[str], first_number: int = 0, *, is_preprocessed: bool = True
    ) -> TransformChain | None:
        """Return the dataset's own transforms for some fields; None where they need none.

        Args:
            fields: the fields that are asked for.
            first_number: number of the first transform, which chooses its random numbers among those of a parser.
            is_preprocessed: as in `chains`.
        """
        asked = [name for name in fields if name not in METADATA_FIELDS]
        if not self._transforms or self._dataset.reserved_names.issuperset(asked):
            return None
        steps, inner = plan_steps(self._transforms, asked, self.is_there, first_number)
        return self.make_chain(steps, inner, asked, is_preprocessed=is_preprocessed) if steps else None

    def make_chain(
        self, steps: tuple[Step, ...], inner: Sequence[str], asked: Sequence[str], *, is_preprocessed: bool = True
    ) -> TransformChain:
        """Return a chain of some steps over the dataset's examples; its arguments are those of TransformChain."""
        dataset = self._dataset
        has_preprocess = dataset.preprocess is not None or bool(dataset.cameras)
        stored = filter(dataset.is_stored, dict.fromkeys([*inner, *asked]))
        images = {name: axes for name in stored if (axes := dataset.image_axes(name))}
        forms = (
            Forms(partial(self._general_spec, images), self._forms) if is_preprocessed or not has_preprocess else None
        )
        name, reserved = dataset.dataset_name, dataset.reserved_names
        return TransformChain(name, steps, tuple(inner), tuple(asked), images, forms, reserved)

    def column_field(self, name: str) -> FieldDecoder:
        """Return how a column is decoded that `Chains.inner` names."""
        return self._dataset.field(name)

    def _general_spec(self, images: Mapping[str, int], name: str) -> FieldSpec | None:
        """Return shape and dtype of a stored field, with None for a side that varies; None where they are not known."""
        if name in images:
            return FieldSpec((*[None] * (images[name] - 1), 0), np.uint8)
        spec = find_spec(self._dataset.stored_spec, name)
        return spec if spec is None or self._dataset.declares_sizes else replace(spec, shape=(None,) * len(spec.shape))

    def _join(
        self,
        parts: tuple[TransformChain, ...],
        inner: Sequence[str],
        fields: Sequence[str],
        *,
        in_batches: bool,
        channels_first: Iterable[str] = (),
        member: str | None = None,
    ) -> Chains:
        """Return chains over the dataset's examples, for the fields that are asked for."""
        dataset, asked = self._dataset, tuple(name for name in fields if name not in METADATA_FIELDS)
        if isinstance(dataset.preprocess, Views) and any(part.touches("image") for part in parts):
            raise ConfigError(
                f"{dataset.dataset_name}: {quoted(dataset.preprocess)} makes several views of an image, and the "
                f"transform {parts[-1].steps[0].transform.name} gets one: Transform(function, reads=[...], gives=[...])"
                f" without 'image' works beside views; augment these in their preprocess, or on the device."
            )
        images = {name for part in parts for name in part.images if dataset.is_stored(name)}
        lists = {*dataset.varying_fields(asked), *dataset.images_beside(asked)} if in_batches else set()
        first = {*channels_first, *filter(dataset.is_channels_first, images)}
        return Chains(parts, tuple(inner), asked, self._explain, frozenset(first), frozenset(lists), member)

    def _explain(self, name: str) -> str:
        """Return why the dataset does not have a field, as a sentence."""
        try:
            self._dataset.field(name)
        except ConfigError as error:
            return str(error)
        return ""


def _why_only_in_epochs(step: Step, images: Mapping[str, int]) -> str | None:
    """Return why a transform cannot be called outside of an epoch, as the rest of a sentence; None where it can."""
    if step.transform.takes_rng:
        return "draws random numbers, which belong to an epoch"
    if step.transform.reads is None:
        return "does not say what it reads: with Transform(function, reads=[...], gives=[...]) it could run"
    image = next((name for name in step.reads if name in images), None)
    return None if image is None else f"reads the image {quoted(image)}, and no image is decoded here"
