"""Everything else by Pillow: GIF, BMP, WebP, CMYK JPEG, and JPEG that is flawed but readable.

Pillow's file classes are called, not `Image.open`: the header has the format, and the limit of pixels is ours.
"""

import io
from collections.abc import Mapping

import numpy as np
from PIL import Image
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tfds_torch.images.decoders.decoder import ImageDecodeError, Pixels, Window, describe_pillow_error
from tfds_torch.images.headers import Header, ImageFormat


class _JpegFile(JpegImageFile):
    def getexif(self) -> Image.Exif:
        """Returns nothing: the resolution is not needed, and Pillow warns of broken EXIF data."""
        return Image.Exif()


_FILES: Mapping[ImageFormat, type[ImageFile]] = {
    ImageFormat.JPEG: _JpegFile,
    ImageFormat.GIF: GifImageFile,
    ImageFormat.BMP: BmpImageFile,
    ImageFormat.WEBP: WebPImageFile,
}


def decode(image: bytes, header: Header, mode: str, window: Window, shrink: int, out: Pixels | None) -> Pixels:
    """Returns a window of any image but a PNG; of an animation, of the first frame.

    Raises:
        ImageDecodeError: Pillow cannot decode it, or the header has another size.
    """
    try:
        decoded = _load(image, header, mode, shrink)
    except (ImageDecodeError, MemoryError):
        raise
    except Exception as error:
        raise ImageDecodeError(describe_pillow_error(error)) from error
    pixels = decoded if decoded.ndim == 3 else decoded[..., None]
    if out is None:
        return pixels[window]
    if out.shape != pixels.shape:
        raise ImageDecodeError(f"It decodes to {pixels.shape}, and there is room for {out.shape}.")
    out[...] = pixels
    return out


def _load(image: bytes, header: Header, mode: str, shrink: int) -> Pixels:
    file = _FILES[header.format](io.BytesIO(image))
    if file.size != (header.width, header.height):
        raise ImageDecodeError(
            f"Its header has {header.height} x {header.width} pixels, and Pillow finds {file.height} x {file.width}."
        )
    if shrink > 1:
        file.draft(None, (header.width // shrink, header.height // shrink))
    file.load()
    transparent = file.info.pop("transparency", None)  # Pillow warns where a conversion drops it.
    if transparent is not None and mode == "RGBA":
        file.info["transparency"] = transparent
    return np.array(file.convert(mode))
