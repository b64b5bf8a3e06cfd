"""measure: which epochs the figures of a rank come from."""

from collections.abc import Sequence

import pytest

from tfds_torch.check.ledger import Entry, RankEpoch
from tfds_torch.check.reading import RankReading
from tfds_torch.check.throughput import Throughput, measure
from tfds_torch.runtime.epoch_times import EpochTimes


def reading(*epochs: tuple[float, float, float, Sequence[int]]) -> RankReading:
    """Returns what rank 3 read: (first batch, tail, whole, lengths of the batches) of each epoch."""
    return RankReading(
        epochs=tuple(
            RankEpoch(3, number, [[Entry(str(i), i, True) for i in range(length)] for length in lengths], len(lengths))
            for number, (*_, lengths) in enumerate(epochs)
        ),
        times=tuple(EpochTimes(first, tail, whole, len(lengths)) for first, tail, whole, lengths in epochs),
        memory={7: 100, 9: 30},
    )


def test_one_epoch_gives_all_figures_but_the_later_first_batch() -> None:
    assert measure(reading((2.5, 0.25, 4.0, [8, 8, 4]))) == Throughput(
        rank=3, first_batch_s=2.5, later_first_batch_s=None, examples_per_s=5.0, tail_s=0.25, memory={7: 100, 9: 30}
    )


def test_later_epochs_tell_the_speed_without_the_start() -> None:
    figures = measure(reading((9.0, 0.5, 10.0, [10]), (0.25, 0.125, 1.0, [10])))
    assert (figures.first_batch_s, figures.later_first_batch_s) == (9.0, 0.25)
    assert figures.examples_per_s == 10.0


def test_of_several_later_epochs_it_is_the_median_and_of_tails_the_longest() -> None:
    slow = (0.75, 4.0, 100.0, [10])
    figures = measure(reading((9.0, 0.5, 50.0, [10]), (0.125, 0.25, 1.0, [10]), slow, (0.5, 0.0, 2.0, [10])))
    assert figures.later_first_batch_s == 0.5
    assert figures.examples_per_s == 5.0
    assert figures.tail_s == 4.0


def test_the_longest_tail_may_be_the_first_epochs() -> None:
    assert measure(reading((1.0, 7.0, 9.0, [1]), (1.0, 2.0, 9.0, [1]))).tail_s == 7.0


def test_an_empty_split_has_a_speed_of_zero() -> None:
    figures = measure(reading((0.5, 0.5, 0.5, []), (0.25, 0.25, 0.25, [])))
    assert (figures.examples_per_s, figures.later_first_batch_s) == (0.0, 0.25)


@pytest.mark.parametrize("memory", [{}, {1: 5}])
def test_memory_is_passed_on(memory: dict[int, int]) -> None:
    rank = reading((1.0, 1.0, 1.0, [1]))
    assert measure(RankReading(rank.epochs, rank.times, memory)).memory == memory
