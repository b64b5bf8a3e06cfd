"""Which promises of every read mode the examples that came keep. Pure: no files, no processes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from tfds_torch.check.ledger import (
    NUM_SHOWN,
    EpochCounts,
    Expectation,
    Promise,
    RankEpoch,
    count_epoch,
    list_some,
    make_promise,
    name_epoch,
)
from tfds_torch.plan.assignment import pipeline_counts
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.world import World

_FEWEST_TO_JUDGE = 10  # Fewer examples have the same shuffled order twice by chance.


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
    return Promise("every rank reads its own share", not wrong, "; ".join(wrong[:NUM_SHOWN]) or "as planned")


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
