"""The main function of a competitor's process: it loads the competitor, and runs an epoch for each command.

The process has a group of its own, so that all its processes can be stopped, continued and ended together. The group
ends with the runner, also after SIGKILL: a running group sees the end of the pipe; the system hangs up and continues a
stopped one, because it is an orphan then (unless the adopting process belongs to the same session, as may a container's
first process may).
"""

import importlib
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.task import FFCV_INSTALL, Task

try:
    from tfds_torch.runtime.metrics import EpochTimer
except ModuleNotFoundError:  # This file runs beside older revisions of the package, too.
    EpochTimer = importlib.import_module("tfds_torch.runtime.epoch_times").EpochTimer  # type: ignore[misc]

Epochs = Callable[[int], Iterable[Any]]


class _Epoch:
    """An epoch that asks its loader for an iterator when it is iterated: that belongs to the epoch's time."""

    def __init__(self, batches_of: Epochs, number: int) -> None:
        self._batches_of = batches_of
        self._number = number

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches_of(self._number))


def serve(descriptor: int, loader: str, task: dict[str, Any]) -> None:
    """Runs epochs until the pipe ends; the reply to each command is a dictionary of figures, or an error."""
    connection = Connection(descriptor)
    commands: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, commands), daemon=True).start()
    try:
        module, _, function = loader.partition(":")
        work = Task(**task)
        batches_of = getattr(importlib.import_module(module), function)(work)
        timer = EpochTimer()
        while True:
            epoch = commands.get()
            connection.send(_run_epoch(batches_of, epoch, timer, work.image_shape))
    except BaseException as error:
        traceback.print_exc()
        connection.send({"error": _describe(error)})
        commands.get()  # The runner has the last word: it ends the whole group.


def _receive(connection: Connection, commands: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            commands.put(connection.recv())
    except (EOFError, OSError):
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _run_epoch(batches_of: Epochs, epoch: int, timer: EpochTimer, image_shape: Sequence[int] | None) -> dict[str, Any]:
    num_examples = 0
    first_batch_at = None
    for images in timer.time(_Epoch(batches_of, epoch)):
        if first_batch_at is None:
            first_batch_at = time.monotonic()  # Comparable between processes; the runner knows when this one began.
        if image_shape is not None:
            _check_images(images, image_shape)
        num_examples += len(images)
    if not num_examples:
        raise ValueError(f"no batch came in epoch {epoch}")
    report = batches_of.report() if hasattr(batches_of, "report") else {}
    times = asdict(timer.epochs[-1])
    return {"times": times, "num_examples": num_examples, "first_batch_at": first_batch_at, "report": report}


def _check_images(images: Any, image_shape: Sequence[int]) -> None:
    shape, dtype = list(images.shape), str(images.dtype).removeprefix("torch.")
    if shape[1:] != list(image_shape) or dtype != "uint8":
        raise ValueError(f"a batch is {dtype} {shape}, and should be uint8 [B, {', '.join(map(str, image_shape))}]")


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        how = FFCV_INSTALL if error.name == "ffcv" else "in a clone: pip install -e '.[bench]'"
        return f"{error} ({how})"
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
