"""ImagePainter: what is done to the images of one stream, from their headers to the memory of their batches.

The graph (`pipeline/painting.py`) calls it twice for every chunk: `place` says what is to be decoded, `draw` takes what
was decoded, resizes it and writes it into its rows. Both may be called from several threads at the same time, each for
chunks of its own.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import TfdsTorchError
from tfds_torch.pipeline.canvas import Canvas, MakeCanvas, Pixels
from tfds_torch.pipeline.image_headers import Encoding, Header, read_header
from tfds_torch.pipeline.placement import Placements
from tfds_torch.pipeline.preprocess import Preprocess, height_and_width
from tfds_torch.plan.example_random import draw_seeds
from tfds_torch.runtime.clock import Clock

Int64Array = NDArray[np.int64]


@dataclass
class _Chunk:
    """What is known of a chunk between its two calls.

    Attributes:
        placements: of its examples.
        is_whole: bool [n], whether all of the image was decoded rather than its window.
        occurrences: int64 [n].
        began_s: when it was placed.
    """

    placements: Placements
    is_whole: NDArray[np.bool_]
    occurrences: Int64Array
    began_s: float


class ImagePainter:
    """Places and draws the images of one stream.

    Args:
        preprocess: what is done to them.
        num_channels: of the results.
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
        preprocess: Preprocess,
        *,
        num_channels: int,
        seed: int,
        num_examples: int,
        batch_size: int,
        num_rows: int,
        make_canvas: MakeCanvas,
        refuse: Callable[[int, str], TfdsTorchError],
        clock: Clock | None,
    ) -> None:
        self.preprocess = preprocess
        self.num_channels = num_channels
        self._seed = seed
        self._num_examples = num_examples
        self._batch_size = batch_size
        self._num_rows = num_rows
        self._make_canvas = make_canvas
        self._refuse = refuse
        self._clock = clock
        self._lock = threading.Lock()
        self._canvases: dict[int, Canvas] = {}
        self._chunks: dict[int, _Chunk] = {}
        self.failure: Exception | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the results."""
        return height_and_width(self.preprocess.size)

    def place(
        self, first_row: int, occurrences: Int64Array, images: NDArray[np.object_]
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]] | None:
        """Works out what is to be decoded of a chunk.

        Args:
            first_row: of the chunk.
            occurrences: int64 [n], of its examples.
            images: n encoded images, or their beginnings.

        Returns:
            int32 [n, 4], windows to decode: top, left, height, width, of the shrunk image; and int32 [n], how: the
            encoding where it is decoded whole, else -1, -2, -4 or -8 for a JPEG's shrink. None where the beginnings do
            not tell an image's size.

        Raises:
            CorruptRecordError: an image is none, has no pixels, or too many.
        """
        began_s = time.perf_counter()
        headers = [read_header(image) for image in images.tolist()]
        if None in headers:
            return None
        known = [header for header in headers if header is not None]
        self._check(known, occurrences)
        encodings = np.array([header.encoding for header in known], np.int32)
        sizes = np.array([(header.height, header.width) for header in known], np.int64).reshape(-1, 2)
        is_whole = (encodings != Encoding.JPEG) | (self.num_channels == 4)
        placements = self.preprocess.place(sizes, occurrences, self._seed, ~is_whole)
        self._chunks[first_row] = _Chunk(placements, is_whole, occurrences, began_s)
        how = np.where(is_whole, encodings, -placements.shrinks).astype(np.int32)
        # Rounded up: a shrunk image has a pixel for what is left of its last ones.
        windows = -(-placements.windows // placements.shrinks[:, None])
        return windows.astype(np.int32), how

    def describe_headerless(self, occurrences: Int64Array, images: NDArray[np.object_]) -> TfdsTorchError:
        """Returns the error for the first of some images whose size is not to be found in it."""
        position = next(i for i, image in enumerate(images.tolist()) if read_header(image) is None)
        image = images[position]
        reason = "it is empty" if not image else f"its {len(image)} bytes are no whole JPEG, PNG, GIF or BMP image"
        return self._refuse(self._index(occurrences[position]), f"{reason[0].upper()}{reason[1:]}.")

    def draw(self, first_row: int, decoded: Sequence[Pixels]) -> np.int32:
        """Resizes what was decoded of a chunk, uint8 [h, w, C] each, and writes it into its rows; returns 0."""
        chunk = self._chunks[first_row]
        rows = zip(
            self._rows(first_row, len(decoded)), self._windows(chunk, decoded), chunk.placements.rows(), strict=True
        )
        for (canvas, row), pixels, placement in rows:
            self._draw(canvas, row, pixels, *placement)
        return self._end(first_row, chunk)

    def draw_apart(self, first_row: int, decoded: Sequence[Pixels]) -> tuple[Pixels, Int64Array]:
        """Resizes what was decoded of a chunk: for a map_fn, which `store` follows.

        Returns:
            uint8 [n, H, W, C], and the seeds of their random numbers, int64 [n, 2].
        """
        chunk = self._chunks[first_row]
        canvas = self._make_canvas((len(decoded), *self.size, self.num_channels))
        windows = self._windows(chunk, decoded)
        for row, (pixels, placement) in enumerate(zip(windows, chunk.placements.rows(), strict=True)):
            self._draw(canvas, row, pixels, *placement)
        return canvas.pixels, draw_seeds(chunk.occurrences, self._seed)

    def store(self, first_row: int, images: Pixels) -> np.int32:
        """Writes finished images, uint8 [n, H, W, C], into their rows; returns 0."""
        for (canvas, row), pixels in zip(self._rows(first_row, len(images)), images, strict=True):
            canvas.pixels[row] = pixels
        return self._end(first_row, self._chunks[first_row])

    def take_canvas(self, number: int) -> Any:
        """Returns the images of the stream's batch `number`, all of whose rows have been drawn."""
        with self._lock:
            return self._canvases.pop(number).images

    def take_placements(self, first_row: int) -> Placements:
        """Returns where the images of a drawn chunk were cut out, for what else goes through the same crop."""
        return self._chunks.pop(first_row).placements

    def noting_failure(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function and keeps its error whole, of which tensorflow only passes on the text."""
        try:
            return function(*arguments)
        except Exception as error:
            self.failure = error
            raise

    def _check(self, headers: Sequence[Header], occurrences: Int64Array) -> None:
        for header, occurrence in zip(headers, occurrences, strict=True):
            if header.height * header.width > self.preprocess.max_pixels or not header.height * header.width:
                reason = (
                    f"It has {header.height} x {header.width} pixels, and at most {self.preprocess.max_pixels:,} are "
                    f"allowed: set max_pixels of the preprocess if it is no mistake."
                    if header.height * header.width
                    else f"It says that it has {header.height} x {header.width} pixels."
                )
                raise self._refuse(self._index(occurrence), reason)

    def _index(self, occurrence: Any) -> int:
        return int(occurrence) % self._num_examples

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
                self._canvases[number] = self._make_canvas((num_rows, *self.size, self.num_channels))
            return self._canvases[number]

    def _windows(self, chunk: _Chunk, decoded: Sequence[Pixels]) -> Iterator[Pixels]:
        for pixels, is_whole, window in zip(
            decoded, chunk.is_whole.tolist(), chunk.placements.windows.tolist(), strict=True
        ):
            top, left, height, width = window
            if is_whole and pixels.shape[:2] != (height, width):
                yield np.ascontiguousarray(pixels[top : top + height, left : left + width])
            else:
                yield pixels

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

    def _end(self, first_row: int, chunk: _Chunk) -> np.int32:
        if not self.preprocess.also:
            del self._chunks[first_row]
        if self._clock is not None:
            self._clock.add("decode", time.perf_counter() - chunk.began_s)
        return np.int32(0)  # The graph waits for it.


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
