"""LocalExecutor: a worker that raises, dies or hangs fails its own task in seconds, by name; nothing is left."""

import os
import re
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from export import made_sources as made
from export.exports import run_script
from export.made_sources import Numbered, Sized
from tfds_torch.errors import ConfigError, ExportError, WorkerError
from tfds_torch.export import workers
from tfds_torch.export.api import export_dataset
from tfds_torch.export.workers import LocalExecutor
from tfds_torch.runtime.called_process import CalledProcess, called_metrics
from tfds_torch.runtime.worker_faults import ErrorContext

others: list[psutil.Process] = []  # Children of the tests, that no test here has started.


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    others[:] = psutil.Process().children()
    yield
    assert psutil.Process().children() == others


def started() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if child not in others]


def note(number: int) -> int:
    """Notes a sample in a worker."""
    metrics = called_metrics()
    assert metrics is not None
    metrics.note_reading(number)
    return number


def act(number: int, how: str = "") -> int:
    note(number)
    if how == "say":
        print("the database is gone", file=sys.stderr)
    getattr(made, {"": "do_nothing", "say": "die"}.get(how, how))()
    return number


def read_for_long() -> str:
    for _ in range(6):
        time.sleep(0.15)
        metrics = called_metrics()
        assert metrics is not None
        metrics.add("read", 0.15)
    return "read"


def answer_much() -> bytes:
    return bytes(10_000_000)


def never_picklable() -> Any:
    return threading.Lock()


FAULTS = [
    ("die", r"Worker [012] \(pid \d+\) ended with exit code 3 while it read digits, sample 17 "),
    (
        "be_killed",
        r"Worker [012] \(pid \d+\) was killed by SIGKILL \(out of memory\?\) while it read digits, sample 17 ",
    ),
    ("say", r"The last that worker [012] wrote to standard error:\nthe database is gone"),
    ("hang", r"is sleeping \(S\), and has been at digits, sample 17 .* for 0\.5 s\. .* Its stacks:\n(.|\n)*in hang"),
    ("be_stopped", r"is stopped \(T\), and has been at digits, sample 17 .* for 0\.5 s\. "),
    ("fail", r"the lost key(.|\n)*in fail\n"),
]


@pytest.mark.parametrize(("how", "said"), FAULTS)
def test_a_fault_fails_its_own_task_by_name_and_another_process_takes_the_place(
    monkeypatch: pytest.MonkeyPatch, how: str, said: str
) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.5 if how in ("hang", "be_stopped") else 60.0)
    names = ErrorContext("digits", "Try again.", lambda number: f"sample {number}")
    with LocalExecutor(3, names) as executor:
        futures = [executor.submit(act, number, how if number == 17 else "") for number in range(40)]
        wait(futures, 60)
        assert [future.result() for number, future in enumerate(futures) if number != 17] == [
            number for number in range(40) if number != 17
        ]
        error = futures[17].exception()
        assert isinstance(error, KeyError if how == "fail" else WorkerError)
        assert re.search(said, str(error) + str(error.__cause__)), error
        assert sorted(executor.map(act, range(9))) == list(range(9))


def test_it_is_an_executor_of_the_standard_library() -> None:
    executor = LocalExecutor(2)
    first = executor.submit(act, 1)
    assert first.result(60) == 1
    late = [executor.submit(act, number, "sleep") for number in range(8)]
    while not late[1].running():
        pass
    executor.shutdown(wait=False, cancel_futures=True)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(act, 2)
    wait(late, 60)
    assert {future.cancelled() for future in late} == {True, False}
    with pytest.raises(CancelledError):
        late[-1].result()
    executor.shutdown()
    executor.shutdown()
    with LocalExecutor(2) as again:
        assert len({future.result(60) for future in again.submit_to_each(os.getpid)}) == 2
        assert "cannot pickle" in str(again.submit(never_picklable).exception(60))
        slow: list[Future[Any]] = [again.submit(act, 1, "sleep") for _ in range(5)]
        assert slow[-1].cancel()
    assert all(future.done() for future in slow)


def leave_by(kind: type[BaseException], executor: LocalExecutor, hanging: list[Future[int]]) -> None:
    hanging += [executor.submit(act, number, "hang") for number in range(5)]
    wait(hanging, 0.3)
    if kind is KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)
    raise kind


def test_an_error_in_the_block_and_ctrl_c_end_the_workers_at_once() -> None:
    for kind in (ZeroDivisionError, KeyboardInterrupt):
        executor, hanging = LocalExecutor(2), list[Future[int]]()
        with pytest.raises(kind), executor:
            leave_by(kind, executor, hanging)
        assert [future.cancelled() for future in hanging] == [False, False, True, True, True]
        assert all(isinstance(future.exception(), WorkerError) for future in hanging[:2])


def stop_children() -> None:
    for child in started():
        child.suspend()


def test_what_stands_still_on_the_way_is_an_error_and_what_reads_for_long_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(workers, "STUCK_S", 0.5)
    with LocalExecutor(1) as executor:
        assert executor.submit(read_for_long).result(60) == "read"
        stop_children()
        with pytest.raises(WorkerError, match=r"is stopped \(T\), and has taken no task for 0\.5 s"):
            executor.submit(len, bytes(10_000_000)).result(60)
        answer = CalledProcess.answer

        def stop_and_answer(process: CalledProcess, is_ready: bool) -> Any:
            if is_ready:
                stop_children()
            return answer(process, is_ready)

        monkeypatch.setattr(CalledProcess, "answer", stop_and_answer)
        with pytest.raises(WorkerError, match=r"is stopped \(T\), and has not ended its answer for 0\.5 s"):
            executor.submit(answer_much).result(60)


# Exports


def export(source: object, path: Path, **arguments: Any) -> None:
    export_dataset(source, path, **{"format": "beton", "num_workers": 2, "chunk_size": 3, **arguments})


def test_a_worker_that_raises_hands_over_its_traceback_and_the_sample(tmp_path: Path) -> None:
    (tmp_path / "a.beton").write_bytes(b"old")
    with pytest.raises(ExportError) as caught:
        export(Numbered(at=17, act=made.fail), tmp_path / "a.beton", overwrite=True)
    said = str(caught.value)
    assert re.search(
        r"The export to .* failed\. Numbered, dataset\[17\]: KeyError: 'the lost key'\. What was there before",
        said,
    )
    assert re.search(r"Raised in a worker \(pid \d+\):\nTraceback .*in fail\n", said, re.DOTALL)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a.beton": b"old"}


@pytest.mark.parametrize(
    ("act", "how"),
    [(made.die, "ended with exit code 3"), (made.be_killed, r"was killed by SIGKILL \(out of memory\?\)")],
)
@pytest.mark.parametrize("at", [0, 39])
def test_a_worker_of_a_file_that_dies_is_an_error_at_once(
    tmp_path: Path, act: Callable[[], None], how: str, at: int
) -> None:
    with pytest.raises(ExportError, match=rf"Worker [01] \(pid \d+\) {how} while it read Numbered, dataset\[{at}\]"):
        export(Numbered(at=at, act=act), tmp_path / "a.beton")
    assert os.listdir(tmp_path) == []


def test_a_worker_of_a_file_that_dies_beside_one_that_hangs_is_an_error(tmp_path: Path) -> None:
    class Both(Numbered):
        def __getitem__(self, number: int) -> tuple[object, int]:
            if number == 3:
                made.hang()
            if number == 20:
                made.be_killed()
            return super().__getitem__(number)

    with pytest.raises(ExportError, match=r"was killed by SIGKILL.*dataset\[20\]"):
        export(Both(), tmp_path / "a.beton")


def test_where_a_worker_dies_the_other_shards_are_written_and_the_lost_one_is_named(tmp_path: Path) -> None:
    message = r"failed\. Numbered-all-000002\.tar: Worker [01] .*SIGKILL.* dataset\[13\] .*The shards that are complete"
    with pytest.raises(ExportError, match=message):
        export_dataset(Numbered(at=13, act=made.be_killed), tmp_path, format="webdataset", num_shards=8, num_workers=2)
    assert len(list(tmp_path.glob("*.tar"))) == 7
    assert not list(tmp_path.glob(".*.tmp"))
    assert export_dataset(Numbered(), tmp_path, format="webdataset", num_shards=8, num_workers=2).num_kept == 7


def test_an_iterable_of_tensors_needs_no_file_for_each(tmp_path: Path) -> None:
    tensors = Sized(200, make=lambda number: {"box": torch.full((4,), float(number))})
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, before[1]))
    try:
        export(tensors, tmp_path / "a.beton", chunk_size=100)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fail_at(number: int, at: int) -> dict[str, object]:
    if number == at:
        raise OSError("no route to host")
    return {"label": number}


def test_what_the_users_own_code_raises_here_is_an_error_of_the_dataset(tmp_path: Path) -> None:
    class Unsized(Numbered):
        def __len__(self) -> int:
            raise TypeError("not known")

    locks = Sized(20, make=lambda number: {"a": [number if number < 7 else threading.Lock()]})
    cases: list[tuple[Any, type[Exception], str]] = [
        (locks, ExportError, r"Sized: its samples cannot be sent to a worker: TypeError: cannot pickle .*lock"),
        (Sized(20, make=lambda number: fail_at(number, 0)), ExportError, "Sized raised OSError: no route to host"),
        (Sized(20, make=lambda number: fail_at(number, 9)), ExportError, "Sized raised OSError: no route to host"),
        (Unsized(), ConfigError, r"Unsized: its len\(\) failed: TypeError: not known"),
        (Sized(0, -1), ConfigError, r"Sized: its len\(\) failed: ValueError: .*should return >= 0"),
    ]
    for source, kind, message in cases:
        with pytest.raises(kind, match=message):
            export(source, tmp_path / "a.beton")
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", [ZeroDivisionError, KeyboardInterrupt])
def test_a_progress_that_raises_and_ctrl_c_end_the_export(tmp_path: Path, kind: type[BaseException]) -> None:
    def press(done: int, total: int) -> None:
        if kind is KeyboardInterrupt:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            raise ZeroDivisionError

    with pytest.raises(kind):
        export(Numbered(at=39, act=made.hang), tmp_path / "a.beton", progress=press)
    assert os.listdir(tmp_path) == []


def test_workers_are_as_many_as_asked_for_and_there_is_work_for(tmp_path: Path) -> None:
    for number, (chunk_size, there) in enumerate([(3, 3), (20, 2), (100, 1)]):
        report = export_dataset(
            Numbered(), tmp_path / f"{number}", format="beton", num_workers=3, chunk_size=chunk_size
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
        return {"label": number, "large": np.zeros(400_000, np.uint8)}

    export(Sized(12, make=make_slowly), tmp_path / "a.beton")


# Kills


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "num_kills", [pytest.param(6, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.campaign)]
)
@pytest.mark.parametrize("victim", ["parent", "worker", "part"])
def test_kills_leave_no_child_no_half_shard_and_the_bytes_of_an_export_without_kills(
    run_python: Callable[..., Any], exported_root: Path, tmp_path: Path, victim: str, num_kills: int
) -> None:
    counts = run_script(run_python, "killed_shards.py", exported_root, tmp_path, victim, num_kills, 1)
    assert counts["killed"] == num_kills
    assert (counts["broken"], counts["rewritten"], counts["different"], counts["left"], counts["orphans"]) == (0,) * 5
    assert counts["children_seen"] >= num_kills
    assert counts["with_shards"] >= num_kills // 4


@pytest.mark.parametrize(
    ("num_kills", "least"),
    [pytest.param(30, 22, marks=pytest.mark.slow), pytest.param(200, 150, marks=pytest.mark.campaign)],
)
def test_exports_of_a_file_that_are_killed_leave_no_file_or_a_whole_one(
    run_python: Callable[..., Any], tmp_path: Path, num_kills: int, least: int
) -> None:
    counts = run_script(run_python, "killed_export.py", tmp_path, num_kills, 1)
    assert counts["broken"] == 0
    assert counts["orphans"] == 0 < counts["workers_seen"]
    assert counts["absent"] > 0 < counts["whole"]
    assert counts["before_rename"] >= least
