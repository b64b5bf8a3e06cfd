"""What came out of all ranks and workers, held against what must come. Pure: no files, no processes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.epoch import EpochPlan

NUM_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """One example as it arrived in the training process.

    Attributes:
        id: `<shard file>__<record>`.
        index: its position in the split.
        valid: False for padding.
        label: what the dataset has as target; None when it has none.
        image_size: width and height of the decoded image, pixels; None without an image.
    """

    id: str
    index: int
    valid: bool
    label: object = None
    image_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class RankEpoch:
    """Everything one rank received in one epoch.

    Attributes:
        rank: which rank.
        epoch: which epoch.
        batches: its batches, in order.
        num_announced: `len(loader)`.
        loader_batch_size: of the loader; None where it is not known.
        drop_last: whether the loader leaves out a last batch that is not full.
    """

    rank: int
    epoch: int
    batches: Sequence[Sequence[Entry]]
    num_announced: int
    loader_batch_size: int | None = None
    drop_last: bool = False

    @property
    def entries(self) -> list[Entry]:
        """Its examples, in order."""
        return [entry for batch in self.batches for entry in batch]


@dataclass(frozen=True)
class RankOrder:
    """The exact order of a rank's epoch.

    Attributes:
        index: int64 [n], its examples; n is the sum of the sizes of its batches.
        valid: bool [n], False for padding.
    """

    index: NDArray[np.int64]
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Promise:
    """A promise and whether it was kept; `detail` gives the figures, and what broke it."""

    name: str
    kept: bool
    detail: str


@dataclass(frozen=True)
class NotJudged:
    """A promise that cannot be judged, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Expectation:
    """What must come.

    Attributes:
        plan: the epoch plan of rank 0; its world tells the numbers of ranks and workers.
        mode: the read mode, `index`, `files` or `examples`.
        ids: the split's ids by index, from `dataset_info.json`.
        shares: (rank, epoch) -> how often the rank is to yield each index.
        num_unread: examples of an epoch that uneven files leave unread in mode `files`; else 0.
        num_repeated: examples of an epoch that uneven files make come again in mode `files`; else 0.
        orders: (rank, epoch) -> the exact order of the rank's share in mode `index`; else empty.
    """

    plan: EpochPlan
    mode: str
    ids: Sequence[str]
    shares: dict[tuple[int, int], Counter[int]] = field(default_factory=dict)
    num_unread: int = 0
    num_repeated: int = 0
    orders: dict[tuple[int, int], RankOrder] = field(default_factory=dict)

    @property
    def epochs(self) -> list[int]:
        """The epochs that are to be read."""
        return sorted({epoch for _, epoch in self.shares})

    def is_known(self, entry: Entry) -> bool:
        """Whether an entry's id is the one that belongs to its index."""
        return 0 <= entry.index < len(self.ids) and self.ids[entry.index] == entry.id


@dataclass(frozen=True)
class EpochCounts:
    """The ledger of an epoch, over all ranks.

    Attributes:
        batches: batches of each rank.
        missing: expected ids that did not come, as often as they are missing.
        twice: ids that came, valid, more often than expected; as often as they are too many.
        unknown: ids that came and were not expected, or under another's index.
        num_valid: valid examples.
        num_padded: padded examples.
    """

    batches: tuple[int, ...]
    missing: list[str]
    twice: list[str]
    unknown: list[str]
    num_valid: int
    num_padded: int


def count_epoch(expected: Expectation, ranks: Sequence[RankEpoch]) -> EpochCounts:
    """Returns the ledger of one epoch from all its ranks."""
    entries = [entry for rank in ranks for entry in rank.entries]
    wanted = Counter(expected.ids)  # A split such as `train+train` names an example twice.
    for id in wanted:
        wanted[id] *= expected.plan.num_passes
    came = Counter(entry.id for entry in entries if entry.valid and entry.id in wanted)
    return EpochCounts(
        batches=tuple(len(rank.batches) for rank in ranks),
        missing=list((wanted - came).elements()),
        twice=list((came - wanted).elements()),
        unknown=[entry.id for entry in entries if not expected.is_known(entry)],
        num_valid=sum(entry.valid for entry in entries),
        num_padded=sum(not entry.valid for entry in entries),
    )


def make_promise(name: str, wrong: Sequence[str], detail: str) -> Promise:
    """Returns a promise, kept when nothing is wrong; else its detail is what is wrong."""
    return Promise(name, not wrong, list_some(wrong) or detail)


def name_epoch(rank: int, epoch: int) -> str:
    """Returns how an epoch of a rank is called in details."""
    return f"rank {rank}, epoch {epoch}"


def list_some(items: Sequence[str]) -> str:
    """Returns the first items, and how many there are beyond."""
    more = f" and {len(items) - NUM_SHOWN} more" if len(items) > NUM_SHOWN else ""
    return ", ".join(items[:NUM_SHOWN]) + more
