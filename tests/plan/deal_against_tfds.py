"""deal_files and deal_examples against what TFDS and tf.data themselves give a pipeline.

`deal_files` is TFDS's `input_context` with `experimental_interleave_sort_fn`: every num_input_pipelines-th file of the
re-ordered list, through `tf.distribute.InputContext` and TFDS's own reader. `deal_examples` is `tfds.even_splits`.

Where this package differs on purpose:

- A pipeline reads what the plan asks of it, not all that it was dealt. In `files` that is a prefix of what TFDS's
  pipeline reads, and goes on in the next pass where its files are too short; a shuffled last file may begin anywhere.
- In `examples` the cuts are whole batches, so that every rank has the same number of them. TFDS's even splits differ
  from each other by one example at most; ours are the same cuts where whole batches can be dealt evenly, or where a
  batch is one example and there is one rank or one worker. Else they differ from TFDS's by less than two batches.
- TFDS cuts each part of `train+test` by itself; here their examples are one row.
- Padding and wrapping are not in TFDS: it repeats (`repeat()`), or drops (`drop_remainder=True`).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfds_torch.plan.deal import Assignment, ShardRange, deal_examples, deal_files
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import epoch_order
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World

Example = tuple[int, int]  # (file, position within the file)
Cut = list[tuple[int, int, int]]  # (file, start, stop)


def read(ranges: tuple[ShardRange, ...]) -> list[Example]:
    return [(each.file, position) for each in ranges for position in range(each.start, each.stop)]


def file_order(plan: EpochPlan, num_files: int, pass_number: int) -> list[int]:
    """The row of files of a pass, which TFDS is given as `experimental_interleave_sort_fn`."""
    return epoch_order(num_files, plan.seed, pass_number).tolist() if plan.order.shuffle else list(range(num_files))


def input_context(world: World) -> Any:
    import tensorflow as tf

    return tf.distribute.InputContext(world.num_pipelines, world.pipeline, world.num_replicas)


# Mode `files`, against TFDS's reader and real files.


class WrittenFiles:
    """Small TFRecord files, which TFDS's own reader deals out and reads."""

    def __init__(self, folder: Path, lengths: list[int]) -> None:
        import tensorflow as tf
        from tensorflow_datasets.core.utils.shard_utils import FileInstruction

        self._instructions = []
        self._found: dict[tuple[World, tuple[int, ...]], list[Example]] = {}
        for number, length in enumerate(lengths):
            name = folder / f"made-train.tfrecord-{number:05d}-of-{len(lengths):05d}"
            with tf.io.TFRecordWriter(str(name)) as writer:
                for _ in range(length):
                    writer.write(b"example")
            self._instructions.append(FileInstruction(str(name), skip=0, take=length, examples_in_shard=length))

    def read(self, order: list[int], world: World) -> list[Example]:
        """Returns what one pipeline of TFDS reads, file by file; an order that came before is not read again."""
        if (world, tuple(order)) not in self._found:
            self._found[world, tuple(order)] = self._read(order, world)
        return self._found[world, tuple(order)]

    def _read(self, order: list[int], world: World) -> list[Example]:
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core import reader

        config = tfds.ReadConfig(
            input_context=input_context(world),
            experimental_interleave_sort_fn=lambda instructions: [instructions[number] for number in order],
            interleave_cycle_length=1,  # One file after the other.
            add_tfds_id=True,
        )
        examples = reader._read_files(
            self._instructions,
            config,
            shuffle_files=False,
            disable_shuffling=False,
            file_format=tfds.core.FileFormat.TFRECORD,
        )
        ids = (example.id.decode().split("__") for example in examples.as_numpy_iterator())
        return [(int(name.rpartition("tfrecord-")[2][:5]), int(position)) for name, position in ids]


def check_files_against(
    reads: Callable[[int], list[Example]], plan: EpochPlan, lengths: list[int], epoch: int
) -> Assignment:
    """Checks that a pipeline's assignment is a prefix of what TFDS reads in the passes of an epoch and after it."""
    assigned = deal_files(plan, lengths, epoch)
    first_pass = epoch * plan.num_passes
    own_passes = range(first_pass, first_pass + plan.num_passes)
    assert assigned.num_available == sum(len(reads(number)) for number in own_passes)
    found = read(assigned.valid)
    last_pass = max((each.pass_number for each in assigned.valid), default=first_pass)
    dealt = chain.from_iterable(reads(number) for number in range(first_pass, last_pass + 1))
    expected = list(islice(dealt, len(found)))
    assert [file for file, _ in found] == [file for file, _ in expected]
    # Only the last file is ever read in two ranges, around its end.
    assert len(assigned.valid) <= len({(each.pass_number, each.file) for each in assigned.valid}) + 1
    if not plan.order.shuffle or len(found) == assigned.num_available:
        assert found == expected
    else:  # Of the last file it reads as many, from any place on.
        whole = [at for at, (file, _) in enumerate(expected) if file != expected[-1][0]]
        before_last = whole[-1] + 1 if whole else 0
        assert found[:before_last] == expected[:before_last]
    return assigned


FILE_CASES = [
    # lengths, R, W, batch_size, repeats, shuffle, remainder
    ([5, 1, 3, 7, 2, 2, 9], 1, 3, 3, 1, False, Remainder.WRAP),
    ([5, 1, 3, 7, 2, 2, 9], 2, 2, 2, 1, True, Remainder.DROP),
    ([1, 1, 30], 3, 1, 4, 1, True, Remainder.WRAP),  # Two of three pipelines have too few.
    ([1, 1, 30], 3, 1, 4, 1, False, Remainder.PAD),
    ([6], 1, 1, 4, 1, True, Remainder.WRAP),
]
SLOW_FILE_CASES = [
    ([4] * 8, 2, 2, 4, 1, True, Remainder.WRAP),
    ([4] * 8, 2, 2, 4, 1, False, Remainder.WRAP),
    ([4] * 8, 1, 8, 4, 2, True, Remainder.DROP),
    ([5, 1, 3, 7, 2, 2, 9], 2, 2, 2, 1, True, Remainder.WRAP),
    ([5, 1, 3, 7, 2, 2, 9], 7, 1, 1, 3, True, Remainder.DROP),
]


@pytest.mark.parametrize(
    ("lengths", "replicas", "workers", "batch_size", "repeats", "shuffle", "remainder"),
    [*FILE_CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW_FILE_CASES)],
)
def test_in_files_a_pipeline_reads_what_input_context_deals_it(
    lengths: list[int],
    replicas: int,
    workers: int,
    batch_size: int,
    repeats: int,
    shuffle: bool,
    remainder: Remainder,
    tmp_path: Path,
) -> None:
    files = WrittenFiles(tmp_path, lengths)
    for world in World.grid(replicas, workers):
        order = Passes(sum(lengths), shuffle=shuffle)
        plan = EpochPlan(order, world, batch_size, remainder, is_training=True, repeats=repeats)

        @cache
        def reads(pass_number: int, plan: EpochPlan = plan) -> list[Example]:
            return files.read(file_order(plan, len(lengths), pass_number), plan.world)

        check_files_against(reads, plan, lengths, epoch=1)


def test_files_that_fit_the_batches_are_read_exactly_as_tfds_reads_them(tmp_path: Path) -> None:
    files, lengths = WrittenFiles(tmp_path, [6] * 6), [6] * 6
    for world in World.grid(3, 2):
        plan = EpochPlan(Passes(36), world, 3, Remainder.WRAP, is_training=True)
        assigned = deal_files(plan, lengths, 2)
        assert read(assigned.valid) == files.read(file_order(plan, 6, 2), world)


def test_tfds_refuses_fewer_files_than_pipelines_which_mode_files_is_not_taken_for(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="some workers won't read any data"):
        WrittenFiles(tmp_path, [3, 3]).read([0, 1], World(num_workers=3))


@st.composite
def file_plans(draw: st.DrawFn) -> tuple[EpochPlan, list[int], int]:
    replicas, workers = draw(st.integers(1, 16)), draw(st.integers(1, 8))
    num_pipelines = replicas * workers
    lengths = draw(st.lists(st.integers(1, 40), min_size=num_pipelines, max_size=num_pipelines + 200))
    world = World(draw(st.integers(0, replicas - 1)), replicas, draw(st.integers(0, workers - 1)), workers)
    repeats = draw(st.integers(0, 3))
    remainder = draw(st.sampled_from([Remainder.WRAP, Remainder.DROP, Remainder.PAD]))
    most = sum(lengths) * max(1, repeats) // replicas if remainder is Remainder.DROP else 64
    batch_size = draw(st.integers(1, max(1, min(64, most))))
    shuffle, seed = draw(st.booleans()), draw(st.integers(0, 2**40))
    plan = EpochPlan(Passes(sum(lengths), seed, shuffle), world, batch_size, remainder, True, repeats=repeats)
    return plan, lengths, draw(st.integers(0, 3))


FilePlan = tuple[EpochPlan, list[int], int]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(file_plans())
def test_in_files_any_pipeline_reads_what_tf_data_deals_it(case: FilePlan) -> None:
    check_files_against_tf_data(*case)


@pytest.mark.campaign
@settings(max_examples=1000, deadline=None)
@given(file_plans())
def test_in_files_any_pipeline_of_many_plans_reads_what_tf_data_deals_it(case: FilePlan) -> None:
    check_files_against_tf_data(*case)


def check_files_against_tf_data(plan: EpochPlan, lengths: list[int], epoch: int) -> None:
    import tensorflow as tf

    context = input_context(plan.world)

    @cache
    def reads(pass_number: int) -> list[Example]:
        row = tf.data.Dataset.from_tensor_slices(file_order(plan, len(lengths), pass_number))
        dealt = row.shard(num_shards=context.num_input_pipelines, index=context.input_pipeline_id)
        return [(file, position) for file in map(int, dealt.as_numpy_iterator()) for position in range(lengths[file])]

    check_files_against(reads, plan, lengths, epoch)


# Mode `examples`, against tfds.even_splits.


def even_splits(lengths: list[int], num_splits: int, *, drop_remainder: bool = False) -> list[Cut]:
    """The file instructions of TFDS's even splits of a split with such shards."""
    import tensorflow_datasets as tfds

    template = tfds.core.ShardedFileTemplate(
        data_dir="/nowhere", dataset_name="made", split="train", filetype_suffix="tfrecord"
    )
    info = tfds.core.SplitInfo("train", shard_lengths=lengths, num_bytes=0, filename_template=template)
    splits = tfds.core.SplitDict([info])
    return [
        [
            (int(str(each.filename).rpartition("tfrecord-")[2][:5]), each.skip, each.skip + each.take)
            for each in splits[split].file_instructions
        ]
        for split in tfds.even_splits("train", num_splits, drop_remainder=drop_remainder)
    ]


def cuts_of(plan: EpochPlan, lengths: list[int]) -> list[Cut]:
    """What all pipelines read of their own examples, in order."""
    grid = World.grid(plan.world.num_replicas, plan.world.num_workers)
    assigned = [deal_examples(replace(plan, world=world), lengths, 0) for world in grid]
    return [[(each.file, each.start, each.stop) for each in one.valid] for one in assigned]


def size_of(cut: Cut) -> int:
    return sum(stop - start for _, start, stop in cut)


def evaluation_plan(num_examples: int, world: World, batch_size: int) -> EpochPlan:
    return EpochPlan(Passes(num_examples, shuffle=False), world, batch_size, Remainder.PAD)


def check_examples_against_even_splits(plan: EpochPlan, lengths: list[int]) -> None:
    """Checks that the pipelines' cuts are TFDS's even splits, or as near to them as whole batches can be."""
    num_pipelines, cuts = plan.world.num_pipelines, cuts_of(plan, lengths)
    theirs = even_splits(lengths, num_pipelines)
    whole = even_splits(lengths, 1)[0]
    assert [place for cut in cuts for place in _places(cut)] == list(_places(whole))  # Side by side, in order.
    assert (
        max(abs(size_of(ours) - size_of(even)) for ours, even in zip(cuts, theirs, strict=True)) < 2 * plan.batch_size
    )
    one_by_one = plan.batch_size == 1 and 1 in (plan.world.num_replicas, plan.world.num_workers)
    if one_by_one or plan.num_examples % (num_pipelines * plan.batch_size) == 0:
        assert cuts == theirs
    if plan.order.shuffle:
        return
    shuffled = [size_of(cut) for cut in cuts_of(replace(plan, order=Passes(plan.num_examples)), lengths)]
    assert shuffled == [size_of(cut) for cut in cuts]


def _places(cut: Cut) -> list[Example]:
    return [(file, position) for file, start, stop in cut for position in range(start, stop)]


@pytest.mark.parametrize(
    ("lengths", "replicas", "workers", "batch_size"),
    [
        ([10, 10, 10], 1, 1, 4),
        ([10, 10, 10], 1, 4, 1),
        ([10, 10, 10], 4, 1, 1),
        ([3, 0, 4, 2, 0], 2, 2, 1),
        ([16, 16, 16, 16], 2, 4, 8),
        ([64], 4, 4, 4),
        ([5, 6, 7, 8, 9], 3, 2, 4),
        ([1, 0, 2], 4, 2, 1),  # More pipelines than examples.
        ([100] * 7, 2, 3, 16),
        ([0, 0], 2, 2, 4),
    ],
)
def test_in_examples_the_cuts_are_even_splits_where_batches_can_be_dealt_evenly(
    lengths: list[int], replicas: int, workers: int, batch_size: int
) -> None:
    world = World(num_replicas=replicas, num_workers=workers)
    check_examples_against_even_splits(evaluation_plan(sum(lengths), world, batch_size), lengths)


@pytest.mark.parametrize("replicas", [1, 2, 3, 7, 8])
@pytest.mark.parametrize("lengths", [[9, 0, 14], [8, 8, 8], [31]])
def test_with_drop_and_one_worker_they_are_even_splits_that_drop_the_remainder(
    lengths: list[int], replicas: int
) -> None:
    order = Passes(sum(lengths), shuffle=False)
    plan = EpochPlan(order, World(num_replicas=replicas), 1, Remainder.DROP, is_training=True)
    assert cuts_of(plan, lengths) == even_splits(lengths, replicas, drop_remainder=True)


@st.composite
def example_plans(draw: st.DrawFn) -> tuple[EpochPlan, list[int]]:
    lengths = draw(st.lists(st.integers(0, 300), min_size=1, max_size=20))
    replicas, workers = draw(st.integers(1, 12)), draw(st.integers(1, 8))
    batch_size = draw(st.sampled_from([1, 1, 2, 3, 8, 64]))
    is_even = draw(st.booleans())
    if is_even:
        lengths.append(-sum(lengths) % (replicas * workers * batch_size))
    return evaluation_plan(sum(lengths), World(num_replicas=replicas, num_workers=workers), batch_size), lengths


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(example_plans())
def test_in_examples_any_cuts_are_even_splits_or_near_them(case: tuple[EpochPlan, list[int]]) -> None:
    check_examples_against_even_splits(*case)


@pytest.mark.campaign
@settings(max_examples=1000, deadline=None)
@given(example_plans())
def test_in_examples_the_cuts_of_many_plans_are_even_splits_or_near_them(case: tuple[EpochPlan, list[int]]) -> None:
    check_examples_against_even_splits(*case)
