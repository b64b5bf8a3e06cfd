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

from loaders.feeding import PATIENCE_S, Gate, chunks_of, endless, feeder_threads, in_thread, none_left, rows_of
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
    feeder.add_source("train", fetch, ["x", "y"], 2, num_threads=num_threads)
    feeder.start()
    iteration = iter(feeder.batches("train"))
    for _ in range(2):  # Never the end of the data.
        with pytest.raises(WorkerError, match=rf"^Source 'train', worker \d+:? .*{message}") as raised:
            next(iteration)
    if isinstance(answer, BaseException):
        assert raised.value.__cause__ is answer


@pytest.mark.parametrize("answer", [None, [np.zeros(0)], [np.zeros((2, 0))]])
def test_chunks_that_are_not_rebatched_are_checked_too(feeder: Feeder, answer: Any) -> None:
    feeder.add_source("train", lambda worker, batch_size: answer, ["x"], 2, rebatch=False)
    feeder.start()
    with pytest.raises(WorkerError, match=r"^Source 'train', worker \d+: fetched"):
        next(iter(feeder.batches("train")))


@pytest.mark.parametrize("axes", [1, -2, [0, 2], [5, 0]])
def test_a_batch_axis_that_arrays_do_not_have_is_an_error(feeder: Feeder, axes: Any) -> None:
    feeder.add_source("train", [GOOD], ["x", "y"], 2, batch_axes=axes)
    feeder.start()
    with pytest.raises(WorkerError, match="which has no batch axis"):
        next(iter(feeder.batches("train")))


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
    feeder.add_source("train", [[np.zeros((2, 2))], [second]], ["x"], 4)
    feeder.start()
    with pytest.raises(WorkerError, match=rf"^Source 'train', worker \d+: .*{message}"):
        next(iter(feeder.batches("train")))


def test_our_own_errors_keep_their_type(feeder: Feeder) -> None:
    feeder.add_source("train", raising(CorruptRecordError("file, offset 5")), ["x"], 2)
    feeder.start()
    with pytest.raises(CorruptRecordError, match=r"^Source 'train', worker \d+: file, offset 5$"):
        next(iter(feeder.batches("train")))


class OwnError(TfdsTorchError):
    def __init__(self, code: int, more: str) -> None:
        super().__init__(f"{code} {more}")


def test_an_error_that_cannot_be_built_from_its_message_is_a_worker_error(feeder: Feeder) -> None:
    feeder.add_source("train", raising(OwnError(3, "left")), ["x"], 2)
    feeder.start()
    with pytest.raises(WorkerError, match="failed: OwnError: 3 left"):
        next(iter(feeder.batches("train")))


def test_an_iterable_that_fails_at_its_beginning_is_an_error(feeder: Feeder) -> None:
    class Failing:
        def __iter__(self) -> Any:
            raise OSError("no such file")

    feeder.add_source("train", Failing(), ["x"], 2)
    feeder.start()
    with pytest.raises(WorkerError, match="failed: OSError: no such file"):
        next(iter(feeder.batches("train")))


def test_an_error_comes_at_once_also_where_batches_are_ready_and_loops_wait(feeder: Feeder) -> None:
    gate = Gate()
    feeder.add_source("train", gate, ["x", "y"], 4, num_threads=1)
    feeder.start()
    gate.let(*chunks_of([4] * 3))
    first = iter(feeder.batches("train"))
    assert rows_of([next(first)]) == list(range(4))
    others = [in_thread(lambda: list(feeder.batches("train"))) for _ in range(2)]
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

    feeder.add_source("train", fetch, ["x"], 2, num_threads=2)
    feeder.start()
    with pytest.raises(WorkerError, match="error number 0"):
        next(iter(feeder.batches("train")))
    has_first_error.set()
    assert none_left()
    with pytest.raises(WorkerError, match="error number 0"):
        next(iter(feeder.batches("train")))


def test_a_failed_source_can_be_started_again(feeder: Feeder) -> None:
    answers = iter([None, GOOD])
    feeder.add_source("train", lambda worker, batch_size: next(answers), ["x", "y"], 4, num_threads=1)
    feeder.start()
    with pytest.raises(WorkerError, match="None"):
        next(iter(feeder.batches("train")))
    feeder.start()
    assert rows_of(feeder.batches("train")) == list(range(4))


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
    feeder.add_source("train", [GOOD], ["x", "y"], 2)
    feeder.start()
    with pytest.raises(WorkerError, match=r"^Source 'train': joining the rows of a batch failed: MemoryError"):
        next(iter(feeder.batches("train")))


class PlantedError(Exception):
    pass


def inject(seed: int) -> None:
    """Lets one of some fetchers raise at a random chunk, under several loops: typed, prompt, nothing left."""
    dice = random.Random(seed)
    fatal, num_threads, num_loops = dice.randrange(60), dice.randint(1, 4), dice.randint(1, 3)
    chunks, lock, told = iter(chunks_of([dice.randint(1, 9) for _ in range(200)])), threading.Lock(), []

    def fetch(worker: int, batch_size: int) -> Any:
        with lock:
            told.append(worker)
            if len(told) == fatal + 1:
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
            assert str(raised.value).startswith(f"Source 'train', worker {told[fatal]} failed: PlantedError")
        if dice.random() < 0.5:
            assert none_left()  # Without a stop.
    assert none_left()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("seed", range(3))
def test_a_fetcher_that_raises_anywhere_is_an_error_in_every_loop(seed: int) -> None:
    inject(seed)


@pytest.mark.slow
def test_twenty_fetchers_that_raise_anywhere_are_errors_in_every_loop() -> None:
    for seed in range(100, 120):
        inject(seed)


@pytest.mark.campaign
def test_a_hundred_fetchers_that_raise_anywhere_are_errors_in_every_loop() -> None:
    for seed in range(1000, 1100):
        inject(seed)


# Waiting


def test_a_batch_that_does_not_come_in_time_is_a_stall_error_that_names_who_is_stuck(feeder: Feeder) -> None:
    gate = Gate()
    feeder.add_source("train", gate, ["x", "y"], 4, num_threads=1, timeout_s=0.05)
    feeder.start()
    gate.let(*chunks_of([3]))
    iteration = iter(feeder.batches("train"))
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
            feeder.add_source("train", gate, ["x", "y"], 4, num_threads=1, timeout_s=None)
            feeder.start()
            assert rows_of([next(iter(feeder.batches("train")))]) == list(range(4))
    finally:
        logger.removeHandler(handler)


def test_a_fetcher_that_fails_is_noticed_at_once_without_a_time_limit(feeder: Feeder) -> None:
    gate = Gate()
    feeder.add_source("train", gate, ["x", "y"], 4, num_threads=1, timeout_s=None)
    feeder.start()
    gate.let(ValueError("no such file"))
    with pytest.raises(WorkerError, match=r"^Source 'train', worker \d+ failed: ValueError: no such file"):
        next(iter(feeder.batches("train")))


# Starting and stopping


def test_an_init_that_fails_is_an_error_of_start_and_leaves_nothing_running(feeder: Feeder) -> None:
    told: list[str] = []
    feeder.add_source("train", endless(), ["x", "y"], 4, shutdown=lambda: told.append("train"))
    feeder.add_source("test", endless(), ["x", "y"], 4, init=lambda: 1 / 0, shutdown=lambda: told.append("test"))
    with pytest.raises(WorkerError, match=r"^Source 'test': init failed: ZeroDivisionError: division by zero"):
        feeder.start()
    assert feeder_threads() == []
    assert told == ["train"]


def test_a_shutdown_that_fails_is_reported_by_stop(feeder: Feeder, caplog: pytest.LogCaptureFixture) -> None:
    feeder.add_source("train", endless(), ["x", "y"], 4, shutdown=lambda: 1 / 0)
    feeder.start()
    assert feeder.stop() is False
    assert "source 'train': shutdown failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


def test_stop_names_the_worker_that_does_not_end_and_drops_what_it_brings(caplog: pytest.LogCaptureFixture) -> None:
    gate, told = Gate(), []
    feeder = Feeder(limits=FeedLimits(join_s=0.05))
    feeder.add_source(
        "train", gate, ["x", "y"], 4, num_threads=1, max_buffered_chunks=1, shutdown=lambda: told.append(1)
    )
    feeder.start()
    assert gate.is_waiting.wait(PATIENCE_S)
    assert feeder.stop("train") is False
    assert told == [], "fetch is still under way"
    (worker,) = feeder.metrics()["train"].workers
    assert f"source 'train': worker {worker.worker} did not end and is left behind" in caplog.text
    gate.let(*chunks_of([4], start=100))  # It comes back.
    assert none_left()
    assert feeder.stop("train") is True
    feeder.start()
    gate.let(*chunks_of([4], start=200))
    assert rows_of([next(iter(feeder.batches("train")))]) == list(range(200, 204))
    gate.let(StopIteration())
    feeder.close()
    assert told == [1, 1]
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

    feeder.add_source("train", fetch, ["x"], 4)
    feeder.start()
    waiting = in_thread(loop)
    assert has_begun.wait(PATIENCE_S)
    stopping = in_thread(feeder.stop)
    with pytest.raises(ConfigError, match=r"^Source 'train' was stopped: this iteration has ended"):
        waiting.result()
    may_end.set()
    assert stopping.result() is True


def test_a_fetcher_may_ask_and_stop_its_own_feeder(feeder: Feeder) -> None:
    told: list[Any] = []

    def fetch(worker: int, batch_size: int) -> Any:
        told.append(feeder.metrics()["train"].batches)
        told.append(feeder.stop())
        return GOOD

    feeder.add_source("train", fetch, ["x", "y"], 4, num_threads=1)
    feeder.start()
    assert none_left()
    assert told == [0, True]


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

    feeder.add_source("train", generate(), ["x", "y"], 4)
    feeder.start()
    assert rows_of([next(iter(feeder.batches("train")))]) == list(range(4))
    assert feeder.stop()
    assert len(closed_in) == 1
    assert closed_in[0].startswith("feeder train: worker")


# Ends without a stop


def test_a_dropped_iteration_ends_neither_the_source_nor_other_iterations(feeder: Feeder) -> None:
    feeder.add_source("train", endless(), ["x", "y"], 3)
    feeder.start()
    iteration, other = (iter(feeder.batches("train")) for _ in range(2))
    rows = rows_of([next(iteration)])
    del iteration
    assert rows + rows_of([next(other), next(iter(feeder.batches("train")))]) == list(range(9))


def test_an_iteration_may_be_closed_while_another_thread_waits_in_it(feeder: Feeder) -> None:
    gate = Gate()
    feeder.add_source("train", gate, ["x", "y"], 4, num_threads=1)
    feeder.start()
    iteration = iter(feeder.batches("train"))
    waiting = in_thread(lambda: list(iteration))
    assert gate.is_waiting.wait(PATIENCE_S)
    iteration.close()
    assert waiting.result() == []
    gate.let(StopIteration())


def test_a_loop_may_be_dropped_by_a_thread_that_holds_the_lock(feeder: Feeder) -> None:
    """The garbage collector runs in any thread, at any moment."""
    feeder.add_source("train", chunks_of([1] * 30), ["x", "y"], 2)
    feeder.start()
    iteration = iter(feeder.batches("train"))
    rows = rows_of([next(iteration)])

    def drop() -> None:
        with iteration._run.queue._lock:
            iteration.close()

    in_thread(drop).result()
    assert rows + rows_of(feeder.batches("train")) == list(range(30))


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
        feeder.add_source("train", chunks_of([1] * 30), ["x", "y"], 2, max_buffered_chunks=1)
        feeder.start()
        assert rows_of(feeder.batches("train")) == list(range(30))
        assert feeder.stop()
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
    assert len(asked) >= 2  # The queue was full, and the status at the stop.


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_a_dropped_feeder_ends_its_threads(in_a_cycle: bool) -> None:
    told: list[int] = []
    feeder = Feeder()
    feeder.add_source("train", endless(), ["x", "y"], 4, max_buffered_chunks=2, shutdown=lambda: told.append(1))
    feeder.start()
    next(iter(feeder.batches("train")))
    if in_a_cycle:
        feeder.own = feeder  # type: ignore[attr-defined]
    del feeder
    gc.collect()
    assert none_left()
    assert told == [1]


def test_batches_keep_their_feeder_alive() -> None:
    def begin() -> Any:
        feeder = Feeder()
        feeder.add_source("train", chunks_of([1] * 100), ["x", "y"], 4)
        feeder.start()
        return feeder.batches("train")

    batches = begin()
    gc.collect()
    assert rows_of(batches) == list(range(100))
    del batches
    assert none_left()


def test_an_error_in_the_loop_ends_the_threads() -> None:
    def loop() -> None:
        with Feeder() as feeder:
            feeder.add_source("train", endless(), ["x", "y"], 4)
            feeder.start()
            for _ in feeder.batches("train"):
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
    feeder.add_source("train", endless(), ["x", "y"], 4)
    feeder.start()
    iteration = iter(feeder.batches("train"))
    next(iteration)
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Of newer Pythons: there are threads.
        pid = os.fork()
    if not pid:
        signal.alarm(int(PATIENCE_S))
        texts = []
        for begin in (lambda: next(iteration), lambda: iter(feeder.batches("train"))):
            try:
                begin()
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
