"""Everything else by Pillow: most PNG, GIF, BMP, WebP, CMYK JPEG, and JPEG that is flawed but readable.

Pillow's file classes are called, not `Image.open`: the header has the format, and the limit of pixels is ours.
"""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tfds_torch.images.decoders import pillow_only
from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels, Window, pillow_errors
from tfds_torch.images.decoders.png import check_chunks, check_rows
from tfds_torch.images.headers import Header, ImageFormat


class _JpegFile(JpegImageFile):
    def getexif(self) -> Image.Exif:
        """Return empty EXIF data: the resolution is not needed, and Pillow warns of broken EXIF data."""
        return Image.Exif()


_FILES: Mapping[ImageFormat, type[ImageFile]] = {
    ImageFormat.JPEG: _JpegFile,
    ImageFormat.PNG: PngImageFile,
    ImageFormat.GIF: GifImageFile,
    ImageFormat.BMP: BmpImageFile,
    ImageFormat.WEBP: WebPImageFile,
}


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels:
    """Return a window of any image; of an animation, of the first frame. Of 16 bits, the upper 8 are kept.

    Raises:
        ImageDecodeError: Pillow cannot decode it, or the header has another size.
    """
    with pillow_errors():
        file = _load(image, header, shrink)
        transparent = file.info.pop("transparency", None)  # Pillow warns where a conversion drops it.
        if transparent is not None and mode == "RGBA":
            file.info["transparency"] = _transparent(transparent, file, header)
        if file.mode.startswith("I"):  # A grey PNG of 16 bits. Pillow makes 255 of everything above.
            decoded = np.array(Image.fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert(mode))
        else:
            decoded = np.array(file if file.mode == mode else file.convert(mode))
        if header.format == ImageFormat.PNG:
            check_rows(image, decoded)
    pixels = decoded if decoded.ndim == 3 else decoded[..., None]
    if out is None:
        return pixels[window]
    if out.shape != pixels.shape:
        raise ImageDecodeError(f"It decodes to {pixels.shape}, and there is room for {out.shape}.")
    out[...] = pixels
    return out


def decode_stored(image: bytes, header: Header) -> NDArray[Any]:
    """Return the numbers of an image as they are stored, [h, w, C]; of an animation, those of the first frame.

    Indices of a palette stay indices, bits become 0 and 1, grey of 16 bits is uint16; all else is uint8, as of Pillow.

    Raises:
        ImageDecodeError: Pillow cannot decode it.
    """
    if header.pillow_mode:
        return pillow_only.decode_stored(image, header)
    with pillow_errors():
        file = _load(image, header)
        pixels = np.array(file)
        if header.format == ImageFormat.PNG:
            check_rows(image, pixels)
    numbers = pixels.astype(np.uint16 if file.mode.startswith("I") else np.uint8, copy=False)
    return numbers if numbers.ndim == 3 else numbers[..., None]


def _load(image: bytes, header: Header, shrink: int = 1) -> ImageFile:
    if header.format == ImageFormat.PNG:
        check_chunks(image)
    file = _FILES[header.format](io.BytesIO(image))
    if file.size != (header.width, header.height):
        raise ImageDecodeError(
            f"Its header has {header.height} x {header.width} pixels, and Pillow finds {file.height} x {file.width}."
        )
    if header.format == ImageFormat.PNG and file.mode == "P" and file.palette is None:
        raise ImageDecodeError("The PNG has no palette.")
    if shrink > 1:
        file.draft(None, (header.width // shrink, header.height // shrink))
    file.load()
    return file


def _transparent(transparent: object, file: ImageFile, header: Header) -> object:
    """Return the transparent colour, grey level, or opacity of each colour of a palette, as Pillow converts it."""
    if header.format != ImageFormat.PNG:
        return transparent
    if file.mode == "L" and isinstance(transparent, int):
        return transparent * (255 // ((1 << header.bit_depth) - 1))  # Pillow scales the pixels, and not this.
    return transparent
