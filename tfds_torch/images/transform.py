"""Decode and transform: encoded images become rows of batch buffers, or arrays of their own size."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from tfds_torch.images.batch_buffer import ArrayBuffer, BatchBuffer
from tfds_torch.images.buffer_rows import BadImageError, BufferRows, OtherSizeError, single_rows, write_rows
from tfds_torch.images.crop_parameters import CropParameters
from tfds_torch.images.decoding import CHANNELS, MOST_PIXELS, ImageDecodeError, ImageDecoder, Pixels
from tfds_torch.images.headers import Header
from tfds_torch.images.masks import check_masks, cut_alike
from tfds_torch.images.preprocess import Preprocess, height_and_width

Int64Array = NDArray[np.int64]

_MOST_SMALL_PIXELS = 128 * 128

MapImages = Callable[[Pixels, Int64Array], Pixels]
"""uint8 [n, H, W, C] and the sample keys int64 [n] -> uint8 [n, H, W, C]."""


class ImageTransform:
    """Decodes images, and crops, resizes and flips them as a preprocess says. Thread-safe.

    Args:
        mode: `RGB`, `L`, `RGBA`, or None for the channels as stored.
        preprocess: what is done to them; None: nothing.
        seed: of the random numbers.
        map_images: what is done to the results; None: nothing.
    """

    def __init__(
        self,
        mode: str | None,
        preprocess: Preprocess | None = None,
        *,
        seed: int = 0,
        map_images: MapImages | None = None,
    ) -> None:
        self.preprocess = preprocess
        self._seed = seed
        self._map = map_images
        self._num_channels = CHANNELS[mode]
        self._decoder = ImageDecoder(mode, MOST_PIXELS if preprocess is None else preprocess.max_pixels)

    def row_shape(self, first: bytes) -> tuple[int, int, int]:
        """Returns [H, W, C] of the rows of a batch: as the preprocess says, else that of its first image.

        Raises:
            BadImageError: it is not an image.
        """
        if self.preprocess is not None:
            return (*height_and_width(self.preprocess.size), self._num_channels)
        (header,) = self._headers([first])
        return header.height, header.width, self._decoder.num_channels(header)

    def decode(self, images: Sequence[bytes]) -> list[Pixels]:
        """Returns the pixels of n whole images, uint8 [h, w, C].

        Raises:
            BadImageError: one is not an image, has no pixels or too many, or cannot be decoded.
        """
        decoded: list[Pixels] = []
        for image, header in zip(images, self._headers(images), strict=True):
            try:
                decoded.append(self._decoder.decode(image, header))
            except ImageDecodeError as error:
                raise BadImageError(len(decoded), str(error)) from None
        return decoded

    def write(
        self,
        images: Sequence[bytes],
        keys: Int64Array,
        rows: Sequence[BufferRows],
        masks: Mapping[str, Sequence[Pixels]] | None = None,
    ) -> dict[str, list[Pixels]]:
        """Decodes and transforms n images into rows of batch buffers.

        Args:
            images: encoded.
            keys: int64 [n], their sample keys, whose random numbers they get.
            rows: where they belong, n rows in all.
            masks: other images, name -> n images, that go through the same crop.

        Returns:
            The masks, cut: name -> n images uint8 [H, W, C].

        Raises:
            BadImageError: an image or a mask cannot be used.
            OtherSizeError: without a preprocess, an image is not of the size of its row.
        """
        headers = self._headers(images)
        if self.preprocess is None:
            self._copy(images, headers, rows)
            return {}
        decoder = self._decoder
        sizes = np.array([(header.height, header.width) for header in headers], np.int64)
        shrinkable = np.array([decoder.shrinks(header) for header in headers])
        parameters = self.preprocess.crop_parameters(sizes, keys, self._seed, shrinkable)
        if self._map is None and parameters.keep_all(sizes, height_and_width(self.preprocess.size)):
            self._copy(images, headers, rows)
        elif self._map is None and sizes[0].prod() <= _MOST_SMALL_PIXELS and parameters.only_cut(sizes):
            self._cut(images, headers, rows, parameters)
        elif self._map is None:
            self._fill(rows, self._decode_windows(images, headers, parameters), parameters)
        else:
            decoded = self._decode_windows(images, headers, parameters)
            apart = ArrayBuffer((len(images), *self.row_shape(b"")))
            self._fill([BufferRows(apart, 0, len(images))], decoded, parameters, resizer=rows[0].buffer)
            write_rows(rows, self._map(apart.pixels, keys))
        if not masks:
            return {}
        check_masks(masks, sizes)
        size = height_and_width(self.preprocess.size)
        return {name: cut_alike(values, parameters, size) for name, values in masks.items()}

    def _headers(self, images: Sequence[bytes]) -> list[Header]:
        headers: list[Header] = []
        for image in images:
            try:
                headers.append(self._decoder.read_header(image))
            except ImageDecodeError as error:
                raise BadImageError(len(headers), str(error)) from None
        return headers

    def _copy(self, images: Sequence[bytes], headers: Sequence[Header], rows: Sequence[BufferRows]) -> None:
        for position, (image, header, (buffer, row)) in enumerate(zip(images, headers, single_rows(rows), strict=True)):
            out = buffer.pixels[row]
            shape = (header.height, header.width, self._decoder.num_channels(header))
            if shape != out.shape:
                raise OtherSizeError(position, f"It has [H, W, C] = {list(shape)}, and the first {list(out.shape)}.")
            try:
                self._decoder.decode_into(image, header, out)
            except ImageDecodeError as error:
                raise BadImageError(position, str(error)) from None

    def _cut(
        self,
        images: Sequence[bytes],
        headers: Sequence[Header],
        rows: Sequence[BufferRows],
        parameters: CropParameters,
    ) -> None:
        """Cuts a window out of each of n small images of one size, padded where it reaches outside: all at once."""
        height, width = headers[0].height, headers[0].width
        num_channels = self._decoder.num_channels(headers[0])
        decoded = ArrayBuffer((len(images), height, width, num_channels))
        self._copy(images, headers, [BufferRows(decoded, 0, len(images))])
        size = rows[0].buffer.pixels.shape[1:3]
        starts = parameters.windows[:, :2] + parameters.offsets
        before = np.maximum(0, -starts.min(axis=0))
        after = np.maximum(0, (starts + size).max(axis=0) - (height, width))
        padded = decoded.pixels
        if before.any() or after.any():
            shape = (len(images), before[0] + height + after[0], before[1] + width + after[1], num_channels)
            padded = np.empty(shape, np.uint8)
            padded[:] = 0 if self.preprocess is None else self.preprocess.fill
            padded[:, before[0] : before[0] + height, before[1] : before[1] + width] = decoded.pixels
        # Lines of bytes, so that whole lines are copied.
        lines = padded.reshape(len(padded), padded.shape[1], -1)
        windows = sliding_window_view(lines, (size[0], size[1] * num_channels), axis=(1, 2))
        tops, lefts = (starts + before).T
        cut = windows[np.arange(len(images)), tops, lefts * num_channels].reshape(-1, *size, num_channels)
        cut[parameters.flips] = cut[parameters.flips, :, ::-1]
        write_rows(rows, cut)

    def _decode_windows(
        self, images: Sequence[bytes], headers: Sequence[Header], parameters: CropParameters
    ) -> list[Pixels]:
        """Returns the windows of n images, uint8 [h, w, C].

        All of them, before the first one is resized: by turns, the two cost a tenth more.
        """
        shrinks = parameters.shrinks
        # Rounded up: a shrunk image has a pixel for what is left of its last ones.
        windows = -(-parameters.windows // shrinks[:, None])
        decoded: list[Pixels] = []
        rows = zip(images, headers, windows.tolist(), shrinks.tolist(), strict=True)
        for image, header, window, shrink in rows:
            try:
                decoded.append(self._decoder.decode(image, header, window, shrink))
            except ImageDecodeError as error:
                raise BadImageError(len(decoded), str(error)) from None
        return decoded

    def _fill(
        self,
        rows: Sequence[BufferRows],
        decoded: Sequence[Pixels],
        parameters: CropParameters,
        resizer: BatchBuffer | None = None,
    ) -> None:
        """Resizes decoded images into their rows; as another buffer resizes, where one is given."""
        for (buffer, row), pixels, crop in zip(single_rows(rows), decoded, parameters.rows(), strict=True):
            self._fill_row(buffer, row, pixels, *crop, resizer=resizer or buffer)

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
        *,
        resizer: BatchBuffer,
    ) -> None:
        out = buffer.pixels[row]
        if steps == [1.0, 1.0] and pixels.shape == out.shape and not flip:
            out[:] = pixels
            return
        height, width = out.shape[:2]
        is_resized = steps != [1.0, 1.0] or list(pixels.shape[:2]) != resized
        if is_resized and resizer is buffer and offset == [0, 0] and resized == [height, width]:
            buffer.fill_row(row, pixels, (steps[0], steps[1]), bicubic=bicubic, flip=flip)
            return
        if is_resized:
            pixels = resizer.resize(pixels, (resized[0], resized[1]), (steps[0], steps[1]), bicubic=bicubic)
        part = pixels[max(offset[0], 0) : offset[0] + height, max(offset[1], 0) : offset[1] + width]
        if part.shape != out.shape:
            out[:] = 0 if self.preprocess is None else self.preprocess.fill
            top, left = max(-offset[0], 0), max(-offset[1], 0)
            left = width - left - part.shape[1] if flip else left
            out = out[top : top + part.shape[0], left : left + part.shape[1]]
        out[:] = part[:, ::-1] if flip else part
