"""JPEG by libturbojpeg 3: of a photograph only the window is decoded. Its pixels equal Pillow's.

Every row above the window still has to be read, since blocks are encoded one after the other; but neither these nor
the columns beside the window are transformed into pixels (540 us instead of 640 for a photograph of 385 x 513 pixels).

What the library warns about goes to Pillow, which knows a harmless flaw from a file that is cut.
"""

import numpy as np
from PIL import Image

from tfds_torch.images.decoders import turbojpeg_library
from tfds_torch.images.decoders.decoder import NUM_CHANNELS, Pixels, Window, cut, jpeg_shrinks, takes_jpeg
from tfds_torch.images.decoders.turbojpeg_library import HEIGHT, PIXEL_FORMATS, SUBSAMPLING, WIDTH
from tfds_torch.images.headers import Header

shrinks = jpeg_shrinks

_END = b"\xff\xd9"  # A cut file lacks it: then all of it is decoded, and the flaw is reported.
_MARGIN = 2
"""Pixels around a window: colours are stored for every second pixel, and are mixed with those of their neighbours."""
_BLOCK_WIDTHS = {0: 8, 1: 16, 2: 16, 3: 8, 4: 8, 5: 32}
"""TJSAMP (4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1) -> pixels between the columns where a region can begin."""


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels | None:
    """Returns a window of a JPEG of 8 bits that is grey or coloured (not CMYK); None: Pillow has to decode it.

    Grey images of coloured ones are made as Pillow's `convert("L")` makes them.
    """
    library = turbojpeg_library.find().library
    if library is None or not takes_jpeg(header):
        return None
    handle = library.handle
    if handle.read_header(image) or (handle.get(HEIGHT), handle.get(WIDTH)) != (header.height, header.width):
        return None
    top, left, height, width = window
    full_height, full_width = -(-header.height // shrink), -(-header.width // shrink)
    step = _BLOCK_WIDTHS.get(handle.get(SUBSAMPLING))
    if out is None and step is not None and image.endswith(_END):
        first_row, first_column = max(0, top - _MARGIN), max(0, left - _MARGIN) * shrink // step * step // shrink
        num_rows = min(full_height, top + height + _MARGIN) - first_row
        num_columns = min(full_width, left + width + _MARGIN) - first_column
        failed = handle.select(shrink, first_column, first_row, num_columns, num_rows)
    else:
        first_row = first_column = 0
        num_rows, num_columns = full_height, full_width
        failed = handle.select(shrink, 0, 0, 0, 0)
    if failed:
        return None
    to_gray = mode == "L" and header.channels == 3
    stored = "RGB" if to_gray else mode
    pixels = np.empty((num_rows, num_columns, NUM_CHANNELS[stored]), np.uint8) if out is None or to_gray else out
    if handle.decode(image, pixels, PIXEL_FORMATS[stored]):
        return None
    if to_gray:
        gray = Image.frombuffer("RGB", (num_columns, num_rows), pixels, "raw", "RGB", 0, 1).convert("L")
        pixels = np.array(gray)[..., None]
        if out is not None:
            out[...] = pixels
            return out
    return cut(pixels, (top - first_row, left - first_column, height, width))
