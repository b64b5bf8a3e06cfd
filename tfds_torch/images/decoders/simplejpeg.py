"""JPEG by simplejpeg (libjpeg-turbo): its pixels equal Pillow's, and Python's lock is free meanwhile.

Pillow decodes the images that simplejpeg warns about: it tells a harmless flaw from a file that is cut, of which
libjpeg-turbo would return half an image.

Where the last rows are not needed, the header gets a smaller height, and libjpeg-turbo leaves them out
(768 us instead of 863 for a photograph of 385 x 513 pixels).
The first rows cannot be left out: every block is encoded as a difference from the block before.
"""

import struct
from typing import Any

import numpy as np

from tfds_torch.images.decoders.decoder import JPEG_END, NUM_CHANNELS, Pixels, Window, to_gray
from tfds_torch.images.headers import Header, has_all_scans

try:
    import simplejpeg
except ImportError:  # There is no wheel of it for this platform.
    decode_jpeg: Any = None
else:
    decode_jpeg = simplejpeg.decode_jpeg

_COLOR_SPACES = {"L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}
_ROWS_BELOW = 16  # Two blocks: colours are interpolated with those of the next row of blocks.
_LEAST_LEFT_OUT = 16  # Rows: copying the file has to be worth it.
_pack_height = struct.Struct(">H").pack_into


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels | None:
    """Return a window of a whole JPEG of 8 bits, grey or coloured, not CMYK; None: Pillow has to decode it."""
    if decode_jpeg is None or not header.is_plain_jpeg:
        return None
    if not header.height_at and not has_all_scans(image):
        return None
    is_converted = mode == "L" and header.channels == 3
    stored = "RGB" if is_converted else mode
    height = _rows_to_decode(image, header, window[0].stop, shrink)
    is_cut = height < header.height
    size = (-(-height // shrink), -(-header.width // shrink))
    # libjpeg-turbo reads the header a second time: it gets no more memory than the first reading allows.
    buffer = np.empty((*size, NUM_CHANNELS[stored]), np.uint8) if out is None or is_converted else out
    least_height, least_width = size if shrink > 1 else (0, 0)
    try:
        pixels: Pixels = decode_jpeg(
            _with_height(image, header, height) if is_cut else image,
            _COLOR_SPACES[stored],
            min_height=least_height,
            min_width=least_width,
            min_factor=shrink,
            buffer=buffer,
            strict=not is_cut,  # Bytes after the last row are reported as a flaw.
        )
    except (ValueError, RuntimeError):
        return None
    if pixels.shape[:2] != size:
        return None
    if is_converted:
        pixels = to_gray(pixels)
        if out is not None:
            out[...] = pixels
            return out
    return pixels[window]


def _rows_to_decode(image: bytes, header: Header, num_rows: int, shrink: int) -> int:
    """Return how many rows of the stored image to decode: all, unless the pixels are surely the same without some."""
    height = (num_rows + _ROWS_BELOW) * shrink
    if height > header.height - _LEAST_LEFT_OUT or not header.height_at or not image.endswith(JPEG_END):
        return header.height
    return height


def _with_height(image: bytes, header: Header, height: int) -> bytearray:
    changed = bytearray(image)
    _pack_height(changed, header.height_at, height)
    return changed
