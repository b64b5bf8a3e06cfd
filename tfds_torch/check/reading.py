"""Reads a split with every rank and worker of a world: ranks one after the other, workers as real processes."""

from collections import Counter
from collections.abc import Callable, Iterator
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

T = TypeVar("T")


@dataclass(frozen=True)
class RankReading:
    """What came of reading with one rank.

    Attributes:
        epochs: what came, epoch by epoch.
        times: how long each epoch took.
        memory: pid -> proportional set size, bytes, in the middle of epoch 0: this process first, then its
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
    fields = (*filter(parser.has_field, DEFAULT_FIELDS), *LEDGER_FIELDS)
    dataset = ImageDataset(parser, transform=image_size, fields=fields, world=world)
    loader = make_plain_loader(dataset, num_workers, _Collate(fields))
    timer = EpochTimer()
    epochs = []
    memory: dict[int, int] = {}
    for epoch in range(num_epochs):
        batches: list[list[Entry]] = []
        for batch in _explained(timer.time(loader)):
            batches.append(batch)
            on_batch()
            # In the first epoch: looking takes time, and speed is that of the later ones.
            if epoch == 0 and len(batches) == (len(loader) + 1) // 2:
                memory = tree_pss_bytes()
        epochs.append(RankEpoch(world.rank, epoch, batches, len(loader)))
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
    except TfdsTorchError:
        raise
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise WorkerError(
            f"{str(error).splitlines()[0].rstrip('.')}. Where nobody ended it, the memory did not suffice: try fewer "
            f"workers, or a smaller batch_size."
        ) from error


class _Collate:
    """Rows of field values -> ledger entries; a class, so that spawn can pickle it."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        self.fields = fields

    def __call__(self, rows: list[tuple[Any, ...]]) -> list[Entry]:
        named = [dict(zip(self.fields, row, strict=True)) for row in rows]
        return [Entry(row["id"], row["index"], row["valid"], row.get("label"), row.get("image")) for row in named]
