"""Values of different lengths become one array, and their lengths; what cannot is refused by name."""

import re
from typing import Any

import numpy as np
import pytest

from tfds_torch.engines.batch import Batch
from tfds_torch.engines.padding import check_fills, pad_values
from tfds_torch.errors import ConfigError

FLOATS = np.float32


@pytest.mark.parametrize(
    ("values", "fill", "padded", "lengths", "dtype"),
    [
        ([np.array([1, 2]), np.array([3])], -1, [[1, 2], [3, -1]], [2, 1], np.int64),
        ([np.ones((1, 2), FLOATS), np.zeros((0, 2), FLOATS)], 0.5, [[[1, 1]], [[0.5, 0.5]]], [1, 0], FLOATS),
        ([[1, 2, 3], [], [4]], 0, [[1, 2, 3], [0, 0, 0], [4, 0, 0]], [3, 0, 1], np.int64),
        ([[], []], 0, [[], []], [0, 0], np.float64),
        ([np.zeros((0, 4), FLOATS)] * 2, 7, np.zeros((2, 0, 4)), [0, 0], FLOATS),
        (np.arange(6).reshape(2, 3), 9, [[0, 1, 2], [3, 4, 5]], [3, 3], np.int64),
        ([np.array([True]), np.array([True, True])], False, [[True, False], [True, True]], [1, 2], np.bool_),
        ([np.ones(1, FLOATS), np.ones(2, FLOATS)], float("nan"), [[1, float("nan")], [1, 1]], [1, 2], FLOATS),
    ],
    ids=lambda value: str(value)[:30],
)
def test_values_are_as_long_as_the_longest(
    values: Any, fill: float, padded: Any, lengths: list[int], dtype: Any
) -> None:
    came = pad_values("field", values, fill)
    np.testing.assert_array_equal(came.values, padded)
    assert came.lengths.tolist() == lengths
    assert (came.values.dtype, came.lengths.dtype) == (dtype, np.int64)


@pytest.mark.parametrize(
    ("values", "fill", "message"),
    [
        ([["a"], ["b", "c"]], 0, "a value is ['a'], not numbers [length, ...]."),
        ([np.float32(3)], 0, "a value is float32 [], not numbers"),
        ([[[1], [2, 3]]], 0, "a value is [[1], [2, 3]], not numbers"),
        ([np.ones((1, 2)), np.ones((2, 3))], 0, "its shapes, [1, 2], [2, 3], differ beyond their lengths."),
        ([np.ones(2, np.uint8)], -1, "by -1: its values are uint8."),
        ([np.ones(2, np.int64)], 0.5, "by 0.5: its values are int64."),
        ([{"bbox": 1}], 0, "a value is {'bbox': 1}, not numbers"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_cannot_be_padded_is_refused(values: Any, fill: float, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("The field 'boxes' cannot be padded") + ".*" + re.escape(message)):
        pad_values("boxes", values, fill)


def test_a_batch_pads_its_features() -> None:
    index = np.arange(2)
    batch = Batch(None, None, index > 0, index, ["a", "b"], {"codes": [np.array([1]), np.array([2, 3])]})
    values, lengths = batch.padded("codes", 9)
    assert (values.tolist(), lengths.tolist()) == ([[1, 9], [2, 3]], [1, 2])
    with pytest.raises(ConfigError, match=r"there is no feature 'boxes' in this batch; there are \['codes'\]"):
        batch.padded("boxes")


@pytest.mark.parametrize(
    ("fills", "message"),
    [
        ({"other": 0}, "names 'other', which is not among fields=('image', 'codes'), by"),
        ({"image": 0}, "names 'image', whose values are of one size in a batch: leave it out."),
        ({"codes": "0"}, "must map fields to the number that fills them, such as {'objects/bbox': 0}."),
        (["codes"], "must map fields to the number that fills them"),
    ],
    ids=str,
)
def test_fills_of_fields_that_are_not_ragged_are_refused(fills: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"pad={fills!r} {message}")):
        check_fills(fills, ("image", "codes"), ("image",))
    assert check_fills({"codes": 1}, ("image", "codes"), ("image",)) == {"codes": 1}
    assert check_fills(None, ("image",), ()) == {}
