"""Advice on reading: a table of plans and facts, and what is said of them; and who warns of it, once."""

import math
import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.cached_pictures import NUM_EXAMPLES, write_small
from tfds_torch import (
    ImageDataset,
    IndexedImageDataset,
    MultiLoader,
    ParserMapStyle,
    ParserTfds,
    ReadOptions,
    World,
    create_loader,
)
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import TrainPreprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.advice import (
    Facts,
    describe_boxes,
    describe_fill,
    describe_groups,
    describe_hidden,
    describe_memory,
    describe_padding,
    describe_remainder,
    describe_repeats,
    describe_unmarked_padding,
    worker_parts,
)
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import BlockShuffle, Passes
from tfds_torch.runtime.limits import MemoryLimit

GIB = 2**30
FACTS = Facts("cats:1.0.0", "train[:10]")


def plan_of(num_examples: int = 10, num_replicas: int = 1, batch_size: int = 64, **changes: Any) -> EpochPlan:
    """Returns a plan of training, and changes of it or of its order."""
    world, is_training = World(0, num_replicas), changes.pop("is_training", True)
    order = {name: changes.pop(name) for name in ("shuffle", "blocks", "epoch_size") if name in changes}
    remainder = changes.pop("remainder", EpochPlan.default_remainder(is_training, world))
    return EpochPlan(Passes(num_examples, **order), world, batch_size, remainder, is_training, **changes)


# A training split that does not fill a batch


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            plan_of(10),
            "cats:1.0.0, split 'train[:10]', has 10 examples, fewer than a batch of 64: each comes 6 or 7 times in the "
            "one batch of an epoch. Use batch_size=10 or less, or a larger split.",
        ),
        (plan_of(10, batch_size=20), "fewer than a batch of 20: each comes 2 times in the one"),
        (
            plan_of(60, 2, 40),
            "fewer than a batch of 80 (2 ranks x batch_size 40): each comes 1 or 2 times in the one batch of an epoch. "
            "Use batch_size=30 or less, or a larger split.",
        ),
        (plan_of(2, 3, 1), "Use a larger split, or fewer ranks."),
        (
            plan_of(60, epoch_size=10),
            "cats:1.0.0 has 10 examples in an epoch, fewer than a batch of 64: the one batch of an epoch is filled "
            "with the first examples of the next ones. Use a larger epoch_size, or a smaller batch_size.",
        ),
        (plan_of(64), None),
        (plan_of(16, repeats=4), None),
        (plan_of(10, remainder=Remainder.PAD), None),
        (plan_of(10, is_training=False), None),
    ],
)
def test_a_training_split_that_does_not_fill_a_batch_is_told(plan: EpochPlan, said: str | None) -> None:
    check_text(describe_repeats(plan, FACTS), said)


@pytest.mark.parametrize(
    ("num_replicas", "batch_size", "said"),
    [
        (
            2,
            3,
            "cats:1.0.0, split 'train[:10]': block_groups=4 does not divide the global batch of 6 (2 ranks x "
            "batch_size 3), so that every rank reads from all groups, and every machine nearly all blocks. Use "
            "batch_size=2 or 4, or other block_groups.",
        ),
        (3, 1, "Use batch_size=4, or other block_groups."),
        (2, 2, None),
        (1, 3, None),
    ],
)
def test_ranks_that_share_groups_of_blocks_are_told(num_replicas: int, batch_size: int, said: str | None) -> None:
    plan = plan_of(60, num_replicas, batch_size, blocks=BlockShuffle(4, 16, 4))
    check_text(describe_groups(plan, FACTS), said)


@pytest.mark.parametrize(
    ("plan", "is_said"),
    [
        (plan_of(23, 2, 5, is_training=False, shuffle=False), True),
        (plan_of(23, 2, 5, is_training=False, shuffle=True), False),
        (plan_of(20, 2, 5, is_training=False, shuffle=False), False),
        (plan_of(23, 1, 5, is_training=False, shuffle=False, remainder=Remainder.PAD), False),
    ],
)
def test_rows_that_ranks_read_twice_are_told(plan: EpochPlan, is_said: bool) -> None:
    said = (
        "cats:1.0.0 has 23 items, and 2 ranks with batch_size 5 read 7 of them twice, so that all have as many "
        "batches. An evaluation that must not count them twice reads which are padding: create_loader(ImageDataset("
        "ParserMapStyle(rows, batch_size=5), fields=(..., 'valid'), batched=True))."
    )
    check_text(describe_padding(plan, FACTS), said if is_said else None)


UNMARKED = Facts("cats:1.0.0", "val", tells_padding=False)


@pytest.mark.parametrize(
    ("plan", "facts", "is_said"),
    [
        (plan_of(15, 2, 4, is_training=False), UNMARKED, True),
        (plan_of(15, 2, 4, is_training=False), FACTS, False),
        (plan_of(16, 2, 4, is_training=False), UNMARKED, False),
        (plan_of(15, 1, 4, is_training=False), UNMARKED, False),
        (plan_of(15, 2, 4), UNMARKED, False),
    ],
)
def test_padding_that_no_field_marks_is_told(plan: EpochPlan, facts: Facts, is_said: bool) -> None:
    said = (
        "cats:1.0.0, split 'val', has 15 examples, and 1 more pad the last batches, so that all 2 ranks have as many. "
        "No field that is asked for tells them from examples: ask for the field 'valid', and leave out what is not "
        "valid."
    )
    check_text(describe_unmarked_padding(plan, facts), said if is_said else None)


def test_a_dataset_warns_of_it_and_a_multi_loader_whose_batches_have_valid_does_not() -> None:
    parser = ParserMapStyle([(number,) for number in range(5)], names=("x",), batch_size=2)
    with pytest.warns(UserWarning, match="No field that is asked for tells them from examples"):
        ImageDataset(parser, fields=("x",), world=World(0, 2))
    ImageDataset(parser, fields=("x", "valid"), world=World(0, 2))
    marked, unmarked = (np.uint8(3), np.zeros(3)), (True, np.zeros(3, bool), "a cat")
    for label, has_mark in [*((one, True) for one in marked), *((one, False) for one in unmarked)]:
        labelled = ParserMapStyle([{"x": 1, "label": label}] * 5, batch_size=2)
        with nullcontext() if has_mark else pytest.warns(UserWarning, match="No field .* tells them from examples"):
            ImageDataset(labelled, fields=("x", "label"), world=World(0, 2))
    MultiLoader(parser, num_workers=1, world=World(0, 2), fields=("x",)).close()


# What fills a last batch


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            plan_of(45, 2, 20),
            "batch_size 20: 35 examples of the next pass fill up every epoch (78% of it). batch_size 12 would make it "
            "3.",
        ),
        (
            plan_of(45, 2, 20, remainder=Remainder.DROP),
            "batch_size 20: 5 examples are dropped from every epoch (11% of it). batch_size 11 would make it 1.",
        ),
        (plan_of(45, 2, 20, is_training=False), "batch_size 20: 35 padded examples fill up every epoch"),
        (plan_of(45, 2, 20, repeats=3), "batch_size 20: 25 examples of the next pass fill up"),
        (plan_of(90, 2, 20, epoch_size=45), "batch_size 20: 35 examples of the next epoch fill up"),
        (plan_of(45, 1, 20, is_training=False), None),
        (plan_of(0, 2, 20, is_training=False), None),
        (plan_of(400, 1, 420), None),  # A twentieth.
        # 3 examples on 2 ranks: 1 is wasted with batch_size 2 and with 1.
        (plan_of(3, 2, 2), "batch_size 2: 1 examples of the next pass fill up every epoch (33% of it)."),
        # A global batch of 400: 3048 lack 152, and a twentieth of them are 152.4.
        (plan_of(3047, 2, 200), "batch_size 200: 153 examples"),
        (plan_of(3048, 2, 200), None),
        (plan_of(3200, 2, 200), None),
        (plan_of(3201, 2, 200), "batch_size 200: 399 examples"),
        (plan_of(3600, 2, 200), None),
    ],
)
def test_a_remainder_of_more_than_a_twentieth_is_told(plan: EpochPlan, said: str | None) -> None:
    check_text(describe_remainder(plan), said)


plans = st.builds(
    dict,
    num_examples=st.integers(1, 400),
    num_replicas=st.integers(1, 5),
    batch_size=st.integers(1, 80),
    repeats=st.integers(1, 3),
    remainder=st.sampled_from([Remainder.DROP, Remainder.WRAP, Remainder.PAD]),
)


@given(plans)
def test_the_better_batch_size_is_the_largest_not_below_half_that_wastes_least(changes: dict[str, Any]) -> None:
    batch_size, ranks = changes["batch_size"], changes["num_replicas"]
    total = changes["num_examples"] * changes["repeats"]
    is_drop = changes["remainder"] is Remainder.DROP
    try:
        sentence = describe_remainder(plan_of(**changes))
    except ConfigError:
        assert is_drop, changes
        assert total < batch_size * ranks
        return
    wasted = {
        size: total % (size * ranks) if is_drop else -total % (size * ranks)
        for size in range(math.ceil(batch_size / 2), batch_size + 1)
        if not is_drop or size * ranks <= total
    }
    assert bool(sentence) is (wasted[batch_size] > 0.05 * total)
    if not sentence:
        return
    assert sentence.startswith(f"batch_size {batch_size}: {wasted[batch_size]:,} ")
    named = re.search(r"batch_size (\d+) would make it ([\d,]+)\.$", sentence)
    best = max(size for size in wasted if wasted[size] == min(wasted.values()))
    if best == batch_size or wasted[best] == wasted[batch_size]:
        assert named is None
    else:
        assert named is not None, (sentence, best)
        assert (int(named[1]), int(named[2].replace(",", ""))) == (best, wasted[best])


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            plan_of(9999, 2, 20, epoch_size=1010),
            "An epoch has 1,010 examples, which are not whole batches of 40: the 30 that fill its last batch come "
            "again in the next one. With epoch_size 1000 or epoch_size 1040, epochs follow each other without a gap.",
        ),
        (plan_of(9999, 2, 20, epoch_size=1010, remainder=Remainder.DROP), "40: the 10 that are left are dropped. With"),
        (plan_of(9999, 2, 20, epoch_size=10), "come again in the next one. With epoch_size 40, epochs follow"),
        (plan_of(9999, 1, 20, epoch_size=1010, remainder=Remainder.KEEP), None),
        (plan_of(9999, 2, 20, epoch_size=1000), None),
        (plan_of(1010, 2, 20), None),
    ],
)
def test_epochs_of_an_endless_row_that_overlap_are_told(plan: EpochPlan, said: str | None) -> None:
    check_text(describe_fill(plan), said)


# Fields


@pytest.mark.parametrize(
    ("preprocess", "said"),
    [
        (
            TrainPreprocess(size=8),
            "cats:1.0.0: TrainPreprocess crops or flips the images, and the boxes in 'a', 'b' stay those of the whole "
            "image: those move that are [ymin, xmin, ymax, xmax], relative to the image, one box or one sequence of "
            "them in an example. If these are such boxes, and the dataset does not say so (bbox_format=None), name "
            "their features in the preprocess, as in boxes=('objects/bbox',). Else leave out the preprocess and "
            "transform image and boxes together, example by example; or keep the whole image: EvalPreprocess(size=..., "
            "crop_pct=1, crop_mode='squash'); or say that they are to stay: boxes=() in the preprocess.",
        ),
        (
            Views((TrainPreprocess(size=8), 2)),
            "cats:1.0.0: Views makes several crops of each image, and the boxes in 'a', 'b' stay those of the whole "
            "image. Leave them out, or use one crop: boxes move with that of a TrainPreprocess or an EvalPreprocess.",
        ),
    ],
)
def test_boxes_that_stay_are_told(preprocess: Any, said: str) -> None:
    assert describe_boxes(Facts("cats:1.0.0", "train", preprocess, ["a", "b"])) == said
    assert describe_boxes(Facts("cats:1.0.0", "train", preprocess)) is None


def test_hidden_names_are_told() -> None:
    assert describe_hidden(FACTS) is None
    assert describe_hidden(Facts("cats:1.0.0", "train", hidden=["id", "index"])) == (
        "cats:1.0.0 stores fields of its own with the names 'id', 'index'. Under these names come the values that "
        "every example has; ask for 'stored/id', 'stored/index' to get the stored ones."
    )


def test_workers_that_need_more_memory_than_is_free_are_told_from_the_first_byte() -> None:
    parts, limit = (
        [(GIB // 4, "Python"), (0, "tensorflow"), (GIB // 2, "batches")],
        MemoryLimit(2 * GIB, "a container's"),
    )
    assert describe_memory(2, parts, GIB * 3 // 2, limit) is None
    assert describe_memory(0, parts, 0, limit) is None
    assert describe_memory(2, parts, GIB * 3 // 2 - 1, limit) == (
        "2 workers will take about 1.5 GiB of memory: 0.75 GiB each (0.25 GiB for Python, 0.5 GiB for batches). 1.5 "
        "GiB are free of 2 GiB (a container's). Use fewer workers, or a smaller batch_size, prefetch_batches or "
        "shuffle_buffer."
    )


@pytest.mark.parametrize(
    ("options", "image_bytes"),
    [
        ({}, lambda mean_bytes: 8 * mean_bytes),
        ({"decode": {"image": False}}, lambda mean_bytes: mean_bytes),
        ({"preprocess": TrainPreprocess(size=4)}, lambda _: 4 * 4 * 3),
        ({"preprocess": Views((TrainPreprocess(size=4), 2))}, lambda _: 2 * 4 * 4 * 3),
    ],
)
def test_a_worker_holds_its_batches_of_images(
    options: dict[str, Any], image_bytes: Callable[[int], int], root: Path
) -> None:
    for batch_size in (1000,) if "preprocess" in options else (1000, None):
        parser = ParserTfds(root, "pictures", batch_size=batch_size, read=ReadOptions(prefetch_batches=3), **options)
        _, (size, words) = worker_parts(parser, 2, prefetch_batches=5)
        assert size == 9 * (batch_size or 1) * image_bytes(parser.mean_example_bytes)
        assert words.startswith("9 batches of ")


@pytest.mark.parametrize("mode", ["examples", "files"])  # `files` are for training: which is reported elsewhere.
def test_a_worker_of_a_stream_holds_tensorflow_and_buffers_as_well(mode: str, root: Path) -> None:
    read = ReadOptions(mode=mode, shuffle_buffer=100, cycle_length=7, read_buffer_bytes=1_000_000)
    parser = ParserTfds(root, "pictures", batch_size=8, read=read)
    _, (_, first), (size, second), _ = worker_parts(parser, 2, prefetch_batches=5)
    assert (first, second) == ("tensorflow", "the shuffle buffer and open files")
    assert size == 50 * parser.mean_example_bytes + 7_000_000


def check_text(found: str | None, said: str | None) -> None:
    """Asserts that a text is the one that is said, or holds that part of it."""
    if said is None or found is None:
        assert found == said
    else:
        assert said in found


# Who warns


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("advice"))


READERS: dict[str, Callable[..., Any]] = {
    "ImageDataset": lambda parser, world, fields: ImageDataset(parser, world=world, fields=fields),
    "MultiLoader": lambda parser, world, fields: MultiLoader(parser, 1, world=world, fields=fields),
}


def warnings_of(make: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    assert all(one.category is UserWarning and one.filename == __file__ for one in caught)
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("reader", READERS)
def test_whoever_reads_warns_of_the_plan_at_the_users_line(reader: str, root: Path) -> None:
    parser = ParserTfds(
        root, "pictures", is_training=True, batch_size=31, read=ReadOptions(block_records=4, block_groups=4)
    )
    small, groups = warnings_of(lambda: READERS[reader](parser, World(0, 2), ("label",)))
    assert "has 60 examples, fewer than a batch of 62 (2 ranks x batch_size 31)" in small
    assert "block_groups=4 does not divide the global batch of 62" in groups
    assert warnings_of(lambda: READERS[reader](parser, World(), ("label",))) == []


def test_examples_by_number_have_no_plan_to_warn_of(root: Path) -> None:
    parser = ParserTfds(root, "pictures", "train[:10]", is_training=True, batch_size=64)
    assert warnings_of(lambda: IndexedImageDataset(parser)) == []


def test_it_is_said_once_and_the_batches_are_as_planned(root: Path) -> None:
    parser = ParserTfds(root, "pictures", "train[:10]", is_training=True, batch_size=64)
    datasets: list[ImageDataset] = []
    assert len(warnings_of(lambda: datasets.append(ImageDataset(parser, fields=("index",), batched=True)))) == 1
    with create_loader(datasets[0], 1) as loader:
        for _ in range(2):
            ((index,),) = loader
            assert sorted({index.tolist().count(i) for i in range(10)}) == [6, 7]


def test_the_environment_says_how_large_a_global_batch_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=40)
    assert warnings_of(lambda: ImageDataset(parser)) == []
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (text,) = warnings_of(lambda: ImageDataset(parser))
    assert "(2 ranks x batch_size 40)" in text


def test_where_no_plan_can_be_made_nothing_is_said_before_it_is_read(root: Path) -> None:
    parser = ParserTfds(root, "pictures", is_training=True, batch_size=NUM_EXAMPLES, remainder="drop")
    assert warnings_of(lambda: ImageDataset(parser, world=World(0, 2))) == []
