"""Fields that need no decoder of images or features."""

import numpy as np

from tfds_torch.engines.fields import PositionsField, StoredField
from tfds_torch.engines.window_fields import WindowField


def test_only_numbers_above_0_are_on() -> None:
    columns = {"a": np.array([1, -1, 0]), "b": np.array([0.0, 2.5, -0.5]), "c": [-3, 1, 0]}
    assert PositionsField(tuple(map(StoredField, "abc"))).decode(columns) == [[0], [1, 2], []]


def test_steps_whose_values_differ_in_size_are_padded_with_black_images_and_empty_sequences() -> None:
    """Windows of three steps, of which the first one is outside of its episode."""
    images = [np.full((side, 4, 3), 7, np.uint8) for side in (2, 5, 3)]
    numbers = [np.arange(length) for length in (2, 0, 3)]
    padding = np.array([[True, False, False]])
    ((black, *others),) = WindowField(StoredField("image"), "pad").decode({"image": [images], "pad": padding})
    assert (black.shape, black.any(), [one.shape for one in others]) == ((2, 4, 3), False, [(5, 4, 3), (3, 4, 3)])
    ((empty, *others),) = WindowField(StoredField("n"), "pad").decode({"n": [numbers], "pad": padding})
    assert (empty.tolist(), [one.tolist() for one in others]) == ([], [[], [0, 1, 2]])
