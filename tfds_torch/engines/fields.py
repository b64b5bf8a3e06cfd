"""How the fields of examples are decoded from what is stored of them: one small class for each kind of field."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from tfds_torch.images.transform import ImageTransform
from tfds_torch.storage.source import Columns


class FieldDecoder(Protocol):
    """One field: which stored fields it is made of, and how. It can be pickled; threads may share it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The stored fields that it needs."""

    def decode(self, columns: Columns) -> Any:
        """Returns n values: an array [n, ...], or a list.

        Args:
            columns: stored field -> n encoded values.

        Raises:
            ValueError: a value cannot be decoded; the message is a sentence that says why.
        """


@dataclass(frozen=True)
class StoredField:
    """A feature that is stored as it is: numbers, labels, texts.

    Attributes:
        key: the stored field.
        is_text: whether bytes are decoded to `str`.
    """

    key: str
    is_text: bool = False

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,)

    def decode(self, columns: Columns) -> Any:  # noqa: D102
        values = columns[self.key]
        if self.is_text:
            return [text.decode(errors="replace") for text in values]
        if isinstance(values, np.ndarray) and values.dtype != object:
            return values
        return list(values)


@dataclass(frozen=True)
class PositionsField:
    """Several scalar numbers of an example as the list of the positions whose number is > 0.

    Attributes:
        keys: the stored numbers, in the order of the positions.
    """

    keys: tuple[str, ...]

    def decode(self, columns: Columns) -> list[list[int]]:  # noqa: D102
        is_on = np.stack([np.asarray(columns[key]) > 0 for key in self.keys], axis=1)  # bool [n, number of fields]
        return [np.flatnonzero(row).tolist() for row in is_on]


@dataclass(frozen=True)
class ImageField:
    """An encoded image: JPEG, PNG, GIF (its first frame), BMP or WebP.

    Attributes:
        key: the stored field.
        mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
    """

    key: str
    mode: str | None = "RGB"

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,)

    def decode(self, columns: Columns) -> list[Any]:
        """Returns n images, uint8 [h, w, C]; raises BadImageError."""
        return ImageTransform(self.mode).decode(columns[self.key])


class EncodedField(NamedTuple):
    """A field as it is stored: images encoded, or as pixels where those are stored; texts as bytes; the rest decoded.

    Attributes:
        decoder: makes the values of what is stored.
        kind: what the values are.
        spec: FieldSpec of one value as the dataset declares it, or dictionaries of them; None: values of any form.
    """

    decoder: FieldDecoder
    kind: Literal["image", "text", "value"]
    spec: Any
