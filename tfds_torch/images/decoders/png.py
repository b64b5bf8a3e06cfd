"""Small PNG of 8 bits that needs no conversion, by kornia-rs: Pillow's pixels, in a third of Pillow's time."""

from tfds_torch.images.decoders.decoder import Pixels, Window
from tfds_torch.images.headers import Header

try:
    from kornia_rs.io import decode_image_png_u8 as decode_png
except ImportError:  # There is no wheel of it for this platform.
    decode_png = None

_MOST_KORNIA_PIXELS = 128 * 128
"""While kornia-rs decodes, no other thread's Python goes on (0.15 ms for so many); while `png_strips` decodes, it "
"does."""

_KINDS = {"L": (b"\x08\x00", "mono"), "RGB": (b"\x08\x02", "rgb"), "RGBA": (b"\x08\x06", "rgba")}
"""Mode -> bit depth and colour type of files that need no conversion, and kornia-rs's name of it."""

_END = b"\0\0\0\0IEND\xaeB`\x82"  # The last chunk. kornia-rs takes files that lack some of it.


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels | None:
    """Returns a window of a small PNG of 8 bits whose channels are those of the mode; None for any other."""
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
