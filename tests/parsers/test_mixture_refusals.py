"""Mixtures that cannot work: one error each, which names the member, and says what was found and what to do."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from picture_fixtures import write_pictures
from storage.webdataset.made_tars import write_samples, write_tar
from tfds_fixtures import as_remote, write_numbered

from parsers.tar_samples import NUM_CLASSES, png, sample_of
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    World,
)
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import DatasetParser

Make = Callable[..., DatasetParser]
EVEN = {"a": 1, "b": 1}
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("refusals")
    write_samples(root / "tar.tar", map(sample_of, range(10)))
    write_numbered(root, {"train": (4, 5)})
    return root


@pytest.fixture
def make(root: Path) -> Make:
    """`make(**arguments)`: a parser of ten samples in a tar."""
    return lambda **arguments: ParserWebDataset(str(root / "tar.tar"), **arguments)


@pytest.fixture
def numbered(root: Path) -> Make:
    return lambda **arguments: ParserTfds(root, "numbered", "train", **arguments)


def refusal(*arguments: Any, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        ParserMixture(*arguments, **more)
    return str(caught.value)


# Members


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "members={} must be a mapping from name to parser"),
        (None, "members=None must be a mapping from name to parser"),
        ("ab", "members='ab' must be a mapping from name to parser"),
        ([("a", 3)], "the member 'a' is 3, and must be a ParserTfds, a ParserBeton, a ParserWebDataset"),
        ([3], "3 must be a pair (name, parser)"),
        ({"": 3}, "the name '' of a member must be a text of printable characters without '/'"),
        ({"a/b": 3}, "the name 'a/b' of a member must be a text of printable characters without '/'"),
        ({3: 3}, "the name 3 of a member must be a text"),
    ],
)
def test_what_is_no_member_is_named(members: Any, message: str) -> None:
    assert message in refusal(members)


def test_two_members_of_one_name_are_refused(make: Make) -> None:
    assert "two members are called 'a': give each a name of its own" in refusal([("a", make()), ("a", make())])


def test_an_empty_member_is_refused(make: Make, tmp_path: Path) -> None:
    empty = ParserWebDataset(str(write_tar(tmp_path / "empty.tar", [])))
    assert "the member 'b' (empty.tar, split 'all') holds no examples: leave it out" in refusal(
        {"a": make(), "b": empty}
    )


def test_a_mixture_is_no_member(make: Make) -> None:
    inner = ParserMixture({"a": make()}, batch_size=2)
    assert "the member 'b' is a mixture itself: give its members to this one" in refusal({"b": inner})


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_a_member_that_streams_is_refused_with_the_reason(mode: str, make: Make, numbered: Make) -> None:
    message = refusal({"a": make(), "b": numbered(read=ReadOptions(mode=mode))})
    assert f"the member 'b' (numbered:1.0.0) is read as a stream: it has ReadOptions(mode={mode!r})" in message
    assert "needs every example by its number, for exact proportions and exact resume. Use mode 'index'" in message


def test_a_member_on_an_object_store_is_refused_with_the_reason(numbered: Make) -> None:
    message = refusal({"far": as_remote(cast(ParserTfds, numbered()))})
    assert "the member 'far' (numbered:1.0.0) is read as a stream: " in message
    assert message.endswith("Copy it to this machine.")


# What belongs to an epoch


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"batch_size": 8}, "has batch_size=8, and the mixture batch_size=4"),
        ({"seed": 7}, "has seed=7, and the mixture seed=42"),
        ({"remainder": "drop"}, "has remainder='drop', and the mixture remainder=None"),
        ({"repeats": 3, **TRAINING}, "has repeats=3, and the mixture repeats=0"),
        ({"preprocess": EvalPreprocess(size=8), "batch_size": 4}, "has preprocess=EvalPreprocess(size=8"),
        ({"read": ReadOptions(num_threads=3)}, "has ReadOptions(num_threads=3), and the mixture ReadOptions(num_th"),
        ({"read": ReadOptions(prefetch_batches=3)}, "has ReadOptions(prefetch_batches=3), and the mixture"),
        ({"read": ReadOptions(jpeg_decoder="pillow")}, "has ReadOptions(jpeg_decoder=pillow), and the mixture"),
    ],
)
def test_a_member_that_says_otherwise_is_named(theirs: dict[str, Any], message: str, make: Make) -> None:
    found = refusal({"a": make(), "b": make(**theirs)}, EVEN, **TRAINING)
    assert f"the member 'b' {message}" in found
    assert found.endswith("Leave it out of the member, or give both the same.")


def test_members_that_train_or_shuffle_are_refused_where_the_mixture_does_not(make: Make) -> None:
    members = {"a": make(**TRAINING)}
    assert "the member 'a' has is_training=True, and the mixture is_training=False" in refusal(members, batch_size=4)
    members = {"a": make(shuffle=True)}
    assert "the member 'a' has shuffle=True, and the mixture shuffle=False" in refusal(members)


def test_members_that_say_the_same_are_taken(make: Make) -> None:
    same = {**TRAINING, "seed": 3, "remainder": "drop", "preprocess": TrainPreprocess(size=8), "repeats": 2}
    options: dict[str, Any] = {"read": ReadOptions(num_threads=2)}
    parser = ParserMixture({"a": make(**same, **options), "b": make()}, EVEN, **same, **options)
    assert parser.plan(World()).num_own_slots == 2 * parser.epoch_size


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (ReadOptions(mode="files"), "ReadOptions(mode='files') streams whole shards"),
        (ReadOptions(on_error="replace"), "ReadOptions(on_error='replace') belongs to a member"),
        (ReadOptions(block_records=4), "ReadOptions(block_records=4) belongs to a member"),
        (ReadOptions(verify_checksums=False), "ReadOptions(verify_checksums=False) belongs to a member"),
    ],
)
def test_read_options_of_members_are_refused_of_the_mixture(read: ReadOptions, message: str, make: Make) -> None:
    assert message in refusal({"a": make()}, read=read)
    parser = ParserMixture({"a": make()}, batch_size=2)
    with pytest.raises(ConfigError) as caught:
        parser.with_read(read)
    assert message in str(caught.value)
    assert parser.with_read(ReadOptions(num_threads=1)).read.num_threads == 1


# Weights and lengths


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a": -1, "b": 2}, "-1 of 'a' must be a finite number >= 0"),
        ({"a": float("nan"), "b": 2}, "nan of 'a' must be a finite number >= 0"),
        ({"a": 0, "b": 0}, "all of them are 0"),
        ({"a": 1e-9, "b": 1}, "the share of 'a' is 1e-09, less than half of 1/65,536"),
        ({"a": 1}, "there is none for 'b'"),
        ({"a": 1, "b": 1, "c": 1}, "'c' is not a member"),
        ([(0, EVEN), (0, EVEN)], "the schedule is out of order"),
        ([(3, EVEN)], "the schedule begins at example 3"),
        ("even", "weights='even' must be a mapping"),
    ],
)
def test_weights_that_cannot_be_kept_are_refused(weights: Any, message: str, make: Make) -> None:
    assert message in refusal({"a": make(), "b": make()}, weights, **TRAINING)


def test_evaluation_with_weights_is_refused(make: Make) -> None:
    message = refusal({"a": make(), "b": make()}, EVEN, batch_size=4)
    assert "in evaluation would leave examples out, or count them twice. Leave out weights=" in message


def test_a_weight_of_zero_is_a_segment_without_the_member(make: Make) -> None:
    schedule = [(0, {"a": 1, "b": 0}), (8, EVEN)]
    parser = ParserMixture({"a": make(), "b": make()}, schedule, **TRAINING, epoch_size=16)
    members = [batch.features["member"].tolist() for batch in parser.batches(fields=("member",))]
    assert members[:2] == [[0] * 4] * 2
    assert sorted(members[2] + members[3]) == [0] * 4 + [1] * 4
    message = refusal({"a": make(), "b": make()}, {"a": 1, "b": 0}, **TRAINING, stop="all_exhausted")
    assert "the pass of 'b' never ends, because its weight is 0 from some example on" in message


def test_a_weight_that_is_rounded_is_said(make: Make) -> None:
    members = {"a": make(), "b": make()}
    with pytest.warns(UserWarning, match=r"rounded to 1/65,536, which moves some by more than 1 %: 'b': 1e-05 became"):
        ParserMixture(members, {"a": 0.99999, "b": 0.00001}, **TRAINING)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ParserMixture(members, {"a": 0.7, "b": 0.30001}, **TRAINING)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": True}, "temperature=True has no effect without weights"),
        ({"temperature": np.array([1, 2])}, "temperature=array([1, 2]) has no effect without weights"),
        ({"stop": "all_exhausted"}, "stop='all_exhausted' has no effect without weights"),
        ({"temperature": 2.0}, "temperature=2.0 has no effect without weights"),
        ({"weights": EVEN, "epoch_size": 0}, "epoch_size=0 must be an integer in 1.."),
        ({"weights": EVEN, "epoch_size": 2.5}, "epoch_size=2.5 must be an integer in 1.."),
        ({"weights": EVEN, "epoch_size": 9, "stop": "all_exhausted"}, "both say where an epoch ends"),
        ({"weights": EVEN, "stop": "soon"}, "stop='soon' must be 'first_exhausted' or 'all_exhausted'"),
        ({"weights": EVEN, "temperature": 0}, "temperature=0 must be a number > 0"),
        ({"weights": EVEN, "seed": -1}, "seed=-1 must be an integer >= 0"),
        ({"weights": EVEN, "batch_size": None}, "Training needs batch_size"),
        ({"weights": EVEN, "remainder": "drop", "epoch_size": 3}, "remainder='drop' leaves no batch"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str, make: Make) -> None:
    assert message in refusal({"a": make(), "b": make()}, **{**TRAINING, **arguments})


def test_counts_of_what_is_no_number_are_refused(make: Make) -> None:
    for weights in (EVEN, None):
        parser = ParserMixture({"a": make(), "b": make()}, weights, **TRAINING)
        with pytest.raises(ConfigError, match=r"counts: n=1\.5 must be an integer"):
            parser.counts(1.5)  # type: ignore[arg-type]


def test_an_epoch_smaller_than_a_batch_is_warned_of(make: Make) -> None:
    parser = ParserMixture({"a": make(), "b": make()}, EVEN, is_training=True, batch_size=32, epoch_size=10)
    with pytest.warns(UserWarning, match="has 10 examples in an epoch, fewer than a batch of 32"):
        ImageDataset(parser)


# Fields


def test_a_member_that_lacks_a_field_is_named(make: Make) -> None:
    parser = ParserMixture(
        {"a": make(fields=["image", "label", "txt"]), "b": make(fields=["image", "npy"])}, batch_size=2
    )
    with pytest.raises(ConfigError, match="The field 'label' is not one of all members: 'b' lacks it"):
        parser.check_fields(["label"])
    assert parser.has_field("image")
    assert parser.class_names is None


def test_members_without_a_common_field_are_refused(make: Make, numbered: Make) -> None:
    message = refusal({"a": make(fields=["npy"]), "b": numbered(image_key=None, target_key=None)})
    assert "the members 'a', 'b' have no field in common" in message


def test_members_whose_fields_differ_are_named(make: Make) -> None:
    members = {"a": make(fields={"image": "png", "x": "txt"}), "b": make(fields={"image": "png", "x": "cls"})}
    parser = ParserMixture(members, batch_size=2)
    with pytest.raises(ConfigError, match=r"The field 'x' is a text in the member 'a', and int64 \[\] in 'b'"):
        parser.check_fields(["x"])
    parser = ParserMixture({"a": make(), "b": make(image_mode="L")}, batch_size=2)
    with pytest.raises(
        ConfigError, match=r"image_mode='RGB'\) in the member 'a', and an image \(image_mode='L'\) in 'b'"
    ):
        parser.check_fields(["image"])
    with pytest.raises(ConfigError, match="image_mode='RGB'"):
        parser.with_preprocess(EvalPreprocess(size=8))


def test_other_images_do_not_depend_on_the_image_mode_and_of_different_channels_are_refused(
    make: Make, tmp_path: Path
) -> None:
    fields = {"image": "png", "label": "cls", "mask": "seg.png"}
    parser = ParserMixture({"a": make(fields=fields), "b": make(fields=fields, image_mode="L")}, batch_size=2)
    parser.check_fields(["mask"])
    image = png(np.zeros((8, 8, 3), np.uint8))
    for channels in (1, 3):
        write_pictures(tmp_path, [image], [image], name=f"masked{channels}", mask_channels=channels)
    members = {"a": ParserTfds(tmp_path, "masked3"), "b": ParserTfds(tmp_path, "masked1")}
    with pytest.raises(ConfigError, match=r"'mask' is an image \(uint8, 3 channels\) in the member 'a', and .*1 chan"):
        ParserMixture(members, batch_size=2).check_fields(["mask"])


def test_labels_of_different_meaning_are_refused_without_a_class_map(make: Make) -> None:
    names = [f"class {number}" for number in range(NUM_CLASSES)]
    other = [*names[:3], "zebra", names[4]]
    message = refusal({"a": make(class_names=names), "b": make(class_names=other)})
    assert "'a' has 5 classes and 'b' 5, and label 3 is 'class 3' in 'a' and 'zebra' in 'b'" in message
    assert "Give the parsers a class_map onto common labels, or target_key=None" in message
    message = refusal({"a": make(class_names=names), "b": make(class_names=[*names, "more"])})
    assert "label 5 is None in 'a' and 'more' in 'b'" in message
    class_map = {name: number for number, name in enumerate(other)}
    mapped = make(class_names=other, class_map=class_map)
    assert ParserMixture({"a": make(class_names=names), "b": mapped}, batch_size=2).class_names is None
    same = make(class_names=list(reversed(names)), class_map={name: number for number, name in enumerate(names)})
    assert ParserMixture({"a": make(class_names=names), "b": same}, batch_size=2).class_names == names


def test_blocks_that_differ_are_refused_in_a_concatenation(make: Make) -> None:
    members = {"a": make(), "b": make(read=ReadOptions(block_records=4))}
    assert "'a' has block_records=None, and 'b' 4" in refusal(members, **TRAINING)
    assert ParserMixture(members, batch_size=2).num_examples == 20


def test_groups_of_blocks_are_refused_beside_weights(make: Make) -> None:
    groups = {"read": ReadOptions(block_records=4, block_groups=2)}
    found = refusal({"a": make(), "b": make(**groups)}, EVEN, **TRAINING)
    assert "The member 'b' of the mixture has block_groups=2 beside weights" in found
    members = {"a": make(), "b": make(read=ReadOptions(block_records=4))}
    parser = ParserMixture({**members, "a": make(read=ReadOptions(block_records=4))}, **TRAINING)
    assert parser.plan(World()).order.num_groups == 1
    assert "or another shuffle_buffer or block_groups" in refusal({"a": members["b"], "b": make(**groups)}, **TRAINING)


def test_a_concatenation_has_the_groups_of_its_members(make: Make) -> None:
    groups = {"read": ReadOptions(block_records=4, block_groups=2)}
    parser = ParserMixture({"a": make(**groups), "b": make(**groups)}, **TRAINING)
    assert parser.plan(World()).order.num_groups == 2
    assert parser.with_read(ReadOptions(num_threads=1)).plan(World()).order.num_groups == 2
