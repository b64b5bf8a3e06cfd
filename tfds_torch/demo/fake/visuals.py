"""How images, segmentation masks and boxes are filled. For the process that builds."""

import functools
import io
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from tfds_torch.demo.fake.draft import MASK_WORDS, Draft, Fill, Place
from tfds_torch.demo.fake.scene import Scene

ImageShape = tuple[int | None, ...]

_LONG_SIDE = (460, 521)
_ASPECT = (0.66, 0.8)
_PROBABILITY_LANDSCAPE = 0.7
# 65535 / 255: the full range of 16 bits.
_UINT16_STEP = 257
_FLOAT_MAX = 10.0
# Noise as a camera has it, so that a file is as large, and as slow to decode, as a photograph's.
_NOISE = 4.0
_NOISE_FIELD = 1024
_JPEG_QUALITY = 92
# zlib's best effort on a large picture would cost more than all the rest.
_PNG_LEVEL_SMALL, _PNG_LEVEL_LARGE = 6, 1
_LARGE = 128 * 128
_BORDER = 3


def is_mask(feature: Any, place: Place) -> bool:
    """Whether an image holds a class per pixel: by its type, or by its one channel and its name."""
    if isinstance(feature, tfds.features.LabeledImage):
        return True
    return feature.shape[-1] == 1 and not MASK_WORDS.isdisjoint(place.words)


def choose_encoding(feature: Any) -> str:
    """Returns png or jpeg: the declared one, else as TFDS encodes arrays (PNG), but JPEG for pictures of any size."""
    declared = feature.encoding_format
    height, width, channels = feature.shape
    return declared or ("jpeg" if channels == 3 and None in (height, width) else "png")


def draw_size(shape: ImageShape, rng: np.random.Generator) -> tuple[int, int]:
    """Returns height and width for an image [H, W, C]: as declared, or as a photograph's of about 500 pixels."""
    long_side = int(rng.integers(*_LONG_SIDE))
    short_side = round(long_side * rng.uniform(*_ASPECT))
    is_landscape = rng.random() < _PROBABILITY_LANDSCAPE
    height, width = (short_side, long_side) if is_landscape else (long_side, short_side)
    return shape[0] or height, shape[1] or width


def fill_image(feature: Any, place: Place) -> Fill:
    """Returns how `Image` and `LabeledImage` are filled: with files, or with arrays where Pillow writes none."""
    shape, dtype = feature.shape, np.dtype(feature.np_dtype)
    if len(shape) != 3 or shape[-1] not in (None, 1, 2, 3, 4):
        raise place.refuse(feature, f"its shape is {shape}")
    if is_mask(feature, place) and dtype.kind in "iu":
        return _fill_mask(feature, dtype)
    channels, encoding = shape[-1] or 3, choose_encoding(feature)

    def fill(draft: Draft) -> Any:
        height, width = _size_in(draft.scene, shape)
        pixels = paint(draft.scene, height, width, channels, draft.rng)
        if dtype == np.uint8:
            return io.BytesIO(encode(pixels, encoding))
        if dtype.kind == "f":
            return pixels.astype(dtype) * dtype.type(_FLOAT_MAX / 255)
        return pixels.astype(dtype) * dtype.type(_UINT16_STEP)

    return fill


def fill_box(feature: Any, place: Place) -> Fill:
    """Returns how `BBoxFeature` is filled: with the boxes of the scene's shapes."""
    name = getattr(feature.bbox_format, "value", feature.bbox_format) or "REL_YXYX"
    is_relative, order = name.startswith("REL_"), name.removeprefix("REL_")

    def fill(draft: Draft) -> Any:
        scene = draft.scene
        ymin, xmin, ymax, xmax = scene.shapes[place.count_visit(draft) % len(scene.shapes)].box
        if not is_relative:
            ymin, xmin, ymax, xmax = ymin * scene.height, xmin * scene.width, ymax * scene.height, xmax * scene.width
        values = {
            "YXYX": (ymin, xmin, ymax, xmax),
            "XYXY": (xmin, ymin, xmax, ymax),
            "XYWH": (xmin, ymin, xmax - xmin, ymax - ymin),
        }
        return tfds.features.BBox(*values[order])  # Stored in this order, whatever the fields are called.

    return fill


def _fill_mask(feature: Any, dtype: "np.dtype[Any]") -> Fill:
    num_classes = getattr(feature, "num_classes", None) or None
    if num_classes is not None:
        num_classes = min(num_classes, int(np.iinfo(dtype).max) + 1)

    def fill(draft: Draft) -> Any:
        height, width = _size_in(draft.scene, feature.shape)
        values = MaskValues(num_classes, draft.label)
        mask = paint_mask(draft.scene, height, width, values).astype(dtype)
        # Always PNG: JPEG would blur one class into another.
        return io.BytesIO(encode(mask, "png")) if dtype == np.uint8 else mask

    return fill


def _size_in(scene: Scene, shape: ImageShape) -> tuple[int, int]:
    """Returns height and width of an image: as declared, and where that is free as the main image's."""
    return shape[0] or scene.height, shape[1] or scene.width


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
    """The numbers of a mask: 0 (background) to num_classes - 1; None: 1 in a shape, 2 around it, 3 on its border."""

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
    """Returns an image file, png or jpeg, of uint8 [H, W, 1 to 4]."""
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
