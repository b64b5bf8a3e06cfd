"""What came out of all ranks and workers, and which promises it keeps. Pure: no files, no processes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder

_NUM_SHOWN = 5


@dataclass(frozen=True)
class Entry:
    """One example as it arrived in the training process."""

    id: str
    index: int
    valid: bool
    label: object = None


@dataclass(frozen=True)
class RankEpoch:
    """Everything one rank received in one epoch.

    Attributes:
        rank: which rank.
        epoch: which epoch.
        batches: its batches, in order.
        num_announced: `len(loader)`.
    """

    rank: int
    epoch: int
    batches: Sequence[Sequence[Entry]]
    num_announced: int

    @property
    def entries(self) -> list[Entry]:
        """Its examples, in order."""
        return [entry for batch in self.batches for entry in batch]


@dataclass(frozen=True)
class Promise:
    """A promise and whether it was kept; `detail` gives the figures, and what broke it."""

    name: str
    kept: bool
    detail: str


@dataclass(frozen=True)
class Expectation:
    """What must come.

    Attributes:
        plan: the epoch plan of rank 0.
        mode: the read mode, `files` or `examples`.
        ids: the split's ids by index, from `dataset_info.json`.
        shares: (rank, epoch) -> how often the rank is to yield each index.
        num_unread: examples of an epoch that uneven files leave unread in mode `files`; else 0.
        num_repeated: examples of an epoch that uneven files make come again in mode `files`; else 0.
    """

    plan: EpochPlan
    mode: str
    ids: Sequence[str]
    shares: dict[tuple[int, int], Counter[int]] = field(default_factory=dict)
    num_unread: int = 0
    num_repeated: int = 0


@dataclass(frozen=True)
class EpochCounts:
    """The ledger of an epoch, over all ranks.

    Attributes:
        batches: batches of each rank.
        missing: expected ids that did not come.
        twice: ids that came, valid, more often than the passes of the epoch.
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
    came = Counter(entry.id for entry in entries if entry.valid)
    passes = expected.plan.num_passes
    is_known = [0 <= e.index < len(expected.ids) and expected.ids[e.index] == e.id for e in entries]
    return EpochCounts(
        batches=tuple(len(rank.batches) for rank in ranks),
        missing=[id for id in expected.ids if came[id] < passes],
        twice=[id for id, number in came.items() if number > passes],
        unknown=[entry.id for entry, known in zip(entries, is_known, strict=True) if not known],
        num_valid=sum(came.values()),
        num_padded=sum(not entry.valid for entry in entries),
    )


def judge(expected: Expectation, received: Sequence[RankEpoch]) -> list[Promise]:
    """Returns the promises of DESIGN's table that what was received can prove or break."""
    epochs = [[r for r in received if r.epoch == epoch] for epoch in sorted({r.epoch for r in received})]
    counts = [count_epoch(expected, ranks) for ranks in epochs]
    promises = [
        _same_batches(expected, received),
        _full_batches(expected, received),
        _known_ids(counts),
        _exactly_once(expected, counts),
        _padding(expected, received, counts),
        _own_share(expected, received),
    ]
    return promises + ([_order(expected, epochs)] if len(epochs) > 1 else [])


def _same_batches(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    wanted = expected.plan.num_batches
    wrong = [r for r in received if not len(r.batches) == r.num_announced == wanted]
    detail = "; ".join(
        f"rank {r.rank}, epoch {r.epoch}: {len(r.batches)} came, {r.num_announced} announced, {wanted} planned"
        for r in wrong[:_NUM_SHOWN]
    )
    return Promise("equal numbers of batches", not wrong, detail or f"{wanted} on every rank, as len(loader) says")


def _full_batches(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    size = expected.plan.batch_size
    last = expected.plan.num_samples - size * (expected.plan.num_batches - 1)
    wrong = [
        f"rank {r.rank}, epoch {r.epoch}, batch {number}: {len(batch)} examples"
        for r in received
        for number, batch in enumerate(r.batches)
        if len(batch) != (last if number == expected.plan.num_batches - 1 else size)
    ]
    ending = f", the last of {last}" if last not in (size, expected.plan.num_samples + size) else ""
    return Promise("every batch full", not wrong, _list(wrong) or f"batches of {size}{ending}")


def _known_ids(counts: Sequence[EpochCounts]) -> Promise:
    unknown = [id for count in counts for id in count.unknown]
    return Promise("ids as in dataset_info.json", not unknown, _list(unknown) or "all known")


def _exactly_once(expected: Expectation, counts: Sequence[EpochCounts]) -> Promise:
    plan = expected.plan
    total = plan.num_examples * plan.num_passes
    if expected.mode == "files":
        name, most_missing, most_twice = (
            "every example once, but for uneven files",
            expected.num_unread,
            expected.num_repeated,
        )
    elif plan.remainder is Remainder.WRAP and total % plan.global_batch_size:
        name, most_missing, most_twice = "every example once, and the wrapped few", 0, -total % plan.global_batch_size
    elif plan.remainder is Remainder.DROP and total != plan.num_valid:
        name, most_missing, most_twice = "every example once, but the dropped few", total - plan.num_valid, 0
    else:
        name, most_missing, most_twice = "every example exactly once", 0, 0
    worst_missing = max(counts, key=lambda count: len(count.missing))
    worst_twice = max(counts, key=lambda count: len(count.twice))
    num_missing, num_twice = len(worst_missing.missing), len(worst_twice.twice)
    kept = num_missing <= most_missing and num_twice <= most_twice
    detail = f"{num_missing} missing (allowed {most_missing}), {num_twice} twice (allowed {most_twice})"
    if num_missing > most_missing:
        detail += f"; missing: {_list(worst_missing.missing)}"
    if num_twice > most_twice:
        detail += f"; twice: {_list(worst_twice.twice)}"
    return Promise(name, kept, detail)


def _padding(expected: Expectation, received: Sequence[RankEpoch], counts: Sequence[EpochCounts]) -> Promise:
    plan = expected.plan
    is_padding = plan.remainder is Remainder.PAD
    wanted = plan.num_batches * plan.global_batch_size - plan.num_valid if is_padding else 0
    wrong = [f"epoch {n}: {c.num_padded} padded" for n, c in enumerate(counts) if c.num_padded != wanted]
    wrong += [
        f"rank {r.rank}, {entry.id}: label {entry.label} on a padded example"
        for r in received
        for entry in r.entries
        if not entry.valid and entry.label not in (None, PAD_LABEL)
    ]
    return Promise("padding only where planned", not wrong, _list(wrong) or f"{wanted} per epoch")


def _own_share(expected: Expectation, received: Sequence[RankEpoch]) -> Promise:
    wrong = []
    for r in received:
        came, wanted = Counter(entry.index for entry in r.entries), expected.shares[r.rank, r.epoch]
        if came != wanted:
            strange = [expected.ids[index] for index in (came - wanted) if index < len(expected.ids)]
            wrong.append(f"rank {r.rank}, epoch {r.epoch}: {len(strange)} examples of another share: {_list(strange)}")
    return Promise("every rank reads its own share", not wrong, _list(wrong) or "as planned")


def _order(expected: Expectation, epochs: Sequence[Sequence[RankEpoch]]) -> Promise:
    orders = [[[entry.index for entry in r.entries] for r in ranks] for ranks in epochs]
    num_different = len({str(order) for order in orders})
    if expected.plan.shuffle and expected.plan.num_examples > 1:
        return Promise(
            "another order in every epoch", num_different == len(orders), f"{num_different} of {len(orders)}"
        )
    return Promise("the same order in every epoch", num_different == 1, f"{num_different} different")


def _list(items: Sequence[str]) -> str:
    more = f" and {len(items) - _NUM_SHOWN} more" if len(items) > _NUM_SHOWN else ""
    return ", ".join(items[:_NUM_SHOWN]) + more
