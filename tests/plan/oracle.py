"""Section 4 of DESIGN.md, word for word and slow: what the tests hold the plan against."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import epoch_order
from tfds_torch.plan.passes import BlockShuffle, block_order_at
from tfds_torch.plan.world import World


@dataclass
class Epoch:
    """All slots of an epoch of the whole world, in order: global batch g is slots g*G .. (g+1)*G - 1.

    Attributes:
        index, pass_number: int64 [num_slots].
        valid: bool [num_slots].
        global_batch_size: G.
    """

    index: NDArray[np.int64]
    pass_number: NDArray[np.int64]
    valid: NDArray[np.bool_]
    global_batch_size: int

    @property
    def num_batches(self) -> int:
        return len(range(0, len(self.index), self.global_batch_size))

    def batch_of_rank(self, number: int, rank: int, batch_size: int) -> tuple[list[int], list[int], list[bool]]:
        """The rank's slice of a global batch: index, pass_number, valid."""
        start = number * self.global_batch_size + rank * batch_size
        stop = min(start + batch_size, len(self.index))
        part = slice(start, stop)
        return self.index[part].tolist(), self.pass_number[part].tolist(), self.valid[part].tolist()


def order_of_pass(plan: EpochPlan, number: int) -> NDArray[np.int64]:
    if not plan.shuffle:
        return np.arange(plan.num_examples)
    if plan.blocks is not None:
        everywhere = np.arange(plan.num_examples)
        return block_order_at(everywhere, plan.num_examples, plan.seed, number, plan.blocks)
    return epoch_order(plan.num_examples, plan.seed, number)


def write_out(plan: EpochPlan, epoch: int) -> Epoch:
    """Writes out the whole epoch of the whole world."""
    k, n, global_batch_size = max(1, plan.repeats), plan.num_examples, plan.world.num_replicas * plan.batch_size
    passes = [epoch * k + j for j in range(k)]
    index = [order_of_pass(plan, number) for number in passes]
    pass_number = [np.full(n, number) for number in passes]
    rest = k * n % global_batch_size
    num_missing = global_batch_size - rest if rest else 0
    valid = [np.ones(k * n, bool)]
    if num_missing and plan.remainder is Remainder.WRAP:
        # The first examples of pass + 1; when that pass is too small, of the ones after it.
        following, left = epoch * k + k, num_missing
        while left:
            part = order_of_pass(plan, following)[:left]
            index.append(part)
            pass_number.append(np.full(len(part), following))
            valid.append(np.ones(len(part), bool))
            following, left = following + 1, left - len(part)
    elif num_missing and plan.remainder is Remainder.PAD:
        index.append(np.resize(index[-1], num_missing))  # Fill i is p[i % N].
        pass_number.append(np.full(num_missing, passes[-1]))
        valid.append(np.zeros(num_missing, bool))
    columns = [np.concatenate(column) for column in (index, pass_number, valid)]
    if plan.remainder is Remainder.DROP:
        columns = [column[: k * n - rest] for column in columns]
    index_column, pass_column, valid_column = columns
    return Epoch(index_column, pass_column, valid_column, global_batch_size)


def collect_round_robin(worker_numbers: list[list[Any]]) -> list[Any]:
    """What torch's DataLoader delivers: an item of each worker in turn from worker 0; finished ones are passed over."""
    queues = [list(reversed(numbers)) for numbers in worker_numbers]
    collected: list[int] = []
    while any(queues):
        collected += [queue.pop() for queue in queues if queue]
    return collected


@st.composite
def plans(
    draw: st.DrawFn, max_examples: int, max_replicas: int, max_workers: int, max_batch_size: int, max_repeats: int = 4
) -> EpochPlan:
    """Any valid plan: training or evaluation, all remainders, N = 0 in evaluation, often N near a multiple of G."""
    replicas = draw(st.integers(1, max_replicas))
    workers = draw(st.integers(1, max_workers))
    batch_size = draw(st.integers(1, max_batch_size))
    global_batch_size = replicas * batch_size
    is_training = draw(st.booleans())
    repeats = draw(st.integers(0, max_repeats)) if is_training else draw(st.integers(0, 1))
    allowed = [Remainder.DROP, Remainder.PAD]
    allowed += [Remainder.KEEP] if replicas == 1 else []
    allowed += [Remainder.WRAP] if is_training else []
    remainder = draw(st.sampled_from(allowed))
    least = 1 if is_training else 0
    if is_training and remainder is Remainder.DROP:
        least = -(-global_batch_size // max(1, repeats))
    most = max(least, max_examples)
    whole = st.builds(
        lambda count, off: min(most, max(least, count * global_batch_size + off)),
        st.integers(0, max(1, most // global_batch_size)),
        st.sampled_from([-1, 0, 1]),
    )
    shortest = 1 + max_examples // 1000  # Of a block: thousands of windows are slow to write out.
    blocks = st.builds(BlockShuffle, st.integers(shortest, shortest + max_examples // 3), st.integers(1, 5))
    world = World(draw(st.integers(0, replicas - 1)), replicas, draw(st.integers(0, workers - 1)), workers)
    return EpochPlan(
        num_examples=draw(st.integers(least, most) | whole),
        world=world,
        batch_size=batch_size,
        remainder=remainder,
        is_training=is_training,
        repeats=repeats,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
        blocks=draw(st.none() | blocks),
    )
