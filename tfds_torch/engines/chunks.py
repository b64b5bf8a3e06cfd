"""Chunks of examples: encoded, decoded by ChunkDecoder, and the places of their images in the memory of their batch."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.fields import (
    SAMPLES,
    Content,
    Decoded,
    ImageField,
    ImagesBeside,
    Samples,
    UnmappedLabelError,
    describe,
)
from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.images.batch_buffer import ArrayBuffer, BatchBuffer, MakeBatchBuffer
from tfds_torch.images.boxes import move_boxes, warn_of_boxes_within
from tfds_torch.images.decoding import BadImageError, OtherSizeError
from tfds_torch.images.preprocess import PreprocessError
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.images.view_transform import make_transform
from tfds_torch.images.views import MakeViewsBuffer, Views
from tfds_torch.plan.order import Int64Array, draw_function_seeds, examples_of
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.user_random import ITEM
from tfds_torch.storage.source import Columns, DrawingSource, ItemCalls, Source
from tfds_torch.storage.stored_pixels import StoredPixels

RowsByField = Mapping[str, Sequence[BufferRows]]
"""Field -> the places of its images in the memory of their batches; other fields are left out."""

_IMAGE = "image"
_ALIGNMENT, _SHIFT = 64, 16
"""Bytes. Images begin that much behind a line of the processor's cache: where lines of an image are aligned,
libjpeg-turbo writes past the cache, and waits for the memory. That took 20 us of 470 for a window of two cameras."""


@dataclass(frozen=True)
class EncodedChunk:
    """Examples as they are stored, in the order of delivery.

    Attributes:
        start: position of the first example among those that the pipeline delivers from `start_batch` on.
        keys: int64 [n], sample keys of the examples: `pass_number * num_examples + index`.
        columns: stored field -> n encoded values.
        error: why the examples could not be read or decoded; None: they could.
    """

    start: int
    keys: Int64Array
    columns: Columns = field(default_factory=dict)
    error: TfdsTorchError | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def cut(self, start: int, stop: int) -> "EncodedChunk":
        """Return the examples start..stop-1 of the chunk."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return EncodedChunk(self.start + start, self.keys[start:stop], columns, self.error)


@dataclass(frozen=True)
class WrittenImages:
    """Images of a field that were written into the memory of their batches.

    Attributes:
        rows: places of the images, in the order of the examples.
        num_images: number of images of an example.
        is_window: whether they are images of windows, which are handed over channels first.
        has_time: whether the images of a window have a time axis.
    """

    rows: Sequence[BufferRows]
    num_images: int = 1
    is_window: bool = False
    has_time: bool = False

    def __getitem__(self, some: slice) -> "WrittenImages":
        """Return the images of examples start..stop-1."""
        first, last, at, rows = some.start * self.num_images, some.stop * self.num_images, 0, []
        for part in self.rows:
            start, stop = max(first - at, 0), min(last - at, len(part))
            if start < stop:
                rows.append(BufferRows(part.buffer, part.start + start, part.start + stop))
            at += len(part)
        return replace(self, rows=rows)

    def of_batch(self) -> Any:
        """Return the images of a whole batch, in the form that the maker of its memory wants."""
        buffer = self.rows[0].buffer
        if not self.is_window:
            return buffer.images
        return buffer.channels_first(self.num_images if self.has_time else None)

    def of_examples(self) -> list[NDArray[np.uint8]]:
        """Return the memory of each example: [H, W, C], or [T, H, W, C] where windows have time."""
        pixels = [part.pixels for part in self.rows]
        if self.has_time:
            pixels = [one.reshape(-1, self.num_images, *one.shape[1:]) for one in pixels]
        return [example for part in pixels for example in part]

    def arrays(self) -> list[NDArray[np.uint8]]:
        """Return one array for each window, [C, H, W], or [T, C, H, W] where they have time."""
        pixels = [np.moveaxis(part.pixels, -1, 1) for part in self.rows]
        if self.has_time:
            pixels = [one.reshape(-1, self.num_images, *one.shape[1:]) for one in pixels]
        return [window for one in pixels for window in one]


@dataclass
class BatchImages:
    """The memory of one batch's images: a buffer for each field of images, made when the first example is there.

    Attributes:
        size: number of examples of the batch.
        buffers: field -> its buffer, with a row for each image.
    """

    size: int
    buffers: dict[str, BatchBuffer] = field(default_factory=dict)

    def rows_of(
        self,
        decoder: "ChunkDecoder",
        make_buffer: MakeBatchBuffer | None,
        chunk: EncodedChunk,
        position: int,
        start: int,
        stop: int,
    ) -> dict[str, BufferRows]:
        """Return field -> the rows of the batch's examples start..stop-1, which begin at a position of a chunk.

        Raises:
            TfdsTorchError: the memory is not made yet, and the image that determines its size cannot be decoded.
        """
        if not self.buffers:
            self.buffers = decoder.make_buffers(chunk, position, self.size, make_buffer or ArrayBuffer)
        rows = {}
        for name, buffer in self.buffers.items():
            num_images = len(buffer.pixels) // self.size
            rows[name] = BufferRows(buffer, start * num_images, stop * num_images)
        return rows


@dataclass(frozen=True)
class DecodedChunk:
    """Examples that are decoded.

    Attributes:
        keys: int64 [n], their sample keys.
        columns: field -> n values.
        replaced: bool [n], which examples took the place of damaged ones; None: none did.
    """

    keys: NDArray[np.int64]
    columns: Decoded
    replaced: NDArray[np.bool_] | None = None

    def cut(self, start: int, stop: int) -> "DecodedChunk":
        """Return the examples start..stop-1 of the chunk."""
        columns = {name: values[start:stop] for name, values in self.columns.items()}
        return DecodedChunk(
            self.keys[start:stop], columns, None if self.replaced is None else self.replaced[start:stop]
        )


RowsOf = Callable[[EncodedChunk], RowsByField]
"""Returns the places where the images of a chunk belong."""


def join(parts: Sequence[DecodedChunk]) -> DecodedChunk:
    """Return consecutive decoded examples as one chunk."""
    if len(parts) == 1:
        return parts[0]
    columns = {name: _concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    replaced = None
    if any(part.replaced is not None for part in parts):
        replaced = np.concatenate(
            [np.zeros(len(part.keys), np.bool_) if part.replaced is None else part.replaced for part in parts]
        )
    return DecodedChunk(np.concatenate([part.keys for part in parts]), columns, replaced)


def _concatenate(values: list[Any]) -> Any:
    written = [one for one in values if isinstance(one, WrittenImages)]
    if written and len(written) == len(values):
        return replace(written[0], rows=[part for one in written for part in one.rows])
    if written:  # Some chunks have images of other sizes.
        values = [one.arrays() if isinstance(one, WrittenImages) else one for one in values]
        return list(chain.from_iterable(values))
    shapes = {one.shape[1:] if isinstance(one, np.ndarray) else None for one in values}
    is_one_array = len(shapes) == 1 and None not in shapes
    return np.concatenate(values) if is_one_array else list(chain.from_iterable(values))


def read_columns(
    source: Source, content: Content, keys: Int64Array, num_examples: int, seed: int, context: ReadContext
) -> Columns:
    """Return the encoded examples of sample keys, int64 [n], of a source with that many examples; see `Source.read`.

    A source that calls users' functions gets a seed for each example: random numbers do not depend on the reader.
    """
    index, metrics = examples_of(keys, num_examples), context.metrics
    with nullcontext() if metrics is None else metrics.at_work.reading(index):
        if not getattr(source, "calls_functions", False):
            return source.read(index, content.keys)
        calls = ItemCalls(
            draw_function_seeds(keys, seed, ITEM).tolist() if context.seeds_items else None,
            None if metrics is None else metrics.at_work.notes(index),
        )
        return cast(DrawingSource, source).read_calling(index, content.keys, calls)


class ChunkDecoder:
    """Decodes chunks of examples. Several threads may decode, each its own chunks.

    It reports the time and the decoded examples to the metrics; where nothing has to be decoded (`is_lazy`), the time.
    """

    def __init__(
        self,
        source: Source,
        content: Content,
        seed: int = 0,
        metrics: StageMetrics | None = None,
        *,
        is_lazy: bool = False,
    ) -> None:
        self._source, self._seed = source, seed
        self._content = content
        self._metrics = metrics
        self._at_work = None if metrics is None or is_lazy else metrics.at_work
        self._looks_for_boxes = content.may_hold_boxes
        self._transform: ImageTransform | None = None
        if (image := content.image) is not None:
            self._transform = make_transform(image.mode, content.preprocess, seed=seed, jpeg_decoder=image.jpeg_decoder)

    def make_buffers(
        self, chunk: EncodedChunk, position: int, size: int, make_buffer: MakeBatchBuffer
    ) -> dict[str, BatchBuffer]:
        """Return field -> the memory of its images in a batch of some size that begins with an example of a chunk.

        Several fields share one piece of memory.
        """
        content, columns, shapes = self._content, self._columns(chunk), dict[str, tuple[int, int, int, int]]()
        try:
            if content.image is not None and self._transform is not None:
                first = self._images(content.image, chunk.cut(position, position + 1))  # Only this one is looked at.
                shapes[_IMAGE] = (size, *self._transform.row_shape(first, 0))
            for name, camera in content.cameras.items():
                num_images, height, width, num_channels = camera.row_shape(columns, position)
                shapes[name] = (size * num_images, height, width, num_channels)
        except BadImageError as error:
            raise self._undecodable(chunk, position, error.reason) from None
        if isinstance(content.preprocess, Views):
            views = MakeViewsBuffer(content.preprocess, make_buffer)(shapes.pop(_IMAGE))
            return {_IMAGE: views} | _make_parts(make_buffer, shapes)
        return _make_parts(make_buffer, shapes)

    def only_copies(self, columns: Columns, keys: Int64Array) -> bool:
        """Return whether decoding only copies: all values are arrays, and images are pixels, only cut and flipped."""
        content = self._content
        image, masks = content.image, () if content.preprocess is None else content.preprocess.also
        if image is None or self._transform is None or content.cameras or masks:
            return False
        images = columns.get(image.key)
        others = [values for name, values in columns.items() if name != image.key]
        return (
            isinstance(images, StoredPixels)
            and all(isinstance(values, np.ndarray) and values.dtype != object for values in others)
            and self._transform.only_copies(images, keys)
        )

    def decode(self, chunk: EncodedChunk, rows: RowsByField) -> Decoded:
        """Return field name -> n values; images that belong to batch buffers are written there: `WrittenImages`.

        Args:
            chunk: n encoded examples.
            rows: places of their images: those of `image` and of the cameras.

        Raises:
            CorruptRecordError: an image or another value cannot be decoded.
            ConfigError: the preprocess failed, images of whole batches are of several sizes, or a transform failed.
        """
        at_work, chains = self._at_work, self._content.chains
        with nullcontext() if at_work is None else at_work.decoding(self._index(chunk)):
            decoded = self._decode_timed(chunk, rows)
            if chains is None or not chains.in_threads:
                return decoded
            samples, context = Samples(chunk.keys, self._seed), ReadContext(metrics=self._metrics)
            return chains.apply(decoded, samples, self._index(chunk), self._source, context)

    def _decode_timed(self, chunk: EncodedChunk, rows: RowsByField) -> Decoded:
        """Return the decoded fields of a chunk, and report the time to the metrics; raises the errors of `decode`."""
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
        except UnmappedLabelError as error:
            (name,) = self._source.ids(self._index(chunk)[error.position : error.position + 1])
            raise ConfigError(f"{error.reason}, the target of the example {name}. Add it to the map.") from None
        except BadImageError as error:
            raise self._undecodable(chunk, error.position, error.reason) from None
        finally:
            if self._metrics is not None:
                self._metrics.add("decode", time.monotonic() - began_at)

    def _decode(self, chunk: EncodedChunk, rows: RowsByField) -> Decoded:
        columns, content = self._columns(chunk), self._content
        decoded = {name: self._decode_field(name, chunk, columns) for name in content.fields}
        for name, camera in content.cameras.items():
            num_images = sum(map(len, rows[name])) // len(chunk)
            try:
                camera.write(columns, rows[name])
                decoded[name] = WrittenImages(rows[name], num_images, is_window=True, has_time=camera.has_time)
            except OtherSizeError:  # Other than the images before it: together they are not an array.
                decoded[name] = camera.decode(columns)
        image, preprocess = content.image, content.preprocess
        if image is not None and self._transform is not None:
            also = () if preprocess is None else preprocess.also_kinds
            masks = {name: decoded[name] for name in also if name in decoded}
            pictures = {
                name: field.are_pictures(columns)
                for name in masks
                if isinstance(field := content.fields[name], ImagesBeside)
            }
            boxes, move = content.boxes, None
            if boxes and preprocess is not None:
                move = partial(move_boxes, decoded, boxes, preprocess.min_visible)
            if self._looks_for_boxes:
                self._looks_for_boxes = False
                warn_of_boxes_within(self._source.name, decoded)
            images = self._images(image, chunk)
            if image.is_deep:
                decoded |= self._transform.cut_numbers(_IMAGE, images, chunk.keys, masks, move, pictures)
                return decoded
            decoded |= self._transform.write(images, chunk.keys, rows[_IMAGE], masks, move, pictures)
            decoded[_IMAGE] = WrittenImages(rows[_IMAGE])
        return decoded

    def _images(self, image: ImageField, chunk: EncodedChunk) -> Any:
        """Return the images of a chunk as they are stored, encoded or as pixels."""
        return self._decode_one_by_one(_IMAGE, image.images, chunk, self._columns(chunk))

    def _decode_field(self, name: str, chunk: EncodedChunk, columns: Columns) -> Any:
        """Return the values of a field of a chunk; `columns` is the result of `_columns` for it."""
        return self._decode_one_by_one(name, self._content.fields[name].decode, chunk, columns)

    def _decode_one_by_one(
        self, name: str, decode: Callable[[Columns], Any], chunk: EncodedChunk, columns: Columns
    ) -> Any:
        """Return the result of a function for a chunk; where it fails, find the example."""
        try:
            return decode(columns)
        except (BadImageError, PreprocessError, TfdsTorchError, MemoryError):
            raise
        except Exception as error:  # Of TFDS's decoders, which do not check their arguments.
            failure = error
        for position in range(len(chunk)):
            try:
                decode(self._columns(chunk.cut(position, position + 1)))
            except Exception as error:
                raise self._undecodable(chunk, position, f"Its field {name!r}: {describe(error)}") from error
        raise self._undecodable(chunk, 0, f"The field {name!r} of it and its neighbours: {describe(failure)}")

    def _columns(self, chunk: EncodedChunk) -> Columns:
        """Return the arguments of decoders: the stored fields of a chunk, and its `Samples`."""
        return {**chunk.columns, SAMPLES: Samples(chunk.keys, self._seed, self._content.are_whole)}

    def _undecodable(self, chunk: EncodedChunk, position: int, reason: str) -> TfdsTorchError:
        return self._source.undecodable(int(self._index(chunk)[position]), reason)

    def _index(self, chunk: EncodedChunk) -> Int64Array:
        return examples_of(chunk.keys, len(self._source))


def _make_parts(
    make_buffer: MakeBatchBuffer, shapes: Mapping[str, tuple[int, int, int, int]]
) -> dict[str, BatchBuffer]:
    """Return field -> a buffer of its shape [B, H, W, C]; those of cameras are parts of one piece of memory."""
    if shapes.keys() <= {_IMAGE}:
        return {name: make_buffer(shape) for name, shape in shapes.items()}
    bounds, stop = {}, 0
    for name, shape in shapes.items():
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT + _SHIFT
        stop = start + math.prod(shape)
        bounds[name] = start, stop, shape
    memory = make_buffer((1, 1, stop, 1))
    return {name: memory.part(*part) for name, part in bounds.items()}
