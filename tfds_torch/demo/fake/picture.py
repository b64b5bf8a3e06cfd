"""A scene as an image, an image file, or a segmentation mask."""

import functools
import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tfds_torch.demo.fake.scene import Scene

# Noise as a camera has it, so that a file is as large, and as slow to decode, as a photograph's.
_NOISE = 4.0
_NOISE_FIELD = 1024
_JPEG_QUALITY = 92
# zlib's best effort on a large picture would cost more than all the rest.
_PNG_LEVEL_SMALL, _PNG_LEVEL_LARGE = 6, 1
_LARGE = 128 * 128
_BORDER = 3


def paint(scene: Scene, height: int, width: int, channels: int, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Returns the scene in this size: uint8 [height, width, channels], 1 to 4 channels."""
    is_gray = channels < 3
    # Without hues, the shapes are bright on a dark ground.
    backdrop = scene.backdrop.mean(axis=-1).astype(np.uint8) // 2 if is_gray else scene.backdrop
    image = Image.fromarray(backdrop).resize((width, height), Image.Resampling.BICUBIC)
    pen = ImageDraw.Draw(image)
    line = max(1, round(min(height, width) * 0.05))
    for shape in scene.shapes:
        outline = [(x * width, y * height) for x, y in shape.outline]
        colour = max(shape.colour) if is_gray else shape.colour
        pen.polygon(outline, fill=None if shape.is_hollow else colour, outline=colour, width=line)
    pixels = np.asarray(image).reshape(height, width, -1)  # [H, W, 1 or 3]
    noisy = np.clip(pixels + _noise(height, width, rng), 0, 255).astype(np.uint8)
    if channels in (1, 3):
        return noisy
    opaque = np.full((height, width, 1), 255, np.uint8)
    return np.concatenate([noisy, opaque], axis=-1)


def paint_mask(scene: Scene, height: int, width: int, values: "MaskValues") -> NDArray[np.int32]:
    """Returns which pixel belongs to what: int32 [height, width, 1]."""
    mask = Image.new("I", (width, height), values.background)
    pen = ImageDraw.Draw(mask)
    for number, shape in enumerate(scene.shapes):
        outline = [(x * width, y * height) for x, y in shape.outline]
        pen.polygon(outline, fill=values.shape(number), outline=values.border(number), width=_BORDER)
    return np.asarray(mask, dtype=np.int32)[..., None]


class MaskValues:
    """Which numbers a mask holds.

    Args:
        num_classes: they are 0 (background) to num_classes - 1; None: 1 in a shape, 2 around it, 3 on its border.
        first: the class of the first shape, counted from 0 without the background.
    """

    def __init__(self, num_classes: int | None, first: int) -> None:
        self.background = 2 if num_classes is None else 0
        self._num_classes = num_classes
        self._first = first

    def shape(self, number: int) -> int:
        """The value within a shape."""
        if self._num_classes is None:
            return 1
        return 1 + (self._first + number) % (self._num_classes - 1) if self._num_classes > 1 else 0

    def border(self, number: int) -> int:
        """The value on a shape's outline."""
        return 3 if self._num_classes is None else self.shape(number)


def encode(pixels: NDArray[np.uint8], encoding: str) -> bytes:
    """Returns an image file.

    Args:
        pixels: uint8 [H, W, 1 to 4].
        encoding: png or jpeg.
    """
    height, width, channels = pixels.shape
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
    file = io.BytesIO()
    if encoding == "jpeg":
        image.save(file, "JPEG", quality=_JPEG_QUALITY)
    else:
        image.save(file, "PNG", compress_level=_PNG_LEVEL_LARGE if height * width > _LARGE else _PNG_LEVEL_SMALL)
    return file.getvalue()


def _noise(height: int, width: int, rng: np.random.Generator) -> NDArray[np.int16]:
    """Returns a window of the noise: int16 [height, width, 1]."""
    field = _noise_field()
    top, left = rng.integers(0, _NOISE_FIELD, size=2)
    rows = np.arange(top, top + height) % _NOISE_FIELD
    columns = np.arange(left, left + width) % _NOISE_FIELD
    window: NDArray[np.int16] = field[rows[:, None], columns][..., None]
    return window


@functools.cache
def _noise_field() -> NDArray[np.int16]:
    """Drawn once: drawing it per picture would take longer than encoding it."""
    field = np.random.default_rng(0).normal(0.0, _NOISE, size=(_NOISE_FIELD, _NOISE_FIELD))
    return np.rint(field).astype(np.int16)
