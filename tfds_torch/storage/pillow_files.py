"""Image files as Pillow opens them, with checks for files that would take much memory, or that lack rows.

Formats that only Pillow reads are opened by their classes: `Image.open` would apply Pillow's limit of sizes, and
loading a TIFF would rotate it.
"""

import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import PIL
from PIL import Image
from PIL.ImageFile import ImageFile
from PIL.Jpeg2KImagePlugin import Jpeg2KImageFile
from PIL.PpmImagePlugin import PpmImageFile
from PIL.TiffImagePlugin import TiffImageFile

from tfds_torch.storage.image_formats import READABLE_FORMATS, FileFormat, ImageFormatError, find_format

_WIDTH, _HEIGHT, _BITS_PER_SAMPLE, _ORIENTATION = 256, 257, 258, 274
_STRIPS, _ROWS_OF_STRIP = 273, 278
_TILES, _TILE_WIDTH, _TILE_HEIGHT = 324, 322, 323
"""Tags of TIFF."""

_USUAL_TILE_SIDE = 4096  # Tiles may have such sides in a smaller image; memory is taken for whole tiles.
_MOST_PLANES = 6
_SEPARATE_PLANES = 2

_FIRST_TO = {"La": "LA", "RGBa": "RGBA", "LAB": "RGB"}
"""Mode -> the only mode to which Pillow converts it."""


class TiffFile(TiffImageFile):
    """A TIFF whose pixels are not rotated, like those of every other file with an EXIF orientation."""

    def _setup(self) -> None:
        _check_parts(self.tag_v2)
        self.tag_v2.pop(_ORIENTATION, None)
        super()._setup()
        if not self.use_load_libtiff:
            _check_covers(self)

    def load_prepare(self) -> None:
        """Allocate memory for the pixels, however many there are."""
        ImageFile.load_prepare(self)

    def load_end(self) -> None:
        """Leave the pixels as they are."""


def _check_parts(tags: Mapping[int, Any]) -> None:
    """Raise ImageFormatError where the strips or tiles of a TIFF would take much more memory than its image."""
    width, height = tags.get(_WIDTH, 0), tags.get(_HEIGHT, 0)
    part_width = tags.get(_TILE_WIDTH, width)
    part_height = tags.get(_TILE_HEIGHT, tags.get(_ROWS_OF_STRIP, height))
    sides = (height, width, part_height, part_width)
    if not all(isinstance(side, int) and side > 0 for side in sides):
        raise ImageFormatError(f"The sides of the TIFF and of its parts are {sides}.")
    are_tiles = _TILE_WIDTH in tags or _TILE_HEIGHT in tags
    if are_tiles and (part_width > max(width, _USUAL_TILE_SIDE) or part_height > max(height, _USUAL_TILE_SIDE)):
        raise ImageFormatError(f"The tiles of the TIFF, {part_height} x {part_width}, are larger than its image.")
    most = -(-width // part_width) * -(-height // part_height) * _MOST_PLANES
    for tag in (_STRIPS, _TILES):
        places = tags.get(tag)
        if isinstance(places, tuple) and len(places) > most:
            raise ImageFormatError(f"The TIFF has {len(places):,} strips or tiles, and its image at most {most:,}.")


def _check_covers(file: TiffImageFile) -> None:
    """Raise ImageFormatError where strips or tiles are missing: Pillow would leave their pixels black."""
    num_pixels = 0
    for part in file.tile:
        left, top, right, bottom = part[1] or (0, 0, 0, 0)
        num_pixels += (right - left) * (bottom - top)
    is_in_planes = getattr(file, "_planar_configuration", 1) == _SEPARATE_PLANES
    if num_pixels < file.width * file.height * (len(file.getbands()) if is_in_planes else 1):
        raise ImageFormatError("The TIFF has fewer strips or tiles than its image needs.")


def _open_avif(file: io.BytesIO) -> ImageFile:
    try:
        from PIL.AvifImagePlugin import SUPPORTED, AvifImageFile
    except ImportError:
        is_supported = False
    else:
        is_supported = SUPPORTED
    if not is_supported:
        raise ImageFormatError(
            f"It is an AVIF, which this Pillow ({PIL.__version__}) cannot read: the wheels of 11.3 and later can (pip "
            f"install -U pillow)."
        )
    return AvifImageFile(file)


_OPENERS: Mapping[str, Callable[[io.BytesIO], ImageFile]] = {
    "TIFF": TiffFile,
    "AVIF": _open_avif,
    "JPEG2000": Jpeg2KImageFile,
    "PPM": PpmImageFile,
}
"""Pillow's name of a format that only Pillow reads -> the class that opens its files."""


def open_by_pillow(image: bytes, file_format: FileFormat) -> ImageFile:
    """Return the first image of a file in a format that only Pillow reads, as it is stored, not decoded yet.

    Pillow's errors have a dozen types. ImageFormatError: the image would take too much memory, or is not whole.
    """
    return _OPENERS[file_format.pillow](io.BytesIO(image))


def open_image(image: bytes) -> Image.Image:
    """Return the first image of a file in any format that is read, not decoded yet; else raise ImageFormatError."""
    found = find_format(image)
    if found is None:
        raise ImageFormatError(f"Its {len(image):,} bytes are not a {READABLE_FORMATS} image.")
    return open_by_pillow(image, found) if found.is_pillows else Image.open(io.BytesIO(image), formats=(found.pillow,))


def convert(image: Image.Image, mode: str) -> Image.Image:
    """Return an image as Pillow converts it to the mode L, LA, RGB or RGBA; of more than 8 bits, the upper 8.

    Raises:
        ImageFormatError: the levels of the image have no known range.
    """
    image = upper_8_bits(image)
    first_to = _FIRST_TO.get(image.mode)
    if first_to is not None:
        image = image.convert(first_to)
    return image if image.mode == mode else image.convert(mode)


def upper_8_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of more than 8 bits with the upper 8 of them, and any other as it is.

    Pillow's own conversion turns every larger level into 255.

    Raises:
        ImageFormatError: the levels of the image have no known range.
    """
    if has_no_range(image):
        raise ImageFormatError(
            f"Its levels are of Pillow's mode {image.mode!r}, which has no range from black to white: convert it to 8 "
            f"or 16 bits. Beside the image, such numbers come as they are."
        )
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> (bits_of(image) - 8)).astype(np.uint8))


def has_no_range(image: Image.Image) -> bool:
    """Return whether the level of white is not known: for levels with a sign, of 32 bits, or of floats."""
    return image.mode == "F" or (image.mode == "I" and image.format != "PPM")  # Levels of a PPM are scaled to 16 bits.


def bits_of(image: Image.Image) -> int:
    """Return how many bits the levels of an image have in Pillow's pixels: 8 or 16, or what the tags of a TIFF say."""
    tags = getattr(image, "tag_v2", None)
    if tags is None:
        return 16 if image.mode.startswith("I") else 8
    bits = tags.get(_BITS_PER_SAMPLE, 1)
    return max(bits) if isinstance(bits, tuple) else int(bits)
