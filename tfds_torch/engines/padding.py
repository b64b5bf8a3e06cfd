"""Padded: values of different lengths as one array, and how long each of them is."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.tensor_type import is_numeric

_MOST_SHOWN = 4


class Padded(NamedTuple):
    """The values of a field of a batch, as long as the longest of them.

    Attributes:
        values: [B, longest, ...]; value i is values[i, : lengths[i]].
        lengths: int64 [B], lengths of the values.
    """

    values: Any
    lengths: Any


def pad_values(name: str, values: Any, fill: float) -> Padded:
    """Return the values of a field as one numpy array, and their lengths.

    Args:
        name: name of the field, for messages.
        values: B arrays of numbers, [length, ...], or lists of them, which differ only in their lengths; or one array
            [B, length, ...].
        fill: the number that is written behind the end of a shorter value.

    Raises:
        ConfigError: the values are not numbers, have no length, differ in further sides, or have a type that cannot
            hold `fill`.
    """
    arrays = [_as_numbers(name, value) for value in values]
    full = [array for array in arrays if len(array)] or arrays
    others = {array.shape[1:] for array in full}
    if len(others) > 1:
        shapes = sorted({array.shape for array in full})
        shown = ", ".join(str(list(shape)) for shape in shapes[:_MOST_SHOWN])
        more = ", ..." if len(shapes) > _MOST_SHOWN else ""
        raise ConfigError(
            f"The field {name!r} cannot be padded: its shapes, {shown}{more}, differ beyond their lengths."
        )
    lengths = np.array([len(array) for array in arrays], np.int64)
    dtype = np.result_type(*full) if full else np.dtype(np.float32)
    shape = (len(arrays), int(lengths.max(initial=0)), *(next(iter(others)) if others else ()))
    try:
        padded = np.full(shape, fill, dtype)
        is_kept = bool(np.isclose(np.asarray(fill).astype(dtype), fill, equal_nan=True))
    except (OverflowError, TypeError, ValueError):
        is_kept = False
    if not is_kept:
        raise ConfigError(f"The field {name!r} cannot be padded by {fill!r}: its values are {dtype}.")
    for row, array in enumerate(arrays):
        if len(array):
            padded[row, : len(array)] = array
    return Padded(padded, lengths)


def check_fills(fills: Any, fields: Sequence[str], unpadded: Sequence[str]) -> dict[str, float]:
    """Return field -> fill value; raise ConfigError for fields that are not asked for, or are never ragged."""
    fills = {} if fills is None else fills
    if not isinstance(fills, Mapping) or not all(_is_number(fill) for fill in fills.values()):
        raise ConfigError(
            f"pad={fills!r} must map fields to the number that fills them, such as {{'objects/bbox': 0}}."
        )
    for name in fills:
        if name not in fields:
            raise ConfigError(
                f"pad={fills!r} names {name!r}, which is not among fields={tuple(fields)}, by the dataset's names."
            )
        if name in unpadded:
            raise ConfigError(f"pad={fills!r} names {name!r}, whose values are of one size in a batch: leave it out.")
    return dict(fills)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number)


def _as_numbers(name: str, value: Any) -> Any:
    try:
        array = np.asarray(value)
    except ValueError:  # Lists within it differ in length.
        array = np.asarray(value, object)
    if not is_numeric(array.dtype) or not array.ndim:
        found = f"{array.dtype} {list(array.shape)}" if is_numeric(array.dtype) else f"{value!r:.60}"
        raise ConfigError(f"The field {name!r} cannot be padded: a value is {found}, not numbers [length, ...].")
    return array
