"""Section 4 of DESIGN.md, written out slot by slot: what the tests hold the plan against; and any plan of any order."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st

from tfds_torch.plan.deal import WorkerOrder
from tfds_torch.plan.drawn import Drawn, DrawWeights
from tfds_torch.plan.epoch import EpochPlan, PlannedBatch, Remainder
from tfds_torch.plan.mixed import Member, Mixed
from tfds_torch.plan.order import Order, ShuffledPass, epoch_order
from tfds_torch.plan.passes import BlockRow, BlockShuffle, Passes
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.subset import Subset
from tfds_torch.plan.weights import Segment
from tfds_torch.plan.world import World

Slot = tuple[int, int, bool]
"""Pass, example, valid."""
Batches = dict[int, list[Slot]]
"""Global batches by number, rank after rank."""
Item = TypeVar("Item")


def pass_of(order: Passes, number: int) -> list[int]:
    """Returns the examples of a pass over a dataset or a subset, in order."""
    everywhere = np.arange(order.pass_size)
    if order.shuffle and order.blocks is not None:
        everywhere = BlockRow(ShuffledPass(order.pass_size, order.seed, number), order.blocks).examples_at(everywhere)
    elif order.shuffle:
        everywhere = epoch_order(order.pass_size, order.seed, number)
    found: list[int] = (everywhere if order.subset is None else order.subset.numbers[everywhere]).tolist()
    return found


def row_of(order: Order, start: int, stop: int) -> list[Slot]:
    """Returns slots of an order's row: passes one after the other; of a mixture or draws, one slot at a time."""
    if not isinstance(order, Passes):
        found = [order.at(np.array([slot])) for slot in range(start, stop)]
        return [(int(number[0]), int(example[0]), True) for number, example in found]
    row: list[Slot] = []
    if start == stop:
        return row
    first = start // order.pass_size
    for number in range(first, -(-stop // order.pass_size)):
        row += [(number, example, True) for example in pass_of(order, number)]
    return row[start - first * order.pass_size : stop - first * order.pass_size]


def own_row(plan: EpochPlan, epoch: int) -> list[Slot]:
    """Returns the epoch's own examples: k times as many slots as the order's."""
    size = max(1, plan.repeats) * plan.order.num_slots
    return row_of(plan.order, epoch * size, (epoch + 1) * size)


def write_out(plan: EpochPlan, epoch: int) -> Batches:
    """Writes out all global batches of an epoch, from `first_example` on."""
    own, size = own_row(plan, epoch), plan.world.num_replicas * plan.batch_size
    slots, end = own[plan.first_example :], (epoch + 1) * len(own)
    missing = -len(slots) % size
    if plan.remainder is Remainder.DROP:
        slots = slots[: len(slots) // size * size]
    elif plan.remainder is Remainder.WRAP:
        slots += row_of(plan.order, end, end + missing)
    num_in_row = len(slots)
    if plan.remainder is Remainder.PAD and missing:
        last = own[len(own) - plan.order.num_slots :]
        slots += [(*last[i % len(last)][:2], False) for i in range(missing)]
    batches = {number: slots[at : at + size] for number, at in enumerate(range(0, len(slots), size))}
    groups = plan.order.num_groups
    for number, batch in batches.items():  # Slots take from the groups in turn, counted over the whole row.
        if size % groups == 0 and (number + 1) * size <= num_in_row:
            first = epoch * len(own) + plan.first_example + number * size
            order = sorted(range(size), key=lambda at, first=first: (first + at) % groups)  # type: ignore[misc]
            batches[number] = [batch[at] for at in order]
    return batches


def slots_of(batch: PlannedBatch) -> list[Slot]:
    return list(zip(batch.pass_number.tolist(), batch.index.tolist(), batch.valid.tolist(), strict=True))


def collect_round_robin(worker_items: list[list[Item]]) -> list[Item]:
    """What torch's DataLoader delivers: an item of each worker in turn from worker 0; finished ones are passed over."""
    queues = [list(reversed(items)) for items in worker_items]
    collected: list[Item] = []
    while any(queues):
        collected += [queue.pop() for queue in queues if queue]
    return collected


def grid(plan: EpochPlan) -> Iterator[EpochPlan]:
    """Yields the plan at every place of its world, ranks first."""
    for world in World.grid(plan.world.num_replicas, plan.world.num_workers):
        yield replace(plan, world=world)


def consume(plan: EpochPlan, epoch: int, start: int, stop: int) -> Batches:
    """What all ranks take from their loaders' workers, from a batch on, until another."""
    delivered: Batches = {number: [] for number in range(start, stop)}
    own = [WorkerOrder(here, epoch, start) for here in grid(plan)]
    for rank in range(plan.world.num_replicas):
        per_worker = []
        for order in own[rank * plan.world.num_workers : (rank + 1) * plan.world.num_workers]:
            slots, size = slots_of(order.planned(0, len(order))), plan.batch_size
            per_worker.append([slots[at * size : (at + 1) * size] for at in range(len(order.numbers))])
        for number, batch in enumerate(collect_round_robin(per_worker)[: stop - start], start):
            delivered[number] += batch
    return delivered


def state_of(plan: EpochPlan, batches: int = 0, epoch: int = 1, read_mode: str = "index", **more: Any) -> LoaderState:
    names: dict[str, Any] = {"dataset": "digits/full:1.0.0", "split": "train", "fingerprint": "0123456789abcdef"}
    names = {"num_workers": plan.world.num_workers, **names, **more}
    return LoaderState.of(plan, read_mode=read_mode, epoch=epoch, batches=batches, **names)


# Any plan


@st.composite
def subsets(draw: st.DrawFn, n: int, least: int = 0) -> Subset:
    numbers = draw(st.permutations(range(n)))
    return Subset(np.array(numbers[: draw(st.integers(least, n))], np.int64))


@st.composite
def orders(draw: st.DrawFn, least: int, most: int, is_training: bool) -> Order:
    """Any order whose epoch has at least so many slots: `Passes`, with and without all it may have; `Mixed`; `Drawn`.

    In evaluation only those that have each example once.
    """
    kind = draw(st.sampled_from(["passes", "subset", "mixed", "drawn"] if is_training else ["passes", "subset"]))
    most, seed, shuffle = max(least, most), draw(st.integers(0, 2**40)), draw(st.booleans())
    blocks = draw(st.none() | st.builds(BlockShuffle, st.integers(1, 9), st.integers(1, 6), st.integers(1, 4)))
    n = draw(st.integers(max(1, least) if is_training else least, most))
    epoch_size = draw(st.integers(max(1, least), most + 1))
    if kind == "drawn":
        values = np.array(draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), np.float64)
        values[0] = 1
        return Drawn(n, DrawWeights(values), epoch_size, seed)
    if kind == "mixed":
        whole = None if blocks is None else replace(blocks, groups=1)
        members = tuple(
            Member(f"m{m}", size, draw(st.sampled_from([whole, None])))
            for m, size in enumerate(draw(st.lists(st.integers(1, most), min_size=1, max_size=3)))
        )
        counts = [tuple(draw(st.integers(1, 7)) for _ in members) for _ in range(draw(st.integers(1, 2)))]
        segments = tuple(Segment(number * 25, one) for number, one in enumerate(counts))
        return Mixed(members, segments, epoch_size, seed, shuffle)
    subset = draw(subsets(n, max(1, least) if is_training else least)) if kind == "subset" else None
    is_endless = is_training and draw(st.booleans())
    return Passes(n, seed, shuffle, blocks, subset, epoch_size if is_endless else None)


@st.composite
def plans(
    draw: st.DrawFn, max_examples: int = 40, max_replicas: int = 4, max_workers: int = 4, max_batch_size: int = 6
) -> EpochPlan:
    """Any valid plan at any place: training or evaluation, all remainders, nothing to read in evaluation."""
    replicas, workers = draw(st.integers(1, max_replicas)), draw(st.integers(1, max_workers))
    batch_size, is_training = draw(st.integers(1, max_batch_size)), draw(st.booleans())
    repeats = draw(st.integers(0, 3 if is_training else 1))
    allowed = [Remainder.DROP, Remainder.PAD]
    allowed += [Remainder.KEEP] if replicas == 1 else []
    allowed += [Remainder.WRAP] if is_training else []
    remainder = draw(st.sampled_from(allowed))
    least = -(-replicas * batch_size // max(1, repeats)) if is_training and remainder is Remainder.DROP else 0
    order = draw(orders(least, max_examples, is_training))
    world = World(draw(st.integers(0, replicas - 1)), replicas, draw(st.integers(0, workers - 1)), workers)
    return EpochPlan(order, world, batch_size, remainder, is_training, repeats)
