"""The promises of read mode `index`, beyond those of every mode. Pure: it judges what was read."""

from collections.abc import Iterator, Sequence

from tfds_torch.check.ledger import Entry, Expectation, Promise, list_some, make_promise, name_epoch
from tfds_torch.check.other_world import NUM_AT_BEGIN, OtherReading
from tfds_torch.check.reading import RankReading
from tfds_torch.check.resume import Resumed, choose_points, uninterrupted
from tfds_torch.check.tfds_sample import ComparedExample

TFDS_PROMISE = "the index is TFDS's own reader"

_UNKNOWN = -1
_Batches = list[list[int]]
"""The examples of consecutive batches by index; `_UNKNOWN` for one whose id is not that of its index."""


def judge_index(
    expected: Expectation,
    readings: Sequence[RankReading],
    other: OtherReading,
    sample: Sequence[ComparedExample] | None,
) -> list[Promise]:
    """Returns the promises that mode `index` makes beyond those of `promises.judge`, kept or broken.

    Args:
        expected: what must come.
        readings: what came of every rank.
        other: what came in a world with other numbers of ranks and workers.
        sample: examples that TFDS read, too; None where it cannot.
    """
    dependence = list(_depends_on_world(expected, other))
    order = [*_out_of_order(expected, readings), *dependence]
    plan = expected.plan
    name = "the order does not depend on workers" + (" or ranks" if plan.world.num_replicas > 1 else "")
    promises = [make_promise(name, order, f"as planned; the same with {_world_of(expected, other)}")]
    resumes = [*_same_world_resumes(expected, readings), *_unequal_states(readings)]
    num_points = len(choose_points(plan, len(expected.epochs)))
    detail = f"{num_points} points, with the same workers and with {_world_of(expected, other)}"
    if dependence:  # Of another order, no tail can be the one that was interrupted.
        detail = f"{num_points} points, with the same workers only: in another world the order differs"
    else:
        resumes += _other_world_resumes(expected, other)
    promises.append(make_promise("resume is exact", resumes, detail))
    return promises + ([] if sample is None else [_judge_sample(expected, sample)])


def _world_of(expected: Expectation, other: OtherReading) -> str:
    workers = "1 worker" if other.num_workers == 1 else f"{other.num_workers} workers"
    return f"1 rank of {workers}" if expected.plan.world.num_replicas > 1 else workers


def _out_of_order(expected: Expectation, readings: Sequence[RankReading]) -> Iterator[str]:
    """Yields the first batch of each rank's epoch that is not the planned one."""
    size = expected.plan.batch_size
    for reading in readings:
        for epoch in reading.epochs:
            planned = expected.orders[epoch.rank, epoch.epoch].index
            for number, batch in enumerate(epoch.batches):
                if [entry.index for entry in batch] != planned[number * size : (number + 1) * size].tolist():
                    yield f"{name_epoch(epoch.rank, epoch.epoch)}, batch {number}: not in the planned order"
                    break


def _depends_on_world(expected: Expectation, other: OtherReading) -> Iterator[str]:
    for epoch, batches in other.begun.items():
        came, planned = _valid_of(expected, batches), _global_batches(expected, epoch)[:NUM_AT_BEGIN]
        if came != planned:
            yield f"epoch {epoch}, batch {_first_difference(came, planned)}: another with {_world_of(expected, other)}"


def _same_world_resumes(expected: Expectation, readings: Sequence[RankReading]) -> Iterator[str]:
    for reading in readings:
        who = f"rank {reading.rank}, " if len(readings) > 1 else ""
        epochs = [epoch.batches for epoch in reading.epochs]
        for resumed in reading.resumed:
            is_equal = _identities(resumed.iterations) == _identities(uninterrupted(epochs, resumed.point))
            yield from _differences(resumed, is_equal, f"{who}{resumed.point}")
        there = {resumed.point for resumed in reading.resumed}
        for point in choose_points(expected.plan, len(expected.epochs)):
            if point not in there:
                yield f"{who}{point}: the reading did not get there"


def _unequal_states(readings: Sequence[RankReading]) -> Iterator[str]:
    """Yields the points at which the ranks say different things: any rank's state is for all of them."""
    states: dict[object, set[str]] = {}
    for reading in readings:
        for resumed in reading.resumed:
            states.setdefault(resumed.point, set()).add(resumed.state)
    for point, different in states.items():
        if len(different) > 1:
            yield f"{point}: the ranks have different states"


def _other_world_resumes(expected: Expectation, other: OtherReading) -> Iterator[str]:
    epochs = [_global_batches(expected, epoch) for epoch in expected.epochs]
    for resumed in other.resumed:
        came = [_valid_of(expected, batches) for batches in resumed.iterations]
        is_equal = came == uninterrupted(epochs, resumed.point)
        yield from _differences(resumed, is_equal, f"{resumed.point}, with {_world_of(expected, other)}")


def _differences(resumed: Resumed, is_equal: bool, where: str) -> Iterator[str]:
    if resumed.error:
        yield f"{where}: {resumed.error}"
    elif not is_equal:
        yield f"{where}: another tail than the uninterrupted one"


def _global_batches(expected: Expectation, epoch: int) -> _Batches:
    """Returns the valid examples of every planned global batch: those of its ranks, one after the other."""
    plan = expected.plan
    orders = [expected.orders[rank, epoch] for rank in range(plan.world.num_replicas)]
    batches = []
    for first in range(0, plan.num_batches * plan.batch_size, plan.batch_size):
        here = slice(first, first + plan.batch_size)
        batches.append([index for order in orders for index in order.index[here][order.valid[here]].tolist()])
    return batches


def _identities(iterations: Sequence[Sequence[Sequence[Entry]]]) -> list[list[list[tuple[str, int, bool]]]]:
    """Returns which examples came; a label may be an array, which cannot be compared so."""
    return [[[(entry.id, entry.index, entry.valid) for entry in batch] for batch in batches] for batches in iterations]


def _valid_of(expected: Expectation, batches: Sequence[Sequence[Entry]]) -> _Batches:
    return [
        [entry.index if expected.is_known(entry) else _UNKNOWN for entry in batch if entry.valid] for batch in batches
    ]


def _first_difference(came: _Batches, planned: _Batches) -> int:
    pairs = enumerate(zip(came, planned, strict=False))
    return next((number for number, (one, other) in pairs if one != other), min(len(came), len(planned)))


def _judge_sample(expected: Expectation, sample: Sequence[ComparedExample]) -> Promise:
    wrong = []
    for example in sample:
        id, theirs = expected.ids[example.index], example.theirs
        if theirs.id not in (None, id):
            wrong.append(f"index {example.index}: {id} is expected, and TFDS has {theirs.id}")
        if theirs.digest != example.digest:
            wrong.append(f"index {example.index}: {id} has other bytes than TFDS reads")
    what = "the same bytes" if any(example.theirs.id is None for example in sample) else "the same ids and bytes"
    return Promise(TFDS_PROMISE, not wrong, list_some(wrong) or f"{len(sample)} examples: {what}")
