"""Loader over datasets of all kinds: what comes, what is measured, what is refused, and what is left behind."""

import gc
import inspect
import json
import logging
import multiprocessing
import os
import pickle
import random
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.utils.data import Sampler, TensorDataset

from tfds_torch import create_loader
from tfds_torch.errors import ConfigError, CorruptRecordError, WorkerError
from tfds_torch.torch_data import device_copy, foreign
from tfds_torch.torch_data.loader_advice import describe_own_reading
from tfds_torch.torch_data.loader_options import LoaderOptions
from torch_data.fake_cuda import FakeCuda
from torch_data.loader_datasets import (
    BATCH_SIZE,
    NUM_BATCHES,
    Batches,
    Everything,
    Gated,
    Harmed,
    Named,
    Randoms,
    Squares,
    Unreadable,
    failing_collate,
    nested_batch,
    unpicklable,
)

GRACE_S = 20.0
FORKED: dict[str, Any] = {"multiprocessing_context": "fork"}
WORKERS = [
    pytest.param(0, {}, id="no workers"),
    pytest.param(2, FORKED, id="persistent"),
    pytest.param(2, {**FORKED, "persistent_workers": False}, id="2"),
]


def numbers(loader: Any) -> list[int]:
    return [int(image[0, 0, 0, 0]) for image, _ in loader]


def ended(pids: list[int]) -> bool:
    """Whether processes end soon."""
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], GRACE_S)
    return not alive


# What comes


@pytest.mark.parametrize(("num_workers", "arguments"), WORKERS)
def test_batches_of_an_iterable_come_in_order_epoch_after_epoch_also_after_a_break(
    num_workers: int, arguments: dict[str, Any]
) -> None:
    with create_loader(Batches(), num_workers, **arguments) as loader:
        assert numbers(loader) == list(range(NUM_BATCHES))
        for image, _ in loader:
            if image[0, 0, 0, 0] == 3:
                break
        assert numbers(loader) == list(range(NUM_BATCHES))


@pytest.mark.parametrize("timeout_s", [None, 60.0])
def test_a_map_style_dataset_comes_in_batches_of_the_size_asked_for(timeout_s: float | None) -> None:
    loader = create_loader(Squares(7), batch_size=3, timeout_s=timeout_s)
    assert [batch.tolist() for batch in loader] == [[0, 1, 4], [9, 16, 25], [36]]
    assert len(loader) == 3
    assert loader.batch_size == 3
    dropping = create_loader(Squares(7), batch_size=3, drop_last=True, timeout_s=timeout_s)
    assert [len(batch) for batch in dropping] == [3, 3]
    assert len(dropping) == 2
    assert [item.item() for item in create_loader(Squares(4), timeout_s=timeout_s)] == [0, 1, 4, 9]


class Backwards(Sampler[int]):
    def __init__(self) -> None:
        self.epochs: list[int] = []

    def __iter__(self) -> Any:
        return iter([5, 3, 1])

    def __len__(self) -> int:
        return 3

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def test_a_sampler_is_the_order_and_gets_the_epoch() -> None:
    sampler = Backwards()
    loader = create_loader(Squares(), 1, batch_size=2, sampler=sampler, **FORKED)
    assert [batch.tolist() for batch in loader] == [[25, 9], [1]]
    loader.set_epoch(4)
    assert sampler.epochs == [4]
    loader.close()


def test_shuffling_depends_on_the_seed_and_the_epoch() -> None:
    def epochs(seed: int) -> list[list[int]]:
        loader = create_loader(Squares(), batch_size=20, shuffle=True, seed=seed)
        return [next(iter(loader)).tolist() for _ in range(2)]

    assert epochs(1) == epochs(1)
    assert epochs(1) != epochs(2)
    assert epochs(1)[0] != epochs(1)[1]


def test_an_iterable_without_a_length_has_none() -> None:
    with pytest.raises(TypeError, match="has no len"):
        len(create_loader(Batches()))


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(("num_workers", "arguments"), WORKERS)
def test_nested_batches_keep_their_structure(num_workers: int, arguments: dict[str, Any], device: str | None) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The training process reads", UserWarning)
        loader = create_loader(Squares(2), num_workers, device, batch_size=2, collate_fn=nested_batch, **arguments)
    (batch,) = loader
    assert batch["a"][0].tolist() == batch["a"][1][0].tolist() == [0, 1]
    assert batch["a"][1][1] == "text"
    assert isinstance(batch["b"], Named)
    assert batch["b"].label == [0, 1]
    loader.close()


def test_images_are_normalised_where_mean_and_std_are_given() -> None:
    loader = create_loader(Batches(2), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    images = [image for image, _ in loader]
    assert [image.dtype for image in images] == [torch.float32] * 2
    torch.testing.assert_close(images[1], torch.full((2, 3, 4, 4), (1 / 255 - 0.5) / 0.5))


# Seeds


def draws(seed: int | None, epochs: int = 1) -> list[Any]:
    with create_loader(Randoms(), 2, seed=seed, persistent_workers=False, **FORKED) as loader:
        return [list(loader) for _ in range(epochs)]


def test_the_generators_of_workers_depend_on_seed_worker_and_epoch() -> None:
    first, second = draws(5, 2)
    assert [first, second] == draws(5, 2)
    assert first != second
    assert draws(6) != [first]
    columns = list(zip(*(value for value in first), strict=True))
    assert all(len(set(column)) == len(column) for column in columns), "two workers draw the same"


def test_the_training_process_keeps_its_generators() -> None:
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    state = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()  # type: ignore[index]
    with create_loader(Batches(), 2, seed=3, **FORKED) as loader:
        assert len(list(loader)) == NUM_BATCHES
    assert len(list(create_loader(Batches(), seed=3))) == NUM_BATCHES
    assert state == (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist())  # type: ignore[index]


# Processes


def test_persistent_workers_live_until_close_and_others_until_the_end_of_an_epoch() -> None:
    with create_loader(Batches(), 2, **FORKED) as loader:
        assert loader.worker_pids == []
        pids = []
        for _ in range(2):
            assert len(numbers(loader)) == NUM_BATCHES
            pids.append(loader.worker_pids)
        assert pids[0] == pids[1]
        assert len(pids[0]) == 2
    assert ended(pids[0])
    loader.close()
    with pytest.raises(ConfigError, match="This Loader is closed: make a new one"):
        iter(loader)


@pytest.mark.parametrize(
    ("way", "persistent"),
    [
        *(("drop", False), ("break", True), ("error in the loop", False)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("drop", True), ("break", False), ("error in the loop", True))
        ),
    ],
)
def test_an_iteration_that_is_given_up_leaves_no_process(way: str, persistent: bool) -> None:
    loader = create_loader(Harmed("sleep"), 2, persistent_workers=persistent, **FORKED)  # Worker 1 is busy for ever.
    pids = []
    if way == "drop":
        iteration = iter(loader)
        next(iteration)
        pids = loader.worker_pids
        del iteration
    try:
        for _ in loader if way != "drop" else ():
            pids = loader.worker_pids
            if way == "break":
                break
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    if persistent:
        assert loader.worker_pids == pids
        del loader
    gc.collect()
    assert len(pids) == 2
    assert ended(pids)


def test_a_loader_without_references_lives_as_long_as_its_iteration() -> None:
    iteration = iter(create_loader(Batches(), 1, **FORKED))
    gc.collect()
    assert len(list(iteration)) == NUM_BATCHES


def test_a_second_iteration_ends_the_first() -> None:
    loader = create_loader(Batches())
    first = iter(loader)
    next(first)
    assert numbers(loader) == list(range(NUM_BATCHES))
    with pytest.raises(ConfigError, match="This iteration ended when another one of the same loader began"):
        next(first)


def test_an_iteration_that_has_ended_stays_at_its_end() -> None:
    iteration = iter(create_loader(Batches(1)))
    assert len(list(iteration)) == 1
    assert list(iteration) == []


def test_a_worker_that_dies_while_the_loop_is_at_work_does_not_interrupt_it() -> None:
    with create_loader(Batches(1000), 2, **FORKED) as loader:
        iteration = iter(loader)
        next(iteration)
        pid = loader.worker_pids[1]
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # torch's own handler would raise here.
        with pytest.raises(WorkerError, match=rf"^Worker 1 \(pid {pid}\) was killed by SIGKILL \(out of memory\?\)"):
            list(iteration)


@pytest.mark.slow
def test_a_fork_that_reads_a_loader_too_leaves_its_workers_alone() -> None:
    with create_loader(Batches(), 2, **FORKED) as loader:
        numbers = [batch[1].tolist() for batch in loader]
        process = multiprocessing.get_context("fork").Process(target=list, args=(loader,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert [batch[1].tolist() for batch in loader] == numbers


class Complaining(Batches):
    """Says why before it ends."""

    def act(self, number: int) -> None:
        if number == 3:
            print("cannot reach the license server", file=sys.stderr)
            os._exit(3)


def test_a_worker_error_carries_what_the_worker_wrote_last() -> None:
    with create_loader(Complaining(), 2, **FORKED) as loader, pytest.raises(WorkerError) as caught:
        list(loader)
    assert str(caught.value).endswith(
        "The last that worker 1 wrote to standard error:\ncannot reach the license server"
    )


@pytest.mark.slow
def test_a_worker_that_cannot_start_is_a_worker_error() -> None:
    with (
        create_loader(Unreadable(), 1, multiprocessing_context="spawn") as loader,
        pytest.raises(WorkerError, match=r"Worker 0 \(pid \d+\) ended with exit code 5 before it had begun: what it"),
    ):
        list(loader)


def test_a_copy_of_a_loader_has_processes_of_its_own() -> None:
    with create_loader(Batches(), 1, log_every=3, **FORKED) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as copy:
            assert replace(copy.options, dataset=loader.dataset) == loader.options
            assert numbers(copy) == list(range(NUM_BATCHES))
            assert copy.worker_pids != loader.worker_pids


# Errors of the dataset


@pytest.mark.parametrize(("num_workers", "arguments"), WORKERS)
def test_errors_of_our_own_arrive_as_they_are(num_workers: int, arguments: dict[str, Any]) -> None:
    loader = create_loader(Harmed("ours"), num_workers, **arguments)
    with pytest.raises(CorruptRecordError, match=r"^file x, offset 3$") as caught:
        numbers(loader)
    if num_workers:
        assert "in raise_error" in str(caught.value.__cause__)
        assert re.search(r"Raised in worker 1 \(pid \d+\)", str(caught.value.__cause__))
    assert loader.worker_pids == []


EXPECTED: dict[str, tuple[type[Exception], list[str]]] = {
    "nested": (ValueError, ["the error", "OSError: the cause", "direct cause"]),
    "local": (WorkerError, ["LocalError", "only here", "in raise_error"]),
    "two arguments": (WorkerError, ["TwoArgumentsError", "('one', 'two')", "in raise_error"]),
    "key": (KeyError, ["'no such key'", "\n", "in raise_error"]),
}


@pytest.mark.parametrize("kind", ["iterable", "map"])
@pytest.mark.parametrize("name", EXPECTED)
def test_other_errors_of_workers_arrive_with_their_traceback(name: str, kind: str) -> None:
    dataset: Any = Harmed(name) if kind == "iterable" else Squares(how=name)
    expected, texts = EXPECTED[name]
    with (
        create_loader(dataset, 2, batch_size=None if kind == "iterable" else 3, **FORKED) as loader,
        pytest.raises(expected) as caught,
    ):
        list(loader)
    for text in (*texts, "Raised in worker "):
        assert text in str(caught.value)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_stop_iteration_of_a_map_style_dataset_is_not_the_end(num_workers: int) -> None:
    arguments = FORKED if num_workers else {}
    with (
        create_loader(Squares(how="stop iteration"), num_workers, batch_size=2, **arguments) as loader,
        pytest.raises(WorkerError, match="StopIteration"),
    ):
        list(loader)


def test_an_error_in_the_last_short_batch_is_raised_also_where_that_is_dropped() -> None:
    class Short(Everything):
        def __iter__(self) -> Any:
            yield from range(4)
            raise ValueError("in the tail")

    with (
        create_loader(Short(), 1, batch_size=3, drop_last=True, **FORKED) as loader,
        pytest.raises(ValueError, match="in the tail"),
    ):
        list(loader)


def test_errors_of_collate_and_of_worker_init_fn_arrive_with_their_traceback() -> None:
    with (
        create_loader(Squares(), 1, batch_size=2, collate_fn=failing_collate, **FORKED) as loader,
        pytest.raises(ValueError, match="cannot be put together") as caught,
    ):
        list(loader)
    assert "in failing_collate" in str(caught.value)

    def fail(worker: int) -> None:
        raise ZeroDivisionError(f"worker {worker}")

    with (
        create_loader(Squares(), 1, batch_size=2, worker_init_fn=fail, **FORKED) as loader,
        pytest.raises(WorkerError, match=r"(?s)worker_init_fn failed in worker 0 .*ZeroDivisionError"),
    ):
        list(loader)


def test_a_batch_that_cannot_be_pickled_is_an_error_and_no_hang() -> None:
    with (
        create_loader(Squares(), 1, batch_size=2, collate_fn=unpicklable, **FORKED) as loader,
        pytest.raises((AttributeError, WorkerError, TypeError), match=r"unpicklable\.<locals>\.<lambda>"),
    ):
        list(loader)


def test_a_loader_goes_on_after_an_error() -> None:
    with create_loader(Squares(how="key"), 2, batch_size=5, **FORKED) as loader:
        for _ in range(2):
            with pytest.raises(KeyError):
                list(loader)


def test_worker_info_shows_the_users_dataset() -> None:
    dataset = Squares(4)

    def check(worker: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        assert type(info.dataset) is Squares
        info.dataset.num_examples = 100 + worker

    with create_loader(dataset, 1, batch_size=2, worker_init_fn=check, **FORKED) as loader:
        assert len(list(loader)) == 2


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": -1}, "num_workers=-1 must be an integer in 0..1024 or 'auto'."),
        ({"num_workers": 5000}, "num_workers=5000 must be an integer in 0..1024 or 'auto'."),
        ({"num_workers": "many"}, "num_workers='many' must be an integer in 0..1024 or 'auto'."),
        ({"num_workers": True}, "num_workers=True must be"),
        ({"prefetch_batches": 0}, "prefetch_batches=0 must be an integer in 1..1024."),
        ({"batch_size": 0}, "batch_size=0 must be an integer >= 1."),
        ({"log_every": 0}, "log_every=0 must be an integer >= 1."),
        ({"seed": -1}, "seed=-1 must be an integer >= 0."),
        ({"multiprocessing_context": 3}, "multiprocessing_context=3 must be one of 'fork'"),
        ({"sampler": 3}, "sampler=3 must be a Sampler, or other indices in order."),
        ({"timeout_s": 0}, "timeout_s=0 must be a number of seconds > 0, or None (for ever)."),
        ({"timeout_s": float("nan")}, "timeout_s=nan must be a number"),
        ({"timeout_s": "5"}, "timeout_s='5' must be a number"),
        ({"shuffle": 1}, "shuffle=1 must be True or False."),
        ({"collate_fn": 3}, "collate_fn=3 must be a function, or None, or 'list'."),
        ({"sampler": [1], "shuffle": True}, "sampler= and shuffle=True exclude each other"),
        ({"drop_last": True}, "drop_last=True needs batch_size"),
        ({"multiprocessing_context": "thread"}, "multiprocessing_context='thread' must be one of 'fork', 'spawn'"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"mean": (0.5,), "std": (0.5, 0.5, 0.5)}, "mean"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_loader(Squares(), **arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        *("batch_size", "dataset", "num_workers", "sampler", "batch_sampler", "drop_last", "shuffle", "collate_fn"),
        *("device", "seed", "timeout_s", "persistent_workers", "pin_memory", "generator", "options"),
    ],
)
def test_an_assignment_that_would_have_no_effect_is_an_error(name: str) -> None:
    loader = create_loader(range(4), batch_size=2)
    with pytest.raises(ConfigError, match=rf"^Loader\.{name} cannot be set.* Make a new one, with {name}=7\.$"):
        setattr(loader, name, 7)
    loader.mixup_enabled = False  # A name of the user's own.
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]


def read_in_a_daemon(sender: Any, num_workers: int | str, arguments: dict[str, Any], method: str | None) -> None:
    try:
        loader = create_loader(list(range(4)), num_workers, batch_size=2, multiprocessing_context=method, **arguments)
        sender.send([loader.num_workers, *(batch.tolist() for batch in loader)])
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


@pytest.mark.parametrize("arguments", [{}, {"collate_fn": torch.tensor}], ids=["planned", "torch's"])
@pytest.mark.parametrize("num_workers", [0, "auto", 1])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_daemon_reads_without_workers_and_is_told_so(
    arguments: dict[str, Any], num_workers: int | str, method: str
) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    daemon = context.Process(
        target=read_in_a_daemon, args=(sender, num_workers, arguments, method), daemon=True, name="a trial"
    )
    daemon.start()
    said = receiver.recv()
    daemon.join()
    if num_workers == 1:
        assert said.startswith("ConfigError: Workers cannot be started: this process, a trial, is a daemon")
        assert "num_workers=0" in said
        assert "daemon=False" in said
    else:
        assert said == [0, [0, 1], [2, 3]]


def test_options_that_do_not_fit_a_dataset_are_refused() -> None:
    with pytest.raises(ConfigError, match="Batches is an iterable, which has an order of its own"):
        create_loader(Batches(), shuffle=True)
    with pytest.raises(ConfigError, match="create_loader: the class Batches is not a dataset"):
        create_loader(Batches)
    with pytest.raises(ConfigError, match="object is not a dataset: it must be an ImageDataset"):
        create_loader(object())
    with pytest.raises(ConfigError, match=r"^set_epoch: epoch=-1 must be an integer >= 0"):
        create_loader(Squares()).set_epoch(-1)


def test_a_state_needs_a_plan() -> None:
    loader = create_loader(TensorDataset(torch.arange(3)))
    for call in (loader.state_dict, lambda: loader.load_state_dict({})):
        with pytest.raises(
            ConfigError, match=r"A Loader has a state over an ImageDataset, and over .*: TensorDataset does"
        ):
            call()


# Warnings


def test_an_iterable_that_every_worker_reads_whole_is_warned_of_when_its_items_have_come() -> None:
    with create_loader(Everything(), 2, **FORKED) as loader:
        with pytest.warns(
            UserWarning, match=r"Workers 0 and 1 began with the same 3 items of Everything: .*get_worker"
        ):
            assert len(list(loader)) == 8
        assert len(list(loader)) == 8  # Without a second warning, which would be an error here.
    with create_loader(Everything(), 1, multiprocessing_context="fork") as loader:
        assert len(list(loader)) == 4


def test_items_that_come_once_are_not_warned_of() -> None:
    with create_loader(Batches(), 2, **FORKED) as loader:
        assert len(list(loader)) > 3


def test_a_training_process_that_would_read_by_itself_for_a_device_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="The training process reads Squares for itself, between its steps"):
        create_loader(Squares(), device="cpu")
    for device, num_workers, dataset in ((None, 0, Squares()), ("cpu", 1, Squares()), ("cpu", 0, {1, 2})):
        assert describe_own_reading(LoaderOptions(dataset, device=device), num_workers) is None


def test_workers_that_need_more_memory_than_there_is_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from tfds_torch.runtime.limits import MemoryLimit
    from tfds_torch.torch_data import loader_advice

    monkeypatch.setattr(loader_advice, "available_bytes", lambda: 2**30)
    monkeypatch.setattr(loader_advice, "memory_limit", lambda: MemoryLimit(2**31, "the container's limit, memory.max"))
    with pytest.warns(UserWarning, match="workers will take about") as caught:
        create_loader(Squares(), 8)
    (warning,) = caught
    assert str(warning.message).startswith("8 workers will take about 1.95 GiB of memory: 0.244 GiB each (")
    assert "1 GiB are free of 2 GiB (the container's limit, memory.max)." in str(warning.message)
    assert warning.filename == __file__
    create_loader(Squares(), 2)
    create_loader(Squares(), 0)


def test_auto_reports_its_choice_and_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tfds_torch"):
        loader = create_loader(Squares(), "auto", batch_size=2)
    assert isinstance(loader.num_workers, int)
    assert loader.num_workers_reason in caplog.text
    assert "core" in loader.num_workers_reason
    assert create_loader(Squares(), 3).num_workers_reason == "num_workers=3 was asked for."


# Stats


@pytest.mark.parametrize(
    ("num_workers", "arguments"), [*WORKERS[:2], pytest.param(*WORKERS[2].values, id="2", marks=pytest.mark.slow)]
)
def test_stats_count_what_was_delivered_and_say_where_the_time_went(
    num_workers: int, arguments: dict[str, Any]
) -> None:
    loader = create_loader(Harmed("slow"), num_workers, **arguments)
    assert loader.stats().batches == 0
    assert loader.stats().examples_per_s == 0
    for _ in range(2):
        numbers(loader)
    stats = loader.stats()
    assert (stats.batches, stats.examples) == (2 * NUM_BATCHES, 2 * NUM_BATCHES * BATCH_SIZE)
    assert stats.fetch_s >= 1.0, "two sleeps of half a second"
    assert stats.waiting_s > 0
    assert stats.consumer_s > 0
    assert stats.examples_per_s == pytest.approx(stats.examples / (stats.waiting_s + stats.consumer_s))
    assert stats.replaced == 0
    assert [worker.worker for worker in stats.workers] == list(range(num_workers))
    if num_workers and arguments.get("persistent_workers", True):
        assert [worker.pid for worker in stats.workers] == loader.worker_pids
        assert sum(worker.batches for worker in stats.workers) == stats.batches
        assert sum(worker.fetch_s for worker in stats.workers) == pytest.approx(stats.fetch_s)
    assert all(worker.pid != os.getpid() for worker in stats.workers)
    assert json.loads(json.dumps(stats.to_dict()))["examples"] == stats.examples
    loader.close()
    assert loader.stats().examples == stats.examples


class Growing(Batches):
    """Batch n has n + 1 examples. Counts those that this process has made."""

    num_made = 0

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.num_batches):
            self.num_made += 1
            yield torch.full((number + 1, 3, 4, 4), number, dtype=torch.uint8), torch.zeros(number + 1)


@pytest.mark.filterwarnings("ignore:The training process reads Growing for itself")
@pytest.mark.parametrize(("num_workers", "arguments"), [(0, {}), (1, FORKED)], ids=["no workers", "a worker"])
def test_examples_of_batches_ahead_on_the_device_are_counted_when_they_are_delivered(
    num_workers: int, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    device_copy._copy_stream.cache_clear()
    dataset = Growing(6)
    with create_loader(dataset, num_workers, device="cuda:0", **arguments) as loader:
        for images, _ in loader:
            if len(images) == 3:
                break
        assert num_workers or dataset.num_made == 5, "two batches are ahead on the device"
        assert (loader.stats().batches, loader.stats().examples) == (3, 1 + 2 + 3)
        assert [len(images) for images, _ in loader] == [1, 2, 3, 4, 5, 6]
        assert (loader.stats().batches, loader.stats().examples) == (3 + 6, 6 + 21)
    device_copy._copy_stream.cache_clear()


def test_the_copy_to_a_device_is_measured() -> None:
    loader = create_loader(Batches(), mean=(0.0, 0.0, 0.0))
    assert len(list(loader)) == NUM_BATCHES
    assert loader.stats().device_copy_s > 0


def test_a_line_names_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tfds_torch"), create_loader(Batches(), 2, log_every=4, **FORKED) as loader:
        iteration = iter(loader)
        pids = loader.worker_pids
        assert len(list(iteration)) == NUM_BATCHES
    lines = [record.getMessage() for record in caplog.records if "examples/s" in record.getMessage()]
    assert len(lines) == NUM_BATCHES // 4
    assert all(line.endswith(f"; workers' pids {pids[0]}, {pids[1]}") for line in lines)


class GatedFromTheStart(Gated):
    """No batch is made before a file is there."""

    def act(self, number: int) -> None:
        super().act(number + 1)


def test_workers_that_take_long_to_start_are_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Opening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            (tmp_path / "gate").touch()

    monkeypatch.setattr(foreign, "_SLOW_START_S", 0.0)
    logger, opening = logging.getLogger("tfds_torch"), Opening()
    logger.addHandler(opening)
    try:
        dataset = GatedFromTheStart(tmp_path / "gate")
        with caplog.at_level(logging.INFO, "tfds_torch"), create_loader(dataset, 1, timeout_s=60, **FORKED) as loader:
            assert numbers(loader) == numbers(loader) == list(range(NUM_BATCHES))
    finally:
        logger.removeHandler(opening)
    assert [record.getMessage() for record in caplog.records] == [
        "GatedFromTheStart: no batch after 0 s yet: 1 of 1 workers have begun to read."
    ]


def test_a_line_is_logged_every_n_batches(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tfds_torch"):
        numbers(create_loader(Batches(), log_every=4))
    lines = [record.getMessage() for record in caplog.records]
    assert [line.partition(" examples")[0] for line in lines] == ["Batches: 4 batches, 8", "Batches: 8 batches, 16"]
    assert "waiting" in lines[0]


def test_lines_are_counted_over_short_epochs(caplog: pytest.LogCaptureFixture) -> None:
    loader = create_loader(Batches(), log_every=2 * NUM_BATCHES + 1)
    with caplog.at_level(logging.INFO, "tfds_torch"):
        for _ in range(3):
            assert len(numbers(loader)) == NUM_BATCHES
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"Batches: {2 * NUM_BATCHES + 1} batches")


def test_create_loader_has_the_designed_parameters() -> None:
    parameters = inspect.signature(create_loader).parameters.values()
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        ("dataset", inspect.Parameter.empty),
        ("num_workers", 0),
        ("device", None),
        ("mean", None),
        ("std", None),
        ("dtype", None),
        ("prefetch_batches", 2),
        ("timeout_s", 300.0),
    ]
    assert "log_every: batches after which a line" in (create_loader.__doc__ or "")
