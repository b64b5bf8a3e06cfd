"""The argument `transform` of a parser of windows: which fields its functions give, and what can be wrong with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.direct import read_examples
from tfds_torch.engines.fields import Content, EncodedField, FieldDecoder
from tfds_torch.engines.window_transform import TransformedField, WindowTransform
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.examples import examples_at_once
from tfds_torch.parsers.protocol import METADATA_FIELDS
from tfds_torch.parsers.tfds.feature_tree import Feature, FoundFeature
from tfds_torch.parsers.tfds.window_fields import WindowFields
from tfds_torch.parsers.tfds.window_names import OWN_FIELDS
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec, Source


def with_transforms(transform: object, fields: WindowFields, source: Source) -> "WindowFields | TransformedFields":
    """Returns the fields of windows with those that transforms give.

    Args:
        transform: the argument: a WindowTransform, or a list of them; None: there are none.
        fields: those that are stored.
        source: the windows.

    Raises:
        ConfigError: it is something else; a field that does not exist, or has two transforms.
    """
    if transform is None:
        return fields
    dataset = fields.dataset
    every = transform if isinstance(transform, Sequence) else [transform]
    found: dict[str, TransformedField] = {}
    for one in every:
        if not isinstance(one, WindowTransform):
            raise ConfigError(
                f"{dataset}: transform={quoted(one)} must be a WindowTransform, which says what a function reads, for "
                f"example WindowTransform(function, reads=['action'])."
            )
        inputs = {name: fields.field(name, None) for name in one.reads}
        for name in one.gives or ():
            if name in found or name in OWN_FIELDS or name in METADATA_FIELDS or name == "image":
                why = "is given by two transforms" if name in found else "is not a name that a transform can give"
                raise ConfigError(f"{dataset}: transform: the field {quoted(name)} {why}.")
            found[name] = TransformedField(name, one, inputs, dataset)
    return TransformedFields(fields, found, source)


@dataclass(frozen=True)
class TransformedFields:
    """The fields of windows, some of which functions of the user's give; see NamedFields.

    Attributes:
        of_windows: the fields as they are stored.
        given: name -> a field that a function gives, also in the place of a stored one.
        source: the windows.
    """

    of_windows: WindowFields
    given: Mapping[str, TransformedField]
    source: Source

    has_integer_target = has_scalar_target = False
    file_name_key = target_key = None
    image_key = "image"

    @property
    def features(self) -> Feature:
        """Those of the dataset."""
        return self.of_windows.features

    @property
    def all_fields(self) -> list[str]:
        """The names of all fields, sorted."""
        return sorted({*self.of_windows.all_fields, *self.given})

    @property
    def specs(self) -> dict[str, Any]:
        """Field -> FieldSpec of one window's value; None where what a function gives has no fixed size."""
        return self.of_windows.specs | self._given_specs

    @property
    def cameras(self) -> Mapping[str, Preprocess]:
        """Field -> what is done to its images while they are decoded."""
        return self.of_windows.cameras

    def find(self, name: str) -> FoundFeature:
        """Returns the feature behind a stored field."""
        return self.of_windows.find(name)

    def field(self, name: str, image_mode: str | None) -> FieldDecoder:
        """Returns how a field is made."""
        return self.given[name] if name in self.given else self.of_windows.field(name, image_mode)

    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored; what functions give, as they give it."""
        if name in self.given:
            return EncodedField(self.given[name], "value", self._given_specs[name])
        return self.of_windows.encoded_field(name)

    def paths(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns nothing, as WindowFields."""
        return {}

    def stored(self, names: Sequence[str]) -> WindowFields:
        """Returns the fields as they are stored; raises ConfigError where one of these is only given by a function."""
        for name in names:
            if name in self.given and name not in self.of_windows.all_fields:
                raise ConfigError(
                    f"{self.of_windows.dataset}: columns are what is stored with stored=True, and {quoted(name)} is "
                    f"given by transform=. Leave out stored=True, or ask for {', '.join(self.given[name].inputs)}."
                )
        return self.of_windows

    @cached_property
    def _given_specs(self) -> dict[str, FieldSpec | None]:
        """Shape and dtype of what functions give for the first window; None: not numbers of one size, or no window."""
        if not len(self.source):
            return dict.fromkeys(self.given)
        content = Content(self.given, has_label=False)
        ((_, decoded),) = read_examples(self.source, content, np.zeros(1, np.int64), 1, 1)
        return {
            name: FieldSpec(values.shape[1:], values.dtype) if isinstance(values, np.ndarray) else None
            for name, values in decoded.items()
        }


def read_given(
    given: Mapping[str, TransformedField], fields: WindowFields, source: Source, index: Int64Array, num_threads: int
) -> dict[str, NDArray[Any]]:
    """Returns fields that functions of the user's give as columns: what a batch holds of each window's own step.

    Args:
        given: name -> how a field is made.
        fields: the fields of the windows as they are stored.
        source: the windows.
        index: int64 [n].
        num_threads: number of threads that read and decode.

    Returns:
        Name -> numbers [n, ...], or objects [n] of str or bytes.

    Raises:
        ConfigError: a function failed, gives an image, values that differ in size, or no value of the own step.
        ShardError, CorruptRecordError: as reading raises them.
    """
    if not given or not len(source):
        return {name: np.empty(0) for name in given}
    asked = index if len(index) else np.zeros(1, np.int64)  # The first window shows shape and dtype.
    content, size = Content(given, has_label=False), examples_at_once(source)
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in given}
    for _, decoded in read_examples(source, content, asked, num_threads, size):
        for name, own in parts.items():
            own.append(_own_steps(given[name], fields, decoded[name]))
            if (own[-1].dtype, own[-1].shape[1:]) != (own[0].dtype, own[0].shape[1:]):
                raise _not_a_column(given[name], _UNLIKE)
    return {name: np.concatenate(own)[: len(index)] for name, own in parts.items()}


_UNLIKE = "does not give values of one size and dtype in every window"


def _own_steps(field: TransformedField, fields: WindowFields, values: Any) -> NDArray[Any]:
    """Returns what n windows have of a field at their own step, [n, ...]."""
    if not isinstance(values, np.ndarray):
        if not all(isinstance(one, str) for one in values) and not all(isinstance(one, bytes) for one in values):
            raise _not_a_column(field, _UNLIKE)
        texts = np.empty(len(values), object)
        texts[:] = values
        return texts
    step = _own_step(field, fields, values.shape[1:])
    own: NDArray[Any] = values if step is None else values[:, step]
    if own.dtype == np.uint8 and own.ndim > 3:
        raise _not_a_column(field, "gives images, and columns are numbers and texts. Images come in batches()")
    return own


def _own_step(field: TransformedField, fields: WindowFields, shape: tuple[int, ...]) -> int | None:
    """Returns the place of a window's own step in a value; None: it is one value, without an axis of time."""
    names = [field.name] if fields.has(field.name) else field.inputs
    times = {offsets for name in names if (offsets := fields.offsets_of(name)) is not None}
    fitting = [offsets for offsets in times if shape and len(offsets) == shape[0]]
    if not fitting:
        return None
    places = {offsets.index(0) if 0 in offsets else None for offsets in fitting}
    if len(places) > 1 or None in places:
        steps = " or ".join(str(list(offsets)) for offsets in fitting)
        raise _not_a_column(
            field,
            f"gives values of the steps {steps}, counted from the window's own, and a column is of the own one. Give "
            f"it the name of a field whose offsets have 0, or read batches()",
        )
    return places.pop()


def _not_a_column(field: TransformedField, why: str) -> ConfigError:
    return ConfigError(
        f"{field.dataset}: columns: the transform that gives {quoted(field.name)} {why}. What is stored of a field "
        f"comes with stored=True."
    )
