"""ImagePainter: what is done to the images of one stream, from their headers to the memory of their batches."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.canvas import Canvas, MakeCanvas, Pixels
from tfds_torch.pipeline.columns import CHANNELS, ImageColumn
from tfds_torch.pipeline.image_decoder import ImageDecoder
from tfds_torch.pipeline.image_headers import Header, read_header
from tfds_torch.pipeline.map_function import ImageMap
from tfds_torch.pipeline.placement import Placements
from tfds_torch.pipeline.preprocess import Preprocess, height_and_width
from tfds_torch.plan.example_random import draw_seeds
from tfds_torch.runtime.clock import Clock

Int64Array = NDArray[np.int64]


@dataclass(frozen=True)
class _Chunk:
    """What is known of a chunk before its images are decoded.

    Attributes:
        index: int64 [n].
        headers: of its images.
        sizes: int64 [n, 2], heights and widths of its images.
        placements: of its images.
    """

    index: Int64Array
    headers: Sequence[Header]
    sizes: Int64Array
    placements: Placements


class ImagePainter:
    """Places, decodes and draws the images of one stream. Several threads may paint, each chunks of its own.

    Args:
        column: the feature that holds them.
        preprocess: what is done to them.
        seed: of their random numbers.
        num_examples: of a pass: an occurrence is `pass_number * num_examples + index`.
        batch_size: rows of a canvas.
        num_rows: examples of the stream; the last canvas may have fewer rows.
        make_canvas: makes the memory of a batch.
        refuse: an example's index and why it cannot be used -> the error.
        clock: what times are reported to.
    """

    def __init__(
        self,
        column: ImageColumn,
        preprocess: Preprocess,
        *,
        seed: int,
        num_examples: int,
        batch_size: int,
        num_rows: int,
        make_canvas: MakeCanvas,
        refuse: Callable[[int, str], TfdsTorchError],
        clock: Clock | None,
    ) -> None:
        self.column = column
        self.preprocess = preprocess
        self._seed = seed
        self._num_examples = num_examples
        self._batch_size = batch_size
        self._num_rows = num_rows
        self._make_canvas = make_canvas
        self._refuse = refuse
        self._clock = clock
        self._lock = threading.Lock()
        self._canvases: dict[int, Canvas] = {}
        self._chunks: dict[int, _Chunk] = {}  # Those whose placements are still asked for.
        self._shape = (*height_and_width(preprocess.size), CHANNELS[column.mode])
        self._tf: Any = None
        self._decoder: ImageDecoder | None = None
        self._map: ImageMap | None = None

    def start(self, tf: Any) -> None:
        """Takes tensorflow, before the first chunk.

        Raises:
            ConfigError: the map_fn cannot be used.
        """
        if self._tf is None:
            self._tf, self._decoder = tf, ImageDecoder(tf, self.column)
            if self.preprocess.map_fn is not None:
                self._map = ImageMap(tf, self.preprocess.map_fn, self._shape)

    def paint(self, first_row: int, occurrences: Int64Array, images: Iterable[bytes]) -> None:
        """Decodes a chunk's images, resizes them and writes them into the rows of their batches.

        Args:
            first_row: of the chunk.
            occurrences: int64 [n], of its examples.
            images: n of them, encoded.

        Raises:
            CorruptRecordError: an image is none, has no pixels or too many, or cannot be decoded.
            ConfigError: the map_fn failed.
        """
        began_s = time.perf_counter()
        self._paint(first_row, occurrences, list(images))
        if self._clock is not None:
            self._clock.add("decode", time.perf_counter() - began_s)

    def take_canvas(self, number: int) -> Any:
        """Returns the images of the stream's batch `number`, all of whose rows have been drawn."""
        with self._lock:
            return self._canvases.pop(number).images

    def cut_others(self, first_row: int, others: Mapping[str, Sequence[Pixels]]) -> dict[str, list[Pixels]]:
        """Cuts other images out of the same place as those of a painted chunk, which is forgotten then.

        Args:
            first_row: of the chunk.
            others: feature name -> n images.

        Returns:
            Feature name -> n images, see `cut_alike`.

        Raises:
            CorruptRecordError: one is of another size than its example's image.
        """
        chunk = self._chunks.pop(first_row)
        for name, images in others.items():
            for image, size, index in zip(images, chunk.sizes.tolist(), chunk.index.tolist(), strict=True):
                if list(image.shape[:2]) != size:
                    raise self._refuse(
                        index,
                        f"Its {name!r} has {image.shape[0]} x {image.shape[1]} pixels, and its image {size[0]} x "
                        f"{size[1]}: what goes through the same crop must be of the same size.",
                    )
        return {name: cut_alike(images, chunk.placements, self._shape[:2]) for name, images in others.items()}

    def _paint(self, first_row: int, occurrences: Int64Array, images: list[bytes]) -> None:
        assert self._decoder is not None  # noqa: S101 (`start` comes first)
        index = occurrences % self._num_examples
        headers = [self._read_header(*example) for example in zip(index.tolist(), images, strict=True)]
        sizes = np.array([(header.height, header.width) for header in headers], np.int64)
        shrinkable = np.array([self._decoder.cuts(header) for header in headers])
        chunk = _Chunk(index, headers, sizes, self.preprocess.place(sizes, occurrences, self._seed, shrinkable))
        decoded = self._decode(self._decoder, chunk, images)
        placements = chunk.placements.rows()
        if self._map is None:
            rows = zip(self._rows(first_row, len(images)), decoded, placements, strict=True)
            for (canvas, row), pixels, placement in rows:
                self._draw(canvas, row, pixels, *placement)
        else:
            apart = self._make_canvas((len(images), *self._shape))
            for row, (pixels, placement) in enumerate(zip(decoded, placements, strict=True)):
                self._draw(apart, row, pixels, *placement)
            mapped = self._map.apply(apart.pixels, draw_seeds(occurrences, self._seed))
            for (canvas, row), pixels in zip(self._rows(first_row, len(images)), mapped, strict=True):
                canvas.pixels[row] = pixels
        if self.preprocess.also:
            self._chunks[first_row] = chunk

    def _read_header(self, index: int, image: bytes) -> Header:
        header = read_header(image)
        if header is None:
            what = "It is empty" if not image else f"Its {len(image)} bytes are no whole JPEG, PNG, GIF or BMP image"
            raise self._refuse(index, f"{what}.")
        num_pixels = header.height * header.width
        if not num_pixels:
            raise self._refuse(index, f"It says that it has {header.height} x {header.width} pixels.")
        if num_pixels > self.preprocess.max_pixels:
            raise self._refuse(
                index,
                f"It has {header.height} x {header.width} pixels, and at most {self.preprocess.max_pixels:,} are "
                f"allowed: set max_pixels of the preprocess if it is no mistake.",
            )
        return header

    def _decode(self, decoder: ImageDecoder, chunk: _Chunk, images: list[bytes]) -> list[Pixels]:
        """Returns the windows of a chunk's images, uint8 [h, w, C].

        All of them, before the first one is resized: by turns, the two cost a tenth more.
        """
        shrinks = chunk.placements.shrinks
        # Rounded up: a shrunk image has a pixel for what is left of its last ones.
        windows = -(-chunk.placements.windows // shrinks[:, None])
        decoded: list[Pixels] = []
        try:
            for pixels in decoder.decode(images, chunk.headers, windows, shrinks.tolist()):
                decoded.append(pixels)
        except self._tf.errors.InvalidArgumentError as error:
            reason = str(error.message).splitlines()[0]
            raise self._refuse(int(chunk.index[len(decoded)]), f"tensorflow says: {reason}") from None
        return decoded

    def _rows(self, first_row: int, count: int) -> Iterator[tuple[Canvas, int]]:
        """Yields the canvas of each of the stream's rows from first_row on, and the row in it."""
        for number in range(first_row // self._batch_size, -(-(first_row + count) // self._batch_size)):
            canvas, first = self._canvas(number), number * self._batch_size
            for row in range(max(first_row, first), min(first_row + count, first + self._batch_size)):
                yield canvas, row - first

    def _canvas(self, number: int) -> Canvas:
        with self._lock:
            if number not in self._canvases:
                num_rows = min(self._batch_size, self._num_rows - number * self._batch_size)
                self._canvases[number] = self._make_canvas((num_rows, *self._shape))
            return self._canvases[number]

    def _draw(
        self,
        canvas: Canvas,
        row: int,
        pixels: Pixels,
        resized: list[int],
        steps: list[float],
        offset: list[int],
        flip: bool,
        bicubic: bool,
    ) -> None:
        out = canvas.pixels[row]
        if steps == [1.0, 1.0] and pixels.shape == out.shape and not flip:
            out[:] = pixels
            return
        height, width = out.shape[:2]
        is_resized = steps != [1.0, 1.0] or list(pixels.shape[:2]) != resized
        if is_resized and offset == [0, 0] and resized == [height, width]:
            canvas.fill_row(row, pixels, (steps[0], steps[1]), bicubic=bicubic, flip=flip)
            return
        if is_resized:
            pixels = canvas.resize(pixels, (resized[0], resized[1]), (steps[0], steps[1]), bicubic=bicubic)
        part = pixels[max(offset[0], 0) : offset[0] + height, max(offset[1], 0) : offset[1] + width]
        if part.shape != out.shape:
            out[:] = self.preprocess.fill
            top, left = max(-offset[0], 0), max(-offset[1], 0)
            left = width - left - part.shape[1] if flip else left
            out = out[top : top + part.shape[0], left : left + part.shape[1]]
        out[:] = part[:, ::-1] if flip else part


def cut_alike(masks: Sequence[Pixels], placements: Placements, size: tuple[int, int]) -> list[Pixels]:
    """Returns other images, uint8 [h, w, C], cut out and mirrored like the images of a chunk, by the nearest pixel.

    Args:
        masks: of the same sizes as the images.
        placements: of the images.
        size: height and width of the results.

    Returns:
        n images uint8 [H, W, C], 0 where they are padded.

    Source: Pillow, `Image.resize` with NEAREST.
    """
    results = []
    rows = zip(masks, placements.rows(), placements.windows.tolist(), placements.shrinks.tolist(), strict=True)
    for mask, (resized, steps, offset, flip, _), window, shrink in rows:
        out = np.zeros((*size, mask.shape[-1]), mask.dtype)
        lines, columns = (
            _nearest(size[axis], resized[axis], offset[axis], steps[axis] * shrink, window[axis], mask.shape[axis])
            for axis in (0, 1)
        )
        part = mask[lines[1][:, None], columns[1]]
        out[lines[0][:, None], columns[0]] = part
        results.append(out[:, ::-1] if flip else out)
    return results


def _nearest(
    length: int, resized: int, offset: int, step: float, first: int, available: int
) -> tuple[Int64Array, Int64Array]:
    """Returns positions along a side of the result, and the pixels of the whole image that are nearest to them."""
    positions = np.arange(max(-offset, 0), min(length, resized - offset))
    pixels = first + np.floor((positions + offset + 0.5) * step).astype(np.int64)
    return positions, np.minimum(pixels, available - 1)
