"""Windows of episodes: which there are, and which steps each of them has."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.errors import ConfigError
from tfds_torch.plan.windows import Windows, WindowTable, window_rows

LENGTHS = st.lists(st.integers(0, 9), max_size=8)


def all_windows(lengths: list[int], stride: int, before: int, after: int) -> list[tuple[int, int]]:
    """Episode and step of every window, counted out."""
    return [
        (episode, step)
        for episode, length in enumerate(lengths)
        for step in range(0, length, stride)
        if step - before >= 0 and step + after < length
    ]


@given(lengths=LENGTHS, stride=st.integers(1, 5), before=st.integers(0, 4), after=st.integers(0, 4))
def test_windows_are_those_that_are_counted_out(lengths: list[int], stride: int, before: int, after: int) -> None:
    table = WindowTable(np.array(lengths, np.int64), stride, before, after)
    expected = all_windows(lengths, stride, before, after)
    assert len(table) == len(expected)
    assert table.counts.tolist() == [sum(e == episode for e, _ in expected) for episode in range(len(lengths))]
    episode, step = table.locate(np.arange(len(table)))
    assert episode.dtype == step.dtype == np.int64
    assert list(zip(episode.tolist(), step.tolist(), strict=True)) == expected
    for one in range(len(lengths)):
        for at in range(-2, 11):
            number = table.find(one, at)
            assert number == (expected.index((one, at)) if (one, at) in expected else None)


@given(
    length=st.integers(1, 9),
    step=st.integers(0, 8),
    offsets=st.lists(st.integers(-12, 12), min_size=1, max_size=6),
)
def test_steps_outside_of_an_episode_are_its_first_or_last_one(length: int, step: int, offsets: list[int]) -> None:
    step = min(step, length - 1)
    rows, is_outside = window_rows(np.array([step]), np.array([length]), tuple(offsets))
    assert rows.tolist() == [[min(max(step + offset, 0), length - 1) for offset in offsets]]
    assert is_outside.tolist() == [[not 0 <= step + offset < length for offset in offsets]]


def test_offsets_are_kept_as_plain_integers() -> None:
    offsets: dict[str, Any] = {"action": range(3), "image": np.array([-1, 0])}
    windows = Windows("steps", offsets)
    assert windows.offsets == {"action": (0, 1, 2), "image": (-1, 0)}
    assert windows == Windows(offsets={"action": [0, 1, 2], "image": (-1, 0)})
    assert repr(windows).startswith("Windows(sequence='steps', offsets={'action': (0, 1, 2), 'image': (-1, 0)}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sequence": ""}, "sequence='' must be the name of a feature, as 'steps'"),
        ({"offsets": [1]}, "offsets=[1] must be a dictionary of fields"),
        ({"offsets": {3: [0]}}, "offsets has 3, which is not the name of a field"),
        ({"offsets": {"action": 3}}, "the offsets of 'action', 3, must be a list of integers"),
        ({"offsets": {"action": []}}, "the offsets of 'action' are empty"),
        ({"offsets": {"action": [0.5]}}, "an offset of 'action'=0.5 must be an integer"),
        ({"offsets": {"action": [True]}}, "an offset of 'action'=True must be an integer"),
        ({"stride": 0}, "stride=0 must be an integer in 1..2147483648"),
        ({"pad": "wrap"}, "pad='wrap' must be 'edge' or 'zero'"),
        ({"whole": 1}, "whole=1 must be True or False"),
        ({"texts": "language"}, "texts='language' must be a list of the names of fields"),
    ],
)
def test_windows_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Windows: {message}")):
        Windows(**arguments)
