"""Our own targets: the arithmetic, and that nothing passes for want of figures."""

import pytest
from bench.made_up import outcome

from tfds_torch.bench.targets import judge_sample, judge_start


@pytest.mark.parametrize(
    ("ours", "found", "kept"),
    [((300, 310, 200), "2.00 x", True), ((298, 1000, 10), "1.99 x", False), ((600, 600, 600), "4.00 x", True)],
)
def test_speed_is_judged_by_the_median_of_turns(ours: tuple[float, ...], found: str, kept: bool) -> None:
    target, _ = judge_sample([outcome("ours", ours), outcome("timm", (150, 1, 1000))])
    assert (target.found, target.kept) == (found, kept)
    assert target.wanted == "at least 2 x timm's"


@pytest.mark.parametrize(("ours", "found", "kept"), [(110.0, "1.10 x", True), (109.9, "1.10 x", False)])
def test_speed_with_the_same_transform_is_judged(ours: float, found: str, kept: bool) -> None:
    _, target = judge_sample([outcome("ours", (ours,)), outcome("webdataset", (100.0,))])
    assert (target.name, target.found, target.kept) == ("speed against webdataset", found, kept)
    assert target.wanted == "at least 1.1 x WebDataset's, with the same transform"


@pytest.mark.parametrize(("first_batch_s", "found", "kept"), [(0.69, "0.69 s", True), (0.7, "0.70 s", False)])
def test_the_first_batch_is_judged(first_batch_s: float, found: str, kept: bool) -> None:
    target = judge_start([outcome("ours", first_batch_s=first_batch_s), outcome("timm")])[0]
    assert (target.name, target.found, target.kept) == ("first batch of later epochs", found, kept)


@pytest.mark.parametrize(("tail_s", "found", "kept"), [(0.099, "0.099 s", True), (0.1, "0.100 s", False)])
def test_the_tail_is_judged(tail_s: float, found: str, kept: bool) -> None:
    target = judge_start([outcome("ours", tail_s=tail_s), outcome("timm")])[1]
    assert (target.name, target.found, target.kept) == ("tail of an epoch", found, kept)


@pytest.mark.parametrize(("ours", "found", "kept"), [((100, 200), "0.50 x", True), ((100, 210), "0.52 x", False)])
def test_memory_is_judged_by_the_sums(ours: tuple[int, ...], found: str, kept: bool) -> None:
    target = judge_start([outcome("ours", memory_bytes=ours), outcome("timm", memory_bytes=(100, 100, 400))])[2]
    assert (target.name, target.found, target.kept) == ("memory of all processes", found, kept)


def test_a_missing_peer_misses_the_target_that_needs_it() -> None:
    outcomes = [outcome("ours"), outcome("timm", missing="No module named 'timm'")]
    speed, _ = judge_sample(outcomes)
    assert (speed.found, speed.kept) == ("cannot be judged: timm is missing: No module named 'timm'", False)
    assert [target.kept for target in judge_start(outcomes)] == [True, True, False]


def test_one_who_does_not_take_part_misses_it_too() -> None:
    speed, _ = judge_sample([outcome("ours")])
    assert (speed.found, speed.kept) == ("cannot be judged: timm did not take part", False)
    assert [target.kept for target in judge_start([outcome("timm")])] == [False, False, False]


def test_where_the_system_tells_no_memory_it_cannot_be_judged() -> None:
    target = judge_start([outcome("ours", memory_bytes=None), outcome("timm", memory_bytes=None)])[2]
    assert (target.found, target.kept) == ("cannot be judged: there is no figure on this system", False)
