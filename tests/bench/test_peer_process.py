"""A peer's process: its figures, its failures, and its end."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.watching import WATCHDOG_S, assert_all_end, open_pids, wait_for

from benchmarks.peer_process import ROOT, Interpreter, PeerProcess
from benchmarks.protocol import Task
from tfds_torch.errors import StallError, WorkerError

Begin = Callable[..., PeerProcess]


@pytest.fixture
def begin() -> Iterator[Begin]:
    """Makes planted peers of a kind, and ends them."""
    made = []

    def begin(kind: str, timeout_s: float = WATCHDOG_S, **options: Any) -> PeerProcess:
        task = Task("", num_examples=10, batch_size=4, num_workers=0, image_shape=(3, 2, 2))
        task = Task(**{**vars(task), "options": {"kind": kind, **options}, "files": options.pop("files", "")})
        interpreter = Interpreter.here(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "tests")]))
        made.append(PeerProcess("bench.planted", task, timeout_s, interpreter))
        return made[-1]

    yield begin
    for process in made:
        process.end()


def test_an_epoch_has_its_figures_and_its_beginning_belongs_to_it(begin: Begin) -> None:
    process = begin("slow to begin")
    first, second = process.run_epoch(), process.run_epoch()
    assert first.num_examples == second.num_examples == 10
    assert first.start_s is not None
    assert first.start_s > first.first_batch_s >= 0.3
    assert (second.start_s, first.cpu_s) == (None, None)
    assert second.cpu_s is not None
    assert second.whole_s >= second.first_batch_s + second.tail_s
    assert second.examples_per_s == 10 / second.whole_s
    assert list(first.versions) == ["numpy"]


def test_between_epochs_it_is_stopped_with_its_children_and_at_the_end_all_are_gone(
    begin: Begin, tmp_path: Path
) -> None:
    process = begin("steady", pids=str(tmp_path / "pids"))
    process.run_epoch()
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    handles = open_pids(pids)
    assert len(process.processes()) == 2
    for pid in pids:
        wait_for(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")  # noqa: B023
    training_bytes, child_bytes = process.measure_memory()
    assert min(training_bytes, child_bytes) > 1e6
    process.end()
    process.end()
    assert_all_end(handles)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("not installed", r"^No module named 'a_package_that_is_not_there' \(pip install it\)$"),
        ("floats", r"^ValueError: a batch is float32 \[4, 3, 2, 2\], and should be uint8 \[B, 3, 2, 2\]$"),
        ("empty", r"^ValueError: no batch came in epoch 0$"),
        ("fails in epoch 1", r"^OSError: the disk is gone$"),
        ("killed in epoch 1", r"^its process was killed by SIGKILL \(out of memory\?\): what a library prints$"),
        ("leaves in epoch 1", r"^its process ended with exit code 3: the last words$"),
    ],
)
def test_one_that_fails_says_why(begin: Begin, kind: str, reason: str) -> None:
    process = begin(kind)
    if kind.endswith("epoch 1"):
        process.run_epoch()
    with pytest.raises(WorkerError) as caught:
        process.run_epoch()
    assert re.search(reason, str(caught.value))
    assert process.processes() == []


def test_one_that_hangs_is_ended(begin: Begin, tmp_path: Path) -> None:
    process = begin("hangs", timeout_s=3, pids=str(tmp_path / "pids"))
    with pytest.raises(StallError) as caught:
        process.run_epoch()
    assert str(caught.value) == "epoch 0 was not over after 3 s"
    assert process.processes() == []


def test_it_prepares_its_files(begin: Begin, tmp_path: Path) -> None:
    begin("steady", files=str(tmp_path)).prepare()
    assert (tmp_path / "made").read_text() == "steady"


def test_an_interpreter_that_is_not_there_is_an_error() -> None:
    process = PeerProcess("bench.planted", Task("", 1, 1, 0), 1, Interpreter.of_venv("/nowhere"))
    with pytest.raises(WorkerError, match=r"could not be started: .*No such file"):
        process.run_epoch()
