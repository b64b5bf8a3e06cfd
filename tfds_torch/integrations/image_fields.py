"""Fields that move with an example's image, for other libraries' transforms: boxes, fields with their rows, masks."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.engines.transforms import Transform
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import looks_like_boxes, may_have_rows, num_axes
from tfds_torch.runtime.printable import quoted

BOXES = "objects/bbox"

Boxes = str | Mapping[str, Sequence[str]] | None
"""The field of the boxes; or this field -> the fields that have a row for each box; None: boxes stay as they are."""

_MOST = 2.0  # Of a relative coordinate: a box may reach beyond the image by a part of it, but not by pixels.
_LEAST_SIDE = 1e-6  # By the image's: a smaller rest of a box that a cut touches is rounding.


@dataclass(frozen=True)
class Moving:
    """An image and the fields that move with it.

    Attributes:
        image: [H, W, C]; of a window [T, H, W, C].
        masks: field -> [H, W, C], likewise; results may have no axis of channels.
        boxes: float64 [n, 4], xmin, ymin, xmax and ymax, relative to the image; None: they stay.
        rows: int64 [n], the row that each box has in the example.
    """

    image: NDArray[Any]
    masks: Mapping[str, NDArray[Any]]
    boxes: NDArray[np.float64] | None
    rows: NDArray[np.int64]


def check_masks(masks: Sequence[str]) -> None:
    """Raise ConfigError for values that are not names of masks."""
    if isinstance(masks, str) or not all(isinstance(name, str) for name in masks):
        raise ConfigError(f"transform: masks={quoted(masks)} must be a list of names of fields, such as ['mask'].")


class ImageFields(ABC):
    """The function of a Transform that calls a transform of another library. Picklable where that one is.

    Where the names of all fields are known, it reads all of them. Else it moves the fields that are asked for.

    Args:
        boxes: as of `Boxes`. A missing field of the default's name is not an error.
        masks: the fields that are masks.
        image: the field of the image.

    Attributes:
        largest_mask_number: the largest integer of a mask that the library keeps exactly.
    """

    largest_mask_number = 2**31 - 1

    def __init__(self, boxes: Boxes, masks: Sequence[str], image: str = "image") -> None:
        check_masks(masks)
        if not isinstance(boxes, str | None) and not (isinstance(boxes, Mapping) and len(boxes) == 1):
            raise ConfigError(
                f"transform: boxes={quoted(boxes)} must be the name of a field, {{that name: the fields that have a "
                f"row for each box}}, or None."
            )
        self.image = image
        self.masks = tuple(masks)
        self.boxes = next(iter(boxes)) if isinstance(boxes, Mapping) else boxes
        self.rows = tuple(boxes[self.boxes or ""]) if isinstance(boxes, Mapping) else None

    def as_transform(self, version: str | None) -> Transform:
        """Return the Transform that calls this function."""
        names: tuple[str, ...] | None = None
        if self.boxes is None or self.rows is not None:
            names = (self.image, *self.masks, *([] if self.boxes is None else [self.boxes]), *(self.rows or ()))
        return Transform(self, reads=names, gives=names, version=version)

    @abstractmethod
    def apply(self, moving: Moving, rng: np.random.Generator) -> Moving:
        """Return the library's results for an image and the fields that move with it."""

    def __call__(self, example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        """Return the fields of an example that have moved; raise ConfigError where one would stay behind."""
        self._check(example)
        if self.image not in example:
            return {}
        stored = None if self.boxes is None else _as_boxes(self.boxes, example.get(self.boxes))
        given = np.empty((0, 4)) if stored is None else stored.reshape(-1, 4)[:, [1, 0, 3, 2]]
        _check_are_relative(str(self.boxes), given)
        boxes, rows = _without_empty(given)
        image = np.ascontiguousarray(example[self.image])
        own = {name: np.ascontiguousarray(example[name]) for name in self.masks if name in example}
        for name, mask in own.items():
            self._check_numbers(name, mask)
        masks = {name: mask[..., None] if mask.ndim < image.ndim else mask for name, mask in own.items()}
        moved = self.apply(Moving(image, masks, None if self.boxes is None else boxes, rows), rng)
        found = {self.image: _with_axes(moved.image, image.ndim)}
        for name, mask in own.items():
            found[name] = _with_axes(moved.masks[name], mask.ndim).astype(mask.dtype, copy=False)
        if stored is not None and moved.boxes is not None:
            boxes, left = _without_empty(moved.boxes)
            moved_boxes = boxes[:, [1, 0, 3, 2]].astype(np.float32)
            found |= self._rows_of(example, stored, moved_boxes, moved.rows[left])
        return found

    def _check(self, example: Mapping[str, Any]) -> None:
        """Raise ConfigError where only some of the fields that move together are asked for."""
        # Another image beside a mask that is missing: the mask's name is wrong.
        others = [name for name, value in example.items() if num_axes(value) >= 3 and name not in self.masks]
        missing = [name for name in self.masks if name not in example] if others != [self.image] else []
        is_named = self.boxes not in (None, BOXES)  # The default's name need not be there.
        if self.boxes is not None and self.boxes not in example and (is_named or self._names_of_rows(example)):
            missing.append(self.boxes)
        if self.image not in example and (others or any(name in example for name in (self.boxes, *self.masks))):
            missing.append(self.image)
        unnamed = [name for name in example if looks_like_boxes(name)]
        if self.boxes is not None and self.boxes not in example and unnamed and not missing:
            self._refuse_unnamed(unnamed)
        if missing:
            raise ConfigError(
                f"transform: {quoted(missing)} must be asked for, as what moves with an image moves together. It gets "
                f"the fields {quoted(list(example))}. Name them in fields= of the dataset; or name other fields, or "
                f"none, in image=, boxes=, masks=."
            )

    def _check_numbers(self, name: str, mask: NDArray[Any]) -> None:
        """Raise ConfigError for a mask with numbers that the library would change."""
        most = self.largest_mask_number
        if mask.dtype.kind in "iu" and mask.dtype.itemsize > 2 and mask.size and max(mask.max(), -mask.min()) > most:
            raise ConfigError(
                f"transform: the mask {quoted(name)} has numbers from {mask.min()} to {mask.max()}, and the library "
                f"keeps them up to {most}. Give its classes smaller numbers before, in a transform."
            )

    def _refuse_unnamed(self, names: Sequence[str]) -> None:
        raise ConfigError(
            f"transform: {quoted(list(names))} would stay where they are while the image moves. Name them, "
            f"boxes={quoted(names[0])}; or boxes=None, where they are to stay."
        )

    def _names_of_rows(self, example: Mapping[str, Any]) -> list[str]:
        if self.rows is not None:
            return [name for name in self.rows if name in example]
        sequence = (self.boxes or "").rpartition("/")[0]  # All of it has its name.
        return [name for name in example if f"{name}/".startswith(f"{sequence}/") and name != self.boxes]

    def _rows_of(
        self,
        example: Mapping[str, Any],
        stored: NDArray[np.float64],
        boxes: NDArray[np.float32],
        rows: NDArray[np.int64],
    ) -> dict[str, Any]:
        """Return boxes and the other fields that have a row for each, with the rows that are left."""
        name_of_boxes = str(self.boxes)
        if stored.ndim == 1:  # The only box of an example cannot be left out.
            others = {name: example[name] for name in self.rows or ()}
            return {name_of_boxes: boxes[0] if len(boxes) else np.zeros(4, np.float32), **others}
        found: dict[str, Any] = {name_of_boxes: boxes}
        for name in self._names_of_rows(example):
            values = example[name]
            if not num_axes(values) or len(values) != len(stored):
                self._refuse(name, f"has no row for each of {len(stored)} boxes")
            found[name] = values[rows] if isinstance(values, np.ndarray) else [values[row] for row in rows]
        if self.rows is None:
            self._refuse_unknown_rows(example, len(stored))
        return found

    def _refuse_unknown_rows(self, example: Mapping[str, Any], num_boxes: int) -> None:
        """Raise ConfigError for a field that may have a row for each box, where the names do not tell."""
        label = example.get("label")
        if label is not None and num_axes(label) and len(label) == num_boxes:  # As with target_key="objects/label".
            self._refuse("label", f"may have a row for each of {num_boxes} boxes")
        if "/" in str(self.boxes):
            return
        known = {self.image, self.boxes, *self.masks}
        unknown = [name for name, value in example.items() if name not in known and may_have_rows(value)]
        if unknown:
            self._refuse(unknown[0], f"may have a row for each of the boxes {quoted(self.boxes)}")

    def _refuse(self, name: str, what: str) -> None:
        raise ConfigError(
            f"transform: the field {quoted(name)} {what}. Name the fields that have one, with it or without: "
            f"boxes={{{self.boxes!r}: ['label', ...]}}."
        )


def _as_boxes(name: str, value: Any) -> NDArray[np.float64] | None:
    """Return the boxes of an example as float64 [n, 4], or [4] of a single one; None where it has no such field.

    Raises:
        ConfigError: they are something else.
    """
    if value is None:
        return None
    try:
        boxes = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        boxes = np.empty(())
    if boxes.shape == (0,):
        return boxes.reshape(0, 4)
    if boxes.ndim not in (1, 2) or boxes.shape[-1] != 4:
        found = list(value.shape) if isinstance(value, np.ndarray) else value
        raise ConfigError(
            f"transform: the boxes {quoted(name)} are {quoted(found)}, and boxes are numbers [number of boxes, 4], or "
            f"one box, [4]. Name other boxes, or none, in boxes=."
        )
    return boxes


def _with_axes(array: NDArray[Any], num_axes: int) -> NDArray[Any]:
    """Return an array with an axis of channels, or without one."""
    return array.reshape((*array.shape, 1)[:num_axes])


def _check_are_relative(name: str, boxes: NDArray[np.float64]) -> None:
    """Raise ConfigError for boxes in pixels, which would all be dropped as out of sight."""
    if (np.abs(boxes) > _MOST).any():
        raise ConfigError(
            f"transform: the boxes {quoted(name)} are {boxes[:, [1, 0, 3, 2]].tolist()}, and those of TFDS are (ymin, "
            f"xmin, ymax, xmax) from 0 to 1, relative to the image. Divide pixels by height and width in a transform "
            f"before this one: transform=[function, transform(...)]."
        )


def _without_empty(boxes: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return boxes [n, 4] cut at the image's edges, without those of which nothing is left, and where they were."""
    boxes = np.clip(boxes, 0, 1) + 0.0  # No -0.
    kept = np.flatnonzero((boxes[:, 2:] - boxes[:, :2] > _LEAST_SIDE).all(axis=1))
    return boxes[kept], kept
