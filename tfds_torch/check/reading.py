"""Reads a split with every rank and worker of a world, workers as real processes.

Ranks read one after the other in this process (`read_rank`), or at the same time in processes of torch.distributed
(`read_ranks`). What comes is handed on batch by batch.
"""

import logging
import os
from collections.abc import Collection, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tfds_torch.check.expectation import Expectation
from tfds_torch.check.ledger import EpochEnd, Received
from tfds_torch.check.reader import Reader
from tfds_torch.check.reference import CheckedParser
from tfds_torch.check.resume import Point, Resumed, batches_after, choose_points
from tfds_torch.check.throughput import STAGES, RankReading
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import EpochTimer, LoaderStats
from tfds_torch.runtime.process_tree import tree_pss_bytes
from tfds_torch.storage.network import Network, total_stats
from tfds_torch.torch_data.rank_processes import iterate_ranks

_STALL_TIMEOUT_S = 600.0
NUM_AT_BEGIN = 12
"""How many batches another world reads from the beginning of an epoch."""


Step = Received | EpochEnd | RankReading
"""A batch, the end of an epoch, and at last what is known of the rank."""


@dataclass(frozen=True)
class HowRead:
    """How the ranks read.

    Attributes:
        num_workers: loader processes of a rank; 0 reads in the rank itself.
        num_epochs: epochs, >= 1, with the same workers.
        is_plain: whether torch's DataLoader reads; else `create_loader`.
        sample: indices of the examples whose pixels are kept.
        has_pixels: whether images are looked at.
        networks: what the files come through; none: they are local.
    """

    num_workers: int
    num_epochs: int
    is_plain: bool = False
    sample: frozenset[int] = frozenset()
    has_pixels: bool = True
    networks: Collection[Network] = ()

    @property
    def of_reader(self) -> dict[str, Any]:
        """The arguments of a Reader."""
        return {"is_plain": self.is_plain, "sample": self.sample, "has_pixels": self.has_pixels}


def read_rank(parser: CheckedParser, how: HowRead, world: World) -> Iterator[Step]:
    """Yields what a rank receives, and at last how fast."""
    with Reader(parser, world, how.num_workers, **how.of_reader) as reader:
        yield from _read(reader, how, world.rank)


def read_ranks(parser: CheckedParser, how: HowRead, num_replicas: int) -> Iterator[tuple[int, Step]]:
    """Yields (rank, what it receives) of the ranks of a torch.distributed training, all of them at the same time.

    Raises:
        TfdsTorchError: as reading raises it, with the rank's number.
        StallError: no rank got any further for ten minutes, or they did not find each other.
    """
    steps = iterate_ranks(stream_rank, num_replicas, parser, how, stall_timeout_s=_STALL_TIMEOUT_S)
    with closing(steps):
        yield from steps


def stream_rank(parser: CheckedParser, how: HowRead) -> Iterator[Step]:
    """Reads as one rank of torch.distributed; the dataset finds out by itself which one."""
    logging.getLogger("absl").setLevel(logging.ERROR)
    with Reader(parser, None, how.num_workers, **how.of_reader) as reader:
        if how.is_plain:  # A Loader does so by itself.
            reader.dataset.check_ranks()
        yield from _read(reader, how, World.from_environ(os.environ).rank)


def _read(reader: Reader, how: HowRead, rank: int) -> Generator[Step, None, None]:
    timer = EpochTimer()
    memory: dict[int, int] = {}
    states: dict[Point, Resumed] = {}
    num_examples = []
    points = _resume_points(reader, how)
    kept = kept_batches(points, len(reader), how.num_epochs)
    if points:
        states[points[0]] = reader.take_state(points[0])
    marks, networks = [reader.stats], [total_stats(how.networks)]
    for epoch in range(how.num_epochs):
        number = num = 0
        digested = {at.number for at in kept if at.epoch == epoch}
        with closing(reader.batches(timer, digested)) as batches:
            for number, batch in enumerate(batches, 1):
                num += len(batch)
                yield batch
                # In the first epoch: looking takes time, and speed is that of the later ones.
                if epoch == 0 and number == (len(reader) + 1) // 2:
                    memory = tree_pss_bytes()
                if (point := Point(epoch, number)) in points:
                    states[point] = reader.take_state(point)
        num_examples.append(num)
        marks.append(reader.stats)
        networks.append(total_stats(how.networks))
        yield EpochEnd(len(reader), reader.loader_batch_size, reader.drop_last)
    known = [mark for mark in marks if mark is not None]
    is_remote, has_later = bool(how.networks), how.num_epochs > 1
    stages = _stages(known[has_later], known[-1], is_remote) if known else {}
    first_stages = _stages(known[0], known[1], is_remote) if known and is_remote and has_later else {}
    taken = [after - before for before, after in pairwise(networks) if after is not None and before is not None]
    resumed = tuple(reader.read_on(saved, how.num_epochs) for saved in states.values())
    yield RankReading(rank, tuple(timer.epochs), tuple(num_examples), memory, stages, first_stages, taken, resumed)


def _stages(began: LoaderStats, ended: LoaderStats, is_remote: bool) -> dict[str, float]:
    stages = [stage for stage in STAGES if stage != "download" or is_remote]
    return {stage: getattr(ended, f"{stage}_s") - getattr(began, f"{stage}_s") for stage in stages}


def _resume_points(reader: Reader, how: HowRead) -> list[Point]:
    world = reader.dataset.find_rank().at_worker(0, max(1, how.num_workers))
    # A stream passes over everything that came before: resuming it many times would cost many epochs.
    is_index = reader.dataset.parser.read_mode(world) == "index"
    return choose_points(reader.dataset.plan(), how.num_epochs) if is_index else []


def kept_batches(points: Collection[Point], num_batches: int, num_epochs: int) -> set[Point]:
    """Returns the batches that an uninterrupted reading must remember, for comparison with resumed ones."""
    return {at for point in points for part in batches_after(point, num_batches, num_epochs) for at in part}


@dataclass(frozen=True)
class OtherReading:
    """What one rank with all examples received.

    Attributes:
        begun: epoch -> its first batches.
        resumed: what came after states of the first reading were loaded.
    """

    num_workers: int
    begun: Mapping[int, list[Received]]
    resumed: tuple[Resumed, ...]


def read_other_world(
    parser: CheckedParser, expected: Expectation, how: HowRead, states: Collection[Resumed]
) -> OtherReading:
    """Reads a few batches again, without their content, with one rank and another number of workers.

    The rank's batches are the global batches of the first reading: the beginnings of the first and of the last epoch,
    and what comes after each of the states that were taken there.
    """
    num_workers = 2 if how.num_workers < 2 else 1
    whole = parser.with_batch_size((parser.batch_size or 1) * expected.num_replicas)
    begun = {}
    with Reader(whole, World(), num_workers, is_plain=how.is_plain, has_content=False) as reader:
        for epoch in sorted({0, how.num_epochs - 1}):
            reader.dataset.set_epoch(epoch)
            begun[epoch] = reader.take(NUM_AT_BEGIN)
        resumed = tuple(reader.read_on(saved, how.num_epochs) for saved in states)
    return OtherReading(num_workers, begun, resumed)
