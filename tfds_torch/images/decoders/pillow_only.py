"""Headers, pixels and stored numbers of formats that only Pillow reads: TIFF, AVIF, JPEG 2000, PPM.

Of a TIFF, the first image is read. EXIF orientation is ignored.
"""

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL.ImageFile import ImageFile

from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels, Window, pillow_errors
from tfds_torch.images.headers import Header, ImageFormat
from tfds_torch.storage.image_formats import FileFormat, find_format
from tfds_torch.storage.pillow_files import bits_of, convert, has_no_range, open_by_pillow

_CHANNELS: Mapping[str, int] = {
    **dict.fromkeys(("1", "L", "I", "F"), 1),
    **dict.fromkeys(("LA", "La"), 2),
    **dict.fromkeys(("P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB"), 3),
    **dict.fromkeys(("PA", "RGBA", "RGBa"), 4),
}
"""Mode -> number of channels, as `Header.channels` counts them; those of 16 bits have 1."""

_AS_COLOURS = ("CMYK", "YCbCr", "LAB", "RGBX")
"""Modes whose numbers are those of RGB."""

_TO_16_BITS = 65535
_CODESTREAM = b"\xff\x4f\xff\x51"
_unpack_box = struct.Struct(">I4sQ").unpack_from  # Length, kind, length of a box whose length is 1.
_unpack_j2k = struct.Struct(">IIIIIIIIH").unpack_from  # Right, bottom, left, top; of tiles; number of components.
_MOST_COMPONENTS, _MOST_TILES, _LEAST_TILE_PIXELS = 4, 64, 1024  # Hostile files have millions, which take memory.


def read_header(image: bytes, file_format: FileFormat) -> Header:
    """Return the header of a whole file of a format that Pillow alone reads; nothing is decoded.

    Raises:
        ImageDecodeError: Pillow cannot read it.
    """
    with pillow_errors():
        file = open_by_pillow(image, file_format)
        kind = ImageFormat[file_format.pillow]
        channels = _CHANNELS.get(file.mode, 1)
        if file.mode == "P" and file.palette is not None and file.palette.mode == "RGBA":
            channels = 4
        return Header(kind, file.height, file.width, channels, _read_bits(image, file, kind), pillow_mode=file.mode)


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels:
    """Return a window of an image; see `Decoder`. Of more than 8 bits, the upper 8 are kept.

    Raises:
        ImageDecodeError: Pillow cannot decode it, or its levels have no range.
    """
    with pillow_errors():
        decoded = np.array(convert(_load(image, header), mode))
    pixels = decoded if decoded.ndim == 3 else decoded[..., None]
    if out is None:
        return pixels[window]
    out[...] = pixels
    return out


def decode_stored(image: bytes, header: Header) -> NDArray[Any]:
    """Return the numbers of an image as they are stored, [h, w, C].

    Indices of a palette stay indices, bits become 0 and 1. Levels are not scaled to 8 or 16 bits: uint8 up to 8 bits,
    uint16 up to 16; of TIFF also int32 and float32.

    Raises:
        ImageDecodeError: Pillow cannot decode it, or does not return all bits of its numbers.
    """
    with pillow_errors():
        parts = _open(image, header).tile
        file = _load(image, header)
        is_deep = file.mode == "F" or file.mode.startswith("I")
        if header.bit_depth > 8 and not is_deep:
            raise ImageDecodeError(
                f"Its colours have {header.bit_depth} bits, of which Pillow gives the upper 8: name it as 'picture' in "
                f"also=, or store it as a PNG of 16 bits."
            )
        numbers: NDArray[Any] = np.asarray(file.convert("RGB") if file.mode in _AS_COLOURS else file)
        if file.mode == "PA":
            numbers = numbers[..., 0]
        elif not has_no_range(file):
            numbers = _without_scale(numbers, header, parts).astype(np.uint16 if is_deep else np.uint8)
    return np.array(numbers if numbers.ndim == 3 else numbers[..., None])


def _open(image: bytes, header: Header) -> ImageFile:
    file_format = find_format(image)
    if file_format is None:
        raise ImageDecodeError(f"It is not a {header.format.name}.")
    return open_by_pillow(image, file_format)


def _load(image: bytes, header: Header) -> ImageFile:
    file = _open(image, header)
    if (file.height, file.width) != (header.height, header.width):
        raise ImageDecodeError(
            f"Its header has {header.height} x {header.width} pixels, and Pillow finds {file.height} x {file.width}."
        )
    file.load()
    return file


def _without_scale(numbers: NDArray[Any], header: Header, parts: Any) -> NDArray[Any]:
    """Return levels that Pillow has scaled to 8 or 16 bits as they are stored."""
    is_indexed = header.pillow_mode in ("1", "P")
    if header.format == ImageFormat.JPEG2000 and not is_indexed:
        return numbers >> ((16 if header.bit_depth > 8 else 8) - header.bit_depth)
    if header.format == ImageFormat.TIFF and header.pillow_mode == "L" and header.bit_depth < 8:
        return numbers // (255 // ((1 << header.bit_depth) - 1))
    if header.format == ImageFormat.PPM and not is_indexed:
        white, full = _white_of(parts), _TO_16_BITS if header.bit_depth > 8 else 255
        return (numbers.astype(np.int64) * white * 2 + full) // (full * 2)  # To the nearest, which is the stored one.
    return numbers


def _read_bits(image: bytes, file: ImageFile, kind: ImageFormat) -> int:
    """Return the bits of a sample; of JPEG 2000, check that its header and its codestream have the same size."""
    if kind == ImageFormat.PPM and not image[file.tile[0][2] - 1 : file.tile[0][2]].isspace():
        raise ImageDecodeError("The PPM ends in its header.")  # Half a number is one, too.
    if file.mode == "1":
        return 1
    if kind == ImageFormat.TIFF:
        return bits_of(file)
    if kind == ImageFormat.JPEG2000:
        return _read_j2k_bits(image, file)
    if kind == ImageFormat.PPM:
        return 32 if file.mode == "F" else 16 if _white_of(file.tile) > 255 else 8
    return 8


def _white_of(parts: Any) -> int:
    """Return the largest level of a PPM file, by the arguments of Pillow's decoder."""
    name, _, _, arguments = parts[0]
    if name == "raw":
        return _TO_16_BITS if arguments[0] == "I;16B" or arguments == "I;16B" else 255
    return int(arguments[-1]) if isinstance(arguments, tuple) else 1


def _read_j2k_bits(image: bytes, file: ImageFile) -> int:
    """Return the bits of the largest component; raise ImageDecodeError for what would take too much memory."""
    at = _find_codestream(image)
    right, bottom, left, top, tile_width, tile_height, tile_left, tile_top, num_components = _unpack_j2k(image, at + 8)
    if (right - left, bottom - top) != file.size:
        raise ImageDecodeError(
            f"Its header has {file.height} x {file.width} pixels, and its codestream {bottom - top} x {right - left}."
        )
    if not 0 < num_components <= _MOST_COMPONENTS or not tile_width or not tile_height:
        raise ImageDecodeError(f"It has {num_components} components, and tiles of {tile_height} x {tile_width} pixels.")
    num_tiles = -((tile_left - right) // tile_width) * -((tile_top - bottom) // tile_height)
    if num_tiles > max(_MOST_TILES, file.width * file.height // _LEAST_TILE_PIXELS):
        raise ImageDecodeError(f"It has {num_tiles:,} tiles, which is too many for its size.")
    return max((image[at + 42 + 3 * number] & 0x7F) + 1 for number in range(num_components))


def _find_codestream(image: bytes) -> int:
    """Return where the codestream begins, behind the boxes of a JP2 file."""
    position = 0
    while not image.startswith(_CODESTREAM, position):
        length, kind, long_length = _unpack_box(image, position)
        head = 16 if length == 1 else 8
        if kind == b"jp2c":
            position += head
            if not image.startswith(_CODESTREAM, position):
                break
        elif (long_length if length == 1 else length) < head:
            break
        else:
            position += long_length if length == 1 else length
    else:
        return position
    raise ImageDecodeError("The JPEG 2000 has no codestream.")
