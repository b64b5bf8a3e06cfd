"""Decoding of single images by tensorflow's operations, called one by one: only what is needed of each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.pipeline.canvas import Pixels
from tfds_torch.pipeline.columns import CHANNELS, ImageColumn
from tfds_torch.pipeline.image_headers import Encoding

# tensorflow's default is faster by 2 %, and its pixels differ from Pillow's by more than a grey level on average.
_DCT_METHOD = "INTEGER_ACCURATE"


class ImageDecoder:
    """Decodes images in the thread that calls it. Thread-safe; Python goes on meanwhile.

    Args:
        tf: the module tensorflow.
        column: of the images.
    """

    def __init__(self, tf: Any, column: ImageColumn) -> None:
        self._tf = tf
        self._column = column
        self._num_channels = CHANNELS[column.mode]

    def decode(self, image: bytes, encoding: int, window: NDArray[np.int32], shrink: int) -> Pixels:
        """Returns the pixels of an image, uint8 [h, w, C]; not to be written to.

        Args:
            image: encoded.
            encoding: an `Encoding`.
            window: int32 [4], what is wanted of the shrunk image: top, left, height, width.
            shrink: 1, or for a JPEG also 2, 4 or 8: by what it is downsized.

        Raises:
            tf.errors.InvalidArgumentError: it cannot be decoded.
        """
        if encoding == Encoding.JPEG and self._column.mode != "RGBA":
            pixels = self._tf.raw_ops.DecodeAndCropJpeg(
                contents=image,
                crop_window=window,
                channels=self._num_channels,
                ratio=shrink,
                dct_method=_DCT_METHOD,
            )
            return _array_of(pixels)
        if encoding == Encoding.PNG and self._column.mode != "RGBA":
            pixels = self._tf.raw_ops.DecodePng(contents=image, channels=self._num_channels)
        else:
            pixels = self._column.decode_one(self._tf, image)
        top, left, height, width = window.tolist()
        return np.ascontiguousarray(_array_of(pixels)[top : top + height, left : left + width])


def _array_of(pixels: Any) -> Pixels:
    """Returns the memory of a tensor, without a copy; not to be written to."""
    # numpy's own view of it is read-only, of which torch would warn.
    return pixels._numpy()  # type: ignore[no-any-return]
