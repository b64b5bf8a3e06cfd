"""What came out of all ranks and workers, and which promises it keeps. Pure: no files, no processes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.stream import pipeline_counts
from tfds_torch.plan.world import World

_NUM_SHOWN = 5
_FEWEST_TO_JUDGE = 10  # Fewer examples have the same shuffled order twice by chance.


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


def judge(expected: Expectation, received: Sequence[RankEpoch]) -> list[Promise]:
    """Returns the promises that what was received can prove, kept or broken."""
    counts = [count_epoch(expected, [r for r in received if r.epoch == epoch]) for epoch in expected.epochs]
    promises = [
        _equal_batches(expected, received),
        _full_batches(expected, received),
        _known_ids(counts),
        _exactly_once(expected, counts),
        _padding(expected, received, counts),
        _own_share(expected, received),
    ]
    return promises + ([_order(expected, received)] if len(expected.epochs) > 1 else [])


def _equal_batches(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    wanted = expected.plan.num_batches
    came = Counter((r.rank, r.epoch) for r in received)
    wrong = [
        f"{name_epoch(*key)}: came {came[key]} times" for key in sorted({*expected.shares, *came}) if came[key] != 1
    ]
    wrong += [
        f"{name_epoch(r.rank, r.epoch)}: {len(r.batches)} came, {r.num_announced} announced, {wanted} planned"
        for r in received
        if not len(r.batches) == r.num_announced == wanted
    ]
    if wrong and _last_size(expected.plan) < expected.plan.batch_size:
        droppers = sorted({r.rank for r in received if r.drop_last})
        reason = "its loader drops a short last batch (drop_last), and the parser plans one"
        wrong = [f"rank {rank}: {reason}" for rank in droppers] + wrong
    return make_promise("equal numbers of batches", wrong, f"{wanted} on every rank, as len(loader) says")


def _full_batches(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    plan = expected.plan
    last = _last_size(plan)
    others = {r.rank: r.loader_batch_size for r in received if r.loader_batch_size not in (None, plan.batch_size)}
    wrong = [
        f"rank {rank}: its loader's batch_size is {size}, the parser's {plan.batch_size}"
        for rank, size in sorted(others.items())
    ]
    wrong += [
        f"{name_epoch(r.rank, r.epoch)}, batch {number}: {len(batch)} examples"
        for r in received
        for number, batch in enumerate(r.batches)
        if len(batch) != (last if number == plan.num_batches - 1 else plan.batch_size)
    ]
    is_short = plan.num_batches > 0 and last < plan.batch_size
    return make_promise(
        "every batch full", wrong, f"batches of {plan.batch_size}" + (f", the last of {last}" * is_short)
    )


def _last_size(plan: EpochPlan) -> int:
    """Returns the size of a rank's last batch."""
    return plan.num_samples - plan.batch_size * (plan.num_batches - 1)


def _known_ids(counts: Sequence[EpochCounts]) -> Promise:
    return make_promise("ids as promised", [id for count in counts for id in count.unknown], "all known")


def _exactly_once(expected: Expectation, counts: Sequence[EpochCounts]) -> Promise:
    name, most_missing, most_twice, most_each = _allowance(expected)
    missing = max((count.missing for count in counts), key=len)
    twice = max((count.twice for count in counts), key=len)
    detail = f"{len(missing)} missing (allowed {most_missing}), {len(twice)} twice (allowed {most_twice})"
    too_often = [id for id, number in Counter(twice).items() if number > most_each]
    if len(missing) > most_missing:
        detail += f"; missing: {list_some(missing)}"
    if len(twice) > most_twice or too_often:
        detail += f"; twice: {list_some(too_often or twice)}"
    return Promise(name, len(missing) <= most_missing and len(twice) <= most_twice and not too_often, detail)


def _allowance(expected: Expectation) -> tuple[str, int, int, int]:
    """Returns the promise's name, and how many may be missing, too many, and too many of one example."""
    plan = expected.plan
    total = plan.num_examples * plan.num_passes
    num_slots = plan.num_batches * plan.global_batch_size
    if expected.mode == "files":
        name = "every example once, but for uneven files"
        return name, expected.num_unread, expected.num_repeated, expected.num_repeated
    if plan.remainder is Remainder.WRAP and num_slots > total:
        return "every example once, and the wrapped few", 0, num_slots - total, -(-num_slots // total)
    if plan.num_valid < total:
        return "every example once, but the dropped few", total - plan.num_valid, 0, 0
    return "every example exactly once", 0, 0, 0


def _padding(expected: Expectation, received: Sequence[RankEpoch], counts: Sequence[EpochCounts]) -> Promise:
    plan = expected.plan
    is_padding = plan.remainder is Remainder.PAD
    wanted = plan.num_batches * plan.global_batch_size - plan.num_valid if is_padding else 0
    epochs = zip(expected.epochs, counts, strict=True)
    totals = [f"epoch {epoch}: {count.num_padded} padded" for epoch, count in epochs if count.num_padded != wanted]
    places, labels = [], []
    for r in received:
        for number, batch in enumerate(r.batches):
            num_padded = sum(not entry.valid for entry in batch)
            planned = _num_fill(plan, r.rank) if is_padding and number == plan.num_batches - 1 else 0
            if num_padded != planned:
                places.append(f"{name_epoch(r.rank, r.epoch)}, batch {number}: {num_padded} padded, {planned} planned")
            labels += [
                f"{name_epoch(r.rank, r.epoch)}, {entry.id}: label {entry.label}, valid {entry.valid}"
                for entry in batch
                if isinstance(entry.label, int) and (entry.label == PAD_LABEL) is entry.valid
            ]
    return make_promise("padding only where planned", totals or places or labels, f"{wanted} per epoch")


def _num_fill(plan: EpochPlan, rank: int) -> int:
    """Returns the fill of a rank's last batch."""
    return pipeline_counts(replace(plan, world=World(rank, plan.world.num_replicas)))[1]


def _own_share(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    wrong = []
    for r in received:
        came, wanted = Counter(entry.index for entry in r.entries), expected.shares.get((r.rank, r.epoch), Counter())
        strange, missing = (
            [expected.ids[i] if 0 <= i < len(expected.ids) else f"index {i}" for i in difference]
            for difference in (came - wanted, wanted - came)
        )
        if strange:
            wrong.append(f"{name_epoch(r.rank, r.epoch)}: {len(strange)} not of its share: {list_some(strange)}")
        if missing:
            wrong.append(
                f"{name_epoch(r.rank, r.epoch)}: {len(missing)} of its share did not come: {list_some(missing)}"
            )
    return Promise("every rank reads its own share", not wrong, "; ".join(wrong[:_NUM_SHOWN]) or "as planned")


def _order(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    num_workers = expected.plan.world.num_workers
    orders: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for r in received:
        for worker in range(num_workers):
            order = tuple(entry.index for batch in r.batches[worker::num_workers] for entry in batch)
            orders.setdefault((r.rank, worker), []).append(order)
    wrong = []
    for (rank, worker), its_orders in orders.items():
        num_different = len(set(its_orders))
        if expected.plan.shuffle and len(set(its_orders[0])) < _FEWEST_TO_JUDGE:
            continue
        if num_different != (len(its_orders) if expected.plan.shuffle else 1):
            wrong.append(f"rank {rank}, worker {worker}: {num_different} of {len(its_orders)} orders differ")
    if expected.plan.shuffle:
        return make_promise("another order in every epoch", wrong, f"{len(expected.epochs)} different epochs")
    return make_promise("the same order in every epoch", wrong, f"{len(expected.epochs)} equal epochs")


def make_promise(name: str, wrong: Sequence[str], detail: str) -> Promise:
    """Returns a promise, kept when nothing is wrong; else its detail is what is wrong."""
    return Promise(name, not wrong, list_some(wrong) or detail)


def name_epoch(rank: int, epoch: int) -> str:
    """Returns how an epoch of a rank is called in details."""
    return f"rank {rank}, epoch {epoch}"


def list_some(items: Sequence[str]) -> str:
    """Returns the first items, and how many there are beyond."""
    more = f" and {len(items) - _NUM_SHOWN} more" if len(items) > _NUM_SHOWN else ""
    return ", ".join(items[:_NUM_SHOWN]) + more
