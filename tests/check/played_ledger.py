"""Ledgers of what never came from a loader: entries of examples, played into the judge of `tfds_torch.check`."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfds_torch.check.expectation import Expectation, Share
from tfds_torch.check.expected_ids import ExpectedIds
from tfds_torch.check.ledger import EpochEnd, Ledger, Received
from tfds_torch.check.promises import judge
from tfds_torch.check.verdict import Promise


@dataclass(frozen=True)
class Entry:
    """One example as it arrived."""

    id: str
    index: int
    valid: bool
    label: object = None


@dataclass(frozen=True)
class RankEpoch:
    """Everything one rank received in one epoch."""

    rank: int
    epoch: int
    batches: Sequence[Sequence[Entry]]
    num_announced: int
    loader_batch_size: int | None = None
    drop_last: bool = False

    @property
    def entries(self) -> list[Entry]:
        return [entry for batch in self.batches for entry in batch]


class ListedIds(ExpectedIds):
    """Ids that are not those of files."""

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = list(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> str:
        return self.ids[index]

    def find(self, id: str) -> int | None:
        return self.ids.index(id) if id in self.ids else None


def receive(entries: Sequence[Entry]) -> Received:
    labels = [entry.label for entry in entries]
    return Received(
        [entry.id for entry in entries],
        np.array([entry.index for entry in entries], np.int64),
        np.array([entry.valid for entry in entries], np.bool_),
        np.array(labels, np.int64) if all(isinstance(label, int) for label in labels) else None,
    )


def share_of(shares: Mapping[tuple[int, int], Iterable[tuple[int, bool]]]) -> Callable[[int, int], Share]:
    """Returns what `Expectation.share` is to be, of (index, valid) by rank and epoch."""

    def share(rank: int, epoch: int) -> Share:
        rows = list(shares.get((rank, epoch), ()))
        return Share(np.array([index for index, _ in rows], np.int64), np.array([valid for _, valid in rows], np.bool_))

    return share


def play(expected: Expectation, received: Iterable[RankEpoch], kept: Iterable[tuple[int, int]] = ()) -> Ledger:
    """Returns the ledger of what came."""
    ledger = Ledger(expected, kept=kept)
    for epoch in received:
        for batch in epoch.batches:
            ledger.add(epoch.rank, epoch.epoch, receive(batch))
        ledger.end(epoch.rank, epoch.epoch, EpochEnd(epoch.num_announced, epoch.loader_batch_size, epoch.drop_last))
    return ledger


def judge_received(expected: Expectation, received: Iterable[RankEpoch]) -> list[Promise]:
    return judge(play(expected, received))
