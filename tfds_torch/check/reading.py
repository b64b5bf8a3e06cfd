"""Reads a split with every rank and worker of a world, workers as real processes.

Ranks read one after the other in this process (`read_rank`), or at the same time in processes of torch.distributed
(`read_ranks`).
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, replace

from tfds_torch.check.expected_ids import expected_ids
from tfds_torch.check.ledger import Entry, Expectation, RankEpoch, RankOrder
from tfds_torch.check.loaded import CollateEntries, explained
from tfds_torch.check.resume import Resumed, ResumePoint, choose_points, read_on, take_state
from tfds_torch.parsers.parser import DEFAULT_FIELDS, METADATA_FIELDS
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.worker_order import WorkerOrder
from tfds_torch.plan.world import World
from tfds_torch.runtime.epoch_times import EpochTimer, EpochTimes
from tfds_torch.runtime.memory import tree_pss_bytes
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.plain_loader import image_size, make_plain_loader
from tfds_torch.torch_data.rank_processes import iterate_ranks

_STALL_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class RankReading:
    """What came of reading with one rank.

    Attributes:
        epochs: what came, epoch by epoch.
        times: how long each epoch took.
        memory: pid -> proportional set size, bytes, in the middle of epoch 0: the process that read first, then its
            children; empty where the system does not tell.
        resumed: what came after states that were taken in these epochs, with the same workers; in mode `index` only.
    """

    epochs: tuple[RankEpoch, ...]
    times: tuple[EpochTimes, ...]
    memory: dict[int, int]
    resumed: tuple[Resumed, ...] = ()

    @property
    def rank(self) -> int:
        """Which rank."""
        return self.epochs[0].rank


def read_rank(
    parser: ParserTfds, world: World, num_workers: int, num_epochs: int, on_batch: Callable[[], None]
) -> RankReading:
    """Returns what a rank receives from a DataLoader, and how fast.

    Args:
        parser: what is read.
        world: the rank.
        num_workers: loader processes; 0 reads in this process.
        num_epochs: epochs, >= 1, with the same workers.
        on_batch: called for every batch.

    Raises:
        TfdsTorchError: as reading raises it.
    """
    steps = _read(_make_dataset(parser, world, num_workers), world.rank, num_workers, num_epochs)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        on_batch()


def read_ranks(
    parser: ParserTfds, num_replicas: int, num_workers: int, num_epochs: int, on_batch: Callable[[], None]
) -> list[RankReading]:
    """Returns what the ranks of a torch.distributed training receive, all of them at the same time.

    Args:
        parser: what is read.
        num_replicas: ranks, each in a process of its own, as torchrun would start them.
        num_workers: loader processes of a rank; 0 reads in the rank itself.
        num_epochs: epochs, >= 1, with the same workers.
        on_batch: called for every batch of every rank.

    Raises:
        TfdsTorchError: as reading raises it, with the rank's number.
        StallError: no rank got any further for ten minutes, or they did not find each other.
    """
    readings = {}
    steps = iterate_ranks(stream_rank, num_replicas, parser, num_workers, num_epochs, stall_timeout_s=_STALL_TIMEOUT_S)
    with closing(steps):
        for rank, reading in steps:
            if reading is None:
                on_batch()
            else:
                readings[rank] = reading
    return [reading for _, reading in sorted(readings.items())]


def stream_rank(parser: ParserTfds, num_workers: int, num_epochs: int) -> Iterator[RankReading | None]:
    """Reads as one rank of torch.distributed: yields None for every batch, and what came at the end.

    The dataset is not told which rank it is; what came is written down under the number that the launcher gave.
    """
    logging.getLogger("absl").setLevel(logging.ERROR)
    dataset = _make_dataset(parser, None, num_workers)
    dataset.check_ranks()
    yield (yield from _read(dataset, World.from_environ(os.environ).rank, num_workers, num_epochs))


def _make_dataset(parser: ParserTfds, world: World | None, num_workers: int) -> ImageDataset:
    fields = (*filter(parser.has_field, DEFAULT_FIELDS), *METADATA_FIELDS)
    if parser.batch_size is None and num_workers < 2:
        parser = parser.with_batch_size(1)  # As it is planned; states count batches, whose size must be known.
    return ImageDataset(parser, transform=image_size, fields=fields, world=world)


def _read(dataset: ImageDataset, rank: int, num_workers: int, num_epochs: int) -> Generator[None, None, RankReading]:
    """Yields after every batch, and returns what came."""
    loader = make_plain_loader(dataset, num_workers, CollateEntries(dataset.fields))
    timer = EpochTimer()
    epochs = []
    memory: dict[int, int] = {}
    states: dict[ResumePoint, Resumed] = {}
    points = _resume_points(dataset, num_workers, num_epochs)
    if points:
        take_state(dataset, points[0], states)
    for epoch in range(num_epochs):
        batches: list[list[Entry]] = []
        for batch in explained(timer.time(loader)):
            batches.append(batch)
            yield
            # In the first epoch: looking takes time, and speed is that of the later ones.
            if epoch == 0 and len(batches) == (len(loader) + 1) // 2:
                memory = tree_pss_bytes()
            if (point := ResumePoint(epoch, len(batches))) in points:
                take_state(dataset, point, states)
        epochs.append(RankEpoch(rank, epoch, batches, len(loader), loader.batch_size, loader.drop_last))
    resumed = [read_on(dataset, loader, saved, num_epochs) for saved in states.values()]
    return RankReading(tuple(epochs), tuple(timer.epochs), memory, tuple(resumed))


def _resume_points(dataset: ImageDataset, num_workers: int, num_epochs: int) -> list[ResumePoint]:
    world = dataset.find_rank().at_worker(0, max(1, num_workers))
    # A stream passes over everything that came before: resuming it many times would cost many epochs.
    return choose_points(dataset.plan(), num_epochs) if dataset.parser.read_mode(world) == "index" else []


def expectation(parser: ParserTfds, num_replicas: int, num_workers: int, num_epochs: int) -> Expectation:
    """Returns what must come from a world of `num_replicas` ranks with `num_workers` loader processes each."""
    here = World(0, num_replicas, 0, max(1, num_workers))
    expected = Expectation(
        plan=parser.plan(here),
        mode=parser.read_mode(here),
        ids=expected_ids(parser.data_dir, parser.split, parser.files),
    )
    fill_in = _expect_orders if expected.mode == "index" else _expect_assignments
    return fill_in(parser, expected, num_epochs)


def _expect_orders(parser: ParserTfds, expected: Expectation, num_epochs: int) -> Expectation:
    orders = {}
    for world in World.grid(expected.plan.world.num_replicas, 1):
        for epoch in range(num_epochs):
            order = WorkerOrder(parser.plan(world), epoch)
            planned = order.planned(0, len(order))
            orders[world.rank, epoch] = RankOrder(planned.index, planned.valid)
    shares = {key: Counter(order.index.tolist()) for key, order in orders.items()}
    return replace(expected, orders=orders, shares=shares)


def _expect_assignments(parser: ParserTfds, expected: Expectation, num_epochs: int) -> Expectation:
    shares: dict[tuple[int, int], Counter[int]] = {}
    num_unread = num_repeated = 0
    for epoch in range(num_epochs):
        excess = []
        for world in World.grid(expected.plan.world.num_replicas, expected.plan.world.num_workers):
            assignment = parser.assignment(world, epoch)
            excess.append(assignment.num_available - assignment.num_valid)
            counter = shares.setdefault((world.rank, epoch), Counter())
            for part in (*assignment.valid, *assignment.fill):
                first = parser.files[part.file].first_index
                counter.update(range(first + part.start, first + part.stop))
        num_unread = max(num_unread, sum(number for number in excess if number > 0))
        num_repeated = max(num_repeated, -sum(number for number in excess if number < 0))
    return replace(expected, shares=shares, num_unread=num_unread, num_repeated=num_repeated)
