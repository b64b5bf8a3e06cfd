"""A worker that raises, dies or hangs is an error in seconds that names the sample; nothing is left."""

import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from export import made_sources as made
from export.made_sources import Numbered, Sized
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export import workers
from tfds_torch.export.api import export_dataset
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.worker_faults import ErrorContext

NAMES = ErrorContext("a dataset", "", None)
others: list[psutil.Process] = []  # Children of the tests, that no test here has started.


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    others[:] = psutil.Process().children()
    yield
    assert psutil.Process().children() == others


def started() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child not in others]


def export(source: object, path: Path, **arguments: Any) -> None:
    export_dataset(source, path, **{"format": "beton", "num_workers": 2, "chunk_size": 3, **arguments})


def test_a_worker_that_raises_hands_over_its_traceback_and_the_sample(tmp_path: Path) -> None:
    (tmp_path / "a.beton").write_bytes(b"old")
    with pytest.raises(ExportError) as caught:
        export(Numbered(at=17, act=made.fail), tmp_path / "a.beton", overwrite=True)
    said = str(caught.value)
    assert "The export to" in said
    assert re.search(
        r"failed\. Numbered, dataset\[17\]: KeyError: 'the lost key'\. What was there before is untouched", said
    )
    assert re.search(r"Raised in worker [01] \(pid \d+\):\nTraceback .*in fail\n", said, re.DOTALL)
    assert os.listdir(tmp_path) == ["a.beton"]
    assert (tmp_path / "a.beton").read_bytes() == b"old"


@pytest.mark.parametrize(
    ("act", "how"),
    [(made.die, "ended with exit code 3"), (made.be_killed, r"was killed by SIGKILL \(out of memory\?\)")],
)
@pytest.mark.parametrize("at", [0, 39])
def test_a_worker_that_dies_is_an_error_at_once(tmp_path: Path, act: Callable[[], None], how: str, at: int) -> None:
    with pytest.raises(ExportError, match=rf"Worker [01] \(pid \d+\) {how} while it read Numbered, dataset\[{at}\]"):
        export(Numbered(at=at, act=act), tmp_path / "a.beton")
    assert os.listdir(tmp_path) == []


def test_a_worker_that_dies_beside_one_that_hangs_is_an_error(tmp_path: Path) -> None:
    class Both(Numbered):
        def __getitem__(self, number: int) -> tuple[object, int]:
            if number == 3:
                made.hang()
            if number == 20:
                made.be_killed()
            return super().__getitem__(number)

    with pytest.raises(ExportError, match=r"was killed by SIGKILL.*dataset\[20\]"):
        export(Both(), tmp_path / "a.beton")


@pytest.mark.parametrize(("act", "state"), [(made.hang, r"sleeping \(S\)"), (made.be_stopped, r"stopped \(T\)")])
def test_a_worker_that_hangs_is_an_error_with_its_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], state: str
) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.5)
    with pytest.raises(ExportError, match=rf"is {state}, and has been at Numbered, dataset\[17\] for 0\.5 s") as caught:
        export(Numbered(at=17, act=act), tmp_path / "a.beton")
    assert ("in hang" in str(caught.value)) == (act is made.hang)
    assert os.listdir(tmp_path) == []


def stop_children() -> None:
    for child in started():
        child.suspend()


def test_a_worker_that_is_stopped_while_samples_are_sent_to_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.5)

    def make_large(number: int) -> dict[str, object]:
        if number == 10:
            stop_children()
        return {"large": np.zeros(400_000, np.uint8)}

    with pytest.raises(
        ExportError, match=r"Worker [01] \(pid \d+\) is stopped \(T\), and has taken no task for 0\.5 s"
    ):
        export(Sized(20, make=make_large), tmp_path / "a.beton")
    assert os.listdir(tmp_path) == []


def test_a_worker_that_is_stopped_while_it_answers_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer_more_than_a_pipe_holds(task: object, metrics: StageMetrics) -> bytes:
        return bytes(10_000_000)

    monkeypatch.setattr(workers, "STUCK_S", 0.5)
    with (
        workers.Workers(1, answer_more_than_a_pipe_holds, NAMES, "It failed.") as one,
        pytest.raises(ExportError, match=r"is stopped \(T\), and has not ended its answer for 0\.5 s"),
    ):
        list(one.run([1], 1, lambda done, total: stop_children()))


def test_a_worker_that_reads_for_long_is_not_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_for_long(task: object, metrics: StageMetrics) -> str:
        for _ in range(6):
            time.sleep(0.15)
            metrics.add("read", 0.15)
        return "read"

    monkeypatch.setattr(workers, "STUCK_S", 0.6)
    with workers.Workers(1, read_for_long, NAMES, "It failed.") as one:
        assert list(one.run([1])) == ["read"]


def test_a_worker_that_fails_before_its_next_task_is_sent_says_why() -> None:
    def fail_at_two(task: object, metrics: StageMetrics) -> bytes:
        if task == 2:
            raise KeyError("the lost key")
        return b""

    def wait_until_it_has_ended(done: int, total: int) -> None:
        (child,) = started()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # All of its threads, and so its files, are gone.

    with (
        workers.Workers(1, fail_at_two, NAMES, "It failed.") as one,
        pytest.raises(ExportError, match="the lost key"),
    ):
        list(one.run([1, 2, 3], 2, wait_until_it_has_ended))


def test_an_iterable_of_tensors_needs_no_file_for_each(tmp_path: Path) -> None:
    tensors = Sized(200, make=lambda number: {"box": torch.full((4,), float(number))})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    num_open = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (num_open + 60, before[1]))
    try:
        export(tensors, tmp_path / "a.beton", chunk_size=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_samples_that_cannot_be_sent_are_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    locks = Sized(20, make=lambda number: {"a": [number if number < 7 else threading.Lock()]})
    with pytest.raises(
        ExportError, match=r"Sized: its samples cannot be sent to a worker: TypeError: cannot pickle .*lock"
    ):
        export(locks, tmp_path / "a.beton")
    assert os.listdir(tmp_path) == []


def test_what_a_dead_worker_wrote_last_is_reported(tmp_path: Path) -> None:
    def complain_and_die() -> None:
        import sys

        print("the database is gone", file=sys.stderr)
        os._exit(3)

    with pytest.raises(ExportError, match="wrote to standard error:\nthe database is gone"):
        export(Numbered(at=5, act=complain_and_die), tmp_path / "a.beton")


def fail_at(number: int, at: int) -> dict[str, object]:
    if number == at:
        raise OSError("no route to host")
    return {"label": number}


def test_an_iterable_that_raises_is_an_error_with_its_cause(tmp_path: Path) -> None:
    for at in (0, 9):
        with pytest.raises(ExportError, match="Sized raised OSError: no route to host") as caught:
            export(Sized(20, make=lambda number, at=at: fail_at(number, at)), tmp_path / "a.beton")  # type: ignore[misc]
        assert isinstance(caught.value.__cause__, OSError)
        assert os.listdir(tmp_path) == []


def test_a_length_that_raises_is_an_error_of_the_dataset(tmp_path: Path) -> None:
    class Unsized(Numbered):
        def __len__(self) -> int:
            raise TypeError("not known")

    with pytest.raises(ConfigError, match=r"Unsized: its len\(\) failed: TypeError: not known"):
        export(Unsized(), tmp_path / "a.beton")
    with pytest.raises(ConfigError, match=r"Sized: its len\(\) failed: ValueError: .*should return >= 0"):
        export(Sized(0, -1), tmp_path / "a.beton")


def test_a_progress_that_raises_ends_the_export(tmp_path: Path) -> None:
    def refuse(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        export(Numbered(), tmp_path / "a.beton", progress=refuse)
    assert os.listdir(tmp_path) == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def press(done: int, total: int) -> None:
        if not pressed:
            pressed.append(done)
            os.kill(os.getpid(), signal.SIGINT)

    pressed: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        export(Numbered(at=39, act=made.hang), tmp_path / "a.beton", progress=press)
    assert os.listdir(tmp_path) == []


def test_workers_are_as_many_as_asked_for_and_there_is_work_for(tmp_path: Path) -> None:
    for number, (asked, chunk_size, there) in enumerate([(3, 3, 3), (3, 20, 2), (3, 100, 1)]):
        report = export_dataset(
            Numbered(), tmp_path / f"{number}", format="beton", num_workers=asked, chunk_size=chunk_size
        )
        assert report.num_workers == there


def test_the_dataset_is_read_in_other_processes_only(tmp_path: Path) -> None:
    here = os.getpid()

    def look() -> None:
        assert os.getpid() != here
        assert threading.active_count() <= 2  # The one that watches its parent.

    for at in (0, 5):
        export(Numbered(at=at, act=look), tmp_path / f"{at}.beton")


def test_a_slow_iterable_is_not_a_stuck_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.3)

    def make_slowly(number: int) -> dict[str, object]:
        time.sleep(0.5 if number in (3, 8) else 0)
        return {"label": number}

    export(Sized(12, make=make_slowly), tmp_path / "a.beton")
