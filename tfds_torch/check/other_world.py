"""A second reading, in a world with other numbers of workers and ranks, of a few batches and without decoding.

All of its examples are those of one rank, whose batches are the global batches of the first reading.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from tfds_torch.check.ledger import Entry
from tfds_torch.check.loaded import CollateEntries, explained
from tfds_torch.check.resume import Resumed, read_on
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.plain_loader import make_plain_loader

NUM_AT_BEGIN = 12
"""How many batches are read from the beginning of an epoch."""
_FIELDS = ("index", "id", "valid")


@dataclass(frozen=True)
class OtherReading:
    """What one rank with all examples received.

    Attributes:
        num_workers: its loader processes.
        begun: epoch -> its first batches, read from its beginning.
        resumed: what came after states of the first reading were loaded.
    """

    num_workers: int
    begun: Mapping[int, Sequence[Sequence[Entry]]]
    resumed: tuple[Resumed, ...]


class OtherWorld:
    """One rank whose batches are global batches, read by another number of workers than the first reading's.

    Building one starts the workers, which begin to read at once.

    Args:
        parser: of the first reading.
        num_replicas: ranks of the first reading.
        num_workers: loader processes of each of them.
    """

    def __init__(self, parser: ParserTfds, num_replicas: int, num_workers: int) -> None:
        self.num_workers = 2 if num_workers < 2 else 1
        whole = parser.with_batch_size((parser.batch_size or 1) * num_replicas)
        self._dataset = ImageDataset(whole, fields=_FIELDS, world=World())
        self._loader = make_plain_loader(self._dataset, self.num_workers, CollateEntries(_FIELDS))
        self._dataset.set_epoch(0)
        self._first = iter(self._loader)

    def read(self, states: Sequence[Resumed], num_epochs: int) -> OtherReading:
        """Reads the beginnings of the first and of the last epoch, and goes on from every state.

        Raises:
            TfdsTorchError: as reading raises it.
        """
        begun = {0: _take(self._first)}
        if num_epochs > 1:
            self._dataset.set_epoch(num_epochs - 1)
            begun[num_epochs - 1] = _take(iter(self._loader))
        resumed = [read_on(self._dataset, self._loader, saved, num_epochs) for saved in states]
        return OtherReading(self.num_workers, begun, tuple(resumed))


def _take(batches: Iterator[list[Entry]]) -> list[list[Entry]]:
    return list(islice(explained(batches), NUM_AT_BEGIN))
