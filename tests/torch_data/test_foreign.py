"""ForeignReader: what it makes of torch's loader; test_loader*.py show what comes out of a Loader."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any

import psutil
import pytest
import torch
from torch.utils.data import DataLoader

from tfds_torch import create_loader
from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.torch_data import foreign
from tfds_torch.torch_data.foreign import ForeignReader
from tfds_torch.torch_data.loader_options import LoaderOptions
from torch_data.loader_datasets import NUM_BATCHES, Batches, Harmed, Squares

FORKED: dict[str, Any] = {"multiprocessing_context": "fork"}
GRACE_S = 30.0


def make_reader(dataset: Any, num_workers: int = 2, **options: Any) -> ForeignReader:
    return ForeignReader(LoaderOptions(dataset, num_workers, **FORKED, **options), num_workers)


@pytest.fixture
def handler_of_children() -> Iterator[Any]:
    """What is called when a child ends; afterwards, as before."""
    before = signal.getsignal(signal.SIGCHLD)
    yield before
    signal.signal(signal.SIGCHLD, before)


# Its place among the readers of a Loader


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_batch_comes_with_the_number_of_its_examples(num_workers: int) -> None:
    reader = make_reader(Squares(5), num_workers, batch_size=2)
    for _ in range(2):
        assert [(found.batch.tolist(), found.num_examples) for found in reader.begin()] == [
            ([0, 1], 2),
            ([4, 9], 2),
            ([16], 1),
        ]
        assert reader.is_usable
    assert len(reader.pids) == num_workers
    reader.close()
    assert (reader.pids, reader.is_usable) == ([], False)
    with pytest.raises(WorkerError, match="This loader's processes have ended"):
        reader.begin()


def test_workers_that_do_not_persist_read_one_iteration() -> None:
    reader = make_reader(Batches(), persistent_workers=False)
    assert len(list(reader.begin())) == NUM_BATCHES
    assert not reader.is_usable
    reader.close()


def test_the_numbers_of_workers_are_those_of_their_pids() -> None:
    reader = make_reader(Batches(), 3)
    list(reader.begin())
    assert [reader.metrics.pid(worker) for worker in range(3)] == reader.pids
    reader.close()


# Workers that die, and torch's handler of signals


def test_persistent_workers_that_died_between_epochs_are_replaced() -> None:
    with create_loader(Batches(), 2, **FORKED) as loader:
        assert len(list(loader)) == NUM_BATCHES
        pids = loader.worker_pids
        os.kill(pids[0], signal.SIGKILL)
        os.waitid(os.P_PID, pids[0], os.WEXITED | os.WNOWAIT)
        assert len(list(loader)) == NUM_BATCHES
        assert not set(pids) & set(loader.worker_pids)
    assert psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], GRACE_S)[1] == []


def kill_and_wait(worker: BaseProcess) -> None:
    """Waits for the error, wherever that is raised."""
    worker.kill()
    while True:
        time.sleep(0.01)


def test_torch_still_reports_workers_of_other_loaders(handler_of_children: Any) -> None:
    """In the way of torch: by an error wherever the main thread is."""
    reader = make_reader(Batches())  # From here on, torch's handler is silent about our workers.
    ours = multiprocessing.active_children()
    other = iter(DataLoader(Harmed("sleep"), None, num_workers=1, multiprocessing_context="fork"))
    next(other)
    (worker,) = set(multiprocessing.active_children()) - set(ours)
    with pytest.raises(RuntimeError, match=rf"DataLoader worker \(pid {worker.pid}\) is killed by signal: Killed"):
        kill_and_wait(worker)
    del other
    reader.close()


def test_a_handler_of_the_users_is_called_for_other_children(handler_of_children: Any) -> None:
    called: list[int] = []
    signal.signal(signal.SIGCHLD, lambda number, frame: called.append(number))
    foreign.silence_torch()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    while not called:
        time.sleep(0.01)
    assert called == [signal.SIGCHLD]


# Forked processes


def in_fork(act: Callable[[], Any]) -> Any:
    """Returns what a function returns in a fork, which then exits as programs do: by multiprocessing's handler."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(sending, json.dumps(act()).encode())
            import multiprocessing.util

            multiprocessing.util._exit_function()
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def test_a_fork_that_goes_on_with_an_iteration_gets_an_error_and_the_parent_loses_nothing() -> None:
    with create_loader(Batches(), 2, **FORKED) as loader:
        iteration = iter(loader)
        came = [int(next(iteration)[1][0]) for _ in range(3)]

        def go_on() -> str:
            try:
                next(iteration)
            except ConfigError as error:
                return str(error)
            return "nothing was raised"

        assert f"This iteration belongs to the process that began it (pid {os.getpid()})" in in_fork(go_on)
        assert came + [int(labels[0]) for _, labels in iteration] == list(range(NUM_BATCHES))


def test_a_fork_that_drops_or_closes_a_loader_leaves_the_workers_to_the_parent() -> None:
    loader = create_loader(Batches(), 2, **FORKED)
    iteration = iter(loader)
    first = int(next(iteration)[1][0])
    held = {"loader": loader}
    del loader

    def drop() -> bool:
        held.pop("loader").close()
        return True

    assert in_fork(drop)
    assert [first] + [int(labels[0]) for _, labels in iteration] == list(range(NUM_BATCHES))
    held["loader"].close()


# Closing


class Asking(Batches):
    """Its worker sends its parent a signal, and makes no more batches."""

    def act(self, number: int) -> None:
        if number == 1:
            os.kill(os.getppid(), signal.SIGUSR1)
            time.sleep(3600)


@pytest.mark.slow
def test_a_loader_that_a_signal_handler_closes_ends_the_waiting() -> None:
    loader = create_loader(Asking(), 1, timeout_s=None, **FORKED)
    before = signal.signal(signal.SIGUSR1, lambda number, frame: loader.close())
    try:
        iteration = iter(loader)
        next(iteration)
        pids = loader.worker_pids
        with pytest.raises(ConfigError, match="closed"):
            next(iteration)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not any(map(psutil.pid_exists, pids))


# Seeds


@pytest.mark.parametrize("num_workers", [0, 2])
def test_orders_go_on_from_iteration_to_iteration_and_are_those_of_the_seed(num_workers: int) -> None:
    def epochs() -> list[Any]:
        with create_loader(Squares(), num_workers, batch_size=20, shuffle=True, seed=5, **FORKED) as loader:
            return [torch.cat(list(loader)).tolist() for _ in range(2)]

    first, second = epochs()
    assert first != second
    assert epochs() == [first, second]
