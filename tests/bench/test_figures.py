"""How figures are summed up."""

from bench.made_up import outcome

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Memory, Spread


def test_a_spread_is_median_least_and_greatest_of_what_is_there() -> None:
    assert Spread.of([3.0, None, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.of([1.0, 2.0]) == Spread(1.5, 1.0, 2.0)
    assert Spread.of([None]) is None


def test_warm_ups_count_for_the_start_and_epochs_for_the_rest() -> None:
    ours = outcome("ours", (100, 400, 200), first_batch_s=0.25, tail_s=0.5)
    assert figures.examples_per_s(ours) == Spread(200, 100, 400)
    assert figures.first_batch_s(ours) == Spread(0.25, 0.25, 0.25)
    assert figures.tail_s(ours) == Spread(0.5, 0.5, 0.5)
    assert figures.lost_s(ours) == Spread(0.75, 0.75, 0.75)
    assert figures.start_s(ours) == Spread(3.5, 3.0, 4.0)


def test_the_memory_of_all_is_a_sum() -> None:
    assert Memory(5, (6, 7), 3).total_bytes == 18
