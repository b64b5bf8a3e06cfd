"""What goes wrong in and around a Feeder is a typed error at the loop, at once; and no thread is left."""

import gc
import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from conftest import RunPython

from loaders.feeding import PATIENCE_S, Gate, begin, chunks_of, endless, feeder_threads, in_thread, none_left, rows_of
from tfds_torch import Feeder
from tfds_torch.errors import ConfigError, CorruptRecordError, StallError, TfdsTorchError, WorkerError
from tfds_torch.loaders.feed_options import FeedLimits

GOOD = chunks_of([4])[0]


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    with Feeder() as feeder:
        yield feeder
    assert none_left()


# Fetchers


def raising(error: BaseException) -> Callable[[int, int], Any]:
    def fetch(worker: int, batch_size: int) -> Any:
        raise error

    return fetch


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


HOSTILE = [
    (None, r"fetched None instead of a list of 2 numpy arrays, for x, y\. Raise StopIteration where"),
    ([GOOD[0]], "fetched 1 arrays instead of a list of 2 numpy arrays"),
    ([*GOOD, GOOD[0]], "fetched 3 arrays instead of"),
    ([], "fetched 0 arrays instead of"),
    (GOOD[0], r"fetched an array of dtype int64 and shape \[4\] instead of a list"),
    ((array for array in GOOD), "fetched an object of type generator instead of"),
    ({"x": GOOD[0]}, r"fetched a dictionary of \['x'\] instead of"),
    ({"x": GOOD[0], "y": GOOD[1], "z": GOOD[1]}, r"a dictionary of \['x', 'y', 'z'\] instead of"),
    ([GOOD[0], [1, 2, 3, 4]], "fetched an object of type list for 'y': it must be a numpy array"),
    ([GOOD[0], None], "fetched an object of type NoneType for 'y'"),
    ([GOOD[0], GOOD[1][:3]], r"unequal numbers of rows along batch_axes=\(0, 0\): x 4, y 3"),
    ([GOOD[0][:0], GOOD[1][:0]], "fetched arrays without rows. Raise StopIteration where there is no more data"),
    ([np.array(5), GOOD[1]], r"fetched an array of shape \[\] for 'x', which has no batch axis 0"),
    (ValueError("bad bytes"), "failed: ValueError: bad bytes"),
    (KeyError("x"), "failed: KeyError: 'x'"),
    (UnprintableError(), r"failed: UnprintableError: \(its __str__ failed\)"),
    (SystemExit(0), "failed: SystemExit: 0"),
    (KeyboardInterrupt(), "failed: KeyboardInterrupt"),
    (GeneratorExit(), "failed: GeneratorExit"),
]


@pytest.mark.parametrize(("answer", "message"), HOSTILE, ids=[message[:30] for _, message in HOSTILE])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_whatever_a_fetcher_does_is_an_error_with_source_and_worker(
    feeder: Feeder, answer: Any, message: str, num_threads: int
) -> None:
    fetch = raising(answer) if isinstance(answer, BaseException) else lambda worker, batch_size: answer
    iteration = iter(begin(feeder, fetch, 2, num_threads=num_threads))
    for _ in range(2):  # Never the end of the data.
        with pytest.raises(WorkerError, match=rf"^Source 'train', worker \d+:? .*{message}") as raised:
            next(iteration)
    if isinstance(answer, BaseException):
        assert raised.value.__cause__ is answer


@pytest.mark.parametrize("answer", [None, [np.zeros(0)], [np.zeros((2, 0))]])
def test_chunks_that_are_not_rebatched_are_checked_too(feeder: Feeder, answer: Any) -> None:
    begin(feeder, lambda worker, batch_size: answer, 2, ["x"], rebatch=False)
    with pytest.raises(WorkerError, match=r"^Source 'train', worker \d+: fetched"):
        next(iter(feeder.batches("train")))


@pytest.mark.parametrize("axes", [1, -2, [0, 2], [5, 0]])
def test_a_batch_axis_that_arrays_do_not_have_is_an_error(feeder: Feeder, axes: Any) -> None:
    with pytest.raises(WorkerError, match="which has no batch axis"):
        next(iter(begin(feeder, [GOOD], 2, batch_axes=axes)))


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (np.zeros((2, 3)), r"dtype float64 and shape \[2, 3\] for 'x', where .* dtype <f8 and, .* shape \[2\]"),
        (np.zeros((2, 2), np.float32), r"dtype float32 and shape \[2, 2\] for 'x', where .* dtype <f8"),
        (np.zeros(2), r"shape \[2\] for 'x', where"),
        (np.array([["a", "b"]]), "dtype <U1"),
    ],
)
def test_chunks_that_do_not_fit_together_are_an_error_of_the_fetcher(feeder: Feeder, second: Any, message: str) -> None:
    begin(feeder, [[np.zeros((2, 2))], [second]], 4, ["x"])
    with pytest.raises(WorkerError, match=rf"^Source 'train', worker \d+: .*{message}"):
        next(iter(feeder.batches("train")))


class OwnError(TfdsTorchError):
    """An error that cannot be built from its message."""

    def __init__(self, code: int, more: str) -> None:
        super().__init__(f"{code} {more}")


class FailingIterable:
    def __iter__(self) -> Any:
        raise OSError("no such file")


@pytest.mark.parametrize(
    ("fetch", "kind", "message"),
    [
        (raising(CorruptRecordError("file, offset 5")), CorruptRecordError, "file, offset 5$"),
        (raising(OwnError(3, "left")), WorkerError, "failed: OwnError: 3 left"),
        (FailingIterable(), WorkerError, "failed: OSError: no such file"),
    ],
)
def test_our_own_errors_keep_their_type_and_others_are_named(
    feeder: Feeder, fetch: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=rf"^Source 'train', worker \d+:? {message}"):
        next(iter(begin(feeder, fetch, 2, ["x"])))


def test_an_error_comes_at_once_also_where_batches_are_ready_and_loops_wait(feeder: Feeder) -> None:
    gate = Gate()
    batches = begin(feeder, gate, 4, num_threads=1)
    gate.let(*chunks_of([4] * 3))
    first = iter(batches)
    assert rows_of([next(first)]) == list(range(4))
    others = [in_thread(lambda: list(batches)) for _ in range(2)]
    gate.let(ValueError("bad"))
    for other in others:
        with pytest.raises(WorkerError, match="ValueError: bad"):
            other.result()
    assert none_left()
    with pytest.raises(WorkerError, match="ValueError: bad"):
        list(first)


def test_the_first_error_of_several_fetchers_is_the_one_that_every_loop_gets(feeder: Feeder) -> None:
    numbers, has_second, has_first_error = count(), threading.Event(), threading.Event()

    def fetch(worker: int, batch_size: int) -> Any:
        number = next(numbers)
        if number:
            has_second.set()
        assert (has_first_error if number else has_second).wait(PATIENCE_S)
        raise ValueError(f"error number {number}")

    begin(feeder, fetch, 2, ["x"], num_threads=2)
    with pytest.raises(WorkerError, match="error number 0"):
        next(iter(feeder.batches("train")))
    has_first_error.set()
    assert none_left()
    with pytest.raises(WorkerError, match="error number 0"):
        next(iter(feeder.batches("train")))


def test_a_failed_source_can_be_started_again(feeder: Feeder) -> None:
    answers = iter([None, GOOD])
    batches = begin(feeder, lambda worker, batch_size: next(answers), 4, num_threads=1)
    with pytest.raises(WorkerError, match="None"):
        next(iter(batches))
    feeder.start()
    assert rows_of(batches) == list(range(4))


def test_a_source_that_fails_leaves_the_others_alone(feeder: Feeder) -> None:
    feeder.add_source("train", raising(ValueError()), ["x"], 2)
    feeder.add_source("test", [GOOD], ["x", "y"], 2)
    feeder.start()
    with pytest.raises(WorkerError):
        next(iter(feeder.batches("train")))
    assert rows_of(feeder.batches("test")) == list(range(4))


def test_what_cannot_be_joined_is_an_error(feeder: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*arguments: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("tfds_torch.loaders.feed_run.join_pieces", failing)
    with pytest.raises(WorkerError, match=r"^Source 'train': joining the rows of a batch failed: MemoryError"):
        next(iter(begin(feeder, [GOOD], 2)))


class PlantedError(Exception):
    pass


def inject(seed: int) -> None:
    """Lets one of some fetchers raise at a random chunk, under several loops: typed, prompt, nothing left."""
    dice = random.Random(seed)
    fatal, num_threads, num_loops = dice.randrange(60), dice.randint(1, 4), dice.randint(1, 3)
    chunks, lock, calls = iter(chunks_of([dice.randint(1, 9) for _ in range(200)])), threading.Lock(), []

    def fetch(worker: int, batch_size: int) -> Any:
        with lock:
            calls.append(worker)
            if len(calls) == fatal + 1:
                raise PlantedError(worker)
            return next(chunks)

    began = time.monotonic()
    with Feeder() as feeder:
        feeder.add_source(
            "train", fetch, ["x", "y"], dice.randint(1, 20), num_threads, dice.choice([1, 3, 800]), at_end="cycle"
        )
        feeder.start()
        loops = [in_thread(lambda: rows_of(feeder.batches("train"))) for _ in range(num_loops)]
        for loop in loops:
            with pytest.raises(WorkerError) as raised:
                loop.result()
            assert str(raised.value).startswith(f"Source 'train', worker {calls[fatal]} failed: PlantedError")
        if dice.random() < 0.5:
            assert none_left()  # Without a stop.
    assert none_left()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "seeds",
    [
        range(3),
        pytest.param(range(100, 120), marks=pytest.mark.slow),
        pytest.param(range(1000, 1100), marks=pytest.mark.campaign),
    ],
)
def test_a_fetcher_that_raises_anywhere_is_an_error_in_every_loop(seeds: range) -> None:
    for seed in seeds:
        inject(seed)


# Waiting


def test_a_batch_that_does_not_come_in_time_is_a_stall_error_that_names_who_is_stuck(feeder: Feeder) -> None:
    gate = Gate()
    batches = begin(feeder, gate, 4, num_threads=1, timeout_s=0.05)
    gate.let(*chunks_of([3]))
    iteration = iter(batches)
    with pytest.raises(
        StallError,
        match=r"^Source 'train': no batch came within timeout_s=0.05 s; worker \d+ has been in fetch for \d+ s; 3 "
        r"rows of 4 are there",
    ):
        next(iteration)
    gate.let(*chunks_of([1], start=3), StopIteration())
    while True:  # A loop that is patient gets it all the same.
        try:
            batch = next(iteration)
            break
        except StallError:
            pass
    assert rows_of([batch]) == list(range(4))


def test_a_source_without_a_time_limit_is_waited_for_and_warned_of() -> None:
    gate = Gate()

    class LetThrough(logging.Handler):
        """Lets a chunk through when it was warned twice that there is none."""

        num_warnings = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.num_warnings += "data input is slow: (still) no data" in record.getMessage()
            if self.num_warnings == 2:
                gate.let(*chunks_of([4]), StopIteration())

    logger, handler = logging.getLogger("tfds_torch"), LetThrough()
    logger.addHandler(handler)
    try:
        with Feeder(limits=FeedLimits(slow_s=0.01)) as feeder:
            assert rows_of([next(iter(begin(feeder, gate, 4, num_threads=1, timeout_s=None)))]) == list(range(4))
    finally:
        logger.removeHandler(handler)


def test_a_fetcher_that_fails_is_noticed_at_once_without_a_time_limit(feeder: Feeder) -> None:
    gate = Gate()
    batches = begin(feeder, gate, 4, num_threads=1, timeout_s=None)
    gate.let(ValueError("no such file"))
    with pytest.raises(WorkerError, match=r"^Source 'train', worker \d+ failed: ValueError: no such file"):
        next(iter(batches))


# Starting and stopping


def test_an_init_that_fails_is_an_error_of_start_and_leaves_nothing_running(feeder: Feeder) -> None:
    calls: list[str] = []
    feeder.add_source("train", endless(), ["x", "y"], 4, shutdown=lambda: calls.append("train"))
    feeder.add_source("test", endless(), ["x", "y"], 4, init=lambda: 1 / 0, shutdown=lambda: calls.append("test"))
    with pytest.raises(WorkerError, match=r"^Source 'test': init failed: ZeroDivisionError: division by zero"):
        feeder.start()
    assert feeder_threads() == []
    assert calls == ["train"]


def test_a_shutdown_that_fails_is_reported_by_stop(feeder: Feeder, caplog: pytest.LogCaptureFixture) -> None:
    begin(feeder, endless(), 4, shutdown=lambda: 1 / 0)
    assert feeder.stop() is False
    assert "source 'train': shutdown failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_stop_names_the_worker_that_does_not_end_and_drops_what_it_brings(caplog: pytest.LogCaptureFixture) -> None:
    gate, calls = Gate(), []
    feeder = Feeder(limits=FeedLimits(join_s=0.05))
    batches = begin(feeder, gate, 4, num_threads=1, max_buffered_chunks=1, shutdown=lambda: calls.append(1))
    assert gate.is_waiting.wait(PATIENCE_S)
    assert feeder.stop("train") is False
    assert calls == [], "fetch is still under way"
    (worker,) = feeder.metrics()["train"].workers
    assert f"source 'train': worker {worker.worker} did not end and is left behind" in caplog.text
    gate.let(*chunks_of([4], start=100))  # It comes back.
    assert none_left()
    assert feeder.stop("train") is True
    feeder.start()
    gate.let(*chunks_of([4], start=200))
    assert rows_of([next(iter(batches))]) == list(range(200, 204))
    gate.let(StopIteration())
    feeder.close()
    assert calls == [1, 1]
    assert none_left()


def test_a_loop_that_waits_is_told_that_its_source_was_stopped(feeder: Feeder) -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def fetch(worker: int, batch_size: int) -> Any:
        may_end.wait(PATIENCE_S)
        raise StopIteration

    def loop() -> Any:
        iteration = iter(feeder.batches("train"))
        has_begun.set()
        return next(iteration)

    begin(feeder, fetch, 4, ["x"])
    waiting = in_thread(loop)
    assert has_begun.wait(PATIENCE_S)
    stopping = in_thread(feeder.stop)
    with pytest.raises(ConfigError, match=r"^Source 'train' was stopped: this iteration has ended"):
        waiting.result()
    may_end.set()
    assert stopping.result() is True


def test_a_fetcher_may_ask_and_stop_its_own_feeder(feeder: Feeder) -> None:
    calls: list[Any] = []

    def fetch(worker: int, batch_size: int) -> Any:
        calls.append(feeder.metrics()["train"].batches)
        calls.append(feeder.stop())
        return GOOD

    begin(feeder, fetch, 4, num_threads=1)
    assert none_left()
    assert calls == [0, True]


def test_full_queues_and_waiting_loops_do_not_keep_stop(feeder: Feeder) -> None:
    for name in ("a", "b"):
        feeder.add_source(name, endless(), ["x", "y"], 4, max_buffered_chunks=1)
    feeder.start()
    iterations = [iter(feeder.batches(name)) for name in ("a", "b", "a")]
    for iteration in iterations:
        next(iteration)
    assert feeder.stop()
    assert feeder_threads() == []


def test_a_generator_is_closed_by_the_thread_that_read_it(feeder: Feeder) -> None:
    closed_in = []

    def generate() -> Iterator[Any]:
        try:
            yield from endless()
        finally:
            closed_in.append(threading.current_thread().name)

    assert rows_of([next(iter(begin(feeder, generate(), 4)))]) == list(range(4))
    assert feeder.stop()
    assert len(closed_in) == 1
    assert closed_in[0].startswith("feeder train: worker")


# Ends without a stop


def test_a_dropped_iteration_ends_neither_the_source_nor_other_iterations(feeder: Feeder) -> None:
    batches = begin(feeder, endless(), 3)
    iteration, other = (iter(batches) for _ in range(2))
    rows = rows_of([next(iteration)])
    del iteration
    assert rows + rows_of([next(other), next(iter(batches))]) == list(range(9))


def test_an_iteration_may_be_closed_while_another_thread_waits_in_it(feeder: Feeder) -> None:
    gate = Gate()
    iteration = iter(begin(feeder, gate, 4, num_threads=1))
    waiting = in_thread(lambda: list(iteration))
    assert gate.is_waiting.wait(PATIENCE_S)
    iteration.close()
    assert waiting.result() == []
    gate.let(StopIteration())


def test_a_loop_may_be_dropped_by_a_thread_that_holds_the_lock(feeder: Feeder) -> None:
    """The garbage collector runs in any thread, at any moment."""
    batches = begin(feeder, chunks_of([1] * 30), 2)
    iteration = iter(batches)
    rows = rows_of([next(iteration)])

    def drop() -> None:
        with iteration._run.queue._lock:
            iteration.close()

    in_thread(drop).result()
    assert rows + rows_of(batches) == list(range(30))


def test_a_logging_handler_may_ask_the_feeder(feeder: Feeder) -> None:
    asked = []

    class Asking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            asked.append(in_thread(feeder.metrics).result())  # In another thread: no lock is held meanwhile.

    logger, handler = logging.getLogger("tfds_torch.loaders"), Asking()
    logger.addHandler(handler)
    before = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        assert rows_of(begin(feeder, chunks_of([1] * 30), 2, max_buffered_chunks=1)) == list(range(30))
        assert feeder.stop()
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
    assert len(asked) >= 2  # The queue was full, and the status at the stop.


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_dropped_feeder_ends_its_threads(in_a_cycle: bool) -> None:
    calls: list[int] = []
    feeder = Feeder()
    next(iter(begin(feeder, endless(), 4, max_buffered_chunks=2, shutdown=lambda: calls.append(1))))
    if in_a_cycle:
        feeder.own = feeder
    del feeder
    gc.collect()
    assert none_left()
    assert calls == [1]


def test_batches_keep_their_feeder_alive() -> None:
    batches = begin(Feeder(), chunks_of([1] * 100), 4)
    gc.collect()
    assert rows_of(batches) == list(range(100))
    del batches
    assert none_left()


def test_an_error_in_the_loop_ends_the_threads() -> None:
    def loop() -> None:
        with Feeder() as feeder:
            batches = begin(feeder, endless(), 4)
            for _ in batches:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    assert none_left()


SCRIPT = """
import itertools, sys, threading
import numpy as np
from tfds_torch import Feeder
from tfds_torch.loaders.feed_options import FeedLimits

assert not {"torch", "tensorflow"} & set(sys.modules)
feeder = Feeder(limits=FeedLimits(join_s=0.1))
feeder.add_source("train", ([np.arange(4)] for _ in itertools.count()), ["x"], 3, shutdown=lambda: print("shut down"))
feeder.start()
"""


def test_threads_end_at_exit_and_shutdown_is_called(run_python: RunPython, root: Any) -> None:
    done = run_python("-c", SCRIPT + "next(iter(feeder.batches('train')))", env={"PYTHONPATH": str(root)})
    assert (done.returncode, done.stdout, done.stderr) == (0, "shut down\n", "")


def test_a_stuck_thread_does_not_keep_the_process_alive(run_python: RunPython, root: Any) -> None:
    stuck = """
def fetch(worker, batch_size):
    is_there.set()
    threading.Event().wait()

is_there = threading.Event()
feeder.add_source("stuck", fetch, ["x"], 3)
feeder.start()
is_there.wait()
"""
    done = run_python("-c", SCRIPT + stuck, env={"PYTHONPATH": str(root)})
    assert done.returncode == 0
    assert "source 'stuck': worker 1, worker 2 did not end" in done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_a_loop_that_waits(root: Any) -> None:
    waits = """
feeder.add_source("never", lambda worker, batch_size: threading.Event().wait(), ["x"], 3)
feeder.start()
print("waits", flush=True)
next(iter(feeder.batches("never")))
"""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + waits],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == -signal.SIGINT
    assert stderr.count("KeyboardInterrupt") == 1
    assert "shut down" in stdout


def test_a_forked_process_is_told_that_the_threads_are_not_there() -> None:
    feeder = Feeder()
    batches = begin(feeder, endless(), 4)
    iteration = iter(batches)
    next(iteration)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Of newer Pythons: there are threads.
        pid = os.fork()
    if not pid:
        signal.alarm(int(PATIENCE_S))
        texts = []
        for attempt in (lambda: next(iteration), lambda: iter(batches)):
            try:
                attempt()
            except ConfigError as error:
                texts.append(str(error))
        stopped = feeder.stop()
        del iteration
        os.write(write, f"{len([text for text in texts if 'another process' in text])} {stopped}".encode())
        os._exit(0)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert os.read(read, 100) == b"2 True"
    os.close(read)
    os.close(write)
    assert rows_of([next(iteration)]) == list(range(4, 8))
    assert feeder.stop()
