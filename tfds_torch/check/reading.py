"""Read a split with every rank and worker of a world, workers as real processes.

Ranks read one after the other in this process (`read_rank`), or at the same time in processes of torch.distributed
(`read_ranks`). Batches are handed on one by one as they come.
"""

import logging
import os
import statistics
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tfds_torch.check.expected import Expectation
from tfds_torch.check.ledger import EpochEnd, Received
from tfds_torch.check.reader import Point, Reader, Resumed, choose_points, kept_batches
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.world import World
from tfds_torch.runtime.metrics import EpochTimer, EpochTimes, LoaderStats
from tfds_torch.runtime.process_tree import tree_pss_bytes
from tfds_torch.storage.network import Network, NetworkStats, total_stats
from tfds_torch.torch_data.rank_processes import iterate_ranks

_STALL_TIMEOUT_S = 600.0
NUM_AT_BEGIN = 12
"""How many batches another world reads from the beginning of an epoch."""
STAGES = ("read", "download", "decode", "fetch", "collate", "hand_over", "waiting")
"""Stages of `LoaderStats` that show where a loop waited; `download` for object stores only."""


@dataclass(frozen=True)
class RankReading:
    """The reading of one rank: alone on the machine, or with the others at the same time.

    Attributes:
        times: how long each epoch took.
        num_examples: of each epoch.
        memory: pid -> proportional set size, bytes, in the middle of epoch 0: the process that read first, then its
            children; empty where the system does not report it.
        stages: stage -> seconds in the timed epochs, as in `LoaderStats`, all workers and threads together; empty where
            the loader does not report them.
        first_stages: the same of the first epoch of remote files, where it is not timed; else empty.
        networks: the traffic of each epoch with object stores, for all processes that share a fetcher; empty where all
            files are local.
        resumed: the batches that came after states that were taken in these epochs, with the same workers; in mode
            `index` only.
    """

    rank: int
    times: Sequence[EpochTimes]
    num_examples: Sequence[int]
    memory: Mapping[int, int] = field(default_factory=dict)
    stages: Mapping[str, float] = field(default_factory=dict)
    first_stages: Mapping[str, float] = field(default_factory=dict)
    networks: Sequence[NetworkStats] = ()
    resumed: Sequence[Resumed] = ()

    @property
    def first_batch_s(self) -> float:
        """The time to the first batch of epoch 0, in which the workers start."""
        return self.times[0].first_batch_s

    @property
    def later_first_batch_s(self) -> float | None:
        """The median time to the first batch of a later epoch; None after a single epoch."""
        return statistics.median(times.first_batch_s for times in self.times[1:]) if self.times[1:] else None

    @property
    def examples_per_s(self) -> float:
        """The median rate of the timed epochs, from asking for the first batch to the end of the loop."""
        rates = [number / times.whole_s for number, times in zip(self.num_examples, self.times, strict=True)]
        return statistics.median(rates[1:] or rates)

    @property
    def tail_s(self) -> float:
        """The longest time from the last batch of an epoch to its end."""
        return max(times.tail_s for times in self.times)

    @property
    def timed(self) -> Sequence[EpochTimes]:
        """The epochs after the first one; epoch 0 where there is no other."""
        return self.times[1:] or self.times

    @property
    def num_batches(self) -> int:
        """The number of batches in the timed epochs."""
        return sum(times.num_batches for times in self.timed)

    @property
    def timed_s(self) -> float:
        """The duration of the timed epochs."""
        return sum(times.whole_s for times in self.timed)


Step = Received | EpochEnd | RankReading
"""A batch, the end of an epoch, and at last the RankReading of the rank."""


@dataclass(frozen=True)
class HowRead:
    """How the ranks read.

    Attributes:
        num_workers: loader processes of a rank; 0 reads in the rank itself.
        num_epochs: epochs, >= 1, with the same workers.
        is_plain: whether torch's DataLoader reads; else `create_loader`.
        sample: indices of the examples whose pixels are kept.
        has_pixels: whether images are looked at.
        networks: the networks that the files come through; none: they are local.
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


def read_rank(parser: DatasetParser, how: HowRead, world: World) -> Iterator[Step]:
    """Yield the items that a rank receives, and at last how fast."""
    with Reader(parser, world, how.num_workers, **how.of_reader) as reader:
        yield from _read(reader, how, world.rank)


def read_ranks(parser: DatasetParser, how: HowRead, num_replicas: int) -> Iterator[tuple[int, Step]]:
    """Yield (rank, item) for the ranks of a torch.distributed training, all of them at the same time.

    Raises:
        TfdsTorchError: reading failed; the message has the rank's number.
        StallError: no rank got any further for ten minutes, or they did not find each other.
    """
    steps = iterate_ranks(stream_rank, num_replicas, parser, how, stall_timeout_s=_STALL_TIMEOUT_S)
    with closing(steps):
        yield from steps


def stream_rank(parser: DatasetParser, how: HowRead) -> Iterator[Step]:
    """Read as one rank of torch.distributed; the dataset finds out by itself which one."""
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


@dataclass(frozen=True)
class OtherReading:
    """The batches that one rank with all examples received.

    Attributes:
        begun: epoch -> its first batches.
        resumed: the batches that came after states of the first reading were loaded.
    """

    num_workers: int
    begun: Mapping[int, list[Received]]
    resumed: tuple[Resumed, ...]


def read_other_world(
    parser: DatasetParser, expected: Expectation, how: HowRead, states: Collection[Resumed]
) -> OtherReading:
    """Read a few batches again, without their content, with one rank and another number of workers.

    The rank's batches are the global batches of the first reading: the beginnings of the first and of the last epoch,
    and the batches after each of the states that were taken there.
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
