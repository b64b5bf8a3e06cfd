"""The values that the fields of a preprocess may have, and how they are read from a timm config."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import KINDS, Kind
from tfds_torch.images.compose import Taken
from tfds_torch.images.crops import COVER, INSIDE, KEEP, Resize
from tfds_torch.runtime.arguments import check_integer, did_you_mean

BoxFields = tuple[str | tuple[str, tuple[str, ...]], ...] | Mapping[str, Sequence[str]] | None
"""Fields of boxes; or each with those that have a row for each box; None: those that a dataset declares."""

AlsoFields = tuple[str | tuple[str, Kind], ...] | Mapping[str, Kind]
"""Other image features; or each with whether it is a picture or numbers."""

LEAST_VISIBLE = 0.05
"""Share of a box's area that is visible at least; so small that no crop of TrainPreprocess that lies within a box, 0.08
of the image or more, loses it."""

INTERPOLATIONS = ("bilinear", "bicubic", "random")


def check_shared(value: Any) -> None:
    """Raise ConfigError for values that fields of a preprocess cannot have; turn lists into tuples."""
    kind = type(value).__name__
    sides = value.size if isinstance(value.size, tuple | list) else (value.size,)
    if len(sides) not in (1, 2):
        raise ConfigError(f"{kind}: size={value.size!r} must be the pixels of a side, or (height, width).")
    checked = tuple(check_integer(f"{kind}: size", side, 1) for side in sides)
    object.__setattr__(
        value, "size", checked if isinstance(value.size, tuple | list) and len(checked) == 2 else checked[0]
    )
    levels = value.fill if isinstance(value.fill, tuple | list) else (value.fill,)
    if not levels or any(check_integer(f"{kind}: fill", level, 0) > 255 for level in levels):
        raise ConfigError(f"{kind}: fill={value.fill!r} must be a grey level, 0 to 255, or one for each channel.")
    object.__setattr__(value, "fill", tuple(levels) if isinstance(value.fill, tuple | list) else levels[0])
    object.__setattr__(value, "also", _read_also(kind, value.also))
    object.__setattr__(value, "boxes", _read_boxes(kind, value.boxes))
    if not is_number(value.min_visible) or not 0 <= value.min_visible <= 1:
        raise ConfigError(f"{kind}: min_visible={value.min_visible!r} must be a share of a box's area, 0 to 1.")
    if not isinstance(value.shrink, bool):
        raise ConfigError(f"{kind}: shrink={value.shrink!r} must be True or False.")
    if not isinstance(value.of_transform, Taken | None):
        raise ConfigError(f"{kind}: of_transform={value.of_transform!r:.100} is set by {kind}.from_transform(...).")
    object.__setattr__(value, "max_pixels", check_integer(f"{kind}: max_pixels", value.max_pixels, 1))


def _read_also(kind: str, also: Any) -> tuple[str | tuple[str, Kind], ...]:
    """Return image features as names, or pairs of a name and the kind of its images."""
    entries = also.items() if isinstance(also, Mapping) else also if isinstance(also, tuple | list) else (None,)
    read: list[str | tuple[str, Kind]] = []
    for entry in entries:
        name, one = entry if isinstance(entry, tuple | list) and len(entry) == 2 else (entry, None)
        known = next((other for other in KINDS if other == one), None)
        if not isinstance(name, str):
            raise ConfigError(f"{kind}: also={also!r} must be names of image features, such as ('mask',).")
        if known is None and name is not entry:
            raise ConfigError(
                f"{kind}: also={also!r} has {one!r} for {name!r}: the images of a feature are 'picture' or 'numbers', "
                f"such as {{'left': 'picture', 'heat': 'numbers'}}.{did_you_mean(one, KINDS)}"
            )
        read.append(name if known is None else (name, known))
    return tuple(read)


def _read_boxes(kind: str, boxes: Any) -> tuple[str | tuple[str, tuple[str, ...]], ...] | None:
    """Return fields of boxes as names, or pairs of a name and those of the fields with a row for each box."""
    if boxes is None:
        return None
    entries = boxes.items() if isinstance(boxes, Mapping) else boxes if isinstance(boxes, tuple | list) else (boxes,)
    read: list[str | tuple[str, tuple[str, ...]]] = []
    for entry in entries:
        name, rows = entry if isinstance(entry, tuple | list) and len(entry) == 2 else (entry, None)
        is_list = rows is None or (isinstance(rows, tuple | list) and all(isinstance(row, str) for row in rows or ()))
        if isinstance(boxes, str) or not isinstance(name, str) or not is_list:
            raise ConfigError(
                f"{kind}: boxes={boxes!r} must be names of fields, such as ('objects/bbox',), or map these to the "
                f"fields that have a row for each box, such as {{'bboxes': ('classes',)}}; () where no boxes move; or "
                f"None: those that the dataset declares."
            )
        read.append(name if rows is None else (name, tuple(rows)))
    names = [one for entry in read for one in ((entry,) if isinstance(entry, str) else (entry[0], *entry[1]))]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(f"{kind}: boxes={boxes!r} names {twice!r} twice: a row goes with the boxes of one field.")
    return tuple(read)


def check_interpolation(kind: str, interpolation: object) -> None:
    """Raise ConfigError for an unknown filter; kind names the preprocess."""
    if interpolation not in INTERPOLATIONS:
        names = ", ".join(map(repr, INTERPOLATIONS))
        hint = did_you_mean(interpolation, INTERPOLATIONS)
        raise ConfigError(f"{kind}: unknown interpolation {interpolation!r}: choose one of {names}.{hint}")


def check_range(name: str, value: Any, most: float) -> tuple[float, float]:
    """Return two numbers, 0 < least <= greatest <= most; raise ConfigError for anything else."""
    pair = tuple(value) if isinstance(value, tuple | list) else ()
    if len(pair) != 2 or not all(map(is_number, pair)) or not 0 < pair[0] <= pair[1] <= most:
        limit = f" <= {most:g}" if math.isfinite(most) else ""
        raise ConfigError(f"{name}={value!r} must be two numbers with 0 < least <= greatest{limit}.")
    return float(pair[0]), float(pair[1])


def check_resize(kind: str, resize: Any) -> Resize | None:
    """Return the size to which whole images are resized, in plain values; raise ConfigError for anything else."""
    name = f"{kind}: resize"
    if resize is None or (isinstance(resize, str) and resize == KEEP):
        return resize
    if isinstance(resize, int | np.integer):
        return check_integer(name, resize, 1)
    parts = tuple(resize) if isinstance(resize, tuple | list) else ()
    if len(parts) == 2:
        return check_integer(name, parts[0], 1), check_integer(name, parts[1], 1)
    if len(parts) == 3 and parts[0] in (COVER, INSIDE):
        return parts[0], check_integer(name, parts[1], 1), check_integer(name, parts[2], 1)
    raise ConfigError(
        f"{name}={resize!r} must be the pixels of the shorter side; (height, width); ('cover', height, width) or "
        f"('inside', height, width), which keep the ratio; or 'keep': nothing is resized."
    )


def check_probability(name: str, value: object) -> None:
    """Raise ConfigError for a value that is not a number from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:  # type: ignore[operator]
        raise ConfigError(f"{name}={value!r} must be a probability, 0 to 1.")


def is_number(value: object) -> bool:
    """Return whether a value is a finite number of Python or numpy."""
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def read_timm_config(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Return size and the named values of a timm config, as far as it has them."""
    input_size = _get(config, "input_size")
    if not isinstance(input_size, tuple | list) or len(input_size) != 3:
        raise ConfigError(
            f"from_timm_config: input_size={input_size!r} must be (channels, height, width). Pass a model's "
            f"pretrained_cfg, or what timm.data.resolve_data_config returned."
        )
    found = {name: _get(config, name) for name in names}
    return {"size": tuple(input_size[1:])} | {name: value for name, value in found.items() if value is not None}


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
