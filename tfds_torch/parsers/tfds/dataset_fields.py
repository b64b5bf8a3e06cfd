"""The fields that can be asked for of a dataset: which feature is behind each, and how it is decoded.

The features are TFDS's, passed in: this module does not import tensorflow_datasets.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.feature_keys import FoundFeature, describe_missing, find_feature
from tfds_torch.parsers.targets import PositionsColumn, find_binary_fields
from tfds_torch.pipeline.columns import Column, DenseColumn, ImageColumn, StructuredColumn


@dataclass(frozen=True)
class DatasetFields:
    """The features of a dataset, and which of them are `image` and `label`.

    Attributes:
        dataset: `name/config:version`, for messages.
        features: its TFDS `FeaturesDict`.
        image_key: the feature behind the field `image`; None: there is none.
        target_key: the feature behind the field `label`, or several; None: there is none.
        tfds: the module tensorflow_datasets.
    """

    dataset: str
    features: Any
    image_key: str | None
    target_key: str | tuple[str, ...] | None
    tfds: Any

    def find(self, name: str) -> FoundFeature:
        """Returns the feature behind a field; of several target keys, the first one's.

        Raises:
            ConfigError: there is none, or `image` or `label` names no suitable feature.
        """
        key = {"image": self.image_key, "label": self.target_key}.get(name, name)
        if key is None:
            argument = "image_key" if name == "image" else "target_key"
            raise ConfigError(f"The field {name!r} was asked for, but the parser has {argument}=None.")
        if isinstance(key, tuple):
            return find_binary_fields(key, self.features, self.dataset, self.tfds.features)[0]
        found = find_feature(self.features, key)
        if found is None:
            what = {"image": "image feature", "label": "target feature"}.get(name, "feature")
            raise ConfigError(f"{self.dataset}: " + describe_missing(what, key, self.features))
        if name == "image" and (
            not isinstance(found.connector, self.tfds.features.Image)
            or found.sequence_depth
            or found.connector.np_dtype != np.uint8
        ):
            raise ConfigError(
                f"{self.dataset}: the feature {key!r} is no single uint8 image but {found.connector!r}. Set image_key, "
                f"or ask for it by its own name among fields."
            )
        return found

    def column(self, name: str, image_mode: str | None) -> Column:
        """Returns how a field is decoded.

        Args:
            name: of the field.
            image_mode: of the field `image`.

        Raises:
            ConfigError: as `find` does.
        """
        if name == "label" and isinstance(self.target_key, tuple):
            numbers = find_binary_fields(self.target_key, self.features, self.dataset, self.tfds.features)
            return PositionsColumn(tuple(map(self._dense_column, numbers)))
        found = self.find(name)
        if name == "image":
            return ImageColumn("/".join(found.path), image_mode)
        is_tensor = isinstance(found.connector, self.tfds.features.Tensor) and not found.sequence_depth
        if is_tensor and _is_stored_as_it_is(found.connector):
            return self._dense_column(found)
        wanted: Any = True
        for part in reversed(found.path):
            wanted = {part: wanted}
        subset = self.tfds.decode.PartialDecoding(wanted).extract_features(self.features)
        return StructuredColumn(subset.deserialize_example, found.path)

    @property
    def has_integer_target(self) -> bool:
        """Whether the field `label` is one integer."""
        if self.target_key is None or isinstance(self.target_key, tuple):
            return False
        found = find_feature(self.features, self.target_key)
        if found is None or found.sequence_depth:
            return False
        return found.connector.shape == () and np.dtype(found.connector.np_dtype).kind in "iub"

    def _dense_column(self, found: FoundFeature) -> DenseColumn:
        connector = found.connector
        is_text = isinstance(connector, self.tfds.features.Text)
        default = connector.get_serialized_info().default_value
        return DenseColumn("/".join(found.path), connector.np_dtype, tuple(connector.shape), is_text, default)


def _is_stored_as_it_is(connector: Any) -> bool:
    """Whether a tensor feature has a fixed shape and is stored without an encoding of its own."""
    stored = connector.get_serialized_info()
    return None not in connector.shape and (stored.shape, stored.np_dtype) == (connector.shape, connector.np_dtype)
