"""EpochPlan against section 4 of DESIGN.md, written out slowly by plan.oracle."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import Epoch, collect_round_robin, order_of_pass, plans, write_out
from refused import said_of

from tfds_torch.errors import ConfigError
from tfds_torch.plan.epoch import PAD_LABEL, Delivery, EpochPlan, PlannedBatch, Remainder
from tfds_torch.plan.passes import BlockShuffle, block_order_at
from tfds_torch.plan.world import World

SMALL_PLANS = plans(max_examples=60, max_replicas=6, max_workers=5, max_batch_size=8)
LARGE_PLANS = plans(max_examples=10**6, max_replicas=64, max_workers=16, max_batch_size=4096)
EPOCHS = st.integers(0, 5)
MOST_BATCHES = 150  # Of a large plan, how many are held against the oracle.


def training_plan(num_examples: int, batch_size: int, world: World | None = None, **more: Any) -> EpochPlan:
    more = {"remainder": Remainder.WRAP, "shuffle": True, **more}
    return EpochPlan(num_examples, world or World(), batch_size, is_training=True, **more)


def evaluation_plan(num_examples: int, batch_size: int, world: World | None = None, **more: Any) -> EpochPlan:
    world = world or World()
    more = {"remainder": EpochPlan.default_remainder(False, world), **more}
    return EpochPlan(num_examples, world, batch_size, **more)


def at(plan: EpochPlan, rank: int, worker: int = 0) -> EpochPlan:
    return replace(plan, world=replace(plan.world, rank=rank, worker=worker))


def ranks(plan: EpochPlan) -> list[EpochPlan]:
    return [at(plan, rank) for rank in range(plan.world.num_replicas)]


def as_lists(batch: PlannedBatch) -> tuple[list[int], list[int], list[bool]]:
    return batch.index.tolist(), batch.pass_number.tolist(), batch.valid.tolist()


def index_of(plan: EpochPlan, epoch: int = 0) -> list[list[int]]:
    return [plan.batch(epoch, number).index.tolist() for number in range(plan.num_batches)]


def some_numbers(num_batches: int, most: int) -> list[int]:
    """All batch numbers, or the first ones, the last ones, and some evenly between."""
    if num_batches <= most:
        return list(range(num_batches))
    between = np.linspace(2, num_batches - 3, most - 4).astype(int).tolist()
    return [0, 1, *sorted(set(between)), num_batches - 2, num_batches - 1]


# Completeness: every batch is the one that DESIGN writes down.


@settings(max_examples=150, deadline=None)
@given(SMALL_PLANS, EPOCHS)
def test_the_batches_of_all_ranks_are_those_of_the_design(plan: EpochPlan, epoch: int) -> None:
    expected = write_out(plan, epoch)
    assert plan.num_batches == expected.num_batches
    for here in ranks(plan):
        for number in range(plan.num_batches):
            part = expected.batch_of_rank(number, here.world.rank, plan.batch_size)
            assert as_lists(here.batch(epoch, number)) == part


def check_against(expected: Epoch, plan: EpochPlan, epoch: int) -> None:
    num_ranks = plan.world.num_replicas
    numbers = some_numbers(expected.num_batches, max(6, MOST_BATCHES // num_ranks))
    for here in ranks(plan):
        for number in numbers:
            part = expected.batch_of_rank(number, here.world.rank, plan.batch_size)
            assert as_lists(here.batch(epoch, number)) == part


@settings(max_examples=25, deadline=None)
@given(LARGE_PLANS, EPOCHS)
def test_the_batches_of_large_plans_are_those_of_the_design(plan: EpochPlan, epoch: int) -> None:
    expected = write_out(plan, epoch)
    assert plan.num_batches == expected.num_batches
    check_against(expected, plan, epoch)


@pytest.mark.campaign
@settings(max_examples=150, deadline=None)
@given(LARGE_PLANS, EPOCHS)
def test_the_batches_of_many_large_plans_are_those_of_the_design(plan: EpochPlan, epoch: int) -> None:
    expected = write_out(plan, epoch)
    assert plan.num_batches == expected.num_batches
    check_against(expected, plan, epoch)


@settings(max_examples=100, deadline=None)
@given(SMALL_PLANS, EPOCHS)
def test_valid_examples_come_once_per_pass_over_all_ranks_and_workers(plan: EpochPlan, epoch: int) -> None:
    world = plan.world
    own_passes = range(epoch * plan.num_passes, (epoch + 1) * plan.num_passes)
    own: Counter[tuple[int, int]] = Counter()  # (example, pass)
    extra = padded = 0
    for rank in range(world.num_replicas):
        for worker in range(world.num_workers):
            here = at(plan, rank, worker)
            for number in here.worker_batches():
                batch = here.batch(epoch, number)
                for example, pass_number, valid in zip(*as_lists(batch), strict=True):
                    if not valid:
                        padded += 1
                    elif pass_number in own_passes:
                        own[example, pass_number] += 1
                    else:
                        extra += 1
    num_wanted = plan.num_examples * plan.num_passes
    num_rest = num_wanted % plan.global_batch_size
    num_missing = plan.global_batch_size - num_rest if num_rest else 0
    assert set(own.values()) <= {1}
    assert len(own) == plan.num_valid == num_wanted - (num_rest if plan.remainder is Remainder.DROP else 0)
    assert extra == (num_missing if plan.remainder is Remainder.WRAP else 0)
    assert padded == (num_missing if plan.remainder is Remainder.PAD else 0)


@settings(max_examples=80, deadline=None)
@given(LARGE_PLANS)
def test_lengths_are_exact_equal_on_all_ranks_and_need_no_workers(plan: EpochPlan) -> None:
    world = plan.world
    places = [World(rank, world.num_replicas, world.worker, world.num_workers) for rank in range(world.num_replicas)]
    places += [World(rank, world.num_replicas) for rank in range(world.num_replicas)]
    wanted = plan.num_examples * plan.num_passes
    full, rest = divmod(wanted, plan.global_batch_size)
    num_batches = full if plan.remainder is Remainder.DROP or not rest else full + 1
    num_samples = wanted if plan.remainder is Remainder.KEEP else num_batches * plan.batch_size
    for place in places:
        here = replace(plan, world=place)
        assert here.num_batches == len(replace(here, delivery=Delivery.BATCH)) == num_batches
        assert here.num_samples == len(replace(here, delivery=Delivery.SAMPLE)) == num_samples


# Independence of workers, of ranks, of the place where an epoch is taken up again.


@st.composite
def resumed_plans(draw: st.DrawFn) -> tuple[EpochPlan, int]:
    plan = draw(LARGE_PLANS)
    ends = st.sampled_from([0, plan.num_batches // 2, max(0, plan.num_batches - 1), plan.num_batches])
    return plan, draw(st.integers(0, plan.num_batches) | ends)


@settings(max_examples=100, deadline=None)
@given(resumed_plans())
def test_the_sequence_of_a_rank_is_the_same_for_any_workers_also_after_a_resume(resumed: tuple[EpochPlan, int]) -> None:
    plan, start_batch = resumed
    start_batch = max(start_batch, plan.num_batches - 20_000)  # The simulated loader is slow Python.
    workers = range(plan.world.num_workers)
    numbers = [list(at(plan, plan.world.rank, worker).worker_batches(start_batch)) for worker in workers]
    assert collect_round_robin(numbers) == list(range(start_batch, plan.num_batches))


def test_a_resume_at_every_batch_with_any_workers_gives_the_same_tail() -> None:
    plan = training_plan(103, 4, World(1, 3))
    whole = index_of(plan, epoch=2)
    for start_batch in range(plan.num_batches + 1):
        for num_workers in range(1, 12):
            workers = [replace(plan, world=plan.world.at_worker(w, num_workers)) for w in range(num_workers)]
            delivered = collect_round_robin([list(worker.worker_batches(start_batch)) for worker in workers])
            tail = [
                workers[position % num_workers].batch(2, number).index.tolist()
                for position, number in enumerate(delivered)
            ]
            assert tail == whole[start_batch:]


@settings(max_examples=60, deadline=None)
@given(SMALL_PLANS, st.data())
def test_the_worker_changes_nothing_in_a_batch(plan: EpochPlan, data: st.DataObject) -> None:
    if plan.num_batches == 0:
        return
    number = data.draw(st.integers(0, plan.num_batches - 1))
    alone = replace(plan, world=World(plan.world.rank, plan.world.num_replicas))
    assert as_lists(plan.batch(1, number)) == as_lists(alone.batch(1, number))


@settings(max_examples=35, deadline=None)
@given(
    num_examples=st.integers(0, 2000),
    global_batch_size=st.sampled_from([1, 2, 12, 60, 64, 96, 360]),
    remainder=st.sampled_from([Remainder.WRAP, Remainder.DROP, Remainder.PAD]),
    repeats=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_global_batches_are_the_same_for_any_number_of_ranks(
    num_examples: int, global_batch_size: int, remainder: Remainder, repeats: int, seed: int
) -> None:
    is_training = remainder is Remainder.WRAP or repeats > 1
    num_examples = max(num_examples, global_batch_size if is_training else 0)
    sequences = []
    for num_replicas in (r for r in range(1, 65) if global_batch_size % r == 0):
        plan = EpochPlan(
            num_examples, World(0, num_replicas), global_batch_size // num_replicas, remainder, is_training, repeats,
            shuffle=True, seed=seed,
        )  # fmt: skip
        sequences.append(
            [
                [
                    np.concatenate(column).tolist()
                    for column in zip(*(as_lists(r.batch(1, number)) for r in ranks(plan)), strict=True)
                ]
                for number in some_numbers(plan.num_batches, 8)
            ]
        )
    assert all(sequence == sequences[0] for sequence in sequences)


# The four remainders, by hand.


def test_wrap_fills_the_last_batch_with_the_first_examples_of_the_next_pass() -> None:
    plan = training_plan(10, 4)
    this, following = (order_of_pass(plan, number).tolist() for number in (0, 1))
    last = plan.batch(0, 2)
    assert last.index.tolist() == this[8:] + following[:2]
    assert last.pass_number.tolist() == [0, 0, 1, 1]
    assert last.valid.tolist() == [True] * 4
    assert plan.batch(1, 0).index.tolist() == following[:4]  # The next epoch begins with them.


def test_pad_fills_with_the_examples_of_the_same_pass_marked_invalid() -> None:
    plan = evaluation_plan(5, 2, World(0, 4))
    batches = [here.batch(0, 0) for here in ranks(plan)]
    assert [batch.index.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 0], [1, 2]]
    assert [batch.valid.tolist() for batch in batches] == [[True] * 2, [True] * 2, [True, False], [False] * 2]
    assert {number for batch in batches for number in batch.pass_number.tolist()} == {0}


def test_keep_leaves_the_last_batch_short() -> None:
    assert index_of(evaluation_plan(7, 3)) == [[0, 1, 2], [3, 4, 5], [6]]


def test_drop_leaves_the_last_examples_out() -> None:
    plan = training_plan(7, 3, remainder=Remainder.DROP)
    assert index_of(plan) == np.reshape(order_of_pass(plan, 0)[:6], (2, 3)).tolist()


def test_drop_in_evaluation_may_leave_nothing() -> None:
    plan = evaluation_plan(7, 8, remainder=Remainder.DROP)
    assert (plan.num_batches, len(plan), plan.num_valid) == (0, 0, 0)


def test_without_shuffle_every_epoch_has_the_order_of_the_dataset() -> None:
    plan = training_plan(7, 3, shuffle=False)
    assert index_of(plan, 0) == index_of(plan, 3) == [[0, 1, 2], [3, 4, 5], [6, 0, 1]]


def test_the_label_of_padding_is_the_ignore_index_of_torch() -> None:
    assert PAD_LABEL == -100


@pytest.mark.parametrize(
    ("is_training", "num_replicas", "expected"),
    [(True, 1, Remainder.WRAP), (True, 4, Remainder.WRAP), (False, 1, Remainder.KEEP), (False, 4, Remainder.PAD)],
)
def test_the_default_remainder_is_that_of_the_design(is_training: bool, num_replicas: int, expected: Remainder) -> None:
    assert EpochPlan.default_remainder(is_training, World(0, num_replicas)) is expected


# Repeats.


@pytest.mark.parametrize("repeats", [2, 3, 5])
def test_k_repeats_are_k_passes_each_complete_and_in_its_own_order(repeats: int) -> None:
    plan = training_plan(20, 1, repeats=repeats)
    assert len(plan) == 20 * repeats
    for epoch in (0, 1):
        orders = np.reshape(index_of(plan, epoch), (repeats, 20)).tolist()
        assert all(sorted(order) == list(range(20)) for order in orders)
        assert len({tuple(order) for order in orders}) == repeats
        assert orders == [order_of_pass(plan, epoch * repeats + j).tolist() for j in range(repeats)]


def test_repeats_zero_means_once_as_in_timm() -> None:
    once, zero = training_plan(10, 4, repeats=1), training_plan(10, 4, repeats=0)
    assert len(zero) == len(once)
    assert index_of(zero, 3) == index_of(once, 3)


def test_repeats_have_one_remainder_at_the_end() -> None:
    plan = training_plan(5, 4, repeats=3, remainder=Remainder.DROP)
    assert plan.num_batches == 15 // 4
    assert plan.num_valid == 12


def test_epochs_of_a_shuffled_plan_differ_and_come_again() -> None:
    plan = training_plan(100, 10)
    assert index_of(plan, 0) != index_of(plan, 1)
    assert index_of(plan, 1) == index_of(replace(plan), 1)
    assert index_of(plan, 0) != index_of(replace(plan, seed=43), 0)


# Nothing to read, little to read, much to read.


@pytest.mark.parametrize("remainder", [Remainder.KEEP, Remainder.PAD, Remainder.DROP])
def test_an_empty_split_is_evaluated_in_no_batches(remainder: Remainder) -> None:
    plan = evaluation_plan(0, 8, World(0, 1, 1, 3), remainder=remainder)
    assert (plan.num_batches, plan.num_samples, plan.num_valid, len(plan)) == (0, 0, 0, 0)
    assert list(plan.worker_batches()) == []


@pytest.mark.parametrize("remainder", list(Remainder))
def test_an_empty_split_cannot_be_trained_on(remainder: Remainder) -> None:
    with pytest.raises(ConfigError, match=r"^The split holds no examples: there is nothing to train on\.$"):
        training_plan(0, 8, remainder=remainder)


@pytest.mark.parametrize("remainder", [Remainder.WRAP, Remainder.PAD])
def test_fewer_examples_than_a_global_batch_give_one_full_batch_on_every_rank(remainder: Remainder) -> None:
    plan = training_plan(3, 2, World(0, 4), remainder=remainder)
    batches = [here.batch(0, 0) for here in ranks(plan)]
    assert plan.num_batches == 1
    assert {len(batch.index) for batch in batches} == {2}
    assert sorted(np.concatenate([batch.index for batch in batches])[:3].tolist()) == [0, 1, 2]


def test_more_pipelines_than_examples_leave_some_of_them_empty() -> None:
    plan = evaluation_plan(3, 1, World(0, 4, 0, 4))
    yielded = {
        (rank, worker): list(at(plan, rank, worker).worker_batches()) for rank in range(4) for worker in range(4)
    }
    assert yielded == {(rank, worker): [0] if worker == 0 else [] for rank in range(4) for worker in range(4)}
    assert [here.batch(0, 0).valid.tolist() for here in ranks(plan)] == [[True], [True], [True], [False]]


def test_a_batch_of_a_trillion_examples_costs_no_more_than_itself() -> None:
    plan = training_plan(10**12, 4, World(1, 2))
    assert plan.num_batches == 10**12 // 8
    last = plan.batch(7, plan.num_batches - 1)
    assert last.index.dtype == np.int64
    assert len(set(last.index.tolist())) == 4
    assert last.pass_number.tolist() == [7] * 4


def test_numpy_integers_are_taken_as_sizes() -> None:
    numpy_plan = training_plan(np.int64(10), np.int32(4), seed=np.int64(42), repeats=np.int8(1))  # type: ignore[arg-type]
    assert index_of(numpy_plan) == index_of(training_plan(10, 4))
    assert len(numpy_plan) == 12


def test_small_numpy_integers_do_not_overflow() -> None:
    plan = training_plan(np.int16(30_000), np.int8(100), World(0, 2), repeats=np.int8(3))  # type: ignore[arg-type]
    assert plan.num_batches == 90_000 // 200
    assert len(plan) == 45_000


# Errors.


OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"num_examples": -1}, "num_examples=-1 must be an integer >= 0."),
    ({"num_examples": 1.5}, "num_examples=1.5 must be an integer >= 0."),
    ({"num_examples": True}, "num_examples=True must be an integer >= 0."),
    ({"batch_size": 0}, "batch_size=0 must be an integer >= 1."),
    ({"batch_size": -4}, "batch_size=-4 must be an integer >= 1."),
    ({"batch_size": None}, "batch_size=None must be an integer >= 1."),
    ({"batch_size": "8"}, "batch_size='8' must be an integer >= 1."),
    ({"batch_size": 8.0}, "batch_size=8.0 must be an integer >= 1."),
    ({"batch_size": False}, "batch_size=False must be an integer >= 1."),
    ({"repeats": -1}, "repeats=-1 must be an integer >= 0."),
    ({"repeats": 1.0}, "repeats=1.0 must be an integer >= 0."),
    ({"seed": -1}, "seed=-1 must be an integer >= 0."),
    ({"seed": None}, "seed=None must be an integer >= 0."),
]


@pytest.mark.parametrize("is_training", [True, False])
def test_a_number_out_of_range_is_a_config_error(is_training: bool) -> None:
    arguments = {"num_examples": 10, "world": World(), "batch_size": 2, "remainder": Remainder.DROP}
    make = partial(EpochPlan, is_training=is_training)
    found = [(message, said_of(ConfigError, make, **arguments | fields)) for fields, message in OUT_OF_RANGE]
    wrong = [(message, said) for message, said in found if said != message]
    assert not wrong, str(wrong)


def test_drop_over_several_passes_may_leave_something_to_train_on() -> None:
    assert training_plan(7, 4, World(0, 2), remainder=Remainder.DROP, repeats=2).num_batches == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *(
            (partial(EpochPlan, 10, World(0, 2), 2, Remainder.KEEP, is_training), "remainder='keep' with 2 ranks would "
             "give them different numbers of batches. Use 'pad' (evaluation), 'wrap' or 'drop' (training).")
            for is_training in (True, False)
        ),
        (partial(training_plan, 7, 4, World(0, 2), remainder=Remainder.DROP), "remainder='drop' leaves no batch: the "
         "epoch's 7 examples are fewer than the global batch of 8 (2 ranks x batch_size 4). Use remainder='wrap' or a "
         "smaller batch_size."),
        (partial(evaluation_plan, 10, 2, repeats=2), "repeats=2 in evaluation would count every example 2 times."),
        (partial(evaluation_plan, 10, 2, remainder=Remainder.WRAP), "remainder='wrap' in evaluation would count "
         "examples twice. Use 'pad', 'keep' or 'drop'."),
        (partial(training_plan, 7, 3, remainder="roundup"), "remainder='roundup' must be one of 'wrap', 'drop', "
         "'pad', 'keep'."),
        (partial(training_plan, 7, 3, remainder=None), "remainder=None must be one of 'wrap', 'drop', 'pad', 'keep'."),
        (partial(training_plan, 7, 3, delivery="batches"), "delivery='batches' must be 'sample' or 'batch'. Did you "
         "mean 'batch'?"),
        (partial(training_plan, 100, 10, blocks=256), "blocks=256 must be a BlockShuffle or None."),
    ],
)  # fmt: skip
def test_values_that_keep_no_guarantee_are_config_errors(make: Callable[[], EpochPlan], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize("remainder", list(Remainder))
def test_a_remainder_given_as_text_means_that_remainder_or_is_refused(remainder: Remainder) -> None:
    expected = index_of(training_plan(7, 3, remainder=remainder))
    try:
        plan = training_plan(7, 3, remainder=remainder.value)
    except ConfigError:
        return
    assert index_of(plan) == expected


@pytest.mark.parametrize("delivery", list(Delivery))
def test_a_delivery_given_as_text_means_that_delivery_or_is_refused(delivery: Delivery) -> None:
    try:
        plan = training_plan(7, 3, delivery=delivery.value)
    except ConfigError:
        return
    assert len(plan) == len(training_plan(7, 3, delivery=delivery))


@pytest.mark.parametrize("start_batch", [-1, 4, 100])
def test_a_start_batch_outside_the_epoch_is_a_config_error(start_batch: int) -> None:
    with pytest.raises(ConfigError, match=rf"^start_batch={start_batch} must be in 0\.\.3, the batches of an epoch\.$"):
        training_plan(10, 4).worker_batches(start_batch)


def test_a_start_at_the_end_leaves_nothing() -> None:
    assert list(training_plan(10, 4).worker_batches(3)) == []


@pytest.mark.parametrize("number", [-1, 3])
def test_a_batch_outside_the_epoch_is_a_config_error(number: int) -> None:
    with pytest.raises(ConfigError, match=rf"^batch {number} must be in 0\.\.2\.$"):
        training_plan(10, 4).batch(0, number)


# Block order.


def test_a_shuffled_plan_with_blocks_has_the_block_order() -> None:
    blocks = BlockShuffle(8, 4)
    plan = training_plan(100, 10, blocks=blocks)
    expected = block_order_at(np.arange(100), 100, plan.seed, 3, blocks).reshape(10, 10)
    assert index_of(plan, epoch=3) == expected.tolist()
    assert index_of(replace(plan, blocks=None), epoch=3) != expected.tolist()


def test_blocks_change_nothing_where_nothing_is_shuffled() -> None:
    plan = evaluation_plan(100, 10)
    assert (
        index_of(replace(plan, blocks=BlockShuffle(8, 4))) == index_of(plan) == np.arange(100).reshape(10, 10).tolist()
    )


@settings(max_examples=100, deadline=None)
@given(SMALL_PLANS, EPOCHS, st.data())
def test_any_slots_in_any_arrangement_give_their_examples(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
    expected = write_out(plan, epoch)
    if len(expected.index):
        slots = np.array(data.draw(st.lists(st.integers(0, len(expected.index) - 1), max_size=50)), np.int64)
        found = plan.at_slots(epoch, slots)
        assert np.array_equal(found.index, expected.index[slots])
        assert np.array_equal(found.pass_number, expected.pass_number[slots])
        assert np.array_equal(found.valid, expected.valid[slots])
