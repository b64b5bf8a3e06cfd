"""How the fields of examples are decoded from what is stored of them: one small class for each kind of field."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

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
class ClassLabelField:
    """Labels of a known number of classes, checked: 0 to num_classes - 1, and -1, TFDS's label for none.

    Attributes:
        labels: decodes int64 [n], or n labels, arrays or nested lists of them.
        num_classes: > 0.
    """

    labels: FieldDecoder
    num_classes: int

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return self.labels.keys

    def decode(self, columns: Columns) -> Any:
        """Returns what `labels` decodes; raises ValueError where one is not a label of the classes."""
        values = self.labels.decode(columns)
        flat = _flatten_labels(values)
        # As unsigned numbers -1 + 1 is 0 and all other negative ones are large: one comparison instead of two.
        if flat.size and int((flat.view(np.uint64) + np.uint64(1)).max()) > self.num_classes:
            wrong = flat[(flat < -1) | (flat >= self.num_classes)][0]
            raise ValueError(
                f"A label of {self.keys[0]!r} is {wrong}, which is not a label of the {self.num_classes} classes: "
                f"they are 0 to {self.num_classes - 1}, and -1 for none."
            )
        return values


@dataclass(frozen=True)
class PositionsField:
    """Several scalar numbers of an example as the list of the positions whose number is > 0.

    Attributes:
        fields: of the stored numbers, in the order of the positions.
    """

    fields: tuple[FieldDecoder, ...]

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return tuple(key for field in self.fields for key in field.keys)

    def decode(self, columns: Columns) -> list[list[int]]:  # noqa: D102
        numbers = [np.asarray(field.decode(columns)) for field in self.fields]
        is_on = np.stack([one > 0 for one in numbers], axis=1)  # bool [n, number of fields]
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


def _flatten_labels(values: Any) -> NDArray[np.int64]:
    """Returns the labels in an array, or in nested lists of arrays or of labels, as int64 [number of labels]."""
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, np.int64).reshape(-1)
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        return np.concatenate(values, axis=None).astype(np.int64, copy=False)
    if kinds <= {np.ndarray, list}:
        return np.concatenate([np.empty(0, np.int64), *map(_flatten_labels, values)])
    return np.array(values, np.int64)
