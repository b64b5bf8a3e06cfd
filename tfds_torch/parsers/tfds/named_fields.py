"""NamedFields: what ParserTfds asks of the fields of a dataset, whether its examples are whole records or windows."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tfds_torch.engines.fields import EncodedField, FieldDecoder
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.tfds.feature_tree import Feature, FoundFeature


class NamedFields(Protocol):
    """The fields that can be asked for: of whole records `DatasetFields`, of windows `WindowFields`."""

    @property
    def features(self) -> Feature:
        """Those of the dataset."""

    @property
    def image_key(self) -> str | None:
        """The stored field behind `image`."""

    @property
    def target_key(self) -> str | tuple[str, ...] | None:
        """The stored field behind `label`, or several."""

    @property
    def has_scalar_target(self) -> bool:
        """Whether the field `label` is one value."""

    @property
    def all_fields(self) -> Sequence[str]:
        """The stored keys of all fields, or the names that users have given them, sorted."""

    @property
    def specs(self) -> Mapping[str, Any]:
        """One of `all_fields` -> shape and dtype of one value."""

    @property
    def cameras(self) -> Mapping[str, Preprocess]:
        """Field -> what is done to its images while they are decoded, beside the preprocess of `image`."""

    @property
    def file_name_key(self) -> str | None:
        """The stored field that names the file of each example; None: there is none."""

    @property
    def has_integer_target(self) -> bool:
        """Whether the field `label` is one integer."""

    def find(self, name: str) -> FoundFeature:
        """Returns the feature behind a field; raises ConfigError where there is none."""

    def field(self, name: str, image_mode: str | None) -> FieldDecoder:
        """Returns how a field is decoded."""

    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored."""

    def paths(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Returns field -> keys of its feature, of those fields whose boxes move with the image."""

    def stored(self, names: Sequence[str]) -> "NamedFields":
        """Returns the fields as they are stored; raises ConfigError where one is given by a function of the user's."""
