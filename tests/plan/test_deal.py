"""WorkerOrder, deal_examples and deal_files against batches and rows of examples written out one by one."""

import os
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.oracle import grid, plans, slots_of
from refused import said_of
from zygote import Script, tensorflow_zygote

from tfds_torch.errors import ConfigError
from tfds_torch.plan.deal import Assignment, ShardRange, WorkerOrder, deal_examples, deal_files, pipeline_counts
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import epoch_order
from tfds_torch.plan.passes import BlockShuffle, Passes
from tfds_torch.plan.world import World

Example = tuple[int, int]  # (file, position within the file)
Deal = Callable[[EpochPlan, list[int], int], Assignment]
EPOCHS = st.integers(0, 4)
PYTEST = str(Path(pytest.__file__).with_name("__main__.py"))
AGAINST_TFDS = Path(__file__).with_name("deal_against_tfds.py")


def training(
    n: int, batch_size: int, world: World, *, shuffle: bool = True, seed: int = 42, **more: object
) -> EpochPlan:
    arguments = {"remainder": Remainder.WRAP, **more}
    return EpochPlan(Passes(n, seed, shuffle), world, batch_size, is_training=True, **arguments)  # type: ignore[arg-type]


def evaluation(n: int, batch_size: int, world: World) -> EpochPlan:
    return EpochPlan(Passes(n, shuffle=False), world, batch_size, EpochPlan.default_remainder(False, world))


# WorkerOrder


@settings(max_examples=150, deadline=None)
@given(plans(), EPOCHS, st.data())
def test_a_worker_delivers_its_own_batches_in_order(plan: EpochPlan, epoch: int, data: st.DataObject) -> None:
    plan = replace(plan, first_example=data.draw(st.just(0) | st.integers(0, plan.num_own_slots)))
    start_batch = data.draw(st.integers(0, plan.num_batches))
    order = WorkerOrder(plan, epoch, start_batch)
    own = [n for n in range(start_batch, plan.num_batches) if (n - start_batch) % plan.world.num_workers
           == plan.world.worker]  # fmt: skip
    expected = [slot for number in own for slot in slots_of(plan.batch(epoch, number))]
    assert list(order.numbers) == list(plan.worker_batches(start_batch)) == own
    assert (len(order), order.num_valid) == (len(expected), sum(valid for _, _, valid in expected))
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(order))] * 2)))
    assert slots_of(order.planned(0, len(order))) == expected
    assert slots_of(order.planned(start, stop)) == expected[start:stop]
    assert order.sample_keys(start, stop).tolist() == [p * plan.num_examples + x for p, x, _ in expected[start:stop]]
    size = plan.num_batches * plan.global_batch_size
    numbers = np.arange(size)
    first = plan.world.rank * plan.batch_size
    assert numbers[order.reads(numbers)].tolist() == [
        number * plan.global_batch_size + first + at for number in own for at in range(plan.batch_size)
    ]


@pytest.mark.parametrize("blocks", [None, BlockShuffle(256, 32)])
@pytest.mark.parametrize("n", [10**7, 10**10])
def test_nothing_is_listed_before_it_is_asked_for_nor_in_another_process(n: int, blocks: BlockShuffle | None) -> None:
    plan = EpochPlan(Passes(n, blocks=blocks), World(3, 8, 1, 4), 256, Remainder.WRAP, is_training=True)
    order = WorkerOrder(plan, epoch=2, start_batch=5)
    middle, saved = len(order) // 2, pickle.dumps(order)
    expected = order.planned(middle, middle + 300).index
    tracemalloc.start()
    try:
        for size, most in ((10, 100_000), (4096, 100_000 + 250 * 4096)):
            tracemalloc.reset_peak()
            assert len(order.planned(middle, middle + size).index) == size
            assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert len(saved) < 2000
    assert np.array_equal(pickle.loads(saved).planned(middle, middle + 300).index, expected)


OUTSIDE = WorkerOrder(EpochPlan(Passes(100, shuffle=False), World(1, 2, 1, 2), 8, Remainder.PAD), 0, 1)
WHOLE = "read modes 'files' and 'examples' deal whole epochs only"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        *((partial(OUTSIDE.planned, start, stop), f"WorkerOrder: positions {start}:{stop} must lie within 0..24, the "
           "examples that worker 1 of rank 1 delivers from batch 1 on.") for start, stop in ((-1, 3), (0, 25), (5, 4))),
        (partial(WorkerOrder, OUTSIDE.plan, -1), "epoch=-1 must be an integer >= 0."),
        (partial(WorkerOrder, OUTSIDE.plan, 1.5), "epoch=1.5 must be an integer >= 0."),  # type: ignore[arg-type]
        *((partial(WorkerOrder, OUTSIDE.plan, 0, start), f"start_batch={start} must be in 0..7, the batches of an "
           "epoch.") for start in (8, -1)),
        *((partial(deal, training(10, 4, World(), first_example=4), [10], 0), f"first_example=4: {WHOLE}")
          for deal in (deal_files, deal_examples)),
    ],
)  # fmt: skip
def test_what_is_outside_an_epoch_is_a_config_error(make: Callable[[], object], message: str) -> None:
    assert said_of(ConfigError, make).startswith(message)


# Streams


def read(ranges: tuple[ShardRange, ...]) -> list[Example]:
    assert all(each.start < each.stop for each in ranges), "nothing is opened for nothing"
    return [(each.file, position) for each in ranges for position in range(each.start, each.stop)]


def row_of_files(plan: EpochPlan, num_files: int, pass_number: int) -> list[int]:
    return epoch_order(num_files, plan.seed, pass_number).tolist() if plan.order.shuffle else list(range(num_files))


def row_of_examples(plan: EpochPlan, file_lengths: list[int], pass_number: int) -> list[Example]:
    files = row_of_files(plan, len(file_lengths), pass_number)
    row = [(file, position) for file in files for position in range(file_lengths[file])]
    begin = beginning(plan, len(row), pass_number)
    return row[begin:] + row[:begin]


def beginning(plan: EpochPlan, length: int, pass_number: int, number: int = 0) -> int:
    """Where a ring of examples begins in a pass."""
    if not (plan.order.shuffle and length):
        return 0
    return int(epoch_order(length, plan.seed, pass_number)[number % length])


def count_slots(plan: EpochPlan) -> tuple[int, int]:
    """The plan's pipeline's valid and fill slots, counted one by one."""
    own = plan.order.num_slots * max(1, plan.repeats)
    global_batch_size = plan.world.num_replicas * plan.batch_size
    valid = fill = 0
    for number in range(plan.num_batches):
        if number % plan.world.num_workers != plan.world.worker:
            continue
        for i in range(plan.batch_size):
            if number * global_batch_size + plan.world.rank * plan.batch_size + i < own:
                valid += 1
            elif plan.remainder is not Remainder.KEEP:
                fill += 1
    return valid, fill


@st.composite
def cuts(draw: st.DrawFn, num_examples: int) -> list[int]:
    """File lengths with a given sum: uneven, some empty, sometimes a single file."""
    if num_examples == 0:
        return draw(st.lists(st.just(0), max_size=3))
    ends = sorted(draw(st.lists(st.integers(0, num_examples), max_size=12)))
    return [stop - start for start, stop in zip([0, *ends], [*ends, num_examples], strict=True)]


@st.composite
def dealt_examples(draw: st.DrawFn) -> tuple[EpochPlan, list[int], int]:
    """A plan over a whole dataset, as streams have it, and its files."""
    plan = draw(plans(max_examples=80))
    n = plan.num_own_slots // plan.num_passes
    plan = replace(plan, order=Passes(n, plan.seed, draw(st.booleans())))
    return plan, draw(cuts(n)), draw(EPOCHS)


# How many.


@settings(max_examples=150, deadline=None)
@given(plans())
def test_every_pipeline_gets_as_many_as_it_has_slots(plan: EpochPlan) -> None:
    counts = [pipeline_counts(here) for here in grid(plan)]
    assert counts == [count_slots(here) for here in grid(plan)]
    assert sum(valid for valid, _ in counts) == plan.num_valid
    assert sum(map(sum, counts)) == plan.num_samples * plan.world.num_replicas


# Mode `examples`.


@settings(max_examples=120, deadline=None)
@given(dealt_examples())
def test_examples_are_consecutive_cuts_of_the_passes(dealt: tuple[EpochPlan, list[int], int]) -> None:
    plan, file_lengths, epoch = dealt
    k = max(1, plan.repeats)
    own = iter([e for j in range(k) for e in row_of_examples(plan, file_lengths, epoch * k + j)])

    def fill() -> Iterator[Example]:
        for number in count(epoch * k + k):
            pad = plan.remainder is Remainder.PAD
            yield from row_of_examples(plan, file_lengths, epoch * k + k - 1 if pad else number)

    filling = fill()
    for here in grid(plan):
        assigned = deal_examples(here, file_lengths, epoch)
        num_valid, num_fill = count_slots(here)
        assert read(assigned.valid) == list(islice(own, num_valid))
        assert read(assigned.fill) == list(islice(filling, num_fill))
        assert (assigned.num_valid, assigned.num_fill, assigned.num_available) == (num_valid, num_fill, num_valid)


def test_more_pipelines_than_examples_leave_some_without_any() -> None:
    plan = evaluation(3, 1, World(0, 2, 0, 4))
    assignments = [deal_examples(here, [1, 0, 2], 0) for here in grid(plan)]
    # Batches 0 and 1 belong to workers 0 and 1; the last slot is padding.
    assert [read(assigned.valid) for assigned in assignments] == [[(0, 0)], [(2, 0)], [], [], [(2, 1)], [], [], []]
    assert [read(assigned.fill) for assigned in assignments] == [[], [], [], [], [], [(0, 0)], [], []]


def test_a_single_file_is_cut_between_the_pipelines() -> None:
    plan = evaluation(10, 2, World(0, 1, 0, 3))
    assignments = [deal_examples(here, [10], 0) for here in grid(plan)]
    assert [assigned.valid for assigned in assignments] == [
        (ShardRange(0, 0, 4),),
        (ShardRange(0, 4, 8),),
        (ShardRange(0, 8, 10),),
    ]


def test_a_share_of_nothing_is_empty() -> None:
    assert deal_examples(evaluation(0, 4, World()), [], 0) == Assignment((), (), 0)


def pipelines_of_a_file(plan: EpochPlan, file_lengths: list[int], num_epochs: int, file: int) -> set[int]:
    deal = deal_files if min(file_lengths) > 0 else deal_examples
    return {
        here.world.pipeline
        for epoch in range(num_epochs)
        for here in grid(plan)
        if any(each.file == file for each in deal(here, file_lengths, epoch).valid)
    }


@pytest.mark.parametrize("file_lengths", [[8] * 8, [8, 0, 8, 8, 8, 8, 8, 8, 8]], ids=["files", "examples"])
def test_files_move_between_pipelines_from_epoch_to_epoch(file_lengths: list[int]) -> None:
    plan = training(64, 4, World(0, 2, 0, 2))
    assert pipelines_of_a_file(plan, file_lengths, 1, file=0) != {0, 1, 2, 3}
    assert pipelines_of_a_file(plan, file_lengths, 30, file=0) == {0, 1, 2, 3}


@pytest.mark.parametrize("file_lengths", [[8] * 8, [8, 0, 8, 8, 8, 8, 8, 8, 8]], ids=["files", "examples"])
def test_without_shuffle_files_stay_with_their_pipeline(file_lengths: list[int]) -> None:
    plan = training(64, 4, World(0, 2, 0, 2), shuffle=False)
    assert pipelines_of_a_file(plan, file_lengths, 30, file=0) == {0}


# Mode `files`.


@st.composite
def dealt_files(draw: st.DrawFn) -> tuple[EpochPlan, list[int], int]:
    """A training plan and non-empty files, at least as many as pipelines."""
    replicas, workers = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    num_files = replicas * workers + draw(st.integers(0, 12))
    lengths = draw(st.lists(st.integers(1, 30), min_size=num_files, max_size=num_files))
    repeats = draw(st.integers(0, 3))
    most = max(1, sum(lengths) * max(1, repeats) // replicas)
    plan = training(
        sum(lengths),
        draw(st.integers(1, min(most, 12)) | st.integers(1, most)),
        World(0, replicas, 0, workers),
        remainder=draw(st.sampled_from([Remainder.WRAP, Remainder.DROP])),
        repeats=repeats,
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**40)),
    )
    return plan, lengths, draw(EPOCHS)


@settings(max_examples=120, deadline=None)
@given(dealt_files())
def test_files_gives_each_pipeline_every_nth_file_of_the_row(dealt: tuple[EpochPlan, list[int], int]) -> None:
    plan, file_lengths, epoch = dealt
    k = max(1, plan.repeats)
    places = list(grid(plan))
    for place, here in enumerate(places):

        def dealt_in(pass_number: int, place: int = place) -> list[int]:
            return row_of_files(plan, len(file_lengths), pass_number)[place :: len(places)]

        assigned = deal_files(here, file_lengths, epoch)
        wanted = sum(count_slots(here))
        expected: list[Example] = []
        for pass_number, file in ((n, file) for n in count(epoch * k) for file in dealt_in(n)):
            if len(expected) == wanted:
                break
            ring = [(file, position) for position in range(file_lengths[file])]
            if len(ring) > wanted - len(expected):  # The last file is read in part, from anywhere on.
                begin = beginning(plan, len(ring), pass_number, file)
                ring = (ring[begin:] + ring[:begin])[: wanted - len(expected)]
            expected += ring
        assert read(assigned.valid) == expected
        assert assigned.fill == ()
        assert assigned.num_available == sum(file_lengths[f] for j in range(k) for f in dealt_in(epoch * k + j))


@pytest.mark.parametrize("repeats", [1, 3])
def test_files_of_equal_length_give_every_example_once_per_pass(repeats: int) -> None:
    plan = training(12 * 10, 5, World(0, 2, 0, 3), repeats=repeats)
    times = Counter(example for here in grid(plan) for example in read(deal_files(here, [10] * 12, 5).valid))
    assert times == {(file, position): repeats for file in range(12) for position in range(10)}


def test_what_a_pipelines_files_lack_comes_from_its_files_of_the_next_pass() -> None:
    plan = training(8, 4, World(0, 2), shuffle=False)
    lacking, plentiful = (deal_files(here, [2, 6], 0) for here in grid(plan))
    assert lacking == Assignment((ShardRange(0, 0, 2, 0), ShardRange(0, 0, 2, 1)), (), num_available=2)
    assert plentiful == Assignment((ShardRange(1, 0, 4),), (), num_available=6)


@pytest.mark.parametrize("deal", [deal_examples, deal_files])
def test_an_epoch_is_dealt_the_same_way_again_and_another_one_differently(deal: Deal) -> None:
    plan, file_lengths = training(64, 4, World(1, 2, 1, 2)), [8] * 8
    assert deal(plan, file_lengths, 3) == deal(replace(plan), list(file_lengths), 3)
    assert len({deal(plan, file_lengths, epoch) for epoch in range(5)}) == 5
    assert deal(plan, file_lengths, 3) != deal(replace(plan, order=Passes(64, 43)), file_lengths, 3)


# Over many epochs.


@pytest.mark.parametrize(
    ("deal", "file_lengths", "world", "batch_size", "remainder"),
    [
        (deal_files, [1437], World(), 64, Remainder.DROP),
        (deal_files, [1437], World(), 64, Remainder.WRAP),
        (deal_examples, [1437], World(), 64, Remainder.DROP),
        (deal_examples, [16] * 4, World(0, 2, 0, 2), 5, Remainder.DROP),
        (deal_files, [16] * 4, World(0, 2, 0, 2), 5, Remainder.DROP),
        (deal_files, [130, 120] * 4, World(0, 8), 32, Remainder.WRAP),
    ],
)
def test_no_example_is_left_out_for_ever(
    deal: Deal, file_lengths: list[int], world: World, batch_size: int, remainder: Remainder
) -> None:
    plan = training(sum(file_lengths), batch_size, world, remainder=remainder)
    assignments = [deal(here, file_lengths, epoch) for epoch in range(60) for here in grid(plan)]
    times = Counter(example for assigned in assignments for example in read(assigned.valid))
    assert len(times) == plan.num_examples
    assert max(times.values()) < 90


def test_a_single_file_is_cut_elsewhere_in_every_epoch() -> None:
    plan = training(1437, 32, World(1, 2))
    read_sets = {frozenset(read(deal_examples(plan, [1437], epoch).valid)) for epoch in range(20)}
    assert len(read_sets) == 20


# Against TFDS and tf.data, in a process of its own that may run tensorflow


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("marked", "at_least"),
    [
        pytest.param("not slow and not campaign", 30, id="quick"),
        pytest.param("slow", 6, marks=pytest.mark.campaign, id="slow"),
        pytest.param("campaign", 2, marks=pytest.mark.campaign, id="campaign"),
    ],
)
def test_assignments_are_those_of_tfds_where_they_can_be(tmp_path: Path, marked: str, at_least: int) -> None:
    options = ["-q", "-m", marked, "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'own'}"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = Script(tensorflow_zygote(), [PYTEST, str(AGAINST_TFDS), *options], environ, AGAINST_TFDS.parents[2]).finish()
    assert done.returncode == 0, done.stdout + done.stderr
    num_passed = next(word for word in done.stdout.splitlines()[-1].split() if word.isdigit())
    assert int(num_passed) >= at_least, done.stdout
