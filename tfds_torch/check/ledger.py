"""Examples that came from all ranks and workers, batch by batch; ended epochs are kept as figures for the promises."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from tfds_torch.check.expected import Expectation, Share
from tfds_torch.check.shares import MemberCount, MemberCounts, are_own
from tfds_torch.plan.epoch import PAD_LABEL, Remainder

NUM_SHOWN = 5
_NUM_KEPT = 100
_MOST_LABELS_WITHOUT_NAMES = 1000
_FEWEST_TO_JUDGE = 10  # Fewer examples have the same shuffled order twice by chance.


class CappedList:
    """The first of many texts, and how many they are."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.number, self.first = 0, list[str]()
        self.extend(texts)

    def add(self, text: str, times: int = 1) -> None:
        """Add a text; several times the same, where it stands for so many."""
        self.number += times
        self.first += [text] * min(times, _NUM_KEPT - len(self.first))

    def extend(self, texts: "Iterable[str] | CappedList") -> None:
        """Add many."""
        if isinstance(texts, CappedList):
            self.number += texts.number
            self.first = (self.first + texts.first)[:_NUM_KEPT]
            return
        for text in texts:
            self.add(text)

    def __bool__(self) -> bool:
        return self.number > 0

    def __str__(self) -> str:
        more = f" and {self.number - NUM_SHOWN} more" if self.number > NUM_SHOWN else ""
        return ", ".join(self.first[:NUM_SHOWN]) + more


@dataclass(frozen=True, slots=True, eq=False)
class Received:
    """One batch as it arrived in the training process.

    Attributes:
        id: `<shard file>__<record>` of each of n examples.
        index: int64 [n], their positions in the split.
        valid: bool [n], False for padding.
        label: int64 [n]; None where the targets are not integers.
        pixels: index -> uint8 [h, w, C], of those examples whose pixels are kept.
        digest: of all images; empty where it was not asked for.
        member: of a mixture, int64 [n], whose example each one is said to be.
    """

    id: Sequence[str]
    index: NDArray[np.int64]
    valid: NDArray[np.bool_]
    label: NDArray[np.int64] | None = None
    pixels: Mapping[int, NDArray[np.uint8]] = field(default_factory=dict)
    digest: bytes = b""
    member: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.index)

    @property
    def identity(self) -> bytes:
        """Equal where the same examples came, in the same order and, where the images' digest is there, alike."""
        parts = (repr(list(self.id)).encode(), self.index.tobytes(), self.valid.tobytes(), self.digest)
        return blake2b(b"\0".join(parts), digest_size=16).digest()


@dataclass(frozen=True)
class EpochEnd:
    """The end of an epoch of a rank.

    Attributes:
        num_announced: `len(loader)`.
        loader_batch_size: None where it is not known.
        drop_last: whether the loader leaves out a last batch that is not full.
    """

    num_announced: int
    loader_batch_size: int | None = None
    drop_last: bool = False


@dataclass
class RankEpoch:
    """The results that are kept for the epoch of a rank.

    Attributes:
        num_announced: `len(loader)`.
        unknown: ids that came and were not expected, or came with the index of another example.
        sizes, places, labels, share, order: faults in the sizes of batches, the places of padding, labels, the rank's
            share, and in mode `index` the order.
        num_excess: index -> how much more often an example came, valid, than it is in the rank's share; negative: less.
        worker_orders: worker -> digest of the order of its examples.
        is_small: whether a worker's orders may be the same by chance.
    """

    rank: int
    epoch: int
    num_batches: int = 0
    num_announced: int = 0
    num_examples: int = 0
    num_padded: int = 0
    unknown: CappedList = field(default_factory=CappedList)
    sizes: CappedList = field(default_factory=CappedList)
    places: CappedList = field(default_factory=CappedList)
    labels: CappedList = field(default_factory=CappedList)
    share: CappedList = field(default_factory=CappedList)
    order: CappedList = field(default_factory=CappedList)
    num_excess: Mapping[int, int] = field(default_factory=dict)
    worker_orders: Sequence[bytes] = ()
    is_small: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank}, epoch {self.epoch}"


@dataclass(frozen=True)
class EpochCounts:
    """The ledger of an epoch, over all ranks.

    Attributes:
        batches: number of batches of each rank.
        missing: expected ids that did not come, each as often as it is missing.
        twice: ids that came, valid, more often than expected; each as often as it came too often.
        unknown: ids that came and were not expected, or came with the index of another example.
        most_often: by how much the most frequent example came too often, and its id.
        members: of a mixture, the counts of each member.
    """

    batches: tuple[int, ...]
    missing: CappedList
    twice: CappedList
    unknown: CappedList
    num_valid: int
    num_padded: int
    most_often: tuple[int, str] = (0, "")
    members: tuple[MemberCount, ...] = ()


@dataclass(frozen=True)
class LabelCount:
    """How many examples of the split have a label, and its class's name; without names the integer as text."""

    label: int
    name: str
    num_examples: int


class Labels:
    """Counts how often each label occurs, each example once.

    Args:
        num_examples: of the split.
        class_names: names by label; classes that do not occur are counted with 0. None if the dataset names none.
    """

    def __init__(self, num_examples: int, class_names: Sequence[str] | None) -> None:
        self._class_names = class_names
        self._is_counted = np.zeros(num_examples, np.bool_)
        self._numbers: Counter[int] | None = Counter()  # None: it is a quantity, not a class.

    def add(self, index: NDArray[np.int64], labels: NDArray[np.int64] | None) -> None:
        """Count examples, int64 [n], that were not counted before; without labels there is nothing to count."""
        if labels is None or self._numbers is None:
            return
        index, first = np.unique(index, return_index=True)
        is_new = ~self._is_counted[index]
        self._is_counted[index] = True
        self._numbers.update(labels[first[is_new]].tolist())
        if self._class_names is None and len(self._numbers) > _MOST_LABELS_WITHOUT_NAMES:
            self._numbers = None

    def counts(self) -> list[LabelCount]:
        """Return how often each label occurs, in the order of the labels.

        Nothing when there were no integers, or too many different ones without names: a quantity, not a class.
        """
        if not self._numbers:
            return []
        names = self._class_names or ()
        named = [LabelCount(label, name, self._numbers[label]) for label, name in enumerate(names)]
        others = sorted(label for label in self._numbers if not 0 <= label < len(names))
        return named + [LabelCount(label, str(label), self._numbers[label]) for label in others]


class Ledger:
    """The examples that came, rank by rank and epoch by epoch, compared with the expected ones.

    An epoch that ended is judged, and only its figures and faults are kept: memory does not grow with the dataset, and
    grows by some hundred bytes with every epoch of a rank. For an epoch under way the indices are kept.

    Args:
        expected: the expected result.
        class_names: of the labels; None if the dataset names none.
        kept: (epoch, batch) of those batches whose identities are kept, for each rank.
    """

    def __init__(
        self,
        expected: Expectation,
        class_names: Sequence[str] | None = None,
        kept: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.expected = expected
        self.ended: dict[tuple[int, int], RankEpoch] = {}
        self.again: list[str] = []  # Epochs of ranks that ended more than once.
        self.counts: dict[int, EpochCounts] = {}
        self.identities: dict[tuple[int, int, int], bytes] = {}
        self.pixels: dict[int, NDArray[np.uint8]] = {}
        self.passes: dict[int, int] = {}  # By number, that of each example whose pixels are kept.
        self.labels = Labels(len(expected.ids), class_names)
        self.members: MemberCounts | None = None
        if expected.members:
            self.members = MemberCounts(expected.plan, expected.members, expected.stored)
        self.num_batches = 0  # Of all ranks and epochs.
        self.loaders: dict[int, EpochEnd] = {}
        self._kept = frozenset(kept)
        self._open: dict[int, _OpenEpoch] = {}
        is_endless = expected.plan.order.is_endless
        self._came = np.zeros(len(expected.ids) if is_endless else 0, np.int64)  # In all epochs so far.

    def add(self, rank: int, epoch: int, batch: Received) -> None:
        """Take the next batch of a rank."""
        under_way = self._open.setdefault(rank, _OpenEpoch(RankEpoch(rank, epoch)))
        summary, number = under_way.summary, len(under_way.batches)
        known = self._known(batch)
        summary.unknown.extend(id for id, is_known in zip(batch.id, known, strict=True) if not is_known)
        self._look_at_padding(summary, number, batch)
        if (epoch, number) in self._kept:
            self.identities[rank, epoch, number] = batch.identity
        if epoch == 0:
            is_own = batch.valid & np.array(known, np.bool_)
            self.labels.add(batch.index[is_own], None if batch.label is None else batch.label[is_own])
            for index, pixels in batch.pixels.items():
                if index not in self.pixels:
                    self.pixels[index] = pixels
                    self.passes |= self._pass_of(rank, number, batch, index)
        under_way.batches.append(batch.index)
        true_indices = self._true_indices(batch, known)
        under_way.valid.append(true_indices[batch.valid])
        if self.members is not None:
            self.members.add(rank, epoch, number, np.where(batch.valid, true_indices, -1))
        self.num_batches += 1

    def end(self, rank: int, epoch: int, end: EpochEnd) -> None:
        """End the epoch of a rank."""
        under_way = self._open.pop(rank, _OpenEpoch(RankEpoch(rank, epoch)))
        summary = under_way.summary
        summary.num_announced, summary.num_batches = end.num_announced, len(under_way.batches)
        self.loaders[rank] = end
        self._close(under_way)
        if (rank, epoch) in self.ended:
            self.again.append(str(summary))
        self.ended[rank, epoch] = summary
        if all(key in self.ended for key in self.keys_of(epoch)):
            self.count(epoch)

    def keys_of(self, epoch: int) -> list[tuple[int, int]]:
        """Return the keys of an epoch's ranks."""
        return [(rank, epoch) for rank in range(self.expected.num_replicas)]

    def count(self, epoch: int) -> EpochCounts:
        """Return, and keep, the ledger of an epoch for the ranks that ended it."""
        expected = self.expected
        ended = [self.ended[key] for key in self.keys_of(epoch) if key in self.ended]
        came = np.zeros(len(expected.ids), np.int64)
        for summary in ended:
            share = expected.share(summary.rank, epoch)
            came += np.bincount(share.index[self._is_counted(summary.rank, share)], minlength=len(came))
            for index, number in summary.num_excess.items():
                came[index] += number
        missing, twice = self._compare(epoch, came)
        unknown = CappedList()
        for summary in ended:
            unknown.extend(summary.unknown)
        most = int(twice.argmax()) if len(twice) else 0
        num_examples, num_padded = (sum(getattr(one, name) for one in ended) for name in ("num_examples", "num_padded"))
        self.counts[epoch] = EpochCounts(
            batches=tuple(summary.num_batches for summary in ended),
            missing=self._name(missing),
            twice=self._name(twice),
            unknown=unknown,
            num_valid=num_examples - num_padded,
            num_padded=num_padded,
            most_often=(int(twice[most]), expected.ids[most]) if len(twice) else (0, ""),
            members=() if self.members is None else self.members.count(epoch),
        )
        return self.counts[epoch]

    def _is_counted(self, rank: int, share: Share) -> NDArray[np.bool_]:
        """Return which examples of a share are counted; of an endless row not those that fill the last batch."""
        plan = self.expected.plan
        if not plan.order.is_endless:
            return share.valid
        number = plan.num_batches - 1
        is_counted = share.valid.copy()
        last = self.expected.batch_slice(number)
        is_counted[last] &= are_own(plan, rank, number, len(is_counted[last]))
        return is_counted

    def _compare(self, epoch: int, came: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how often each example is missing, and came too often, by the end of an epoch, int64 [examples].

        Of an endless row this is over all epochs so far: its passes do not end where epochs do.
        """
        plan = self.expected.plan
        if plan.order.is_endless:
            self._came += came
            came = self._came
        num_slots = plan.num_own_slots * (epoch + 1 if plan.order.is_endless else 1)
        least, most = plan.order.promise().count(num_slots)
        return np.maximum(least - came, 0), np.maximum(came - most, 0)

    def _known(self, batch: Received) -> list[bool]:
        """Return which examples have the id, and in a mixture the member, that belongs to their index."""
        known = [self.expected.ids.is_at(*row) for row in zip(batch.index.tolist(), batch.id, strict=True)]
        if self.members is None or batch.member is None:
            return known
        is_its = batch.member == self.members.members_of(batch.index)
        return [is_known and of_member for is_known, of_member in zip(known, is_its.tolist(), strict=True)]

    def _pass_of(self, rank: int, number: int, batch: Received, index: int) -> dict[int, int]:
        """Return in which pass an example of epoch 0 comes, by index; nothing of a stream."""
        plan = self.expected.plan
        if self.expected.mode != "index":
            return {}
        place = int(np.flatnonzero(batch.index == index)[-1])  # As `Receive` keeps the pixels of the last one.
        slot = number * plan.global_batch_size + rank * plan.batch_size + place
        return {index: int(plan.at_slots(0, np.array([slot])).pass_number[0])}

    def _name(self, numbers: NDArray[np.int64]) -> CappedList:
        """Return the ids of examples, each as often as its number."""
        some = CappedList()
        for index in np.flatnonzero(numbers)[:_NUM_KEPT].tolist():
            some.add(self.expected.ids[index], int(numbers[index]))
        some.number = int(numbers.sum())
        return some

    def _true_indices(self, batch: Received, known: Sequence[bool]) -> NDArray[np.int64]:
        """Return the indices that a batch's ids belong to, int64 [n]; -1 where an id is not the split's."""
        if all(known):
            return batch.index
        rows = zip(batch.index.tolist(), batch.id, known, strict=True)
        found = [index if is_known else self.expected.ids.find(id) for index, id, is_known in rows]
        return np.array([-1 if index is None else index for index in found], np.int64)

    def _look_at_padding(self, summary: RankEpoch, number: int, batch: Received) -> None:
        plan = self.expected.plan
        num_padded = int((~batch.valid).sum())
        is_last = plan.remainder is Remainder.PAD and number == plan.num_batches - 1
        planned = self._num_fill(summary.rank) if is_last else 0
        if num_padded != planned:
            summary.places.add(f"{summary}, batch {number}: {num_padded} padded, {planned} planned")
        summary.num_padded += num_padded
        summary.num_examples += len(batch)
        if batch.label is not None:
            is_wrong = (batch.label == PAD_LABEL) == batch.valid
            if self.expected.may_lack_labels:
                is_wrong &= ~batch.valid
            for i in np.flatnonzero(is_wrong).tolist():
                summary.labels.add(f"{summary}, {batch.id[i]}: label {batch.label[i]}, valid {batch.valid[i]}")
        wanted = self.expected.last_size if number == plan.num_batches - 1 else plan.batch_size
        if len(batch) != wanted:
            summary.sizes.add(f"{summary}, batch {number}: {len(batch)} examples")

    def _num_fill(self, rank: int) -> int:
        plan = self.expected.plan
        first = (plan.num_batches - 1) * plan.global_batch_size + rank * plan.batch_size
        return int(np.clip(first + plan.batch_size - plan.num_valid, 0, plan.batch_size))

    def _close(self, under_way: "_OpenEpoch") -> None:
        """Judge an epoch that ended, and keep only the results."""
        summary, batches = under_way.summary, under_way.batches
        expected, share = self.expected, self.expected.share(summary.rank, summary.epoch)
        self._compare_shares(summary, np.concatenate([np.empty(0, np.int64), *batches]), share.index)
        own = np.concatenate([np.empty(0, np.int64), *under_way.valid])
        excess = self._excess(own[own >= 0], share.index[share.valid])
        summary.num_excess = {i: int(excess[i]) for i in np.flatnonzero(excess).tolist()}
        num_workers = expected.plan.world.num_workers
        orders = [np.concatenate([np.empty(0, np.int64), *batches[i::num_workers]]) for i in range(num_workers)]
        summary.worker_orders = [blake2b(order.tobytes(), digest_size=16).digest() for order in orders]
        summary.is_small = any(len(np.unique(order)) < _FEWEST_TO_JUDGE for order in orders)
        if expected.mode == "index":
            for number, index in enumerate(batches):
                if not np.array_equal(index, share.index[expected.batch_slice(number)]):
                    summary.order.add(f"{summary}, batch {number}: not in the planned order")
                    break

    def _compare_shares(self, summary: RankEpoch, came: NDArray[np.int64], planned: NDArray[np.int64]) -> None:
        is_there = (came >= 0) & (came < len(self.expected.ids))
        excess = self._excess(came[is_there], planned)
        strange, missing = self._name(np.maximum(excess, 0)), self._name(np.maximum(-excess, 0))
        strange.extend(f"index {index}" for index in came[~is_there].tolist())
        if strange:
            summary.share.add(f"{summary}: {strange.number} not of its share: {strange}")
        if missing:
            summary.share.add(f"{summary}: {missing.number} of its share did not come: {missing}")

    def _excess(self, came: NDArray[np.int64], planned: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return by how much each example came more often than planned, or less, int64 [number of examples]."""
        size = len(self.expected.ids)
        return np.bincount(came, minlength=size) - np.bincount(planned, minlength=size)


@dataclass
class _OpenEpoch:
    """An epoch under way: of each batch, int64 [n], its indices, and those of its valid examples."""

    summary: RankEpoch
    batches: list[NDArray[np.int64]] = field(default_factory=list)
    valid: list[NDArray[np.int64]] = field(default_factory=list)
