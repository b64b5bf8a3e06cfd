"""torchvision.transforms.v2: a transform becomes one of whole examples. Boxes, their labels and masks follow the image.

`ParserTfds(..., transform=transform(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(224)])))`
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tfds_torch.engines.transforms import Transform
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.image_fields import BOXES, Boxes, ImageFields, Moving
from tfds_torch.runtime.printable import quoted

_OLD = "torchvision.transforms.transforms"
_ROUNDED = 1e-2  # Pixels: resizing moves a corner at the edge of a canvas by less, and nothing else moves it so little.
_IT_GETS = "transform: it gets a dictionary of tv_tensors, and must return one"


def transform(
    v2_transform: Callable[[Any], Any],
    boxes: Boxes = BOXES,
    masks: Sequence[str] = (),
    *,
    image: str = "image",
    version: str | None = None,
) -> Transform:
    """Return a Transform that calls one of torchvision.transforms.v2, or another function of a dictionary of tensors.

    It gets tv_tensors: "image", "boxes" (pixels, XYXY) and "masks" (field -> Mask), and "labels", by which
    `SanitizeBoundingBoxes()` finds the rows that belong to the boxes. Boxes end at the image's edge; empty ones are
    left out before and after it, and with them their rows of all fields of their sequence.

    Args:
        v2_transform: the transform; it draws from torch's default generator, which is seeded for each example.
        boxes: the field of the boxes as TFDS has them; or {that field: the fields that have a row for each box}, where
            these are not all those that begin alike; None: boxes stay as they are. In the first form, only fields that
            are asked for are moved, and a transform that looks at boxes finds none where they are not asked for; in the
            other forms, all of them are read.
        masks: fields that are moved as masks.
        image: the field of the image, of a window [T, H, W, C].
        version: as of `Transform`.

    Raises:
        ConfigError: an argument that cannot work.
    """
    return TorchvisionTransform(v2_transform, boxes, masks, image).as_transform(version)


class TorchvisionTransform(ImageFields):
    """The function of the Transform that `transform` returns."""

    largest_mask_number = 2**24  # It resizes them as float32.

    def __init__(self, v2_transform: Callable[[Any], Any], boxes: Boxes, masks: Sequence[str], image: str) -> None:
        super().__init__(boxes, masks, image)
        if not callable(v2_transform) or type(v2_transform).__module__ == _OLD:
            raise ConfigError(
                f"transform: {quoted(v2_transform)} must be a transform of torchvision.transforms.v2, which moves "
                f"boxes and masks. Those of torchvision.transforms have the same names there."
            )
        self.v2_transform = _with_boxes_on_the_canvas(v2_transform)

    def apply(self, moving: Moving, rng: np.random.Generator) -> Moving:
        """Return the transform's results for an image and the fields that move with it."""
        from torchvision import tv_tensors
        from torchvision.transforms.v2 import functional as F

        canvas = moving.image.shape[-3:-1]
        given: dict[str, Any] = {"image": tv_tensors.Image(_channels_first(moving.image))}
        if moving.boxes is not None:
            pixels = torch.from_numpy((moving.boxes * [*canvas[::-1], *canvas[::-1]]).astype(np.float32))
            given["boxes"] = tv_tensors.BoundingBoxes(pixels, format="XYXY", canvas_size=canvas)
            given["labels"] = torch.from_numpy(moving.rows)
        # SanitizeBoundingBoxes cuts a mask whose first side is as long as there are boxes.
        copies = 2 if len(moving.rows) == 1 else 1
        given["masks"] = {
            name: tv_tensors.Mask(torch.stack([_channels_first(mask)] * copies)) for name, mask in moving.masks.items()
        }
        found = self.v2_transform(given)
        if not isinstance(found, Mapping) or not isinstance(found.get("image"), torch.Tensor):
            raise ConfigError(
                f"{_IT_GETS}. {quoted(self.v2_transform)} returns no tensor as 'image': leave ToPILImage out, and let "
                f"a function of your own return this dictionary."
            )
        image = _channels_last(found["image"])
        masks = {name: _channels_last(found["masks"][name][0]) for name in moving.masks}
        if moving.boxes is None:
            return Moving(image, masks, None, moving.rows)
        boxes, rows = found["boxes"], found["labels"].numpy()
        if not isinstance(boxes, tv_tensors.BoundingBoxes) or len(boxes) != len(rows):
            raise ConfigError(
                f"{_IT_GETS}. {quoted(self.v2_transform)} returns {len(boxes)} 'boxes' of type {type(boxes).__name__} "
                f"and {len(rows)} 'labels': leave ToPureTensor out, and let SanitizeBoundingBoxes have its default "
                f"labels_getter."
            )
        height, width = image.shape[-3:-1]
        relative = F.convert_bounding_box_format(boxes, new_format="XYXY").numpy() / [width, height, width, height]
        return Moving(image, masks, relative, rows)


def _with_boxes_on_the_canvas(v2_transform: Any) -> Any:
    """Return a transform whose SanitizeBoundingBoxes keep the boxes that are outside of the canvas by rounding only."""
    from torchvision.transforms import v2

    if isinstance(v2_transform, v2.SanitizeBoundingBoxes):
        return v2.Compose([_Snap(), v2_transform])
    parts = getattr(v2_transform, "transforms", None)
    if not isinstance(v2_transform, v2.Transform) or not isinstance(parts, Sequence):
        return v2_transform
    made = copy.copy(v2_transform)
    made.transforms = [_with_boxes_on_the_canvas(part) for part in parts]
    return made


class _Snap(torch.nn.Module):
    """Puts the corners of boxes that are outside of the canvas by rounding onto its edge: resizing leaves such boxes.

    SanitizeBoundingBoxes would take them for boxes that the canvas has lost, and drop them.
    """

    def forward(self, example: Any) -> Any:
        """Return an example, a dictionary of tv_tensors, whose boxes are changed."""
        from torchvision import tv_tensors

        boxes = example.get("boxes") if isinstance(example, Mapping) else None
        if not isinstance(boxes, tv_tensors.BoundingBoxes) or boxes.format != tv_tensors.BoundingBoxFormat.XYXY:
            return example
        height, width = boxes.canvas_size
        plain = boxes.as_subclass(torch.Tensor)
        inside = torch.minimum(plain.clamp(min=0), plain.new_tensor([width, height, width, height]))
        snapped = torch.where((inside - plain).abs() < _ROUNDED, inside, plain)
        return {**example, "boxes": tv_tensors.wrap(snapped, like=boxes)}


def _channels_first(array: NDArray[Any]) -> torch.Tensor:
    """Return [..., H, W, C] as a tensor [..., C, H, W]; wide unsigned integers, which torch hardly knows, as signed."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    return torch.from_numpy(array).movedim(-1, -3).contiguous()


def _channels_last(tensor: torch.Tensor) -> NDArray[Any]:
    return np.moveaxis(tensor.numpy(), -3, -1)
