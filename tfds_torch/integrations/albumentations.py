"""albumentations: a Compose becomes a Transform of whole examples. Boxes, their labels and masks follow the image.

`ParserTfds(..., transform=transform(A.Compose([A.HorizontalFlip(), A.RandomCrop(224, 224)])))`
"""

import copy
import random
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.transforms import Transform
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.image_fields import BOXES, Boxes, ImageFields, Moving, check_masks
from tfds_torch.runtime.printable import quoted

_FIELD = "field "
"""Begins the names by which fields are given to albumentations, which has its own meanings for some names."""
_LEAST_AREA = 1e-6  # Pixels. With 0, boxes of which nothing is left reach the next transform.


def transform(
    compose: Any, boxes: Boxes = BOXES, masks: Sequence[str] = (), *, image: str = "image", version: str | None = None
) -> Transform:
    """Return a Transform that calls a Compose of albumentations, or one of its transforms.

    The Compose gets boxes in its own form. Empty ones are left out before and after it, and with them their rows of all
    fields of their sequence. The limits of the Compose's `bbox_params` (`min_area`, `min_visibility`, `min_width`,
    `min_height`, `max_accept_ratio`) have an effect; `format` and `label_fields` do not. Random numbers are the
    example's own: a `seed` of the Compose has no effect. `ToTensorV2` changes nothing.

    Args:
        compose: the Compose, or one transform; it is copied.
        boxes: the field of the boxes as TFDS has them; or {that field: the fields that have a row for each box}, where
            these are not all those that begin alike; None: boxes stay as they are. In the first form, only fields that
            are asked for are moved, and a transform that looks at boxes finds none where they are not asked for; in the
            other forms, all of them are read.
        masks: fields that are moved as masks, besides the Compose's `additional_targets`.
        image: the field of the image.
        version: as of `Transform`.

    Raises:
        ConfigError: an argument that cannot work.
    """
    return AlbumentationsTransform(compose, boxes, masks, image).as_transform(version)


class AlbumentationsTransform(ImageFields):
    """The function of the Transform that `transform` returns."""

    def __init__(self, compose: Any, boxes: Boxes, masks: Sequence[str], image: str) -> None:
        import albumentations

        if not isinstance(compose, albumentations.BasicTransform | albumentations.BaseCompose):
            raise ConfigError(
                f"transform: {quoted(compose)} must be a Compose of albumentations, or a transform of it."
            )
        check_masks(masks)
        kinds = {**getattr(compose, "additional_targets", {}), **dict.fromkeys(masks, "mask")}
        super().__init__(boxes, tuple(kinds), image)
        processors = getattr(compose, "processors", {})
        if "keypoints" in processors or set(kinds.values()) - {"image", "mask"}:
            raise ConfigError("transform: keypoints, and second boxes, do not follow: leave them out of the Compose.")
        if any(getattr(part, "bbox_labels", None) for part in _parts_of(compose)):
            raise ConfigError("transform: bbox_labels of a transform cannot be known here: leave them out.")
        limits = vars(processors["bboxes"].params) if "bboxes" in processors else {"min_area": 0.0}
        others = {name: value for name, value in limits.items() if name.startswith(("min_", "max_"))}
        params = albumentations.BboxParams("albumentations", **others)
        params.min_area = max(params.min_area, _LEAST_AREA)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Got processor for bboxes")  # None of its transforms moves pixels.
            self.compose = albumentations.Compose(
                [copy.deepcopy(compose)],
                bbox_params=None if self.boxes is None else params,
                additional_targets={_FIELD + name: kind for name, kind in kinds.items()},
            )
        self.random = random.Random()  # noqa: S311

    def apply(self, moving: Moving, rng: np.random.Generator) -> Moving:
        """Return the Compose's results for an image and the fields that move with it."""
        if moving.image.ndim != 3:
            raise ConfigError(
                f"transform: an image is {list(moving.image.shape)}, and albumentations takes one of [H, W, C]. "
                f"Transforms of torchvision change all images of a window alike: tfds_torch.integrations.torchvision."
            )
        # Its transforms draw from these two, and never from the global generators.
        self.random.seed(int(rng.integers(2**63)))
        self.compose.set_random_state(rng, self.random)
        given = {"image": moving.image} | {_FIELD + name: _narrow(mask) for name, mask in moving.masks.items()}
        if moving.boxes is not None:  # A fifth column goes through with the box.
            given["bboxes"] = np.column_stack([moving.boxes, moving.rows])
        found = self.compose(**given)
        image = found["image"] if isinstance(found["image"], np.ndarray) else np.moveaxis(found["image"].numpy(), 0, -1)
        masks = {name: _channels_last(found[_FIELD + name], image) for name in moving.masks}
        if moving.boxes is None:
            return Moving(image, masks, None, moving.rows)
        boxes = np.reshape(found["bboxes"], (-1, 5))
        return Moving(image, masks, boxes[:, :4], boxes[:, 4].astype(np.int64))


def _parts_of(transform: Any) -> Iterator[Any]:
    yield transform
    for part in getattr(transform, "transforms", ()):
        yield from _parts_of(part)


def _narrow(mask: NDArray[Any]) -> NDArray[Any]:
    """Return a mask of wide integers as int32, the widest that albumentations keeps."""
    is_wide = mask.dtype.kind in "iu" and not np.can_cast(mask.dtype, np.int32)
    return mask.astype(np.int32) if is_wide else mask


def _channels_last(mask: Any, image: NDArray[Any]) -> NDArray[Any]:
    """Return a mask as an array of an image's size; `ToTensorV2(transpose_mask=True)` puts its channels first."""
    array: NDArray[Any] = np.asarray(mask)
    return array if array.shape[:2] == image.shape[:2] else np.moveaxis(array, 0, -1)
