"""ParserFields: which fields the examples of a parser have, and how each is decoded, or handed over as it is stored."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from tfds_torch.engines.fields import EncodedField, FieldDecoder, ImageField, ImagesBeside, StoredField
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BoxRows
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.box_rows import named_boxes
from tfds_torch.parsers.protocol import METADATA_FIELDS, ElementSpec
from tfds_torch.parsers.undecoded import BYTES_SPEC, BytesField, find_undecoded, no_bytes
from tfds_torch.runtime.printable import quoted


class ParserFields(ABC):
    """The fields of a parser's examples. A format's own parser says what it stores; all else follows from that."""

    target_key: str | tuple[str, ...] | None

    _decode: Mapping[str, bool] = {}
    """Field -> whether it is decoded, of those that the user names."""

    _undecoded: frozenset[str] = frozenset()
    """The stored fields that come as bytes."""

    @property
    @abstractmethod
    def dataset_name(self) -> str:
        """`name/config:version`, with what was found on disk."""

    @abstractmethod
    def _field(self, name: str) -> FieldDecoder:
        """Returns how a field is decoded that is not a metadata field; `stored/<key>` is the stored one of that key.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """

    def field(self, name: str) -> FieldDecoder:
        """Returns how a field is decoded, or handed over as bytes: `image`, `label`, or any feature of the dataset.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """
        return self._undecoded_field(name) or self._field(name)

    def is_undecoded(self, name: str) -> bool:
        """Whether a field comes as the bytes that are stored, as `decode` asks for."""
        return self._decode.get(name) is False or self._undecoded_field(name) is not None

    def _undecoded_field(self, name: str) -> BytesField | None:
        """Returns a field that comes as bytes; None: it is decoded."""
        if not self._undecoded:
            return None
        try:
            key = self._bytes_key(name)
        except ConfigError:  # Not a field, or none that could come as bytes.
            return None
        return BytesField(key) if key in self._undecoded else None

    def _find_undecoded(self) -> frozenset[str]:
        """Returns the stored fields that come as bytes."""
        return find_undecoded(self._decode, self._bytes_key, self.dataset_name)

    def _undecoded_specs(self, specs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the specs of fields as they come, of which those that the dataset declares are given."""
        return {name: BYTES_SPEC if self.is_undecoded(name) else spec for name, spec in specs.items()}

    def _bytes_key(self, name: str) -> str:
        """Returns the stored field that holds the bytes of a field.

        Raises:
            ConfigError: it does not exist, or is not stored as bytes.
        """
        found = self.encoded_field(name)
        if isinstance(found.decoder, StoredField) and found.kind in ("image", "text"):
            return found.decoder.key
        raise no_bytes(self.dataset_name, name, quoted(self._find_stored(name)[0]), "Leave it out of decode.")

    @abstractmethod
    def encoded_field(self, name: str) -> EncodedField:
        """Returns how a field is handed over as it is stored; also one with the name of a metadata field.

        Raises:
            ConfigError: it does not exist, or only tensorflow could decode it.
        """

    @property
    def has_integer_label(self) -> bool:
        """Whether the field `label` is one integer, as it is stored."""
        return self._has_integer_target

    @property
    @abstractmethod
    def _has_integer_target(self) -> bool:
        """Whether the field `label` is one integer."""

    @property
    @abstractmethod
    def _all_fields(self) -> Sequence[str]:
        """The fields that an example of a dataset without image and label has."""

    @property
    @abstractmethod
    def element_spec(self) -> ElementSpec:
        """The fields that can be asked for, with shape and dtype of one value as the dataset declares it."""

    @property
    @abstractmethod
    def _stored_class_names(self) -> list[str] | None:
        """Names of the classes by the label that is stored; None when they are unknown."""

    @abstractmethod
    def _find_stored(self, name: str) -> tuple[object, bool]:
        """Returns what is stored of a field, for messages, and whether that is an image.

        Raises:
            ConfigError: it does not exist, or `image` or `label` names nothing suitable.
        """

    def images_beside(self, fields: Sequence[str]) -> frozenset[str]:
        """Returns which of some fields are single images [H, W, C] that are not *the* image, such as masks."""
        return frozenset(
            name
            for name in fields
            if name not in ("image", *METADATA_FIELDS) and isinstance(self.field(name), ImagesBeside)
        )

    @property
    def has_image_numbers(self) -> bool:
        """Whether `image` is numbers that no picture has, such as 13 channels, 16 bits or floats."""
        decoder = self.field("image")
        return isinstance(decoder, ImageField) and decoder.is_deep

    def has_field(self, name: str) -> bool:
        """Whether a field exists: `image` and `label` by image_key and target_key."""
        try:
            self.check_fields([name])
        except ConfigError:
            return False
        return True

    def check_fields(self, fields: Sequence[str]) -> None:
        """Raises ConfigError when a field does not exist, or `image` or `label` names no suitable feature."""
        for name in fields:
            if not isinstance(name, str):
                raise ConfigError(f"fields={quoted(fields)}: {quoted(name)} is not a field name.")
            if name not in METADATA_FIELDS:
                self.field(name)

    def moving_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> tuple[BoxRows, ...]:
        """Returns which boxes among some fields move with the image as a preprocess changes it."""
        return named_boxes(preprocess.box_fields or {}, fields, self.target_key)

    def unmoved_boxes(self, fields: Sequence[str], preprocess: Preprocess) -> list[str]:
        """Returns the fields that are known to be boxes of the whole image, and stay so without being asked to."""
        return []
