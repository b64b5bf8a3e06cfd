"""Images beside the image of an example: masks and depths keep their numbers, further cameras are pictures.

One rule decides what each of them becomes, for every parser, whether it gets the crop of its image or not:

- **numbers**, as they are stored, whose crops take the nearest pixel: indices of a palette, bits as 0 and 1, grey of 8
  bits (one channel), all of 16 bits (uint16), and of arrays and Pillow's images integers and floats of any size;
- **pictures**, RGB, whose crops are resized bilinearly: colours of 8 bits.

A preprocess can set the kind by name: `also={"left": "picture", "heat": "numbers"}`.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tfds_torch.images.decoders.pillow import decode_stored
from tfds_torch.images.decoders.png_16 import decode_numbers
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import Header, ImageFormat, is_indexed, read_header

Kind = Literal["picture", "numbers"]
KINDS: tuple[Kind, ...] = ("picture", "numbers")

_COLOURS = (3, 4)
"""Numbers of channels: of colours, or with an opacity, which pictures drop."""


def has_other_numbers(image: bytes, header: Header) -> bool:
    """Return whether an image stores indices of a palette, or bits: decoders of pictures make other numbers of them."""
    return is_indexed(image, header) or header.bit_depth == 1


def is_picture(image: bytes | NDArray[Any]) -> bool:
    """Return whether an image, encoded or an array [h, w, C], is a picture: of colours of 8 bits, without a palette."""
    if isinstance(image, np.ndarray):
        return image.dtype == np.uint8 and image.ndim == 3 and image.shape[-1] in _COLOURS
    header = read_header(image)
    if header is None or is_indexed(image, header):
        return False
    return header.channels in _COLOURS and header.bit_depth <= 8


class BesideDecoder:
    """Decodes images beside the image, in the thread that calls it. Thread-safe.

    Args:
        kind: kind of the images; None: `is_picture` decides for each image.
        jpeg_decoder: as in `ImageDecoder`.
    """

    def __init__(self, kind: Kind | None = None, jpeg_decoder: str = "auto") -> None:
        self._kind = kind
        self._pictures = ImageDecoder("RGB", jpeg_decoder=jpeg_decoder)
        self._stored = ImageDecoder(None, jpeg_decoder=jpeg_decoder)

    def is_picture(self, image: bytes | NDArray[Any]) -> bool:
        """Return whether an image, encoded or as an array [h, w, C], is a picture; else it is numbers."""
        return is_picture(image) if self._kind is None else self._kind == "picture"

    def decode(self, image: bytes | NDArray[Any]) -> NDArray[Any]:
        """Return a whole image, encoded or as an array [h, w, C], as [h, w, C].

        Pictures are uint8 [h, w, 3]. Numbers are uint8, or uint16 of 16 bits, with the channels that are stored (RGB
        for CMYK); arrays come as they are.

        Raises:
            ImageDecodeError: the image cannot be decoded, or must be a picture and has other numbers than uint8.
        """
        if self.is_picture(image):
            if isinstance(image, np.ndarray) and image.dtype != np.uint8:
                raise ImageDecodeError(
                    f"It is {image.dtype} {list(image.shape)}, and a picture is uint8 [h, w, 1, 3 or 4]: name it as "
                    f"'numbers' in also=."
                )
            return self._pictures.decode(image, self._pictures.read_header(image))
        if isinstance(image, np.ndarray):
            return image
        header = self._stored.read_header(image)
        if header.bit_depth == 16 and header.format == ImageFormat.PNG:
            return decode_numbers(image, header)
        if header.pillow_mode or header.bit_depth == 16 or has_other_numbers(image, header):
            return decode_stored(image, header)
        return self._stored.decode(image, header)
