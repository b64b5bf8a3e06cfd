"""Judges which promises the received examples keep. Pure: no files, no processes.

`judge` judges those of every read mode, `judge_index` those that read mode `index` makes beyond them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tfds_torch.check.expected import Expectation
from tfds_torch.check.ledger import NUM_SHOWN, CappedList, EpochCounts, Ledger, RankEpoch, Received
from tfds_torch.check.reader import Point, Resumed, batches_after, choose_points
from tfds_torch.check.reading import NUM_AT_BEGIN, OtherReading, RankReading
from tfds_torch.check.report import Promise
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.mixed import Mixed

_UNKNOWN = -1  # An example whose id is not that of its index.


@dataclass(frozen=True)
class Allowance:
    """How far an epoch may be from every example exactly once.

    Attributes:
        name: of the promise.
        num_padded: padded examples, exactly so many.
        num_missing: examples that may be missing.
        num_twice: examples that may come too often, each counted as often as it does.
        most_each: by how much one example may come too often.
    """

    name: str
    num_padded: int
    num_missing: int = 0
    num_twice: int = 0
    most_each: int = 0


def judge(ledger: Ledger, *, is_whole: bool = True) -> list[Promise]:
    """Return the promises that the received examples can prove, kept or broken.

    Args:
        ledger: the received examples.
        is_whole: False: the reading was interrupted; only epochs that ended are judged, and nothing else is missed.
    """
    ended = [summary for _, summary in sorted(ledger.ended.items())]
    whole = [epoch for epoch in range(ledger.expected.num_epochs) if is_whole or epoch in ledger.counts]
    counts = {epoch: ledger.counts.get(epoch) or ledger.count(epoch) for epoch in whole}
    if not ended and not is_whole:
        return []
    order = ledger.expected.plan.order
    promises = [
        _equal_batches(ledger, ended, is_whole),
        _full_batches(ledger, ended),
        make_promise("ids as promised", _merge(one.unknown for one in ended), "all known"),
        *([_exactly_once(ledger.expected, list(counts.values()))] if counts else []),
        *([_member_shares(ledger, order, counts)] if counts and isinstance(order, Mixed) else []),
        _padding(ledger.expected, ended, counts),
        _own_share(ended),
    ]
    # Of an endless row that is not shuffled, the next epoch is the next part of it.
    is_repeated = order.shuffle or not order.is_endless
    return promises + ([_order(ledger.expected, ended)] if len(whole) > 1 and is_repeated else [])


def make_promise(name: str, wrong: CappedList, detail: str) -> Promise:
    """Return a promise, kept where there is no fault; else its detail names the faults."""
    return Promise(name, not wrong, str(wrong) or detail)


def _merge(parts: Iterable[CappedList]) -> CappedList:
    merged = CappedList()
    for part in parts:
        merged.extend(part)
    return merged


def _equal_batches(ledger: Ledger, ended: list[RankEpoch], is_whole: bool) -> Promise:
    expected = ledger.expected
    wanted = expected.plan.num_batches
    planned = {key for epoch in range(expected.num_epochs) for key in ledger.keys_of(epoch)} if is_whole else set()
    wrong = CappedList(f"{RankEpoch(*key)}: came 0 times" for key in sorted(planned - ledger.ended.keys()))
    wrong.extend(f"{name}: came more than once" for name in ledger.again)
    wrong.extend(
        f"{one}: {one.num_batches} came, {one.num_announced} announced, {wanted} planned"
        for one in ended
        if not one.num_batches == one.num_announced == wanted
    )
    if wrong and expected.last_size < expected.plan.batch_size:
        reason = "its loader drops a short last batch (drop_last), and the parser plans one"
        droppers = CappedList(f"rank {rank}: {reason}" for rank, end in sorted(ledger.loaders.items()) if end.drop_last)
        droppers.extend(wrong)
        wrong = droppers
    return make_promise("equal numbers of batches", wrong, f"{wanted} on every rank, as len(loader) says")


def _full_batches(ledger: Ledger, ended: list[RankEpoch]) -> Promise:
    plan, last = ledger.expected.plan, ledger.expected.last_size
    wrong = CappedList(
        f"rank {rank}: its loader's batch_size is {end.loader_batch_size}, the parser's {plan.batch_size}"
        for rank, end in sorted(ledger.loaders.items())
        if end.loader_batch_size not in (None, plan.batch_size)
    )
    wrong.extend(_merge(one.sizes for one in ended))
    is_short = plan.num_batches > 0 and last < plan.batch_size
    return make_promise(
        "every batch full", wrong, f"batches of {plan.batch_size}" + (f", the last of {last}" * is_short)
    )


def _exactly_once(expected: Expectation, counts: list[EpochCounts]) -> Promise:
    allowed = allow(expected)
    missing = max((count.missing for count in counts), key=lambda some: some.number)
    twice = max((count.twice for count in counts), key=lambda some: some.number)
    too_often, id = max(count.most_often for count in counts)
    detail = f"{missing.number} missing (allowed {allowed.num_missing})"
    detail += f", {twice.number} twice (allowed {allowed.num_twice})"
    is_short = missing.number > allowed.num_missing
    is_repeated = twice.number > allowed.num_twice or too_often > allowed.most_each
    if is_short:
        detail += f"; missing: {missing}"
    if is_repeated:
        detail += f"; twice: {id if too_often > allowed.most_each else twice}"
    return Promise(allowed.name, not is_short and not is_repeated, detail)


def allow(expected: Expectation) -> Allowance:
    """Return how many examples an epoch may leave out, repeat and pad."""
    plan, promised = expected.plan, expected.plan.order.promise()
    total = plan.num_own_slots
    num_slots = plan.num_batches * plan.global_batch_size
    num_padded = num_slots - plan.num_valid if plan.remainder is Remainder.PAD else 0
    if plan.order.is_endless:  # Over all epochs: see `Ledger.count`.
        num_dropped = (total - plan.num_valid) * expected.num_epochs
        name = f"{promised.who} {promised.often}" + (", and the wrapped few" if num_slots > total else "")
        return Allowance(name, num_padded, num_dropped)
    if expected.mode == "files":
        name = "every example once, but for uneven files"
        return Allowance(name, num_padded, expected.num_unread, expected.num_repeated, expected.num_repeated)
    if plan.remainder is Remainder.WRAP and num_slots > total:
        name = f"{promised.who} {promised.often}, and the wrapped few"
        num_wrapped = num_slots - total
        most_each = int((promised.count(num_slots)[1] - promised.count(total)[0]).max())
        return Allowance(name, num_padded, 0, num_wrapped, most_each)
    if plan.num_valid < total:
        return Allowance(f"{promised.who} {promised.often}, but the dropped few", num_padded, total - plan.num_valid)
    return Allowance(f"{promised.who} exactly {promised.often}", num_padded)


def _member_shares(ledger: Ledger, mixture: Mixed, counts: dict[int, EpochCounts]) -> Promise:
    """Judge a mixture with weights: every window's end within 1 of n x weight, and as many as `counts` announces."""
    wrong, most = CappedList(), 0.0
    for epoch, count in counts.items():
        for one in count.members:
            off = one.most_off or 0.0
            most = max(most, off)
            if one.num_valid != one.num_planned:
                wrong.add(f"epoch {epoch}, {one.name}: {one.num_valid} came, {one.num_planned} announced")
            elif not one.is_within:
                wrong.add(f"epoch {epoch}, {one.name}: {off:.2f} examples from n x weight")
    num_parts = len(mixture.segments)
    allowed = "allowed 1" if num_parts == 1 else "allowed 1 in each part of the schedule"
    windows = "" if ledger.members is None else f" at the ends of {ledger.members.num_windows} windows an epoch"
    detail = f"at most {most:.2f} examples from n x weight{windows} ({allowed})"
    return make_promise(f"every {mixture.whose} has its share", wrong, detail)


def _padding(expected: Expectation, ended: list[RankEpoch], counts: dict[int, EpochCounts]) -> Promise:
    wanted = allow(expected).num_padded
    wrong = CappedList(
        f"epoch {epoch}: {count.num_padded} padded" for epoch, count in counts.items() if count.num_padded != wanted
    )
    for parts in ((one.places for one in ended), (one.labels for one in ended)):
        wrong = wrong or _merge(parts)
    return make_promise("padding only where planned", wrong, f"{wanted} per epoch")


def _own_share(ended: list[RankEpoch]) -> Promise:
    wrong = _merge(one.share for one in ended)
    return Promise("every rank reads its own share", not wrong, "; ".join(wrong.first[:NUM_SHOWN]) or "as planned")


def _order(expected: Expectation, ended: list[RankEpoch]) -> Promise:
    orders: dict[tuple[int, int], list[bytes]] = {}
    small = {summary.rank for summary in ended if summary.is_small}
    for summary in ended:
        for worker, order in enumerate(summary.worker_orders):
            orders.setdefault((summary.rank, worker), []).append(order)
    wrong = CappedList()
    for (rank, worker), its_orders in orders.items():
        num_different = len(set(its_orders))
        if expected.plan.order.shuffle and rank in small:
            continue
        if num_different != (len(its_orders) if expected.plan.order.shuffle else 1):
            wrong.add(f"rank {rank}, worker {worker}: {num_different} of {len(its_orders)} orders differ")
    num_epochs = len({summary.epoch for summary in ended})
    if expected.plan.order.shuffle:
        return make_promise("another order in every epoch", wrong, f"{num_epochs} different epochs")
    return make_promise("the same order in every epoch", wrong, f"{num_epochs} equal epochs")


# Read mode `index`


def judge_index(ledger: Ledger, readings: Sequence[RankReading], other: OtherReading) -> list[Promise]:
    """Return the promises that mode `index` makes beyond those of `promises.judge`, kept or broken."""
    expected = ledger.expected
    dependence = CappedList(_depends_on_world(expected, other))
    order = CappedList()
    for summary in ledger.ended.values():
        order.extend(summary.order)
    order.extend(dependence)
    name = "the order does not depend on workers" + (" or ranks" if expected.num_replicas > 1 else "")
    promises = [make_promise(name, order, f"as planned; the same with {_world_of(expected, other)}")]
    resumes = CappedList(_same_world_resumes(ledger, readings))
    resumes.extend(_unequal_states(readings))
    num_points = len(choose_points(expected.plan, expected.num_epochs))
    detail = f"{num_points} points, with the same workers and with {_world_of(expected, other)}"
    if dependence:  # Of another order, no tail can be the one that was interrupted.
        detail = f"{num_points} points, with the same workers only: in another world the order differs"
    else:
        resumes.extend(_other_world_resumes(expected, other))
    return [*promises, make_promise("resume is exact", resumes, detail)]


def _world_of(expected: Expectation, other: OtherReading) -> str:
    workers = "1 worker" if other.num_workers == 1 else f"{other.num_workers} workers"
    return f"1 rank of {workers}" if expected.num_replicas > 1 else workers


def _depends_on_world(expected: Expectation, other: OtherReading) -> Iterator[str]:
    for epoch, batches in other.begun.items():
        came = [_valid_of(expected, batch) for batch in batches]
        num_planned = min(NUM_AT_BEGIN, expected.plan.num_batches)
        planned = _global_batches(expected, [Point(epoch, number) for number in range(num_planned)])
        if came != planned:
            pairs = enumerate(zip(came, planned, strict=False))
            number = next((number for number, (one, two) in pairs if one != two), min(len(came), len(planned)))
            yield f"epoch {epoch}, batch {number}: another with {_world_of(expected, other)}"


def _same_world_resumes(ledger: Ledger, readings: Sequence[RankReading]) -> Iterator[str]:
    expected = ledger.expected
    for reading in readings:
        who = f"rank {reading.rank}, " if len(readings) > 1 else ""
        for resumed in reading.resumed:
            planned = batches_after(resumed.point, expected.plan.num_batches, expected.num_epochs)
            came = [[batch.identity for batch in batches] for batches in resumed.iterations]
            before = [
                [ledger.identities.get((reading.rank, at.epoch, at.number)) for at in batches] for batches in planned
            ]
            yield from _differences(resumed, came == before, f"{who}{resumed.point}")
        there = {resumed.point for resumed in reading.resumed}
        for point in choose_points(expected.plan, expected.num_epochs):
            if point not in there:
                yield f"{who}{point}: the reading did not get there"


def _unequal_states(readings: Sequence[RankReading]) -> Iterator[str]:
    """Yield the points at which the ranks have different states: any rank's state is for all of them."""
    states: dict[Point, set[str]] = {}
    for reading in readings:
        for resumed in reading.resumed:
            states.setdefault(resumed.point, set()).add(resumed.state)
    for point, different in states.items():
        if len(different) > 1:
            yield f"{point}: the ranks have different states"


def _other_world_resumes(expected: Expectation, other: OtherReading) -> Iterator[str]:
    for resumed in other.resumed:
        came = [[_valid_of(expected, batch) for batch in batches] for batches in resumed.iterations]
        after = batches_after(resumed.point, expected.plan.num_batches, expected.num_epochs)
        is_equal = came == [_global_batches(expected, batches) for batches in after]
        yield from _differences(resumed, is_equal, f"{resumed.point}, with {_world_of(expected, other)}")


def _differences(resumed: Resumed, is_equal: bool, where: str) -> Iterator[str]:
    if resumed.error:
        yield f"{where}: {resumed.error}"
    elif not is_equal:
        yield f"{where}: another tail than the uninterrupted one"


def _global_batches(expected: Expectation, batches: Sequence[Point]) -> list[list[int]]:
    """Return the valid examples of planned global batches: those of its ranks, one after the other."""
    found: list[list[int]] = [[] for _ in batches]
    for epoch in {at.epoch for at in batches}:
        shares = [expected.share(rank, epoch) for rank in range(expected.num_replicas)]
        for batch, at in zip(found, batches, strict=True):
            here = expected.batch_slice(at.number)
            if at.epoch == epoch:
                batch += [index for share in shares for index in share.index[here][share.valid[here]].tolist()]
    return found


def _valid_of(expected: Expectation, batch: Received) -> list[int]:
    rows = zip(batch.index.tolist(), batch.id, batch.valid.tolist(), strict=True)
    return [index if expected.ids.is_at(index, id) else _UNKNOWN for index, id, is_valid in rows if is_valid]
