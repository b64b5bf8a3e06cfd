"""What a loader costs by itself: how it is judged, and that it is measured."""

from pathlib import Path

import pytest

from tfds_torch.bench import ready_suite
from tfds_torch.bench.peers.ready_batches import OURS, TORCH, ReadyEpoch
from tfds_torch.bench.ready_suite import READY, judge_ready
from tfds_torch.bench.suite import Run, Settings


@pytest.mark.parametrize(
    ("times_us", "hand_over_us", "kept"),
    [((30.0, 300.0, 300.0), 999.0, [True] * 4), ((31.0, 301.0, 301.0), 1000.0, [False] * 4)],
)
def test_each_number_of_workers_and_the_hand_over_are_judged(
    times_us: tuple[float, ...], hand_over_us: float, kept: list[bool]
) -> None:
    small = [ReadyEpoch(OURS, number, time_us, None) for number, time_us in enumerate(times_us)]
    small += [ReadyEpoch(TORCH, number, 1e9, None) for number in range(3)]
    large = [ReadyEpoch(OURS, 2, 1e9, hand_over_us), ReadyEpoch(TORCH, 2, 1e9, None)]
    assert [target.kept for target in judge_ready(small, large)] == kept
    assert not any(target.kept for target in judge_ready([], []))


def test_both_loaders_are_measured_with_and_without_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ready_suite, "_NUM_BATCHES", 4)
    monkeypatch.setattr(ready_suite, "_NUM_LARGE", 3)
    settings = Settings(num_photos=8, batch_size=4, num_workers=0, num_repeats=1, timeout_s=60)
    found = READY.measure(Run((), settings, tmp_path, lambda text: None))
    small, large = found.sections
    assert [row["loader"] for row in small.rows[:3]] == [
        "Loader, no workers",
        f"{TORCH}, no workers",
        "Loader, 1 worker",
    ]
    assert len(small.rows) == 6
    assert len(large.rows) == 2
    assert all(row["batch_us"].least > 0 for row in small.rows + large.rows)
    assert large.rows[0]["hand_over_us"].least >= 0
    assert [target.found.endswith(" us") for target in found.targets] == [True] * 4
