"""Resizing without torch: by cykooz-resizer, several times as fast as Pillow and with its algorithm; else by Pillow."""

import threading
from typing import Any

import numpy as np

from tfds_torch.images.batch_buffer import ArrayBuffer, resize_with_pillow
from tfds_torch.images.decoding import Pixels

try:
    import cykooz_resizer as resizer
except ImportError:  # The extra `fast-resize` is not installed.
    resizer = None

_of_thread = threading.local()


class FastArrayBuffer(ArrayBuffer):
    """A batch buffer in numpy, whose pixels are within a grey level of Pillow's on average.

    Images of three channels take a quarter of Pillow's time. Pillow resizes all others, and these too where
    cykooz-resizer is not installed.

    Args:
        memory: uint8 [B, H, W, C], of any content.
    """

    def __init__(self, memory: Pixels) -> None:
        self.pixels = memory

    def resize(  # noqa: D102
        self, pixels: Pixels, size: tuple[int, int], steps: tuple[float, float], *, bicubic: bool
    ) -> Pixels:
        if resizer is None or pixels.shape[-1] != 3:  # With an opacity, Pillow also weighs the colours by it.
            return resize_with_pillow(pixels, size, steps, bicubic=bicubic)
        return _resize(pixels, size, steps, bicubic)


def _resize(pixels: Pixels, size: tuple[int, int], steps: tuple[float, float], bicubic: bool) -> Pixels:
    (height, width), kind = size, resizer.PixelType.U8x3
    options, rows, columns = _options(bicubic), pixels.shape[0], pixels.shape[1]
    # Rounded floats may reach beyond the image by a trifle.
    options.crop_box = resizer.CropBox(0.0, 0.0, min(width * steps[1], columns), min(height * steps[0], rows))
    result = resizer.ImageData(width, height, kind)
    _of_thread.resizer.resize(resizer.ImageData(columns, rows, kind, pixels.tobytes()), result, options)
    return np.frombuffer(result.get_buffer(), np.uint8).reshape(height, width, 3)


def _options(bicubic: bool) -> Any:
    """Returns this thread's options for a filter."""
    if not hasattr(_of_thread, "resizer"):
        filters = resizer.FilterType.bilinear, resizer.FilterType.catmull_rom
        _of_thread.options = [
            resizer.ResizeOptions(resizer.ResizeAlg.convolution(one), use_alpha=False) for one in filters
        ]
        _of_thread.resizer = resizer.Resizer()  # Not for several threads at once.
    return _of_thread.options[bicubic]
