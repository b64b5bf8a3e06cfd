"""Reads a split with every rank and worker of a world, workers as real processes.

Ranks read one after the other in this process (`read_rank`), or at the same time in processes of torch.distributed
(`read_ranks`).
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from tfds_torch.check.expected_ids import expected_ids
from tfds_torch.check.ledger import Entry, Expectation, RankEpoch
from tfds_torch.errors import TfdsTorchError, WorkerError
from tfds_torch.parsers.parser import DEFAULT_FIELDS, LEDGER_FIELDS
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.runtime.epoch_times import EpochTimer, EpochTimes
from tfds_torch.runtime.memory import tree_pss_bytes
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.plain_loader import image_size, make_plain_loader
from tfds_torch.torch_data.rank_processes import iterate_ranks

T = TypeVar("T")

_STALL_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class RankReading:
    """What came of reading with one rank.

    Attributes:
        epochs: what came, epoch by epoch.
        times: how long each epoch took.
        memory: pid -> proportional set size, bytes, in the middle of epoch 0: the process that read first, then its
            children; empty where the system does not tell.
    """

    epochs: tuple[RankEpoch, ...]
    times: tuple[EpochTimes, ...]
    memory: dict[int, int]

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
    steps = _read(_make_dataset(parser, world), world.rank, num_workers, num_epochs)
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
    dataset = _make_dataset(parser, None)
    dataset.check_ranks()
    yield (yield from _read(dataset, World.from_environ(os.environ).rank, num_workers, num_epochs))


def _make_dataset(parser: ParserTfds, world: World | None) -> ImageDataset:
    fields = (*filter(parser.has_field, DEFAULT_FIELDS), *LEDGER_FIELDS)
    return ImageDataset(parser, transform=image_size, fields=fields, world=world)


def _read(dataset: ImageDataset, rank: int, num_workers: int, num_epochs: int) -> Generator[None, None, RankReading]:
    """Yields after every batch, and returns what came."""
    loader = make_plain_loader(dataset, num_workers, _Collate(dataset.fields))
    timer = EpochTimer()
    epochs = []
    memory: dict[int, int] = {}
    for epoch in range(num_epochs):
        batches: list[list[Entry]] = []
        for batch in _explained(timer.time(loader)):
            batches.append(batch)
            yield
            # In the first epoch: looking takes time, and speed is that of the later ones.
            if epoch == 0 and len(batches) == (len(loader) + 1) // 2:
                memory = tree_pss_bytes()
        epochs.append(RankEpoch(rank, epoch, batches, len(loader), loader.batch_size, loader.drop_last))
    return RankReading(tuple(epochs), tuple(timer.epochs), memory)


def expectation(parser: ParserTfds, num_replicas: int, num_workers: int, num_epochs: int) -> Expectation:
    """Returns what must come from a world of `num_replicas` ranks with `num_workers` loader processes each."""
    grid = World.grid(num_replicas, max(1, num_workers))
    shares: dict[tuple[int, int], Counter[int]] = {}
    num_unread = num_repeated = 0
    for epoch in range(num_epochs):
        excess = []
        for world in grid:
            share = parser.share(world, epoch)
            excess.append(share.num_available - share.num_valid)
            counter = shares.setdefault((world.rank, epoch), Counter())
            for stretch in (*share.valid, *share.fill):
                first = parser.files[stretch.file].first_index
                counter.update(range(first + stretch.start, first + stretch.stop))
        num_unread = max(num_unread, sum(number for number in excess if number > 0))
        num_repeated = max(num_repeated, -sum(number for number in excess if number < 0))
    return Expectation(
        plan=parser.plan(grid[0]),
        mode=parser.read_mode(grid[0]),
        ids=expected_ids(parser.data_dir, parser.split, parser.files),
        shares=shares,
        num_unread=num_unread,
        num_repeated=num_repeated,
    )


def _explained(batches: Iterator[T]) -> Iterator[T]:
    """Yields the batches; a worker that died, for torch a bare RuntimeError, is a WorkerError."""
    try:
        yield from batches
    except TfdsTorchError as error:
        raise type(error)(_last_message(error)) from error
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(
            f"{str(error).splitlines()[0].rstrip('.')}. Where nobody ended it, the memory did not suffice: try fewer "
            f"workers, or a smaller batch_size."
        ) from error


def _last_message(error: TfdsTorchError) -> str:
    """Returns the message without the traceback that torch puts before a worker's."""
    text = str(error)
    marker = f"{type(error).__name__}: "
    return text.rpartition(marker)[2].strip() if marker in text else text


class _Collate:
    """Rows of field values -> ledger entries; a class, so that spawn can pickle it."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __call__(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        named = [dict(zip(self.fields, row, strict=True)) for row in rows]
        return [Entry(row["id"], row["index"], row["valid"], row.get("label"), row.get("image")) for row in named]
