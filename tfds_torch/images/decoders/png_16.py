"""PNG of 16 bits, where all of them count: as numbers, and for a transparent colour, which is compared in 16 bits.

Pillow keeps 16 bits of grey files alone: of all others it drops the lower 8. Conversions are those of tensorflow.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels, Window
from tfds_torch.images.decoders.pillow import decode_stored
from tfds_torch.images.decoders.png import check_chunks
from tfds_torch.images.headers import Header

_Numbers = NDArray[np.uint16]

_OPAQUE = 65_535
_WITH_OPACITY = (2, 4)
"""Numbers of channels."""

_RED, _GREEN = int(0.299 * 32_768), int(0.587 * 32_768)
_BLUE = 32_768 - _RED - _GREEN

_unpack_chunk = struct.Struct(">I4s").unpack_from  # Length, kind.


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels | None:
    """Return a window of a PNG of 16 bits that has a transparent colour, as RGBA; None for any other."""
    if mode != "RGBA" or header.bit_depth != 16 or _transparent_colour(image, header) is None:
        return None
    pixels = (decode_numbers(image, header, 4) >> 8).astype(np.uint8)
    if out is None:
        return pixels[window]
    out[...] = pixels
    return out


def decode_numbers(image: bytes, header: Header, num_channels: int | None = None) -> _Numbers:
    """Return uint16 [h, w, C] of a PNG of 16 bits.

    Args:
        image: encoded.
        header: header of the image.
        num_channels: 1 grey, 2 grey and alpha, 3 colour, 4 colour and alpha; None or 0: the stored channels. Alpha is
            dropped, or set to 65,535 where nothing is transparent.

    Raises:
        ImageDecodeError: it cannot be decoded.
        ConfigError: it has colours, and kornia-rs is not installed.
    """
    if header.channels >= 3:
        stored = _decode_colours(image, header)
    elif header.channels == 2:
        stored = _decode_grey_and_alpha(image, header)
    else:
        stored = decode_stored(image, header)
    wanted = num_channels or header.channels
    if wanted == header.channels:
        return stored
    has_opacity = header.channels in _WITH_OPACITY
    levels = stored[..., :-1] if has_opacity else stored
    if wanted < 3 <= header.channels:
        levels = _to_grey(levels)
    elif wanted >= 3 > header.channels:
        levels = np.repeat(levels, 3, axis=2)
    if wanted not in _WITH_OPACITY:
        return np.ascontiguousarray(levels)
    return np.concatenate([levels, stored[..., -1:] if has_opacity else _opacity(image, header, stored)], axis=2)


def _decode_grey_and_alpha(image: bytes, header: Header) -> _Numbers:
    """Decode by Pillow, which takes the four bytes of a pixel for RGBA of 8 bits: both are stored in the same way."""
    check_chunks(image)  # The header gets another checksum.
    beginning = image[:24] + b"\x08\x06" + image[26:29]
    as_colours = beginning + zlib.crc32(beginning[12:]).to_bytes(4, "big") + image[33:]
    pixels = decode_stored(as_colours, header._replace(channels=4, bit_depth=8))
    return pixels.view(">u2").astype(np.uint16)


def _decode_colours(image: bytes, header: Header) -> _Numbers:
    check_chunks(image)  # kornia-rs accepts files that lack their end.
    try:
        from kornia_rs.io import decode_image_png_u16
    except ImportError:
        raise ConfigError(
            "The dataset has PNG images with colours of 16 bits, which the package kornia-rs decodes. Install it with: "
            "pip install kornia-rs"
        ) from None
    name = "rgb" if header.channels == 3 else "rgba"
    try:
        values: _Numbers = decode_image_png_u16(image, (header.height, header.width), name)
    except Exception as error:  # kornia-rs raises nothing more special.
        raise ImageDecodeError(f"kornia-rs says: {str(error).rstrip('.')}.") from None
    return values


def _to_grey(colours: _Numbers) -> _Numbers:
    red, green, blue = np.moveaxis(colours.astype(np.uint32), 2, 0)
    grey: _Numbers = ((_RED * red + _GREEN * green + _BLUE * blue + 16_384) >> 15).astype(np.uint16)
    return grey[..., None]


def _opacity(image: bytes, header: Header, stored: _Numbers) -> _Numbers:
    """Return alpha, uint16 [h, w, 1]: 0 where a pixel has the transparent colour, if there is one."""
    transparent = _transparent_colour(image, header)
    if transparent is None:
        return np.full((*stored.shape[:2], 1), _OPAQUE, np.uint16)
    differs: NDArray[np.bool_] = stored != np.array(transparent, np.uint16)
    return np.where(differs.any(axis=2, keepdims=True), np.uint16(_OPAQUE), np.uint16(0))


def _transparent_colour(image: bytes, header: Header) -> tuple[int, ...] | None:
    """Walk the chunks of a PNG to its transparent colour, or grey level."""
    position = 33
    while header.channels not in _WITH_OPACITY and position + 8 <= len(image):
        length, kind = _unpack_chunk(image, position)
        if kind == b"tRNS":
            levels = image[position + 8 : position + 8 + min(length, 2 * header.channels)]
            is_whole = len(levels) == 2 * header.channels
            return struct.unpack(f">{header.channels}H", levels) if is_whole else None
        position += 12 + length
    return None
