"""Decoding of single images: only what is needed of each, by tensorflow's operations, or by kornia-rs (small PNG)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tfds_torch.pipeline.canvas import Pixels
from tfds_torch.pipeline.columns import CHANNELS, ImageColumn
from tfds_torch.pipeline.crop_boxes import Boxes
from tfds_torch.pipeline.image_headers import Encoding, Header

# tensorflow's default is faster by 2 %, and its pixels differ from Pillow's by more than a grey level on average.
_DCT_METHOD = "INTEGER_ACCURATE"

_MOST_SMALL_PIXELS = 128 * 128  # While kornia-rs decodes, no other thread's Python goes on.
_PNG_KINDS: Mapping[str | None, tuple[bytes, str]] = {
    "L": (b"\x08\x00", "mono"),
    "RGB": (b"\x08\x02", "rgb"),
    "RGBA": (b"\x08\x06", "rgba"),
}
"""Mode of a column -> bit depth and colour type of PNG files that need no conversion, and kornia-rs's name of it."""


class ImageDecoder:
    """Decodes images in the thread that calls it. Thread-safe; Python goes on meanwhile, but for small PNG images.

    tensorflow takes 75 us for a PNG image of 32x32 pixels, and kornia-rs (the extra `png`) 14: it is used where it is
    installed.

    Args:
        tf: the module tensorflow.
        column: of the images.
    """

    def __init__(self, tf: Any, column: ImageColumn) -> None:
        self._tf = tf
        self._column = column
        self._num_channels = CHANNELS[column.mode]
        self._decode_png = _find_png_decoder()
        self._png_kind, self._png_mode = _PNG_KINDS.get(column.mode, (b"", ""))

    def cuts(self, header: Header) -> bool:
        """Whether of an image with this header only the window is decoded, and can be shrunk meanwhile."""
        return header.encoding == Encoding.JPEG and self._column.mode != "RGBA"

    def decode(
        self, images: Sequence[bytes], headers: Sequence[Header], windows: Boxes, shrinks: Sequence[int]
    ) -> Iterator[Pixels]:
        """Yields the pixels of n images, uint8 [h, w, C]; not to be written to.

        Args:
            images: encoded.
            headers: their own.
            windows: int64 [n, 4], what is wanted of the shrunk images: top, left, height, width.
            shrinks: 1, or for an image that it `cuts` also 2, 4 or 8: by what they are downsized.

        Raises:
            tf.errors.InvalidArgumentError: the next image cannot be decoded.
        """
        tf = self._tf
        crops: Sequence[Any] = [None] * len(images)
        if any(map(self.cuts, headers)):
            crops = tf.unstack(tf.constant(windows, tf.int32))
        for image, header, window, crop, shrink in zip(images, headers, windows.tolist(), crops, shrinks, strict=True):
            if self.cuts(header):
                # Of anything but tensors and a float, tensorflow makes these first, which takes it 100 us.
                pixels = tf.raw_ops.DecodeAndCropJpeg(
                    contents=tf.constant(image),
                    crop_window=crop,
                    channels=self._num_channels,
                    ratio=shrink,
                    acceptable_fraction=1.0,
                    dct_method=_DCT_METHOD,
                )
                yield _array_of(pixels)
            else:
                yield _cut(self._decode_whole(image, header), window)

    def _decode_whole(self, image: bytes, header: Header) -> Pixels:
        pixels = self._decode_small_png(image, header)
        if pixels is not None:
            return pixels
        if header.encoding == Encoding.PNG and self._column.mode != "RGBA":
            decoded = self._tf.raw_ops.DecodePng(contents=self._tf.constant(image), channels=self._num_channels)
        else:
            decoded = self._column.decode_one(self._tf, image)
        return _array_of(decoded)

    def _decode_small_png(self, image: bytes, header: Header) -> Pixels | None:
        """Returns the pixels of a whole image; None where tensorflow has to decode it, or to say what is wrong."""
        if (
            self._decode_png is None
            or image[24:26] != self._png_kind
            or header.encoding != Encoding.PNG
            or header.height * header.width > _MOST_SMALL_PIXELS
        ):
            return None
        try:
            return self._decode_png(image, (header.height, header.width), self._png_mode)
        except Exception:  # kornia-rs raises nothing more special.
            return None


def _cut(pixels: Pixels, window: list[int]) -> Pixels:
    top, left, height, width = window
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.ascontiguousarray(pixels[top : top + height, left : left + width])


def _array_of(pixels: Any) -> Pixels:
    """Returns the memory of a tensor, without a copy; not to be written to."""
    # numpy's own view of it is read-only, of which torch would warn.
    return pixels._numpy()  # type: ignore[no-any-return]


def _find_png_decoder() -> Callable[[bytes, tuple[int, int], str], Pixels] | None:
    try:
        from kornia_rs.io import decode_image_png_u8
    except ImportError:
        return None
    return decode_image_png_u8  # type: ignore[no-any-return]
