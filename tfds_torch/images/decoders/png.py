"""Small PNG of 8 bits that needs no conversion, by kornia-rs; and checks that find a PNG that ends early.

kornia-rs returns the same pixels as Pillow in a third of the time. Decoders do not notice that a PNG ends early.
"""

import struct
import zlib
from typing import Any

from numpy.typing import NDArray

from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels, Window
from tfds_torch.images.headers import Header

try:
    from kornia_rs.io import decode_image_png_u8 as decode_png
except ImportError:  # There is no wheel of it for this platform.
    decode_png = None

_MOST_KORNIA_PIXELS = 128 * 128
"""While kornia-rs decodes, the Python code of other threads waits (0.15 ms for so many pixels); with Pillow it runs."""

_KINDS = {"L": (b"\x08\x00", "mono"), "RGB": (b"\x08\x02", "rgb"), "RGBA": (b"\x08\x06", "rgba")}
"""Mode -> bit depth and colour type of files that need no conversion, and kornia-rs's name of it."""

_END = b"\0\0\0\0IEND\xaeB`\x82"  # The last chunk. kornia-rs accepts files that lack some of it.

_unpack_chunk = struct.Struct(">I4s").unpack_from  # Length, kind.
_unpack_checksum = struct.Struct(">I").unpack_from
_CHECKED_CHUNKS = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))

_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""Colour type -> samples of a pixel."""

_ADAM7 = ((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1))
"""Passes of an interlaced image: first row, first column, step down, step across."""
_ONE_PASS = ((0, 0, 1, 1),)

_PIECE_BYTES = 2**12  # Inflates to 4 MiB at most.


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels | None:
    """Return a window of a small PNG of 8 bits whose channels are those of the mode; None for any other."""
    kind, name = _KINDS.get(mode, (None, ""))
    if decode_png is None or image[24:26] != kind or header.height * header.width > _MOST_KORNIA_PIXELS:
        return None
    if not image.endswith(_END):
        return None
    try:
        pixels: Pixels = decode_png(image, (header.height, header.width), name)
    except Exception:  # kornia-rs raises nothing more special.
        return None
    if out is None:
        return pixels[window]
    out[...] = pixels
    return out


def check_chunks(image: bytes) -> None:
    """Walk the chunks of a PNG to its end.

    Raises:
        ImageDecodeError: a checksum of what makes the pixels is wrong, or the file ends before its last chunk does.
    """
    position, has_pixels, view = 8, False, memoryview(image)
    while position + 12 <= len(image):
        length, kind = _unpack_chunk(image, position)
        end = position + 8 + length
        if end + 4 > len(image):
            break
        if kind in _CHECKED_CHUNKS and zlib.crc32(view[position + 4 : end]) != _unpack_checksum(image, end)[0]:
            raise ImageDecodeError("A checksum of the PNG does not match: its bytes have changed.")
        has_pixels |= kind == b"IDAT"
        if kind == b"IEND":
            if not has_pixels:
                raise ImageDecodeError("The PNG has no pixels: there is no IDAT chunk.")
            return
        position = end + 4
    raise ImageDecodeError(f"The PNG ends early: its {len(image):,} bytes end before its last chunk (IEND) does.")


def check_rows(image: bytes, pixels: NDArray[Any]) -> None:
    """Check that a PNG whose chunks are whole has all rows: Pillow would leave a missing row black.

    The bytes of all rows are counted only where the last row has a single colour, or the image several passes.

    Args:
        image: encoded.
        pixels: [h, w] or [h, w, C], as Pillow has decoded it.

    Raises:
        ImageDecodeError: there are fewer rows than the header promises.
    """
    is_interlaced = image[28]
    if not is_interlaced and (pixels[-1] != pixels[-1, :1]).any():
        return
    missing, inflate, view = _inflated_bytes(image), zlib.decompressobj(), memoryview(image)
    position, has_begun = 8, False
    while missing > 0:
        length, kind = _unpack_chunk(image, position)
        end = position + 8 + length
        if kind == b"IDAT":
            has_begun = True
            for start in range(position + 8, end, _PIECE_BYTES):
                missing -= len(inflate.decompress(view[start : min(start + _PIECE_BYTES, end)]))
        elif has_begun:
            raise ImageDecodeError("The PNG ends early: it holds fewer rows than its header promises.")
        position = end + 4


def _inflated_bytes(image: bytes) -> int:
    """Return how many bytes all rows are, each with a byte that names its filter."""
    width, height = struct.unpack_from(">II", image, 16)
    bits = image[24] * _SAMPLES[image[25]]
    num_bytes = 0
    for top, left, down, across in _ADAM7 if image[28] else _ONE_PASS:
        num_rows, num_columns = len(range(top, height, down)), len(range(left, width, across))
        num_bytes += num_rows * (1 + (num_columns * bits + 7) // 8) if num_columns else 0
    return num_bytes
