"""JPEG by simplejpeg (libjpeg-turbo): its pixels equal Pillow's, and Python's lock is free meanwhile.

What simplejpeg warns about goes to Pillow, which knows a harmless flaw from a file that is cut: of a cut file,
libjpeg-turbo would return half an image.
"""

import numpy as np
from PIL import Image

from tfds_torch.images.decoders.decoder import NUM_CHANNELS, Pixels
from tfds_torch.images.headers import Header

try:
    from simplejpeg import decode_jpeg
except ImportError:  # There is no wheel of it for this platform.
    decode_jpeg = None

_COLOR_SPACES = {"L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}
_LEAST_SHRUNK_SIDE = 8  # Below, several scales of libjpeg-turbo give the same size.


def shrinks(header: Header) -> bool:
    """Whether an image with this header can be downsized while it is decoded."""
    return _takes(header) and min(header.height, header.width) >= _LEAST_SHRUNK_SIDE


def decode(image: bytes, header: Header, mode: str, shrink: int, out: Pixels | None) -> Pixels | None:
    """Decodes a JPEG of 8 bits that is grey or coloured (not CMYK).

    Grey images of coloured ones are made as Pillow's `convert("L")` makes them. The Y channel would be faster by a
    third, and differs from that by up to 15 grey levels where colours are clipped.

    Args:
        image: encoded.
        header: its own.
        mode: `L`, `RGB` or `RGBA`.
        shrink: 1, 2, 4 or 8.
        out: uint8 [h, w, C], contiguous; None: into memory of its own.

    Returns:
        uint8 [h, w, C]; None: Pillow has to decode it.
    """
    if not _takes(header):
        return None
    to_gray = mode == "L" and header.channels == 3
    stored = "RGB" if to_gray else mode
    size = (-(-header.height // shrink), -(-header.width // shrink))
    # libjpeg-turbo reads the header a second time: it gets no more memory than the first reading allows.
    buffer = np.empty((*size, NUM_CHANNELS[stored]), np.uint8) if out is None or to_gray else out
    least_height, least_width = size if shrink > 1 else (0, 0)
    try:
        pixels: Pixels = decode_jpeg(
            image,
            _COLOR_SPACES[stored],
            min_height=least_height,
            min_width=least_width,
            min_factor=shrink,
            buffer=buffer,
        )
    except (ValueError, RuntimeError):
        return None
    if pixels.shape[:2] != size:
        return None
    if not to_gray:
        return pixels
    gray = Image.frombuffer("RGB", size[::-1], pixels, "raw", "RGB", 0, 1).convert("L")
    if out is None:
        return np.array(gray)[..., None]
    out[..., 0] = np.asarray(gray)
    return out


def _takes(header: Header) -> bool:
    return decode_jpeg is not None and header.channels in (1, 3) and header.bit_depth == 8
