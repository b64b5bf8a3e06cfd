"""Values of other libraries: PIL images as a description and bytes, and back; torch's tensors as arrays.

Of an image's `info`, transparency, EXIF data (which holds the orientation) and the ICC profile travel; the rest stays
behind. It arrives as a plain `PIL.Image.Image` with its own memory. This module does not import torch: a tensor's maker
has done so.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.transport import ProtocolError, refusing_malformed

_BITS = {
    "1": 1,
    **dict.fromkeys(("L", "P"), 8),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B"), 16),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 24),
    **dict.fromkeys(("RGBA", "RGBX", "RGBa", "CMYK", "I", "F"), 32),
}
"""Mode -> bits of a pixel, as `Image.tobytes` writes it; a row is filled up to a whole byte."""
_LARGEST_AREA, _LONGEST_SIDE = 1 << 28, 1 << 20  # Pillow takes memory for rows, also of images without pixels.
_PALETTES = {"RGB": 3, "RGBA": 4}
_MOST_COLOURS = 256
_KEPT = ("transparency", "exif", "icc_profile")
"""The entries of `info` that travel, as bytes; transparency also as a number, or a few of them."""


class WireImage(NamedTuple):
    """An image, taken apart.

    Attributes:
        description: JSON: mode, width, height, mode of the palette, sizes of the pieces in bytes (-1: there is none),
            and the transparency, where it is a number or a list of numbers.
        pieces: pixels, palette, and the bytes of `info`.
    """

    description: list[Any]
    pieces: list[bytes]


def is_image(value: Any) -> bool:
    """Return whether a value is a PIL image."""
    return isinstance(value, Image.Image)


def take_image_apart(image: Image.Image, path: str) -> WireImage:
    """Return an image, which may not have been read yet, in the form in which it travels."""
    if image.mode not in _BITS:
        raise ConfigError(
            f"{path} is a PIL image of mode {image.mode!r}: a MultiLoader carries the modes {', '.join(_BITS)}. "
            f"Convert it."
        )
    if not _is_size(*image.size):
        raise ConfigError(
            f"{path} is a PIL image of {image.width} x {image.height} pixels: a MultiLoader carries at most "
            f"{_LARGEST_AREA:,}, and {_LONGEST_SIDE:,} of a side. Make it smaller."
        )
    pixels = image.tobytes()
    palette = None if image.palette is None else image.palette.mode
    colours = bytes(image.getpalette(None) or ()) if palette in _PALETTES else b""
    info = [image.info.get(name) for name in _KEPT]
    transparency = info[0] if _is_transparency(info[0]) else None
    pieces = [pixels, colours, *(one if isinstance(one, bytes) else None for one in info)]
    sizes = [-1 if one is None else len(one) for one in pieces]
    description = [image.mode, *image.size, palette if colours else None, sizes, transparency]
    return WireImage(description, [one for one in pieces if one])


def put_image_together(description: Any, content: memoryview) -> tuple[Image.Image, memoryview]:
    """Return an image that was sent, and the content behind its pieces."""
    with refusing_malformed():
        mode, width, height, palette, sizes, transparency = description
        if not _is_size(width, height) or not (transparency is None or _is_transparency(transparency)):
            raise ProtocolError("an image has a size or a transparency that is not one")
        pieces: list[Any] = []
        for size in sizes:
            if not -1 <= size <= len(content):
                raise ProtocolError("an image has less content than its pieces")
            pieces.append(None if size < 0 else content[:size])
            content = content[max(0, size) :]
        pixels, colours, *info = pieces
        if len(pixels) != height * -(-width * _BITS[mode] // 8):
            raise ProtocolError("an image has other pixels than its size")
        image = Image.frombytes(mode, (width, height), pixels)
        if palette is not None:
            if mode not in ("P", "PA") or not 0 < len(colours) <= _MOST_COLOURS * _PALETTES[palette]:
                raise ProtocolError("an image has a palette that is not one")
            image.putpalette(bytes(colours), palette)
        image.info = {name: bytes(one) for name, one in zip(_KEPT, info, strict=True) if one is not None}
    if transparency is not None:
        image.info["transparency"] = tuple(transparency) if isinstance(transparency, list) else transparency
    return image, content


def _is_size(width: Any, height: Any) -> bool:
    sides = (width, height)
    return all(type(side) is int and 0 <= side <= _LONGEST_SIDE for side in sides) and width * height <= _LARGEST_AREA


def _is_transparency(value: Any) -> bool:
    """Return whether a value is a number, or a few of them, as of a colour."""
    if type(value) is int:
        return 0 <= value < 1 << 16
    is_colour = isinstance(value, list | tuple) and len(value) in (3, 4)
    return is_colour and all(type(one) is int and 0 <= one < 1 << 16 for one in value)


def tensor_to_array(tensor: Any, path: str) -> NDArray[Any]:
    """Return the values of a tensor on the CPU, in its memory where that is possible."""
    remedy = _find_remedy(tensor)
    if remedy is None:
        try:
            array: NDArray[Any] = tensor.resolve_conj().resolve_neg().numpy()
            return np.asarray(array)
        except TypeError:
            remedy = f"of dtype {tensor.dtype}, which numpy does not have", "Call `.float()` on it"
    problem, what_to_do = remedy
    raise ConfigError(
        f"{path} is a tensor {problem}, and a MultiLoader carries tensors as numpy arrays. {what_to_do}, or use "
        f"tfds_torch.create_loader, which carries tensors."
    )


def _find_remedy(tensor: Any) -> tuple[str, str] | None:
    """Return why a tensor cannot become an array, and what to do; None: it can."""
    if tensor.is_nested:
        return "that is nested", "Yield the list `list(tensor.unbind())`"
    if tensor.is_quantized:
        return "that is quantized", "Call `.dequantize()` on it"
    if str(tensor.layout) != "torch.strided":
        return f"of layout {tensor.layout}", "Call `.to_dense()` on it"
    if tensor.device.type == "meta":
        return "on the device 'meta', without values", "Yield one that has values"
    if tensor.device.type != "cpu":
        return f"on the device {str(tensor.device)!r}", "Call `.cpu()` on it"
    if tensor.requires_grad:
        return "that requires a gradient", "Call `.detach()` on it"
    return None
