"""Small datasets for loaders, which need no files and no tensorflow. Importable by every child."""

import os
import signal
import sys
import time
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from tfds_torch.errors import CorruptRecordError

NUM_BATCHES, BATCH_SIZE = 10, 2
Named = namedtuple("Named", ["image", "label"])


class Batches(IterableDataset[Any]):
    """Whole batches of two uint8 images, numbered; each worker has every W-th. `act` is called before each one."""

    def __init__(self, num_batches: int = NUM_BATCHES) -> None:
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for number in range(first, self.num_batches, step):
            self.act(number)
            yield torch.full((BATCH_SIZE, 3, 4, 4), number % 256, dtype=torch.uint8), torch.tensor([number] * 2)

    def act(self, number: int) -> None:
        """Does harm, in subclasses."""


class Gated(Batches):
    """All but the first batch are made when a file is there."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self.gate = gate

    def act(self, number: int) -> None:
        while number and not self.gate.exists():
            time.sleep(0.01)


class Harmed(Batches):
    """Something happens before batch 3 is made, by a worker or without one.

    Args:
        how: `kill`, `segfault`, `exit`, `stop`, `sleep`, `slow`, `slow at the start`, or the name of an error.
        folder: where files tell who did it; it is done once only.
    """

    def __init__(self, how: str, folder: str = "") -> None:
        super().__init__()
        self.how, self.folder = how, folder

    def act(self, number: int) -> None:
        if number == 0 and self.how == "slow at the start":
            time.sleep(0.7)
        if number != 3 or self.how == "slow at the start":
            return
        if self.folder:
            try:
                (Path(self.folder) / "harmed").touch(exist_ok=False)
            except FileExistsError:
                return
        harm(self.how)


def harm(how: str) -> None:
    """Ends or stops this process, or raises."""
    if how in ("kill", "stop", "segfault"):
        names = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segfault": signal.SIGSEGV}
        if how == "stop":
            time.sleep(0.2)  # The thread that sends batches would keep the lock of all workers.
        os.kill(os.getpid(), names[how])
        time.sleep(60)  # A signal may come a moment later.
    elif how == "exit":
        os._exit(0)
    elif how == "sleep":
        time.sleep(3600)
    elif how == "slow":
        time.sleep(0.5)
    else:
        raise_error(how)


class HalfMessage(Batches):
    """Worker 0 dies in the middle of a message: it has sent its length, and a part of it."""

    def act(self, number: int) -> None:
        """Sends the beginning of a message on the pipe of torch's worker loop, and dies."""
        frame = sys._getframe()
        while "data_queue" not in frame.f_locals:
            assert frame.f_back is not None
            frame = frame.f_back
        if number == 0:
            os.write(frame.f_locals["data_queue"]._writer.fileno(), (1000).to_bytes(4, "big") + b"begun")
            os.kill(os.getpid(), signal.SIGKILL)


class TwoArgumentsError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)


def raise_error(name: str) -> None:
    if name == "local":

        class LocalError(Exception):
            def __reduce__(self) -> Any:
                raise TypeError("not to be pickled")

        raise LocalError("only here")
    if name == "two arguments":
        raise TwoArgumentsError("one", "two")
    if name == "nested":
        try:
            raise OSError("the cause")
        except OSError as error:
            raise ValueError("the error") from error
    if name == "ours":
        raise CorruptRecordError("file x, offset 3")
    if name == "key":
        raise KeyError("no such key")
    if name == "stop iteration":
        raise StopIteration
    if name == "tensorflow":
        import tensorflow as tf

        raise tf.errors.DataLossError(None, None, "tensorflow's own")
    raise AssertionError(name)


class Squares(Dataset[Any]):
    """Map-style: i -> i * i, and what `how` says at 7."""

    def __init__(self, num_examples: int = 20, how: str | None = None) -> None:
        self.num_examples, self.how = num_examples, how

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 7 and self.how is not None:
            harm(self.how)
        return torch.tensor(index * index)


class Randoms(Dataset[Any]):
    """Map-style: what the three generators of a process draw."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> list[float]:
        import random

        import numpy as np

        return [random.random(), float(np.random.random()), torch.rand(()).item()]


class Unreadable(Squares):
    """Cannot be unpickled in a worker."""

    def __setstate__(self, state: Any) -> None:
        raise SystemExit(5)


class Everything(IterableDataset[Any]):
    """All of it in every worker."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def nested_batch(rows: Any) -> Any:
    values = torch.stack(rows)
    return {"a": [values, (values, "text")], "b": Named(values, list(range(len(values))))}


def failing_collate(rows: Any) -> Any:
    raise ValueError("cannot be put together")


def unpicklable(rows: Any) -> Any:
    return lambda: rows
