"""Boxes that move with their images: cut, mirrored, and left out with their rows where too little of them is visible.

Boxes are TFDS's: [ymin, xmin, ymax, xmax], relative to the image.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.images.crops import BoolArray, CropParameters, Float64Array
from tfds_torch.images.decoding import BadImageError
from tfds_torch.plan.order import Int64Array

_ROUNDED = 1e-5
"""How far a box may reach outside of its image by rounding, and by how much a share may be too small."""

Columns = dict[str, Any]
"""Field -> n values."""


@dataclass(frozen=True, order=True)
class FieldPart:
    """A field, or a part of each of its values: `objects`, keys ("bbox",).

    Attributes:
        field: name of the field.
        keys: keys from a value down to the part; (): the whole value.
    """

    field: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "/".join((self.field, *self.keys))

    def take_from(self, columns: Mapping[str, Any]) -> list[Any]:
        """Return the n values of the part."""
        values = list(columns[self.field])
        for position, value in enumerate(values if self.keys else ()):
            for key in self.keys:
                if not isinstance(value, Mapping) or key not in value:
                    raise BadBoxError(position, f"Its field {self.field!r} has no {'/'.join(self.keys)!r}.")
                value = value[key]
            values[position] = value
        return values

    def put_into(self, columns: Columns, values: Any) -> None:
        """Replace the n values of the part, in copies of the dictionaries around it."""
        if not self.keys:
            columns[self.field] = values
            return
        columns[self.field] = [
            _with_value(whole, self.keys, value) for whole, value in zip(columns[self.field], values, strict=True)
        ]


@dataclass(frozen=True)
class BoxRows:
    """Boxes, and the parts that have a row for each of them.

    Attributes:
        boxes: parts with boxes: float [number of boxes, 4] of each example, or one box, [4]. Several such parts have
            their rows for the same objects: an object stays as long as one of its boxes does.
        rows: other parts that have a row for each box, like its label.
        has_siblings: whether the other keys of the dictionaries that hold the boxes have a row for each, too.
        unsaid: other fields, of which it was not said whether they have a row for each box.
    """

    boxes: tuple[FieldPart, ...]
    rows: tuple[FieldPart, ...] = ()
    has_siblings: bool = False
    unsaid: tuple[str, ...] = ()

    def all_rows(self, columns: Mapping[str, Any]) -> list[FieldPart]:
        """Return the other parts that have a row for each box, for n values of each field."""
        rows = list(self.rows)
        for part in self.boxes if self.has_siblings else ():
            if not part.keys:
                continue
            *outer, own = part.keys
            holder = FieldPart(part.field, tuple(outer)).take_from(columns)[0]
            rows += [FieldPart(part.field, (*outer, key)) for key in holder if key != own]
        return [part for part in dict.fromkeys(rows) if part not in self.boxes]

    def check_unsaid(self, columns: Mapping[str, Any]) -> None:
        """Raise ConfigError where a field may have a row for each box, and nobody has said whether it has."""
        name = next((name for name in self.unsaid if may_have_rows(columns[name][0])), None)
        if name is not None:
            boxes = str(self.boxes[0])
            raise ConfigError(
                f"The boxes {boxes!r} move with the image, and those out of sight are left out; {name!r} may have a "
                f"row for each of them. Say so in the preprocess, boxes={{{boxes!r}: ({name!r},)}}; or, where no other "
                f"field has one, boxes={{{boxes!r}: ()}}."
            )


def looks_like_boxes(name: str) -> bool:
    """Return whether a field has a name that boxes have."""
    last = name.rpartition("/")[2].lower()
    return "bbox" in last or last in ("box", "boxes")


def warn_of_boxes_within(dataset: str, columns: Mapping[str, Any]) -> None:
    """Warn where dictionaries, such as those of JSON, hold boxes that stay though their images are cropped.

    Args:
        dataset: its name, for the message.
        columns: field -> values of some examples, of which the first one is looked at.
    """
    for name, values in columns.items():
        value = values[0]
        for key in filter(looks_like_boxes, value) if isinstance(value, Mapping) else ():
            part = f"{name}/{key}"
            warnings.warn(
                f"{dataset}: the images are cropped or flipped, and the boxes in {part!r} stay those of the whole "
                f"image, as this format declares no boxes. Name them in the preprocess, boxes=({part!r},); or say that "
                f"they are to stay: boxes=().",
                UserWarning,
                stacklevel=2,
            )


class BadBoxError(BadImageError):
    """The boxes of one of several examples, the one at `position`, cannot be used; `reason` is a sentence."""


def move_boxes(
    columns: Columns,
    groups: Sequence[BoxRows],
    min_visible: float,
    parameters: CropParameters,
    sizes: Int64Array,
    size: tuple[int, int],
) -> None:
    """Move the boxes of n examples as their images were cut and mirrored, in `columns` itself.

    Boxes become float32 and end at the edges of the result. A box with less than the fraction min_visible of its area
    in the result, or with none, is left out, with its row in the other parts; a single box of an example becomes
    [0, 0, 0, 0] instead.

    Args:
        columns: field -> n values. New lists and dictionaries take the places of those that change.
        groups: the boxes to move, each in one group.
        min_visible: least share of a box's area that must be visible, 0 to 1.
        parameters: how the n images were cut.
        sizes: int64 [n, 2], heights and widths of the images, pixels.
        size: height and width of the results, pixels.

    Raises:
        BadBoxError: a value is not boxes, or has another number of rows than of boxes.
        ConfigError: a field may have a row for each box, and nobody has said whether it has.
    """
    scales, shifts = _placement(parameters, sizes, size)
    for group in groups:
        _move_group(columns, group, scales, shifts, (parameters.vflips, parameters.flips), min_visible)


def _placement(
    parameters: CropParameters, sizes: Int64Array, size: tuple[int, int]
) -> tuple[Float64Array, Float64Array]:
    """Return (scales, shifts), float64 [n, 2]: a place y of an image is at y * scale + shift before the flip."""
    steps = parameters.steps * parameters.shrinks[:, None]  # Pixels of the whole image by pixel of the resized one.
    target = np.array(size, np.float64)
    return sizes / (steps * target), -(parameters.windows[:, :2] / steps + parameters.offsets) / target


def _move_group(
    columns: Columns,
    group: BoxRows,
    scales: Float64Array,
    shifts: Float64Array,
    flips: tuple[BoolArray, BoolArray],
    min_visible: float,
) -> None:
    every: list[tuple[FieldPart, NDArray[np.float32], BoolArray]] = []
    is_kept = np.zeros(0, np.bool_)
    first: _Boxes | None = None
    for part in group.boxes:
        boxes = _Boxes.read(part, part.take_from(columns))
        first = first or boxes
        if boxes.is_single is not first.is_single or (boxes.counts != first.counts).any():
            position = int((boxes.counts != first.counts).argmax())
            raise BadBoxError(position, f"Its {str(part)!r} has not as many boxes as its {str(group.boxes[0])!r}.")
        moved, shares = _move(boxes, scales, shifts, flips)
        is_visible = (shares > 0) & (shares >= min_visible - _ROUNDED)
        is_kept = is_kept | is_visible if every else is_visible
        every.append((part, moved, is_visible))
    if first is None:
        return
    for _, moved, is_visible in every:
        if first.is_single or len(every) > 1:
            moved[~is_visible] = 0
    if first.is_single:
        for part, moved, _ in every:
            part.put_into(columns, moved)
        return
    group.check_unsaid(columns)
    counts = first.counts
    rows = [(part, part.take_from(columns)) for part in group.all_rows(columns)]
    for part, values in rows:
        _check_rows(part, values, counts, group.boxes[0])
    are_all_kept = bool(is_kept.all())
    stops = np.cumsum(counts)
    kept_stops = stops if are_all_kept else np.concatenate([[0], np.cumsum(is_kept)])[stops]
    for part, moved, _ in every:
        part.put_into(columns, _split(moved if are_all_kept else moved[is_kept], kept_stops))
    masks = None if are_all_kept else [mask if not mask.all() else None for mask in _split(is_kept, stops)]
    for part, values in rows:
        if masks is not None:
            values = [
                value if mask is None else _take_rows(value, mask) for value, mask in zip(values, masks, strict=True)
            ]
        part.put_into(columns, values)


@dataclass(frozen=True)
class _Boxes:
    """The boxes of n examples: float64 [number of all boxes, 4], how many each has, int64 [n]; whether each has one."""

    values: Float64Array
    counts: Int64Array
    is_single: bool

    @classmethod
    def read(cls, part: FieldPart, values: Sequence[Any]) -> "_Boxes":
        arrays = [_as_boxes(part, value, position) for position, value in enumerate(values)]
        is_single = arrays[0].ndim == 1
        position = next((at for at, array in enumerate(arrays) if array.ndim != arrays[0].ndim), None)
        if position is not None:
            found = _shown(arrays[position])
            raise BadBoxError(position, f"Its {str(part)!r} is {found}, and those before it have another form.")
        if is_single:
            arrays = [array[None] for array in arrays]
        counts = np.array([len(array) for array in arrays], np.int64)
        boxes = cls(np.concatenate(arrays, dtype=np.float64), counts, is_single)
        boxes._check(part)
        return boxes

    def _check(self, part: FieldPart) -> None:
        """Raise BadBoxError for a box that does not lie in its image, or is upside down."""
        values = self.values
        if not len(values):
            return
        is_inside = values.min() >= -_ROUNDED and values.max() <= 1 + _ROUNDED  # False for NaN.
        if is_inside and (values[:, :2] <= values[:, 2:]).all():
            return
        is_right = (values >= -_ROUNDED).all(axis=1) & (values <= 1 + _ROUNDED).all(axis=1)
        is_right &= (values[:, :2] <= values[:, 2:]).all(axis=1)
        row = int(is_right.argmin())
        position = int(np.searchsorted(np.cumsum(self.counts), row, side="right"))
        raise BadBoxError(
            position,
            f"Its {str(part)!r} has a box {np.round(values[row], 6).tolist()}. A box is [ymin, xmin, ymax, xmax], each "
            f"0 to 1 and relative to the image, ymin <= ymax and xmin <= xmax. With boxes=() in the preprocess, boxes "
            f"of another form come as they are stored.",
        )


def _as_boxes(part: FieldPart, value: Any, position: int) -> NDArray[Any]:
    """Return the boxes of one example as numbers [number of boxes, 4], or [4]."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[1] == 4 and value.dtype.kind in "fiu":
        return value
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        array = np.empty(0, object)
    if array.dtype != object and array.shape == (0,):
        array = array.reshape(0, 4)
    if array.dtype == object or array.ndim not in (1, 2) or array.shape[-1] != 4:
        raise BadBoxError(
            position, f"Its {str(part)!r} is {_shown(value)}: boxes are numbers [number of boxes, 4], or one box, [4]."
        )
    return array


def _move(
    boxes: _Boxes, scales: Float64Array, shifts: Float64Array, flips: tuple[BoolArray, BoolArray]
) -> tuple[NDArray[np.float32], Float64Array]:
    """Return the moved boxes, float32 [number of boxes, 4], and how much of each is in the result, 0 to 1.

    `flips` are two of bool [n]: which images are mirrored downwards, and which to the right.
    """
    counts = boxes.counts
    # [number of boxes, 2 ends, 2 axes]
    places = boxes.values.reshape(-1, 2, 2) * np.repeat(scales, counts, axis=0)[:, None]
    places += np.repeat(shifts, counts, axis=0)[:, None]
    for axis, mirrored in enumerate(flips):
        are_flipped = np.repeat(mirrored, counts)
        if are_flipped.any():
            places[are_flipped, :, axis] = 1 - places[are_flipped, ::-1, axis]
    clipped = np.clip(places, 0, 1)
    lengths, visible = places[:, 1] - places[:, 0], clipped[:, 1] - clipped[:, 0]
    # A box without width or height is visible where it lies in the result.
    is_inside = (places[:, 0] >= 0) & (places[:, 0] <= 1)
    shares = np.divide(visible, lengths, out=is_inside.astype(np.float64), where=lengths > 0)
    return clipped.reshape(-1, 4).astype(np.float32), shares[:, 0] * shares[:, 1]


def _check_rows(part: FieldPart, values: Sequence[Any], counts: Int64Array, boxes: FieldPart) -> None:
    for position, (value, count) in enumerate(zip(values, counts.tolist(), strict=True)):
        number = len(value) if num_axes(value) else None
        if number != count:
            found = "has no rows" if number is None else f"has {number} rows"
            raise BadBoxError(
                position,
                f"Its {str(part)!r} {found}, and its {str(boxes)!r} {count}: each box needs a row of its own. "
                f"Name the fields that have one in the preprocess: boxes={{{str(boxes)!r}: (...)}}.",
            )


def num_axes(value: Any) -> int:
    """Return the number of axes of an array or tensor, 1 for a list, 0 for any other value."""
    return int(isinstance(value, list | tuple)) or getattr(value, "ndim", 0)


def may_have_rows(value: Any) -> bool:
    """Return whether a value could have a row for each box: images could not."""
    return 0 < num_axes(value) < 3


def _split(values: NDArray[Any], stops: Int64Array) -> list[NDArray[Any]]:
    """Return the rows of each example, which end at `stops`."""
    start, parts = 0, []
    for stop in stops.tolist():
        parts.append(values[start:stop])
        start = stop
    return parts


def _take_rows(value: Any, mask: BoolArray) -> Any:
    """Return the rows of one value that a mask, bool [number of rows], marks."""
    if not isinstance(value, list | tuple):
        return value[mask]
    return [row for row, is_taken in zip(value, mask.tolist(), strict=True) if is_taken]


def _with_value(whole: Mapping[str, Any], keys: tuple[str, ...], value: Any) -> dict[str, Any]:
    """Return a copy of nested dictionaries with another value below some keys."""
    key, *rest = keys
    return {**whole, key: _with_value(whole[key], tuple(rest), value) if rest else value}


def _shown(value: Any) -> str:
    return f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else f"{value!r:.60}"
