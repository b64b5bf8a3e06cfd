"""Faults of the ranks of `--torchrun`; planted_check.py puts them in the place of `reading.stream_rank`.

They run in a rank's own, fresh process, which imports this module by its name.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from tfds_torch.check import reader
from tfds_torch.check.reading import Step, stream_rank
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.torch_data.image_dataset import ImageDataset

Steps = Iterator[Step]


def rank() -> int:
    return int(os.environ["RANK"])


def read_share_of_rank_0(parser: ParserTfds, *args: Any) -> Steps:
    """Every rank reads what is rank 0's, as when nobody tells a reader about ranks; `check_ranks` is not asked."""
    ImageDataset.find_rank = lambda self: World(0, 2)  # type: ignore[method-assign]
    reader.create_loader = partial(reader.create_loader, check_ranks=False)
    yield from stream_rank(parser, *args)


def take_another_seed(parser: ParserTfds, *args: Any) -> Steps:
    """Rank 1 shuffles otherwise."""
    assert isinstance(parser.order, Passes)
    other = parser.with_order(replace(parser.order, seed=parser.seed + rank()))
    yield from stream_rank(other, *args)


def die_on_rank_1(parser: ParserTfds, *args: Any) -> Steps:
    """Ends rank 1, as a machine without memory does, while rank 0 waits for it in `check_ranks`."""
    if rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    yield from stream_rank(parser, *args)


def die_among_batches_on_rank_1(parser: ParserTfds, *args: Any) -> Steps:
    """Ends rank 1 after its first batch: its workers still run."""
    for number, step in enumerate(stream_rank(parser, *args)):
        yield step
        if number == 0 and rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def stall_on_rank_1(parser: ParserTfds, *args: Any) -> Steps:
    """Stops rank 1 after its first batch."""
    for number, step in enumerate(stream_rank(parser, *args)):
        yield step
        if number == 0 and rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)


def say_nothing_on_rank_1(parser: ParserTfds, *args: Any) -> Steps:
    """Rank 1 reads, and does not say what came."""
    for step in stream_rank(parser, *args):
        if rank() == 0:
            yield step


FAULTS = {
    "share of rank 0": read_share_of_rank_0,
    "another seed": take_another_seed,
    "dead rank": die_on_rank_1,
    "dead rank among batches": die_among_batches_on_rank_1,
    "stalled rank": stall_on_rank_1,
    "missing rank": say_nothing_on_rank_1,
}
