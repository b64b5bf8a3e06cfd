"""How images, segmentation masks and boxes are filled. For the process that builds."""

import io
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tfds_torch.demo.fake import picture
from tfds_torch.demo.fake.draft import MASK_WORDS, Draft, Fill, Place
from tfds_torch.demo.fake.scene import Scene

ImageShape = tuple[int | None, ...]

_LONG_SIDE = (460, 521)
_ASPECT = (0.66, 0.8)
_PROBABILITY_LANDSCAPE = 0.7
# 65535 / 255: the full range of 16 bits.
_UINT16_STEP = 257
_FLOAT_MAX = 10.0


def is_mask(feature: Any, place: Place) -> bool:
    """Whether an image holds a class per pixel: by its type, or by its one channel and its name."""
    if isinstance(feature, tfds.features.LabeledImage):
        return True
    return feature.shape[-1] == 1 and not MASK_WORDS.isdisjoint(place.words)


def choose_encoding(feature: Any) -> str:
    """Returns png or jpeg.

    Where none is declared, TFDS encodes arrays as PNG and keeps files as they are; the files of pictures of any size
    are JPEG.
    """
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
        pixels = picture.paint(draft.scene, height, width, channels, draft.rng)
        if dtype == np.uint8:
            return io.BytesIO(picture.encode(pixels, encoding))
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
        values = picture.MaskValues(num_classes, draft.label)
        mask = picture.paint_mask(draft.scene, height, width, values).astype(dtype)
        # Always PNG: JPEG would blur one class into another.
        return io.BytesIO(picture.encode(mask, "png")) if dtype == np.uint8 else mask

    return fill


def _size_in(scene: Scene, shape: ImageShape) -> tuple[int, int]:
    """Returns height and width of an image: as declared, and where that is free as the main image's."""
    return shape[0] or scene.height, shape[1] or scene.width
