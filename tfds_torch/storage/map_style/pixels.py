"""Images as datasets hold them: PIL images, arrays, tensors, encoded bytes, Hugging Face's undecoded columns."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.runtime.tensor_type import array_of_tensor, is_tensor
from tfds_torch.storage.image_formats import find_format
from tfds_torch.storage.pillow_files import has_no_range, upper_8_bits

EncodedImage = bytes | NDArray[np.uint8]
"""The bytes of an image file, or pixels uint8 [h, w, C]."""

_CHANNELS = (1, 3, 4)
_CONVERTED = {
    "1": "L",
    "PA": "RGBA",
    **dict.fromkeys(("LA", "La", "RGBa"), "RGBA"),
    **dict.fromkeys(("CMYK", "YCbCr", "LAB", "HSV", "RGBX"), "RGB"),
}
"""Mode of a PIL image -> the mode to which it is converted for its pixels; L, RGB and RGBA stay."""

_OF_COLOURS = ("RGB", "RGBA", "RGBX", "RGBa", "CMYK", "YCbCr", "LAB", "HSV")


def is_image(value: Any) -> bool:
    """Return whether a value can be an image.

    An image is a PIL image, the bytes of an image file, uint8 [h, w], [h, w, C] or (also of a tensor) [C, h, w], or a
    dictionary of `bytes` and `path`, which Hugging Face's undecoded columns hold.
    """
    if isinstance(value, Image.Image):
        return True
    if isinstance(value, bytes | bytearray | memoryview):
        return find_format(value) is not None
    if _is_undecoded(value):
        return True
    array = array_of_tensor(value) if is_tensor(type(value)) else value
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        return False
    return array.ndim == 2 or (array.ndim == 3 and (array.shape[2] in _CHANNELS or array.shape[0] in _CHANNELS))


def encoded_image(value: Any) -> EncodedImage:
    """Return an image in the form that decoders accept: the bytes of its file, or its pixels.

    Raises:
        ValueError: the value cannot be an image; the message is a sentence.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, Image.Image):
        return _pixels_of(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if _is_undecoded(value):
        return _file_content(value)
    if is_tensor(type(value)):
        array = array_of_tensor(value)
        if array is not None:
            return _pixels(array, channels_first=True)
    if isinstance(value, np.ndarray):
        return _pixels(value, channels_first=False)
    raise ValueError(
        f"It is of type {type(value).__name__}, and an image is a PIL image, the bytes of an image file, an array "
        f"uint8 [h, w, C], or {{'bytes': ..., 'path': ...}}."
    )


def image_beside(value: Any) -> bytes | NDArray[Any]:
    """Return an image that is not *the* image: the bytes of its file, or its numbers as they are, [h, w, C].

    In Pillow's images, palettes stay indices and "1" becomes 0 and 1; "I;16" is uint16, "I" int32 and "F" float32. Of
    three axes of an array, the first or the last has the channels: the one of size 1, 3 or 4, else the one that differs
    where the other two are equal, else the shorter one.

    Raises:
        ValueError: the value cannot be an image; the message is a sentence.
    """
    if isinstance(value, Image.Image):
        return numbers_of(value)
    array = array_of_tensor(value) if is_tensor(type(value)) else value
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        return encoded_image(value)
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        raise ValueError(f"It is {array.dtype} {list(array.shape)}, and an image is [h, w], [h, w, C] or [C, h, w].")
    first, middle, last = array.shape
    can_be_first, can_be_last = first in _CHANNELS, last in _CHANNELS
    if can_be_first and can_be_last:
        can_be_first = array is not value  # Tensors have channels first.
    elif not can_be_first and not can_be_last:
        is_square = (first == middle) is not (middle == last)
        can_be_first = middle == last if is_square else (first, array is value) < (last, True)
    return np.ascontiguousarray(array.transpose(1, 2, 0) if can_be_first else array)


def numbers_of(image: Image.Image) -> NDArray[Any]:
    """Return the numbers of a PIL image, [h, w, C]; see `image_beside`."""
    if image.mode in _OF_COLOURS:
        return _pixels_of(image)
    numbers = np.asarray(image)
    if image.mode == "1":
        numbers = numbers.astype(np.uint8)
    elif image.mode.startswith("I;16"):
        numbers = numbers.astype(np.uint16)
    return numbers if numbers.ndim == 3 else numbers[..., None]


def _is_undecoded(value: Any) -> bool:
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def _file_content(value: Mapping[str, Any]) -> bytes:
    content, path = value["bytes"], value["path"]
    if isinstance(content, bytes):
        return content
    if not isinstance(path, str):
        raise ValueError(f"It has neither bytes nor a path: its bytes are {content!r} and its path is {path!r}.")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"Its file {path} cannot be read: {error.strerror or error}.") from error


def _pixels_of(image: Image.Image) -> NDArray[np.uint8]:
    """Return the pixels of a PIL image: the upper 8 of 16 bits, and the colours of a palette."""
    mode = image.mode
    if mode in ("L", "RGB", "RGBA"):
        pixels = np.asarray(image)
    elif mode.startswith("I") and not has_no_range(image):
        pixels = np.asarray(upper_8_bits(image))
    elif mode == "P":
        pixels = np.asarray(image.convert("RGBA" if "transparency" in image.info else "RGB"))
    elif mode in _CONVERTED:
        pixels = np.asarray(image.convert(_CONVERTED[mode]))
    else:
        raise ValueError(f"It is a PIL image of mode {mode!r}, whose levels have no range: convert it to 'L' or 'RGB'.")
    return pixels if pixels.ndim == 3 else pixels[..., None]


def _pixels(array: NDArray[Any], *, channels_first: bool) -> NDArray[np.uint8]:
    """Return an array as pixels [h, w, C]; where both ends could be the channels, `channels_first` decides."""
    if array.dtype == np.uint8 and array.ndim == 2:
        return np.ascontiguousarray(array)[..., None]
    if array.dtype == np.uint8 and array.ndim == 3:
        can_be_first, can_be_last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
        if can_be_first and (channels_first or not can_be_last):
            return np.ascontiguousarray(array.transpose(1, 2, 0))
        if can_be_last:
            return np.ascontiguousarray(array)
    raise ValueError(
        f"It is {array.dtype} {list(array.shape)}, and pixels are uint8 [h, w], or [h, w, C] or [C, h, w] with 1, 3 or "
        f"4 channels."
    )
