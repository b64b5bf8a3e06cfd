"""Faults that are planted where examples, states and records come from; and a process that checks with them.

`planted(fault)` plants one in this process; workers that are forked have it, too. As a script: standard input has a
line for each check, JSON [fault, arguments, whether it goes to a terminal], standard output one with JSON [exit code,
stdout, stderr]; a check that raises has its traceback in the place of the exit code. `--interrupt ARGUMENT...` presses
Ctrl-C after some batches. Faults of the ranks of --torchrun are in planted_ranks.py.
"""

import io
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import psutil
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from tfds_torch.check import command, reader, reading, reference
from tfds_torch.check.ledger import Ledger
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ShardError, StateMismatchError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord.source import TfrecordReader
from tfds_torch.torch_data.image_dataset import ImageDataset

BATCHES, READ, ADD = ParserTfds.batches, TfrecordReader.read, Ledger.add
NUM_BATCHES_BEFORE_INTERRUPT = 30
STALL_TIMEOUT_S = 30.0  # Longer than it takes to load tensorflow, also on a busy machine.


def take(batch: Batch, rows: Sequence[int]) -> Batch:
    """Returns a batch of some rows of another, in the given order."""
    changes: dict[str, Any] = {"id": [batch.id[row] for row in rows], "features": {}}
    for name in ("image", "label", "valid", "index"):
        values = getattr(batch, name)
        if values is not None:
            changes[name] = [values[row] for row in rows] if isinstance(values, list) else values[np.array(rows)]
    for name, values in batch.features.items():
        changes["features"][name] = [values[row] for row in rows]
    return replace(batch, **changes)


def edit_first_batch(edit: Callable[[Batch], Batch]) -> Callable[..., Iterator[Batch]]:
    """Returns `batches`, with an edit of the first batch of the last rank's first worker in epoch 0."""

    def batches(self: ParserTfds, world: World, epoch: int = 0, *args: Any, **kwargs: Any) -> Iterator[Batch]:
        is_here = world.rank == world.num_replicas - 1 and world.worker == 0 and epoch == 0
        for number, batch in enumerate(BATCHES(self, world, epoch, *args, **kwargs)):
            yield edit(batch) if is_here and number == 0 else batch

    return batches


def swap_ranks(self: ParserTfds, world: World, *args: Any, **kwargs: Any) -> Iterator[Batch]:
    """Gives rank 0 what is rank 1's, and the other way round, where there are two."""
    rank = 1 - world.rank if world.num_replicas == 2 else world.rank
    return BATCHES(self, replace(world, rank=rank), *args, **kwargs)


def stay_in_epoch_0(self: ParserTfds, world: World, epoch: int = 0, *args: Any, **kwargs: Any) -> Iterator[Batch]:
    """Reads the first epoch again and again."""
    return BATCHES(self, world, 0, *args, **kwargs)


def trust_padding(self: ParserTfds, world: World, *args: Any, **kwargs: Any) -> Iterator[Batch]:
    """Marks padding as valid."""
    for batch in BATCHES(self, world, *args, **kwargs):
        yield replace(batch, valid=np.ones_like(batch.valid))


def die(self: ParserTfds, world: World, *args: Any, **kwargs: Any) -> Iterator[Batch]:
    """Ends the worker that reads, as a machine without memory does."""
    os.kill(os.getpid(), signal.SIGKILL)
    yield from BATCHES(self, world, *args, **kwargs)


def order_by_workers(self: ParserTfds, world: World, *args: Any, **kwargs: Any) -> Iterator[Batch]:
    """Shuffles otherwise where several workers read."""
    assert isinstance(self.order, Passes)
    parser = self.with_order(replace(self.order, seed=self.seed + world.num_workers - 1))
    return BATCHES(parser, world, *args, **kwargs)


def resume_elsewhere(by: int) -> Callable[..., Iterator[Batch]]:
    """Returns `batches` that begin some batches later or earlier than they are asked to, unless at an epoch's begin."""

    def batches(self: ParserTfds, world: World, epoch: int = 0, start_batch: int = 0, **kwargs: Any) -> Iterator[Batch]:
        if start_batch:
            start_batch = min(start_batch + by, self.plan(world).num_batches)
        return BATCHES(self, world, epoch, start_batch, **kwargs)

    return batches


def forget_state(self: ImageDataset, state: Mapping[str, Any], **options: Any) -> None:
    """Takes a state, and begins the next epoch all the same."""


def read_previous(self: TfrecordReader, index: NDArray[np.int64]) -> list[bytes]:
    """Reads the record before the one that was asked for."""
    return READ(self, np.maximum(index - 1, 0))


def loader_of(**others: Any) -> Callable[..., Any]:
    """Returns what makes a DataLoader with other options than the parser's."""

    def make(dataset: Any, batch_size: int | None, num_workers: int, collate_fn: Any) -> Any:
        options = {"batch_size": batch_size, "num_workers": num_workers, "collate_fn": collate_fn}
        return DataLoader(dataset, **(options | others))

    return make


def interrupt(ledger: Ledger, *args: Any) -> None:
    """Presses Ctrl-C after some batches, and names its family before."""
    ADD(ledger, *args)
    if ledger.num_batches == NUM_BATCHES_BEFORE_INTERRUPT:
        print("family:", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        os.killpg(os.getpgrp(), signal.SIGINT)


BATCH_FAULTS = {
    "duplicate": edit_first_batch(lambda batch: take(batch, [0, *range(len(batch))])),
    "loss": edit_first_batch(lambda batch: take(batch, range(1, len(batch)))),
    "replacement": edit_first_batch(lambda batch: take(batch, [0, 0, *range(2, len(batch))])),
    "unknown id": edit_first_batch(lambda batch: replace(batch, id=["[bold]no-such-shard__0", *batch.id[1:]])),
    "swapped ranks": swap_ranks,
    "same epoch": stay_in_epoch_0,
    "valid padding": trust_padding,
    "killed worker": die,
    "order by workers": order_by_workers,
    "skip on resume": resume_elsewhere(1),
    "repeat on resume": resume_elsewhere(-1),
}
FAULTS: dict[str, tuple[Any, str, Any]] = {
    **{name: (ParserTfds, "batches", batches) for name, batches in BATCH_FAULTS.items()},
    "forgotten state": (ImageDataset, "load_state_dict", forget_state),
    "refused state": (ImageDataset, "load_state_dict", mock.Mock(side_effect=StateMismatchError("played"))),
    "another record": (TfrecordReader, "read", read_previous),
    "failing reference": (reference, "ask_tfds", mock.Mock(side_effect=ShardError("played"))),
    "another batch_size": (reader, "make_plain_loader", loader_of(batch_size=3)),
    "drop_last": (reader, "make_plain_loader", loader_of(drop_last=True)),
    "interrupt": (Ledger, "add", interrupt),
    "none": (ParserTfds, "batches", BATCHES),
}
"""Name -> what is replaced where by what."""


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """Plants a fault."""
    with (
        mock.patch.object(*FAULTS[fault]),
        mock.patch.object(reading, "_STALL_TIMEOUT_S", STALL_TIMEOUT_S),
    ):
        yield


class Output(io.TextIOWrapper):
    """Takes what is printed, as a terminal or a file does."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="\n")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def read_all(self) -> str:
        """Returns what was printed."""
        self.seek(0)
        return self.read()


def run(fault: str, arguments: Sequence[str], is_terminal: bool) -> tuple[object, str, str]:
    """Returns exit code, standard output and standard error of a check."""
    output, errors = Output(is_terminal), Output(is_terminal)
    with planted(fault), redirect_stdout(output), redirect_stderr(errors):
        try:
            code: object = command.main(arguments)
        except SystemExit as end:
            code = end.code
        except Exception:
            code = traceback.format_exc()
    return code, output.read_all(), errors.read_all()


if __name__ == "__main__":
    import planted_ranks  # type: ignore[import-not-found] # A rank's own process imports it by its name.

    FAULTS |= {name: (reading, "stream_rank", stream) for name, stream in planted_ranks.FAULTS.items()}
    multiprocessing.set_start_method("fork")
    os.environ["TERM"] = "xterm"
    if sys.argv[1:2] == ["--interrupt"]:
        with planted("interrupt"):
            sys.exit(command.main(sys.argv[2:]))
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)
