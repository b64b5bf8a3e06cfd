"""Fields that need no decoder of images or features."""

import numpy as np

from tfds_torch.engines.fields import PositionsField, StoredField


def test_only_numbers_above_0_are_on() -> None:
    columns = {"a": np.array([1, -1, 0]), "b": np.array([0.0, 2.5, -0.5]), "c": [-3, 1, 0]}
    assert PositionsField(tuple(map(StoredField, "abc"))).decode(columns) == [[0], [1, 2], []]
