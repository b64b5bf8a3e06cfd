"""Resizing without torch: by cykooz-resizer (Pillow's algorithm, several times as fast as Pillow), or by Pillow."""

import threading
from typing import Any

import numpy as np

from tfds_torch.images.batch_buffer import ArrayBuffer, Passes, passes_of, resize_with_pillow
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
        self,
        pixels: Pixels,
        size: tuple[int, int],
        steps: tuple[float, float],
        *,
        bicubic: bool,
        columns_first: bool = False,
    ) -> Pixels:
        if resizer is None or pixels.shape[-1] != 3:  # With an opacity, Pillow also weighs the colours by it.
            return resize_with_pillow(pixels, size, steps, bicubic=bicubic, columns_first=columns_first)
        # It resizes columns first, always.
        rows_first = bicubic and not columns_first
        passes = passes_of(pixels, size, steps, columns_first=False) if rows_first else ((size, steps),)
        return _resize(pixels, passes, bicubic)


def _resize(pixels: Pixels, passes: Passes, bicubic: bool) -> Pixels:
    kind, options = resizer.PixelType.U8x3, _options(bicubic)
    rows, columns = pixels.shape[0], pixels.shape[1]
    image = resizer.ImageData(columns, rows, kind, pixels.tobytes())
    for (height, width), (down, right) in passes:
        # Rounded floats may reach beyond the image by a trifle.
        options.crop_box = resizer.CropBox(0.0, 0.0, min(width * right, columns), min(height * down, rows))
        rows, columns, source = height, width, image
        image = resizer.ImageData(columns, rows, kind)
        _of_thread.resizer.resize(source, image, options)
    return np.frombuffer(image.get_buffer(), np.uint8).reshape(rows, columns, 3)


def _options(bicubic: bool) -> Any:
    """Return this thread's options for a filter."""
    if not hasattr(_of_thread, "resizer"):
        filters = resizer.FilterType.bilinear, resizer.FilterType.catmull_rom
        _of_thread.options = [
            resizer.ResizeOptions(resizer.ResizeAlg.convolution(one), use_alpha=False) for one in filters
        ]
        _of_thread.resizer = resizer.Resizer()  # Not for several threads at once.
    return _of_thread.options[bicubic]
