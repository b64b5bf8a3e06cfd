"""How figures are summed up."""

from dataclasses import replace

import pytest
from bench.made_up import outcome

from tfds_torch.bench import figures
from tfds_torch.bench.figures import Memory, Spread, cpu_us_per_example, disk_megabytes, speed_ratio


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


def test_speed_without_the_tail_ends_with_the_last_batch() -> None:
    ours = outcome("ours", (100.0, 50.0), tail_s=0.5)  # 100 examples in 1 and 2 s.
    assert figures.examples_per_s_without_tail(ours) == pytest.approx(Spread((200 + 100 / 1.5) / 2, 100 / 1.5, 200))


def test_the_first_epoch_of_a_process_has_a_first_batch_of_its_own() -> None:
    assert figures.first_epoch_batch_s(outcome("ours", first_batch_s=0.25)) == Spread(0.5, 0.5, 0.5)


def test_the_memory_of_all_is_a_sum() -> None:
    assert Memory(5, (6, 7), 3).total_bytes == 18


def test_processor_time_and_disk_are_of_the_measured_epochs_that_have_them() -> None:
    one = outcome("ours")
    times = zip(one.epochs, (0.1, None, 0.3), strict=True)
    one.epochs[:] = [replace(epoch, cpu_s=cpu_s, disk_bytes=5_000_000) for epoch, cpu_s in times]
    assert cpu_us_per_example(one) == Spread(2000.0, 1000.0, 3000.0)
    assert disk_megabytes(one) == Spread(5.0, 5.0, 5.0)
    assert (cpu_us_per_example(outcome("timm")), disk_megabytes(outcome("timm"))) == (None, None)


def test_speeds_are_compared_turn_by_turn() -> None:
    fast, slow = outcome("ours", (100.0, 400.0, 30.0)), outcome("timm", (50.0, 100.0, 10.0, 1.0))
    assert speed_ratio(fast, slow) == pytest.approx(Spread(3.0, 2.0, 4.0))
    assert speed_ratio(fast, outcome("timm", missing="gone")) is None
