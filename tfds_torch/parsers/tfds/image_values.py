"""ImageValues: from the encoded images of a TFDS feature to the values that it declares."""

import io
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence

from tfds_torch.images.beside import has_other_numbers
from tfds_torch.images.decoders.pillow import decode_stored
from tfds_torch.images.decoders.png_16 import decode_numbers
from tfds_torch.images.decoding import CHANNELS, ImageDecodeError, ImageDecoder
from tfds_torch.images.headers import Header
from tfds_torch.runtime.cached_property import cached_property

_MODES = {channels: mode for mode, channels in CHANNELS.items()}


@dataclass(frozen=True)
class ImageValues:
    """Decode images of any of TFDS's kinds. Thread-safe; can be pickled.

    Where one channel is declared, or any number of them, indices of a palette stay indices, and bits are 0 and 1, where
    TFDS makes grey levels of the palette's colours, and 0 and 255.

    Attributes:
        shape: height, width, channels (0 or None: as stored), as declared; frames before them where it is a GIF.
        dtype: `uint8`, `uint16`, or `float32`: then each value has the four bytes of an RGBA pixel.
    """

    shape: tuple[int | None, ...]
    dtype: Any

    @cached_property
    def _decoder(self) -> ImageDecoder:
        return ImageDecoder("RGBA" if self.dtype == np.float32 else _MODES.get(self.shape[-1] or 0))

    def decode(self, image: bytes) -> NDArray[Any]:
        """Return [height, width, channels] of `dtype`; of a GIF [frames, height, width, 3], where that is declared.

        Raises:
            ImageDecodeError: it is not an image, or has other channels.
            ConfigError: a package is missing that decodes colours of 16 bits.
        """
        header = self._decoder.read_header(image)
        if len(self.shape) == 4:
            return _decode_frames(image)
        if self.dtype == np.uint16:
            values: NDArray[Any] = self._decode_uint16(image, header)
        elif self.dtype == np.uint8 and self.shape[-1] in (None, 0, 1) and has_other_numbers(image, header):
            values = decode_stored(image, header)
        else:
            values = self._decoder.decode(image, header)
        if self.dtype == np.float32:
            return np.ascontiguousarray(values).view(np.float32)
        wanted = self.shape[-1] or values.shape[-1]
        if values.shape[-1] != wanted:
            raise ImageDecodeError(f"The image has {values.shape[-1]} channels, and {wanted} are declared.")
        return values

    def _decode_uint16(self, image: bytes, header: Header) -> NDArray[np.uint16]:
        if header.bit_depth <= 8:
            return self._decoder.decode(image, header).astype(np.uint16) * 257  # 255 becomes 65,535.
        if not header.pillow_mode:
            return decode_numbers(image, header, self.shape[-1])
        values, wanted = decode_stored(image, header), self.shape[-1] or header.channels
        if header.channels == 4 and wanted == 3:
            return values[:, :, :3]
        return np.repeat(values, 3, axis=2) if (header.channels, wanted) == (1, 3) else values


def _decode_frames(image: bytes) -> NDArray[np.uint8]:
    try:
        with Image.open(io.BytesIO(image)) as opened:
            return np.stack([np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(opened)])
    except Exception as error:  # Pillow raises a dozen types for broken files.
        raise ImageDecodeError(f"Pillow reports: {str(error).rstrip('.')}.") from None
