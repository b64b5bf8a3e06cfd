"""RankReading: which epochs the figures of a rank come from."""

import pytest

from tfds_torch.check.reading import RankReading
from tfds_torch.runtime.metrics import EpochTimes


def reading(*epochs: tuple[float, float, float, int]) -> RankReading:
    """Returns what rank 3 read: (first batch, tail, whole, number of examples) of each epoch, in batches of 4."""
    return RankReading(
        3,
        [EpochTimes(first, tail, whole, -(-number // 4)) for first, tail, whole, number in epochs],
        [number for *_, number in epochs],
    )


SLOW = (0.75, 4.0, 100.0, 10)


@pytest.mark.parametrize(
    ("epochs", "first", "later", "rate", "tail", "num_batches", "timed"),
    [
        ([(2.5, 0.25, 4.0, 20)], 2.5, None, 5.0, 0.25, 5, 4.0),
        ([(9.0, 0.5, 10.0, 10), (0.25, 0.125, 1.0, 10)], 9.0, 0.25, 10.0, 0.5, 3, 1.0),
        ([(9.0, 0.5, 50.0, 10), (0.125, 0.25, 1.0, 10), SLOW, (0.5, 0.0, 2.0, 10)], 9.0, 0.5, 5.0, 4.0, 9, 103.0),
        ([(1.0, 7.0, 9.0, 9), (1.0, 2.0, 9.0, 9)], 1.0, 1.0, 1.0, 7.0, 3, 9.0),
        ([(0.5, 0.5, 0.5, 0), (0.25, 0.25, 0.25, 0)], 0.5, 0.25, 0.0, 0.5, 0, 0.25),
    ],
    ids=["one epoch", "a later one", "medians of several", "the first one's tail", "an empty split"],
)
def test_figures_are_those_of_the_later_epochs_but_for_the_first_batch_and_the_longest_tail(
    epochs: list[tuple[float, float, float, int]],
    first: float,
    later: float | None,
    rate: float,
    tail: float,
    num_batches: int,
    timed: float,
) -> None:
    found = reading(*epochs)
    assert (found.first_batch_s, found.later_first_batch_s) == (first, later)
    assert (found.examples_per_s, found.tail_s) == (rate, tail)
    assert (found.num_batches, found.timed_s) == (num_batches, timed)
