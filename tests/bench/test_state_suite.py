"""States and resuming: how they are judged, and that they are measured."""

from pathlib import Path

import pytest

from tfds_torch.bench.resuming import POSITIONS, Resumption, StateCost
from tfds_torch.bench.state_suite import STATE_SUITE, judge_state
from tfds_torch.bench.suite import Run, Settings


def resumptions(middle_s: float, num_read: int) -> list[Resumption]:
    times = dict(zip(POSITIONS, (1.0, middle_s, 0.5), strict=True))
    found = [Resumption("index", position, time_s, num_read, 10) for position, time_s in times.items()]
    return [*found, Resumption("examples", "end", 99.0, None, 10)]


@pytest.mark.parametrize(
    ("json_bytes", "middle_s", "num_read", "kept"),
    [(999, 1.5, 12, [True, True, True]), (1000, 1.6, 13, [False, False, False])],
)
def test_size_growth_and_records_are_judged(json_bytes: int, middle_s: float, num_read: int, kept: list[bool]) -> None:
    costs = [StateCost("index", json_bytes, [0.1], [0.1]), StateCost("files", 10, [0.1], [0.1])]
    targets = judge_state(costs, resumptions(middle_s, num_read), batch_size=4)
    assert [target.kept for target in targets] == kept
    assert targets[2].wanted == "at most 12: 3 batches"


def test_without_figures_of_mode_index_nothing_is_kept() -> None:
    _, growth, num_read = judge_state([StateCost("index", 10, [0.1], [0.1])], [], batch_size=4)
    assert (growth.kept, num_read.kept) == (False, False)
    assert num_read.found == "cannot be judged: there is no figure on this system"


@pytest.mark.slow
def test_states_and_resuming_are_measured_in_every_mode(photos: Path) -> None:
    said: list[str] = []
    settings = Settings(num_photos=64, batch_size=4, num_workers=0, num_repeats=1, timeout_s=60)
    found = STATE_SUITE.measure(Run((), settings, photos, said.append))
    states, resuming = found.sections
    assert [row["mode"] for row in states.rows] == ["index", "files", "examples"]
    assert all(100 < row["json_bytes"] < 1000 and row["save_ms"].least > 0 for row in states.rows)
    assert len(resuming.rows) == 9
    assert all(row["first_batch_s"].least > 0 for row in resuming.rows)
    counts = [row["num_read"] and row["num_read"].median for row in resuming.rows]
    assert counts[3:] == [None] * 6
    assert 4 <= counts[2] <= counts[0] <= 64
    # The stream modes read what comes before; the buffer holds all of the dataset.
    megabytes = {row["where"]: row["read_mb"].median for row in resuming.rows}
    assert megabytes["index, end"] < megabytes["examples, end"]
    assert found.targets[0].kept
    assert said[-1] == "resuming, 9 of 9"
