"""Encoded examples and how they are decoded: a class for each kind of field, and ChunkDecoder for whole chunks."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.map_function import make_map
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.images.boxes import BoxRows, move_boxes
from tfds_torch.images.decoding import BadImageError, OtherSizeError
from tfds_torch.images.preprocess import Preprocess, PreprocessError
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.images.view_transform import make_transform
from tfds_torch.plan.order import Int64Array, examples_of
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.storage.source import Columns, Source
from tfds_torch.storage.stored_pixels import StoredPixels

Decoded = dict[str, Any]
"""Field -> n values."""


class FieldDecoder(Protocol):
    """One field: which stored fields it is made of, and how. It can be pickled; threads may share it."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The stored fields that it needs."""

    def decode(self, columns: Columns) -> Any:
        """Returns n values, an array [n, ...] or a list, of n encoded values of each stored field.

        The columns also have `SAMPLES`, for decoders that need random numbers.

        Raises:
            ValueError: a value cannot be decoded; the message is a sentence with the reason.
        """


SAMPLES = "samples of the chunk"
"""Beside the stored fields, decoders find the `Samples` of their values under this name."""


@dataclass(frozen=True)
class Samples:
    """What random numbers of examples are made of.

    Attributes:
        keys: int64 [n], their sample keys.
        seed: of the parser.
        are_whole: whether images stay whole, as those of single examples do, which belong to no pass.
    """

    keys: Int64Array
    seed: int
    are_whole: bool = False

    def at(self, places: Int64Array) -> "Samples":
        """Returns those of some of the examples."""
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


@dataclass(frozen=True)
class DecodedField(OneKeyField):
    """Values that `decode_one` makes of the stored bytes, one by one; it raises ValueError."""

    decode_one: Callable[[bytes], Any]

    def decode(self, columns: Columns) -> list[Any]:  # noqa: D102
        return [self.decode_one(value) for value in columns[self.key]]


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
    """An encoded image: JPEG, PNG, GIF (its first frame), BMP or WebP."""

    mode: str | None = "RGB"
    jpeg_decoder: str = "auto"

    def decode(self, columns: Columns) -> list[Any]:
        """Returns n images, uint8 [h, w, C]; raises BadImageError."""
        return ImageTransform(self.mode, jpeg_decoder=self.jpeg_decoder).decode(columns[self.key])


class EncodedField(NamedTuple):
    """A field as it is stored: images encoded, or as pixels where those are stored; texts as bytes; the rest decoded.

    Attributes:
        decoder: makes the values of what is stored.
        kind: kind of the values.
        spec: FieldSpec of one value as the dataset declares it, or dictionaries of them; None: values of any form.
    """

    decoder: FieldDecoder
    kind: Literal["image", "text", "value"]
    spec: Any


@dataclass(frozen=True)
class Content:
    """The fields of the examples to decode.

    Attributes:
        fields: name -> how it is decoded; without the images that go into batch buffers.
        has_label: whether the field `label` is a scalar integer, and so becomes `Batch.label`.
        image: the images that go into batch buffers; None: there are none.
        preprocess: preprocess of those images.
        boxes: the fields, or parts of them, that move with those images.
        are_whole: whether images of windows stay whole, whatever the preprocess of their camera.
    """

    fields: Mapping[str, FieldDecoder]
    has_label: bool
    image: ImageField | None = None
    preprocess: Preprocess | None = None
    boxes: tuple[BoxRows, ...] = ()
    are_whole: bool = False

    @property
    def keys(self) -> list[str]:
        """The stored fields that are needed."""
        decoders = [*self.fields.values(), *([self.image] if self.image else [])]
        return list(dict.fromkeys(key for decoder in decoders for key in decoder.keys))


@dataclass(frozen=True)
class EncodedChunk:
    """Examples as they are stored, in the order of delivery.

    Attributes:
        start: position of the first one among those that the pipeline delivers from `start_batch` on.
        keys: int64 [n], their sample keys: `pass_number * num_examples + index`.
        columns: stored field -> n encoded values.
        error: why they could not be read, or could not be decoded; None: they could.
    """

    start: int
    keys: Int64Array
    columns: Columns = field(default_factory=dict)
    error: TfdsTorchError | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, stop: int) -> "EncodedChunk":
        """Returns the examples at positions start..stop-1 of these."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return EncodedChunk(self.start + start, self.keys[start:stop], columns, self.error)


class ChunkDecoder:
    """Decodes chunks of examples. Several threads may decode, each chunks of its own."""

    def __init__(self, source: Source, content: Content, seed: int = 0, metrics: StageMetrics | None = None) -> None:
        self._source, self._seed = source, seed
        self._content = content
        self._metrics = metrics
        self._transform: ImageTransform | None = None
        if (image := content.image) is not None:
            map_images = make_map(content.preprocess, image.mode, seed)
            self._transform = make_transform(
                image.mode,
                content.preprocess,
                seed=seed,
                map_images=map_images,
                jpeg_decoder=image.jpeg_decoder,
                metrics=metrics,
            )

    def row_shape(self, chunk: EncodedChunk, position: int) -> tuple[int, int, int]:
        """Returns [H, W, C] of the rows of a batch that begins with an example of a chunk."""
        assert self._content.image is not None and self._transform is not None  # noqa: S101, PT018 (only batches with a buffer ask for it)
        try:
            return self._transform.row_shape(chunk.columns[self._content.image.key], position)
        except BadImageError as error:
            raise self._undecodable(chunk, position, error.reason) from None

    def only_copies(self, columns: Columns, keys: Int64Array) -> bool:
        """Whether decoding only copies: all values are arrays, and images are pixels, at most cut and flipped."""
        image, preprocess = self._content.image, self._content.preprocess
        if image is None or self._transform is None or (preprocess is not None and preprocess.also):
            return False
        images = columns[image.key]
        others = [values for name, values in columns.items() if name != image.key]
        return (
            isinstance(images, StoredPixels)
            and all(isinstance(values, np.ndarray) and values.dtype != object for values in others)
            and self._transform.only_copies(images, keys)
        )

    def decode(self, chunk: EncodedChunk, rows: Sequence[BufferRows]) -> Decoded:
        """Returns field name -> n values; the images of batch buffers are written into these.

        Args:
            chunk: n encoded examples.
            rows: n rows in all that their images belong to; empty where images are arrays of their own.

        Raises:
            CorruptRecordError: an image or another value cannot be decoded.
            ConfigError: the preprocess or its map_fn failed, or images of whole batches are of several sizes.
        """
        began_at = time.monotonic()
        try:
            return self._decode(chunk, rows)
        except OtherSizeError as error:
            (name,) = self._source.ids(self._index(chunk)[error.position : error.position + 1])
            raise ConfigError(
                f"Whole batches need images of one size: {name} is of another one than the images before it. "
                f"{error.reason} Give the parser a preprocess, such as TrainPreprocess(size=224), or leave out "
                f"batched=True."
            ) from None
        except PreprocessError as error:
            (name,) = self._source.ids(self._index(chunk)[error.position : error.position + 1])
            raise ConfigError(f"The preprocess cannot be applied to {name}. {error.reason}") from error.__cause__
        except BadImageError as error:
            raise self._undecodable(chunk, error.position, error.reason) from None
        finally:
            if self._metrics is not None:
                self._metrics.add("decode", time.monotonic() - began_at, began_at)

    def _decode(self, chunk: EncodedChunk, rows: Sequence[BufferRows]) -> Decoded:
        columns = self._columns(chunk)
        decoded = {name: self._decode_field(name, chunk, columns) for name in self._content.fields}
        image, preprocess = self._content.image, self._content.preprocess
        if image is not None and self._transform is not None:
            also = () if preprocess is None else preprocess.also
            masks = {name: decoded[name] for name in also if name in decoded}
            boxes, move = self._content.boxes, None
            if boxes and preprocess is not None:
                move = partial(move_boxes, decoded, boxes, preprocess.min_visible)
            decoded |= self._transform.write(chunk.columns[image.key], chunk.keys, rows, masks, move)
        return decoded

    def _decode_field(self, name: str, chunk: EncodedChunk, columns: Columns) -> Any:
        """Returns the values of a field of a chunk; `columns` are what `_columns` makes of it."""
        decoder = self._content.fields[name]
        try:
            return decoder.decode(columns)
        except (BadImageError, PreprocessError, TfdsTorchError, MemoryError):
            raise
        except Exception as error:  # Of TFDS's decoders, which do not check what they are given.
            failure = error
        for position in range(len(chunk)):
            try:
                decoder.decode(self._columns(chunk.cut(position, position + 1)))
            except Exception as error:
                raise self._undecodable(chunk, position, f"Its field {name!r}: {describe(error)}") from error
        raise self._undecodable(chunk, 0, f"The field {name!r} of it and its neighbours: {describe(failure)}")

    def _columns(self, chunk: EncodedChunk) -> Columns:
        """Returns what decoders are given: the stored fields of a chunk, and its `Samples`."""
        return {**chunk.columns, SAMPLES: Samples(chunk.keys, self._seed, self._content.are_whole)}

    def _undecodable(self, chunk: EncodedChunk, position: int, reason: str) -> TfdsTorchError:
        return self._source.undecodable(int(self._index(chunk)[position]), reason)

    def _index(self, chunk: EncodedChunk) -> Int64Array:
        return examples_of(chunk.keys, len(self._source))


def describe(error: BaseException) -> str:
    """Returns an error as a sentence."""
    text = " ".join(str(error).split()) or type(error).__name__
    sentence = text if isinstance(error, ValueError) else f"{type(error).__name__}: {text}"
    return sentence if sentence.endswith(".") else f"{sentence}."


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
