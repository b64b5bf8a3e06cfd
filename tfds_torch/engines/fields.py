"""How the fields of examples are decoded: a class for each kind; and Content, those that are asked for."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.batch_buffer import MakeBatchBuffer
from tfds_torch.images.beside import BesideDecoder, Kind
from tfds_torch.images.boxes import BoxRows
from tfds_torch.images.decoding import BadImageError, ImageDecodeError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.source import Columns, FieldSpec

Decoded = dict[str, Any]
"""Field -> n values."""


class FieldDecoder(Protocol):
    """Decodes one field from the stored fields that it needs. It can be pickled; threads may share it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The stored fields that it needs."""

    def decode(self, columns: Columns) -> Any:
        """Return n values, an array [n, ...] or a list, of n encoded values of each stored field.

        The columns also have `SAMPLES`, for decoders that need random numbers.

        Raises:
            ValueError: a value cannot be decoded; the message is a sentence with the reason.
        """


class CameraField(FieldDecoder, Protocol):
    """Images of windows, which may be decoded into the memory of their batch.

    Attributes:
        has_time: whether a window has several images, along a time axis.
    """

    @property
    def has_time(self) -> bool: ...  # noqa: D102

    def row_shape(self, columns: Columns, position: int) -> tuple[int, int, int, int]:
        """Return how many images a window has, and [H, W, C] of the window at a position; raise BadImageError."""

    def write(self, columns: Columns, rows: Sequence[BufferRows]) -> None:
        """Decode the images of n windows into as many rows as there are images.

        Raises:
            OtherSizeError: an image does not have the size of its row; `decode` accepts it.
            BadImageError, PreprocessError: as in `decode`.
        """


class UnmappedLabelError(BadImageError):
    """The label of the example at `position` is not in a class map; `reason` is a sentence without its full stop."""


SAMPLES = "samples of the chunk"
"""Beside the stored fields, decoders find the `Samples` of their values under this name."""


@dataclass(frozen=True)
class Samples:
    """The keys and the seed of the random numbers of n examples.

    Attributes:
        keys: int64 [n], sample keys of the examples.
        seed: seed of the parser.
        are_whole: whether images stay whole, as those of single examples do, which do not belong to a pass.
    """

    keys: Int64Array
    seed: int
    are_whole: bool = False

    def at(self, places: Int64Array) -> "Samples":
        """Return the samples of some of the examples."""
        return Samples(self.keys[places], self.seed, self.are_whole)


@dataclass(frozen=True)
class OneKeyField:
    """A field that is made of one stored field."""

    key: str

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,)


@dataclass(frozen=True)
class StoredField(OneKeyField):
    """A feature that is stored as it is: numbers, labels, texts."""

    is_text: bool = False

    def decode(self, columns: Columns) -> Any:  # noqa: D102
        values = columns[self.key]
        if self.is_text:
            return [text.decode(errors="replace") for text in values]
        if isinstance(values, np.ndarray) and values.dtype != object:
            return values
        return list(values)


BYTES_SPEC = FieldSpec((), object)
"""The spec of one value that comes as bytes."""


@dataclass(frozen=True)
class BytesField(OneKeyField):
    """A field that is not decoded: its values are the stored bytes, for example the files of images.

    Attributes:
        is_optional: whether some may be None.
    """

    is_optional: bool = False

    def decode(self, columns: Columns) -> list[bytes | None]:
        """Return n values; raise ValueError where one is not stored as bytes."""
        values, allowed = list(columns[self.key]), (bytes, type(None)) if self.is_optional else (bytes,)
        if not all(isinstance(value, allowed) for value in values):
            other = next(value for value in values if not isinstance(value, allowed))
            shape, dtype = getattr(other, "shape", None), getattr(other, "dtype", None)
            kind = f"an object of type {type(other).__name__}" if shape is None else f"{dtype} {list(shape)}"
            raise ValueError(f"It is stored as {kind}, not as the bytes of a file.")
        return values


@dataclass(frozen=True)
class ListField:
    """A field whose values have a side that varies: a list in every batch, also where all have one size."""

    values: FieldDecoder

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return self.values.keys

    def decode(self, columns: Columns) -> list[Any]:  # noqa: D102
        return list(self.values.decode(columns))


@dataclass(frozen=True)
class DecodedField(OneKeyField):
    """Values that `decode_one` makes of the stored bytes, one by one; it raises ValueError. None stays None."""

    decode_one: Callable[[bytes], Any]

    def decode(self, columns: Columns) -> list[Any]:  # noqa: D102
        return [None if value is None else self.decode_one(value) for value in columns[self.key]]


@dataclass(frozen=True)
class ClassLabelField:
    """Labels of a known number of classes, checked: 0 to num_classes - 1, and -1, TFDS's label for no class.

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
        """Return the decoded labels; raise ValueError where one is not a label of the classes."""
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
    """Several scalar numbers of an example as the list of the positions whose number is > 0."""

    fields: tuple[FieldDecoder, ...]

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return tuple(key for field in self.fields for key in field.keys)

    def decode(self, columns: Columns) -> list[list[int]]:  # noqa: D102
        numbers = [np.asarray(field.decode(columns)) for field in self.fields]
        is_on = np.stack([one > 0 for one in numbers], axis=1)  # bool [n, number of fields]
        return [np.flatnonzero(row).tolist() for row in is_on]


@dataclass(frozen=True)
class ImageField(OneKeyField):
    """An encoded image, of a format of `storage/image_formats.py`; of a GIF or TIFF, the first image in it."""

    mode: str | None = "RGB"
    jpeg_decoder: str = "auto"

    @property
    def is_deep(self) -> bool:
        """Whether images have other numbers than pictures, so that they are not resized and need no batch buffer."""
        return False

    def images(self, columns: Columns) -> Sequence[Any]:
        """Return the n images as they are stored: encoded, or as pixels uint8 [h, w, C]."""
        return columns[self.key]  # type: ignore[no-any-return]

    def decode(self, columns: Columns) -> Any:
        """Return n images, uint8 [h, w, C]; raise BadImageError."""
        return ImageTransform(self.mode, jpeg_decoder=self.jpeg_decoder).decode(self.images(columns))


@dataclass(frozen=True)
class TensorImageField(ImageField):
    """Images that are stored as tensors, [h, w] or [h, w, C].

    Attributes:
        values: decodes the tensors; None: they are stored as they are.
        are_numbers: whether they are not pictures (uint8 of 1, 3 or 4 channels), but have 13 channels, 16 bits, floats.
        has_one_size: whether all are declared to have one size, so that they are one array.
    """

    values: FieldDecoder | None = None
    are_numbers: bool = False
    has_one_size: bool = True

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,) if self.values is None else self.values.keys

    @property
    def is_deep(self) -> bool:  # noqa: D102
        return self.are_numbers

    def images(self, columns: Columns) -> list[NDArray[Any]]:
        """Return n arrays [h, w, C]; raise ValueError."""
        values = columns[self.key] if self.values is None else self.values.decode(columns)
        return [value if value.ndim == 3 else value[..., None] for value in map(np.asarray, values)]

    def decode(self, columns: Columns) -> Any:
        """Return n images [h, w, C]: uint8 or their own type, as one array where they have one size."""
        if not self.are_numbers:
            return super().decode(columns)
        images = self.images(columns)
        is_one_array = self.has_one_size and len({image.shape for image in images}) == 1
        return np.stack(images) if is_one_array else images


class ImagesBeside(ABC):
    """A field of single images [h, w, C] that are not *the* image: masks, depths, further cameras."""

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The stored fields that it needs."""

    @abstractmethod
    def decode(self, columns: Columns) -> list[NDArray[Any]]:
        """Return n whole images [h, w, C]; raise BadImageError or ValueError."""

    @abstractmethod
    def are_pictures(self, columns: Columns) -> list[bool]:
        """Return which of the n images are pictures; the others are numbers."""

    @abstractmethod
    def of_kind(self, kind: Kind | None, jpeg_decoder: str) -> "ImagesBeside":
        """Return this field with images that are known to be pictures or numbers; None: neither is known."""


@dataclass(frozen=True)
class ImageBesideField(OneKeyField, ImagesBeside):
    """Images beside the image, encoded or as arrays, by the rule of `images/beside.py`.

    Attributes:
        kind: kind of the images; None: `is_picture` decides for each image.
        jpeg_decoder: as in `ImageDecoder`.
        declared: decodes them as the dataset declares them, where no kind is given; None: it declares nothing.
        are_deep: whether the dataset declares numbers that a picture cannot have, like uint16.
    """

    kind: Kind | None = None
    jpeg_decoder: str = "auto"
    declared: FieldDecoder | None = None
    are_deep: bool = False

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return (self.key,) if self.declared is None else self.declared.keys

    def decode(self, columns: Columns) -> list[NDArray[Any]]:  # noqa: D102
        if self.declared is not None and (self.kind is None or (self.are_deep and self.kind == "numbers")):
            return list(self.declared.decode(columns))
        decoder, decoded = BesideDecoder(self.kind, self.jpeg_decoder), list[NDArray[Any]]()
        for image in columns[self.key]:
            try:
                decoded.append(decoder.decode(image))
            except ImageDecodeError as error:
                raise BadImageError(len(decoded), str(error)) from None
        return decoded

    def are_pictures(self, columns: Columns) -> list[bool]:  # noqa: D102
        decoder = BesideDecoder("numbers" if self.are_deep and self.kind is None else self.kind)
        return [decoder.is_picture(image) for image in columns[self.key]]

    def of_kind(self, kind: Kind | None, jpeg_decoder: str) -> "ImageBesideField":  # noqa: D102
        return replace(self, kind=kind or self.kind, jpeg_decoder=jpeg_decoder)


class EncodedField(NamedTuple):
    """A field as it is stored: images encoded, or as pixels where those are stored; texts as bytes; the rest decoded.

    Attributes:
        decoder: makes the values from the stored ones.
        kind: kind of the values.
        spec: FieldSpec of one value as the dataset declares it, or dictionaries of them; None: values of any form.
        is_optional: whether some are None, or of a label of integers -100.
    """

    decoder: FieldDecoder
    kind: Literal["image", "text", "value"]
    spec: Any
    is_optional: bool = False


class ExampleChains(Protocol):
    """The user's functions that decoded examples go through; see `Chains`."""

    @property
    def in_threads(self) -> bool:
        """Whether they run where chunks are decoded, instead of where batches are taken."""

    def apply(
        self,
        columns: Decoded,
        samples: Samples,
        index: Int64Array,
        source: Any,
        context: Any,
        make_buffer: MakeBatchBuffer | None = None,
    ) -> Decoded:
        """Return the columns of examples after these functions."""


@dataclass(frozen=True)
class Content:
    """The fields of the examples to decode.

    Attributes:
        fields: name -> how it is decoded; without the images that go into batch buffers.
        has_label: whether the field `label` is a scalar integer, and so becomes `Batch.label`.
        image: the images that are cut, or go into batch buffers; None: no such images.
        preprocess: preprocess of those images.
        boxes: the fields, or parts of them, that move with those images.
        may_hold_boxes: whether dictionaries among the values may hold boxes that nobody has declared or named.
        are_whole: whether images of windows stay whole, whatever the preprocess of their camera.
        cameras: name -> the images of windows that go into batch buffers, too.
        chains: the user's functions that examples go through, which also know the fields that are asked for; None:
            there are none, and all of `fields` are asked for.
        are_one_array: whether `image` is one array in every batch, also where those functions make it.
    """

    fields: Mapping[str, FieldDecoder]
    has_label: bool
    image: ImageField | None = None
    preprocess: Preprocess | None = None
    boxes: tuple[BoxRows, ...] = ()
    may_hold_boxes: bool = False
    are_whole: bool = False
    cameras: Mapping[str, CameraField] = field(default_factory=dict)
    chains: ExampleChains | None = None
    are_one_array: bool = False

    @property
    def in_buffers(self) -> bool:
        """Whether images go into batch buffers."""
        return (self.image is not None and not self.image.is_deep) or bool(self.cameras)

    @property
    def keys(self) -> list[str]:
        """The stored fields that are needed."""
        decoders = [*self.fields.values(), *self.cameras.values(), *([self.image] if self.image else [])]
        return list(dict.fromkeys(key for decoder in decoders for key in decoder.keys))


def describe(error: BaseException) -> str:
    """Describe an error in a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    sentence = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    return sentence if sentence.endswith(".") else f"{sentence}."


def _flatten_labels(values: Any) -> NDArray[np.int64]:
    """Return the labels in an array, or in nested lists of arrays or of labels, as int64 [number of labels]."""
    if isinstance(values, np.ndarray):
        return np.ascontiguousarray(values, np.int64).reshape(-1)
    kinds = set(map(type, values))
    if kinds == {np.ndarray}:
        return np.concatenate(values, axis=None).astype(np.int64, copy=False)
    if kinds <= {np.ndarray, list}:
        return np.concatenate([np.empty(0, np.int64), *map(_flatten_labels, values)])
    return np.array(values, np.int64)
