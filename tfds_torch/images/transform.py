"""Decode and transform: encoded images become rows of batch buffers, or arrays that keep their size."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.batch_buffer import ArrayBuffer, BatchBuffer
from tfds_torch.images.crops import CropParameters
from tfds_torch.images.cutting import check_masks, cut_alike, cut_windows_of, mirror, turn_over
from tfds_torch.images.decoding import (
    CHANNELS,
    BadImageError,
    EncodedImage,
    ImageDecodeError,
    ImageDecoder,
    OtherSizeError,
    Pixels,
)
from tfds_torch.images.headers import MOST_PIXELS, Header
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, PreprocessError, height_and_width
from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.stored_pixels import StoredPixels

_MOST_SMALL_PIXELS = 128 * 128
_BLOCK_BYTES = 3 << 17
"""Pixels of small images that are cut at a time. More scratch memory would be given back to the system, and faulted in
again: blocks of twice the size take twice the time."""

"""uint8 [n, H, W, C] and the sample keys int64 [n] -> uint8 [n, H, W, C]."""

MoveAlong = Callable[[CropParameters, Int64Array, tuple[int, int]], None]
"""Moves the boxes of n images, of sizes int64 [n, 2], as these are cut to (height, width)."""


@dataclass(frozen=True)
class BufferRows:
    """Rows `start` to `stop` - 1 of a batch buffer, in which images belong."""

    buffer: BatchBuffer
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def pixels(self) -> Pixels:
        """The memory of the rows, uint8 [n, H, W, C]."""
        return self.buffer.pixels[self.start : self.stop]


Images = Sequence[EncodedImage]
Headers = Sequence[Header]
Rows = Sequence[BufferRows]
"""The places of n results: n rows in all."""


class ImageTransform:
    """Decodes images, and crops, resizes and flips them by a preprocess; None: not at all. Thread-safe.

    Args:
        mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        preprocess: decides on the crops; None: images are only decoded.
        seed: seed of the random numbers.
        jpeg_decoder: as in `ImageDecoder`.
        view: number of the view that it makes, see `Views`; 0 without Views.
    """

    def __init__(
        self,
        mode: str | None,
        preprocess: Preprocess | None = None,
        *,
        seed: int = 0,
        jpeg_decoder: str = "auto",
        view: int = 0,
    ) -> None:
        self.preprocess = preprocess
        self._seed, self._view = seed, view
        self._kept_size: tuple[int, int] | None = None  # Of images that an evaluation leaves as they are.
        self._num_channels = CHANNELS[mode]
        max_pixels = MOST_PIXELS if preprocess is None else preprocess.max_pixels
        self._decoder = ImageDecoder(mode, max_pixels, jpeg_decoder)

    def row_shape(self, images: Images, first: int = 0) -> tuple[int, int, int]:
        """Return [H, W, C] of the rows of a batch: that of the preprocess, else that of images[first].

        Raises:
            BadImageError: images[first] is not an image.
        """
        if self.preprocess is not None:
            return (*height_and_width(self.preprocess.size), self._num_channels)
        (header,) = self.read_headers(images[first : first + 1])
        return header.height, header.width, self._decoder.num_channels(header)

    def only_copies(self, images: StoredPixels, keys: Int64Array) -> bool:
        """Return whether stored images, like those of `keys`, become rows by a copy, or by a cut of all at once."""
        if self._num_channels not in (0, images.shape[2]):
            return False
        if self.preprocess is None:
            return True
        if self.preprocess.augments:
            return False
        sizes = np.broadcast_to(np.array(images.shape[:2], np.int64), (len(keys), 2))
        try:
            parameters = self.preprocess.crop_parameters(sizes, keys, self._seed, np.zeros(len(keys), np.bool_))
        except PreprocessError:  # Decoding raises it with the example's name.
            return False
        is_small = sizes[0].prod() <= _MOST_SMALL_PIXELS
        is_kept = parameters.keep_all(sizes, height_and_width(self.preprocess.size))
        return is_kept or (is_small and parameters.only_cut(sizes))

    def decode(self, images: Images) -> list[Pixels]:
        """Return the pixels of n whole images, uint8 [h, w, C].

        Raises:
            BadImageError: one is not an image, has no pixels or too many, or cannot be decoded.
        """
        decoded: list[Pixels] = []
        for image, header in zip(images, self.read_headers(images), strict=True):
            try:
                decoded.append(self._decoder.decode(image, header))
            except ImageDecodeError as error:
                raise BadImageError(len(decoded), str(error)) from None
        return decoded

    def write(
        self,
        images: Images,
        keys: Int64Array,
        rows: Rows,
        masks: Mapping[str, Sequence[NDArray[Any]]] | None = None,
        move: MoveAlong | None = None,
        pictures: Mapping[str, Sequence[bool]] = MappingProxyType({}),
    ) -> dict[str, list[NDArray[Any]]]:
        """Decode and transform n images into n rows of batch buffers.

        Args:
            images: encoded.
            keys: int64 [n], sample keys of the images, which choose their random numbers.
            rows: places of the results, n rows in all.
            masks: other images, name -> n images, that get the same crop.
            move: moves boxes along, where there is a preprocess; None: no boxes move.
            pictures: name -> which of those images are pictures; all others keep their numbers.

        Returns:
            The cut masks: name -> n images [H, W, C].

        Raises:
            BadImageError: an image, a mask or a box cannot be used.
            OtherSizeError: without a preprocess, an image does not have the size of its row.
            PreprocessError: the preprocess failed.
        """
        images, preprocess = self._as_stored(images), self.preprocess
        headers = [] if isinstance(images, StoredPixels) else self.read_headers(images)
        cut_masks: dict[str, list[NDArray[Any]]] = {}
        stays = not masks and move is None
        is_kept = stays and isinstance(images, StoredPixels) and self._copies(images.shape[:2])
        if preprocess is None or is_kept:
            self._copy(images, headers, rows)
        else:
            size = height_and_width(preprocess.size)
            if isinstance(images, StoredPixels):
                sizes = np.broadcast_to(np.array(images.shape[:2], np.int64), (len(images), 2))
                shrinkable = np.zeros(len(images), np.bool_)
            else:
                sizes = np.array([(header.height, header.width) for header in headers], np.int64)
                shrinkable = np.array([header.is_shrinkable for header in headers])
            parameters = self.crop_parameters(sizes, keys, shrinkable)
            if parameters.keep_all(sizes, size):
                self._copy(images, headers, rows)
            elif sizes[0].prod() <= _MOST_SMALL_PIXELS and parameters.only_cut(sizes):
                self._cut(images, headers, rows, parameters)
            else:
                self._resize(images, headers, rows, parameters)
            if masks:
                check_masks(masks, sizes)
                cut_masks = {
                    name: cut_alike(values, parameters, size, pictures.get(name), preprocess.fill)
                    for name, values in masks.items()
                }
            if move is not None:
                move(parameters, sizes, size)
        self.augment(keys, rows)
        return cut_masks

    def cut_numbers(
        self,
        name: str,
        images: Sequence[NDArray[Any]],
        keys: Int64Array,
        masks: Mapping[str, Sequence[NDArray[Any]]],
        move: MoveAlong | None = None,
        pictures: Mapping[str, Sequence[bool]] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """Cut and flip n images of any numbers, [h, w, C], with their masks and boxes; `augment` is not called.

        Args:
            name: name of the images.
            images: n arrays [h, w, C] of any sizes and types.
            keys: int64 [n], sample keys of the images.
            masks: as in `write`.
            move: as in `write`.
            pictures: as in `write`.

        Returns:
            The cut images, [n, H, W, C], by their name, and the cut masks. Padding is 0.

        Raises:
            BadImageError: a mask or a box cannot be used.
            PreprocessError: the preprocess failed, or an image would have to be resized.
        """
        size = (0, 0) if self.preprocess is None else height_and_width(self.preprocess.size)
        sizes = np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2)
        parameters = self.crop_parameters(sizes, keys, np.zeros(len(images), np.bool_))
        are_resized = (parameters.steps != 1).any(axis=1)
        if are_resized.any():
            position = int(are_resized.argmax())
            image = images[position]
            raise PreprocessError(
                position,
                f"Its image is {image.dtype} {list(image.shape)}, and only uint8 of 1, 3 or 4 channels is resized; "
                f"others are cut and flipped: TrainPreprocess(size=..., crop_padding=0), or EvalPreprocess(size=..., "
                f"crop_pct=...) with which size / crop_pct is the shorter side.",
            )
        check_masks(masks, sizes)
        cut: dict[str, Any] = {
            other: cut_alike(values, parameters, size, pictures.get(other)) for other, values in masks.items()
        }
        if move is not None:
            move(parameters, sizes, size)
        return cut | {name: np.stack(cut_alike(images, parameters, size))}

    def crop_parameters(self, sizes: Int64Array, keys: Int64Array, shrinkable: NDArray[np.bool_]) -> CropParameters:
        """Return how n images are cut where there is a preprocess; see `Preprocess.crop_parameters`."""
        if self.preprocess is None:
            raise ValueError("Without a preprocess, nothing is cut.")
        return self.preprocess.crop_parameters(sizes, keys, self._seed, shrinkable, self._view)

    def augment(self, keys: Int64Array, rows: Rows) -> None:
        """Let the preprocess change n finished images; see `Preprocess.augment`."""
        preprocess = self.preprocess
        if preprocess is None or not preprocess.augments:
            return
        first = 0
        for part in rows:
            last = first + len(part)
            try:
                preprocess.augment_all(part.pixels, keys[first:last], self._seed, self._view)
            except PreprocessError as error:
                raise PreprocessError(first + error.position, error.reason) from error.__cause__
            first = last

    def _copies(self, size: tuple[int, int]) -> bool:
        """Return whether the preprocess leaves all images of this size as they are."""
        if self._kept_size == size:
            return True
        if self.preprocess is None or type(self.preprocess).crop is not EvalPreprocess.crop:
            return False  # Another crop may depend on the example.
        sizes = np.array([size], np.int64)
        parameters = self.preprocess.crop_parameters(sizes, np.zeros(1, np.int64), 0, np.zeros(1, np.bool_))
        self._kept_size = size if parameters.keep_all(sizes, height_and_width(self.preprocess.size)) else None
        return self._kept_size is not None

    def _as_stored(self, images: Images) -> Images:
        """Return StoredPixels where they can be copied as they are stored, else a list of images."""
        if not isinstance(images, StoredPixels):
            return images
        (header,) = self.read_headers(images[:1])
        return images if self._decoder.num_channels(header) == images.shape[2] else list(images)

    def read_headers(self, images: Images) -> list[Header]:
        """Return the headers of n images; raise BadImageError."""
        headers: list[Header] = []
        try:
            if isinstance(images, StoredPixels):  # They are all of one size.
                return [self._decoder.header_of_pixels(images.shape)] * len(images)
            beginning: bytes | None = None  # Of an image; those of one camera begin alike.
            for image in images:
                if beginning is None or not isinstance(image, bytes) or not image.startswith(beginning):
                    header = self._decoder.read_header(image)
                    beginning = image[: header.frame_end] if header.frame_end and isinstance(image, bytes) else None
                headers.append(header)
        except ImageDecodeError as error:
            raise BadImageError(len(headers), str(error)) from None
        return headers

    def _copy(self, images: Images, headers: Headers, rows: Rows, first: int = 0) -> None:
        """Decode whole images into their rows; `first` is the number of the first one, for messages."""
        if isinstance(images, StoredPixels):
            _copy_stored(images, rows)
            return
        each = zip(images, headers, _single_rows(rows), strict=True)
        for position, (image, header, (buffer, row)) in enumerate(each, first):
            out = buffer.pixels[row]
            shape = (header.height, header.width, self._decoder.num_channels(header))
            if shape != out.shape:
                raise OtherSizeError(position, f"It has [H, W, C] = {list(shape)}, and the first {list(out.shape)}.")
            try:
                self._decoder.decode_into(image, header, out)
            except ImageDecodeError as error:
                raise BadImageError(position, str(error)) from None

    def _cut(self, images: Images, headers: Headers, rows: Rows, parameters: CropParameters) -> None:
        """Cut a window out of each of n small images of one size, padded where it reaches outside: all at once."""
        if isinstance(images, StoredPixels):
            shape = images.shape
        else:
            shape = (headers[0].height, headers[0].width, self._decoder.num_channels(headers[0]))
        size = rows[0].buffer.pixels.shape[1:3]
        if size == shape[:2] and not parameters.windows[:, :2].any() and not parameters.offsets.any():
            self._copy(images, headers, rows)
            for buffer, start, stop, first in _blocks_of(rows):
                mirror(buffer.pixels[start:stop], parameters.flips[first : first + stop - start])
            _turn_over(rows, parameters.vflips)
            return
        fill = 0 if self.preprocess is None else self.preprocess.fill
        starts = parameters.windows[:, :2] + parameters.offsets
        for buffer, start, stop, first in _blocks_of(rows):
            some, out = slice(first, first + stop - start), buffer.pixels[start:stop]
            decoded = ArrayBuffer((len(out), *shape))
            if isinstance(images, StoredPixels):
                images[some].copy_into(decoded.pixels, buffer.gather)
            else:
                self._copy(images[some], headers[some], [BufferRows(decoded, 0, len(out))], first)
            cut_windows_of(decoded.pixels, starts[some], fill, out)
            mirror(out, parameters.flips[some])
        _turn_over(rows, parameters.vflips)

    def _resize(self, images: Images, headers: Headers, rows: Rows, parameters: CropParameters) -> None:
        """Decode, resize and flip n images of any sizes, each by itself."""
        if isinstance(images, StoredPixels):
            images = list(images)
            headers = self.read_headers(images)
        self.fill(rows, self._decode_windows(images, headers, parameters), parameters)

    def _decode_windows(self, images: Images, headers: Headers, parameters: CropParameters) -> list[Pixels]:
        """Return the windows of n images, uint8 [h, w, C].

        All of them are decoded before the first one is resized: taking turns takes a tenth longer.
        """
        shrinks = parameters.shrinks
        # Rounded up: the last pixels of an image become one of the shrunk image, too.
        windows = -(-parameters.windows // shrinks[:, None])
        decoded: list[Pixels] = []
        rows = zip(images, headers, windows.tolist(), shrinks.tolist(), strict=True)
        for image, header, window, shrink in rows:
            try:
                decoded.append(self._decoder.decode(image, header, window, shrink))
            except ImageDecodeError as error:
                raise BadImageError(len(decoded), str(error)) from None
        return decoded

    def fill(self, rows: Rows, decoded: Sequence[Pixels], parameters: CropParameters) -> None:
        """Resize decoded images into their rows, in the way of their buffers."""
        for (buffer, row), pixels, crop in zip(_single_rows(rows), decoded, parameters.rows(), strict=True):
            self._fill_row(buffer, row, pixels, *crop)
        _turn_over(rows, parameters.vflips)

    def _fill_row(
        self,
        buffer: BatchBuffer,
        row: int,
        pixels: Pixels,
        resized: list[int],
        steps: list[float],
        offset: list[int],
        flip: bool,
        bicubic: bool,
        columns_first: bool,
    ) -> None:
        out = buffer.pixels[row]
        if steps == [1.0, 1.0] and pixels.shape == out.shape and not flip:
            out[:] = pixels
            return
        height, width = out.shape[:2]
        is_resized = steps != [1.0, 1.0] or list(pixels.shape[:2]) != resized
        if is_resized and offset == [0, 0] and resized == [height, width]:
            buffer.fill_row(row, pixels, (steps[0], steps[1]), bicubic=bicubic, flip=flip, columns_first=columns_first)
            return
        if is_resized:
            size, scale = (resized[0], resized[1]), (steps[0], steps[1])
            pixels = buffer.resize(pixels, size, scale, bicubic=bicubic, columns_first=columns_first)
        part = pixels[max(offset[0], 0) : offset[0] + height, max(offset[1], 0) : offset[1] + width]
        if part.shape != out.shape:
            out[:] = 0 if self.preprocess is None else self.preprocess.fill
            top, left = max(-offset[0], 0), max(-offset[1], 0)
            left = width - left - part.shape[1] if flip else left
            out = out[top : top + part.shape[0], left : left + part.shape[1]]
        out[:] = part[:, ::-1] if flip else part


def _single_rows(rows: Rows) -> Iterator[tuple[BatchBuffer, int]]:
    for part in rows:
        for row in range(part.start, part.stop):
            yield part.buffer, row


def _turn_over(rows: Rows, vflips: NDArray[np.bool_]) -> None:
    """Mirror some of n finished rows, top to bottom."""
    if not vflips.any():
        return
    first = 0
    for part in rows:
        turn_over(part.pixels, vflips[first : first + len(part)])
        first += len(part)


def _blocks_of(rows: Rows) -> Iterator[tuple[BatchBuffer, int, int, int]]:
    """Yield (buffer, start, stop, number of the first image) of a few rows each, whose scratch memory stays small."""
    first = 0
    for part in rows:
        step = max(1, _BLOCK_BYTES // part.buffer.pixels[0].nbytes)
        for start in range(part.start, part.stop, step):
            stop = min(start + step, part.stop)
            yield part.buffer, start, stop, first
            first += stop - start


def _copy_stored(images: StoredPixels, rows: Rows) -> None:
    start = 0
    for part in rows:
        out = part.pixels
        if images.shape != out.shape[1:]:
            raise OtherSizeError(
                start, f"It has [H, W, C] = {list(images.shape)}, and the first {list(out.shape[1:])}."
            )
        images[start : start + len(out)].copy_into(out, part.buffer.gather)
        start += len(out)
