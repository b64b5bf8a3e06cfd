"""The promises of read mode `index`, beyond those of every mode. Pure: it judges what was read."""

from collections.abc import Iterator, Sequence

from tfds_torch.check.expectation import Expectation
from tfds_torch.check.ledger import Ledger, Received
from tfds_torch.check.promises import make_promise
from tfds_torch.check.reading import NUM_AT_BEGIN, OtherReading
from tfds_torch.check.resume import Point, Resumed, batches_after, choose_points
from tfds_torch.check.throughput import RankReading
from tfds_torch.check.verdict import CappedList, Promise

_UNKNOWN = -1  # An example whose id is not that of its index.


def judge_index(ledger: Ledger, readings: Sequence[RankReading], other: OtherReading) -> list[Promise]:
    """Returns the promises that mode `index` makes beyond those of `promises.judge`, kept or broken."""
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
    """Yields the points at which the ranks have different states: any rank's state is for all of them."""
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
    """Returns the valid examples of planned global batches: those of its ranks, one after the other."""
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
