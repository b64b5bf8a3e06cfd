"""Real processes: their figures, their rest between turns, and every way in which they can fail."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import planted_competitors as planted
from bench.watching import WATCHDOG_S, assert_all_end, open_pids, read_pids, state_of, wait_for

from benchmarks import competitor_process
from benchmarks.competitor_process import CompetitorProcess
from benchmarks.environments import Environment, this_environment
from benchmarks.task import Peer, Task
from tfds_torch.errors import StallError, WorkerError


@contextmanager
def competitor(
    peer: Peer, folder: Path, timeout_s: float = WATCHDOG_S, cold_files: Sequence[Path] = ()
) -> Iterator[CompetitorProcess]:
    task = Task(str(folder), None, num_photos=10, batch_size=4, num_workers=0)
    process = CompetitorProcess(peer, task, timeout_s, cold_files=cold_files)
    try:
        yield process
    finally:
        process.end()


def test_an_epoch_has_its_figures(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.steady), tmp_path) as process:
        first, second = process.run_epoch(), process.run_epoch()
    assert [figures.num_examples for figures in (first, second)] == [10, 10]
    assert [figures.times.num_batches for figures in (first, second)] == [3, 3]
    assert 0 < first.times.first_batch_s <= first.times.whole_s
    assert first.examples_per_s == 10 / first.times.whole_s


def test_the_start_counts_from_the_process_and_only_once(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.steady), tmp_path) as process:
        first, second = process.run_epoch(), process.run_epoch()
    assert first.start_s is not None
    assert first.start_s > first.times.first_batch_s  # The interpreter and its imports come first.
    assert (second.start_s, first.waiting_cpu_s) == (None, None)


def test_asking_the_loader_for_an_iterator_belongs_to_the_epoch(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.begins_slowly), tmp_path) as process:
        figures = process.run_epoch()
    assert figures.times.first_batch_s > 0.2


def test_it_runs_in_the_environment_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "planted_here.py").write_text(
        "import os\nfrom bench.planted_competitors import steady\n"
        "def load(task):\n    assert os.environ['PLANTED'] == 'yes'\n    return steady(task)\n"
    )
    here = this_environment()
    environment = Environment(here.executable, [str(tmp_path), *here.path], {"PLANTED": "yes"})
    task = Task(str(tmp_path), None, num_photos=10, batch_size=4, num_workers=0)
    process = CompetitorProcess(Peer("planted", "planted", "planted_here:load"), task, WATCHDOG_S, environment)
    try:
        assert process.run_epoch().num_examples == 10
    finally:
        process.end()


def test_all_its_processes_are_stopped_between_epochs(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.busy), tmp_path) as process:
        process.run_epoch()
        pids = read_pids(tmp_path, "busy")
        assert len(pids) == 2
        wait_for(lambda: {state_of(pid) for pid in pids} == {"T"})
        assert process.run_epoch().num_examples == 10
        wait_for(lambda: {state_of(pid) for pid in pids} == {"T"})
        handles = open_pids(pids)
    assert_all_end(handles)


def test_the_processor_time_of_an_epoch_is_that_of_all_its_processes_and_not_of_the_pause(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.works_for_0_2_s), tmp_path) as process:
        first, second = process.run_epoch(), process.run_epoch()
    assert (first.cpu_s, first.disk_bytes) == (None, None)  # The start of the process is in it.
    assert second.cpu_s is not None
    assert 0.1 < second.cpu_s < 1
    assert second.disk_bytes is not None
    assert second.disk_bytes >= 0


def test_memory_is_that_of_all_its_processes(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.large), tmp_path) as process:
        process.run_epoch()
        training_bytes, child_bytes = process.measure_memory()
    assert training_bytes > 25e6
    assert child_bytes > 25e6


def test_files_are_dropped_from_the_page_cache_before_every_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[Sequence[Path]] = []
    monkeypatch.setattr(competitor_process, "drop_from_page_cache", dropped.append)
    with competitor(planted.peer(planted.steady), tmp_path, cold_files=[tmp_path / "a"]) as process:
        process.run_epoch()
        process.run_epoch()
    assert dropped == [[tmp_path / "a"]] * 2


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            planted.not_installed,
            r"^No module named 'a_package_that_is_not_there' \(in a clone: pip install -e '\.\[bench\]'\)$",
        ),
        (
            planted.ffcv_not_installed,
            r"^No module named 'ffcv' \(apt install libopencv-dev .*then, in a clone, pip install ",
        ),
        (planted.fails_at_once, r"^KeyError: 'lost\\nand more lines'$"),
        (planted.small_images, r"^ValueError: a batch is uint8 \[4, 3, 32, 32\], and should be uint8 \[B, 3, 224, 224"),
        (planted.floats, r"^ValueError: a batch is float32 \[4, 3, 224, 224\], and should be uint8"),
        (planted.empty, r"^ValueError: no batch came in epoch 0$"),
    ],
)
def test_one_that_cannot_do_the_work_says_why(function: planted.Epochs, reason: str, tmp_path: Path) -> None:
    with competitor(planted.peer(function), tmp_path) as process, pytest.raises(WorkerError, match=reason):  # type: ignore[arg-type]
        process.run_epoch()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (planted.fails_in_epoch_1, r"^OSError: the disk is gone$"),
        (planted.leaves_in_epoch_1, r"^its process ended with exit code 3: the last words$"),
        (planted.is_killed_in_epoch_1, r"^its process was killed by SIGKILL \(out of memory\?\)$"),
    ],
)
def test_one_that_fails_later_says_why(function: planted.Epochs, reason: str, tmp_path: Path) -> None:
    with competitor(planted.peer(function), tmp_path) as process:  # type: ignore[arg-type]
        assert process.run_epoch().num_examples == 10
        with pytest.raises(WorkerError, match=reason):
            process.run_epoch()


def test_images_of_any_shape_are_counted_where_the_task_names_none(tmp_path: Path) -> None:
    task = Task(str(tmp_path), None, num_photos=4, batch_size=4, num_workers=0, image_shape=None)
    process = CompetitorProcess(planted.peer(planted.small_images), task, WATCHDOG_S)
    try:
        assert process.run_epoch().num_examples == 4
    finally:
        process.end()


@pytest.mark.slow
def test_one_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.hangs), tmp_path, timeout_s=10) as process:  # Its start is in it.
        with pytest.raises(StallError, match=r"^epoch 0 was not over after 10 s$"):
            process.run_epoch()
        assert_all_end(open_pids(read_pids(tmp_path, "hangs")))


def test_one_that_cannot_be_started_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    with (
        competitor(planted.peer(planted.steady), tmp_path) as process,
        pytest.raises(WorkerError, match=r"^its process could not be started: .*No such file"),
    ):
        process.run_epoch()


def test_ending_again_or_before_the_start_does_nothing(tmp_path: Path) -> None:
    with competitor(planted.peer(planted.steady), tmp_path) as process:
        process.end()
        process.run_epoch()
        process.end()
        process.end()
