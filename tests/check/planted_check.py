"""Runs `tfds_torch.check` with faults planted into what the parser yields: a script, or `run` of a zygote's process.

Faults of the loader, and of the ranks of --torchrun (planted_ranks.py), are planted in the place of what builds them.

Standard input: a line for each check, JSON [fault, arguments, width and encoding of the output, whether it goes to a
terminal]. Standard output: a line for each, JSON [exit code, stdout, stderr]; a check that raises has its traceback in
the place of the exit code. Workers inherit the fault because they are forked.
"""

import contextlib
import io
import json
import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import planted_ranks  # type: ignore[import-not-found]
import psutil
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from tfds_torch.check import command, reader, reading, reference
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ShardError, StateMismatchError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord.source import TfrecordReader
from tfds_torch.torch_data.image_dataset import ImageDataset

BATCHES = ParserTfds.batches
ASK_TFDS = reference.ask_tfds
LOAD_STATE = ImageDataset.load_state_dict
READ = TfrecordReader.read
MAKE_LOADER = reader.make_plain_loader
ADD = command.Ledger.add
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


def rename(batch: Batch) -> Batch:
    """Gives the first example an id that no split has."""
    return replace(batch, id=["[bold]no-such-shard__0", *batch.id[1:]])


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


def refuse_state(self: ImageDataset, state: Mapping[str, Any], **options: Any) -> None:
    raise StateMismatchError("played")


def read_previous(self: TfrecordReader, index: NDArray[np.int64]) -> list[bytes]:
    """Reads the record before the one that was asked for."""
    return READ(self, np.maximum(index - 1, 0))


def fail_to_read(*args: Any) -> list[Any]:
    """Stands for TFDS where it cannot read what we could."""
    raise ShardError("played")


FAULTS: dict[str, Callable[..., Iterator[Batch]]] = {
    "none": BATCHES,
    "duplicate": edit_first_batch(lambda batch: take(batch, [0, *range(len(batch))])),
    "loss": edit_first_batch(lambda batch: take(batch, range(1, len(batch)))),
    "replacement": edit_first_batch(lambda batch: take(batch, [0, 0, *range(2, len(batch))])),
    "unknown id": edit_first_batch(rename),
    "swapped ranks": swap_ranks,
    "same epoch": stay_in_epoch_0,
    "valid padding": trust_padding,
    "killed worker": die,
    "order by workers": order_by_workers,
    "skip on resume": resume_elsewhere(1),
    "repeat on resume": resume_elsewhere(-1),
}
STATE_FAULTS = {"forgotten state": forget_state, "refused state": refuse_state}
READER_FAULTS = {"another record": read_previous}
REFERENCE_FAULTS = {"failing reference": fail_to_read}


def make_loader_of_threes(dataset: Any, batch_size: int | None, num_workers: int, collate_fn: Any) -> Any:
    """A loader whose batches are not the parser's."""
    return DataLoader(dataset, 3, num_workers=num_workers, collate_fn=collate_fn)


def make_loader_that_drops(dataset: Any, batch_size: int | None, num_workers: int, collate_fn: Any) -> Any:
    """A loader that leaves out a short last batch."""
    return DataLoader(dataset, batch_size, num_workers=num_workers, collate_fn=collate_fn, drop_last=True)


LOADER_FAULTS = {"another batch_size": make_loader_of_threes, "drop_last": make_loader_that_drops}
RANK_FAULTS = {
    "share of rank 0": planted_ranks.read_share_of_rank_0,
    "another seed": planted_ranks.take_another_seed,
    "dead rank": planted_ranks.die_on_rank_1,
    "dead rank among batches": planted_ranks.die_among_batches_on_rank_1,
    "stalled rank": planted_ranks.stall_on_rank_1,
    "missing rank": planted_ranks.say_nothing_on_rank_1,
}


ENVIRONS = {"under torchrun": {"RANK": "0", "WORLD_SIZE": "2"}}


def interrupt_among_batches(ledger: Any, *args: Any) -> None:
    """Presses Ctrl-C after some batches, and names its family before."""
    ADD(ledger, *args)
    if ledger.num_batches == NUM_BATCHES_BEFORE_INTERRUPT:
        print("family:", *(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
        press_ctrl_c()


class Output(io.TextIOWrapper):
    """Takes what is printed, as a terminal or a file of some encoding does."""

    def __init__(self, encoding: str, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding, newline="\n")
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal

    def read_all(self) -> str:
        """Returns what was printed."""
        self.seek(0)
        return self.read()


def run(fault: str, arguments: Sequence[str], width: int, encoding: str, is_terminal: bool) -> tuple[object, str, str]:
    """Returns exit code, standard output and standard error of a check."""
    output, errors = Output(encoding, is_terminal), Output(encoding, is_terminal)
    with (
        mock.patch.object(ParserTfds, "batches", FAULTS.get(fault, BATCHES)),
        mock.patch.object(ImageDataset, "load_state_dict", STATE_FAULTS.get(fault, LOAD_STATE)),
        mock.patch.object(TfrecordReader, "read", READER_FAULTS.get(fault, READ)),
        mock.patch.object(reference, "ask_tfds", REFERENCE_FAULTS.get(fault, ASK_TFDS)),
        mock.patch.object(reader, "make_plain_loader", LOADER_FAULTS.get(fault, MAKE_LOADER)),
        mock.patch.object(reading, "stream_rank", RANK_FAULTS.get(fault, reading.stream_rank)),
        mock.patch.object(reading, "_STALL_TIMEOUT_S", STALL_TIMEOUT_S),
        mock.patch.dict(os.environ, COLUMNS=str(width), TERM="xterm", **ENVIRONS.get(fault, {})),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        try:
            code: object = command.main(arguments)
        except SystemExit as end:
            code = end.code
        except Exception:
            code = traceback.format_exc()
    return code, output.read_all(), errors.read_all()


def press_ctrl_c(*_: object) -> None:
    os.killpg(os.getpgrp(), signal.SIGINT)


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    if sys.argv[1:2] == ["--interrupt"]:
        with mock.patch.object(command.Ledger, "add", interrupt_among_batches):
            sys.exit(command.main(sys.argv[2:]))
    for line in sys.stdin:
        print(json.dumps(run(*json.loads(line))), flush=True)
