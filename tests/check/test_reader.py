"""Where a reading is saved, and what must come afterwards."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.check.reader import NUM_AFTER, Point, batches_after, choose_points
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World


def plan(num_batches: int, seed: int = 42) -> EpochPlan:
    return EpochPlan(Passes(2 * num_batches, seed, False), World(), 2, Remainder.KEEP)


@given(st.integers(0, 10**7), st.integers(1, 5), st.integers(0, 2**32))
def test_points_are_few_and_within_the_epochs_with_both_ends_among_them(
    num_batches: int, num_epochs: int, seed: int
) -> None:
    points = choose_points(plan(num_batches, seed), num_epochs)
    assert points == sorted(set(points))
    assert len(points) <= 6
    assert {Point(0, 0), Point(0, max(0, num_batches - 1)), Point(0, num_batches)} <= set(points)
    for point in points:
        assert 0 <= point.epoch < num_epochs
        assert 0 <= point.number <= num_batches


def test_points_depend_on_the_seed_alone() -> None:
    assert choose_points(plan(1000), 2) == choose_points(plan(1000), 2)
    assert choose_points(plan(1000), 2) != choose_points(plan(1000, seed=43), 2)
    later = {point for seed in range(20) for point in choose_points(plan(1000, seed), 3) if point.epoch}
    assert {point.epoch for point in later} == {1, 2}


EPOCHS = ["abcde", "fghij"]


@pytest.mark.parametrize(
    ("epoch", "number", "iterations"),
    [
        (0, 0, ["abc"]),
        (0, 2, ["cde"]),
        (0, 3, ["de", "f"]),
        (0, 4, ["e", "fg"]),
        (0, 5, ["", "fgh"]),
        (1, 0, ["fgh"]),
        (1, 4, ["j"]),
        (1, 5, [""]),
    ],
)
def test_an_interrupted_epoch_goes_on_and_so_do_the_following_ones(
    epoch: int, number: int, iterations: list[str]
) -> None:
    assert NUM_AFTER == 3
    found = batches_after(Point(epoch, number), 5, 2)
    assert ["".join(EPOCHS[at.epoch][at.number] for at in batches) for batches in found] == iterations
