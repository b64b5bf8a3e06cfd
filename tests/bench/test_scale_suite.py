"""The suite `scale`: which workers and batches, and what is told of them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from bench.made_up import outcome

from tfds_torch.bench import scale_suite
from tfds_torch.bench.contestant_process import ContestantProcess
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.scale_suite import SCALE
from tfds_torch.bench.suite import Run, Settings
from tfds_torch.bench.task import Peer, Task

ASKED: list[tuple[str, int, int]] = []


class Pretender:
    def __init__(self, peer: Peer, task: Task, timeout_s: float) -> None:
        self.peer = peer
        ASKED.append((peer.name, task.num_workers, task.batch_size))
        assert peer.loader.endswith("ours_fused:load")


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    def take_turns(contestants: Sequence[ContestantProcess], num_repeats: int, say: object) -> list[Outcome]:
        assert num_repeats == 1
        speeds = {0: 100.0, 1: 90.0, 2: 95.0}
        return [
            outcome(one.peer, (speeds[number],), missing="it broke" if number == 1 else None)
            for number, one in enumerate(contestants)
        ]

    ASKED.clear()
    monkeypatch.setattr(scale_suite, "ContestantProcess", Pretender)
    monkeypatch.setattr(scale_suite, "take_turns", take_turns)
    monkeypatch.setattr(scale_suite, "num_cores", lambda: 2)
    return lambda num_photos: SCALE.measure(Run((), Settings(num_photos, 128, 2, 3, 60.0), tmp_path, lambda text: None))


def test_all_workers_compete_at_every_batch_size(measure: object) -> None:
    found = measure(4096)  # type: ignore[operator]
    assert ASKED[:3] == [("0 workers", 0, 32), ("1 worker", 1, 32), ("2 workers", 2, 32)]
    assert [size for _, _, size in ASKED[::3]] == [32, 128, 256]
    assert [section.name for section in found.sections] == ["batches_of_32", "batches_of_128", "batches_of_256"]
    assert (found.targets, found.outcomes) == ([], ())


def test_ratios_are_to_no_workers_and_one_that_fails_is_named(measure: object) -> None:
    section = measure(4096).sections[0]  # type: ignore[operator]
    _, rows = section.table()
    assert rows[0][:3] == ["0 workers", "100 (100 to 100)", "1.00 (1.00 to 1.00)"]
    assert rows[2][2] == "0.95 (0.95 to 0.95)"
    assert rows[1] == ["1 worker", *["-"] * 5]
    assert section.missing == ["1 worker, batches of 32 is missing: it broke"]


def test_no_batch_is_larger_than_a_worker_can_fill(measure: object) -> None:
    measure(256)  # type: ignore[operator]
    assert sorted({size for _, _, size in ASKED}) == [32, 64]


@pytest.mark.parametrize(("cores", "counts"), [(1, [0, 1]), (2, [0, 1, 2]), (6, [0, 1, 2, 4, 6]), (8, [0, 1, 2, 4, 8])])
def test_workers_go_up_to_the_number_of_cores(cores: int, counts: list[int]) -> None:
    assert list(scale_suite._worker_counts(cores)) == counts
