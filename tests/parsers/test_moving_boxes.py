"""Boxes go with their images, of every parser and in every way of reading; their rows leave with them."""

import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_preprocess import SquareCrop
from tfds_fixtures import call_reader

from parsers.boxed_pictures import (
    CLASSES,
    NUM_EXAMPLES,
    assert_seen,
    draw,
    encode,
    make_boxes,
    record,
    write_beton_of_boxes,
    write_boxed,
    write_tar_of_boxes,
)
from parsers.preprocessing import read_transformed
from tfds_torch import (
    DecodedCache,
    EvalPreprocess,
    ImageDataset,
    ParserBeton,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    Views,
    World,
)
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.tfds.connectors import plain_features
from tfds_torch.parsers.tfds.declared_boxes import find_boxes

FIELDS = ("image", "label", "objects/bbox", "objects/name")
CROPS = {
    "train": TrainPreprocess(size=(72, 64), scale=(0.3, 1.0)),
    "padding": TrainPreprocess(size=80, crop_padding=10),
    "eval": EvalPreprocess(size=64),
    "border": EvalPreprocess(size=64, crop_mode="border", crop_pct=1.0),
    "own": SquareCrop(size=64),
}
TRAIN = CROPS["train"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxed(tmp_path_factory.mktemp("boxed"))


@pytest.fixture(scope="module")
def jpeg_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxed(tmp_path_factory.mktemp("boxed"), file_format="JPEG")


def open_boxed(root: Path, preprocess: Any = TRAIN, **more: Any) -> ParserTfds:
    arguments: dict[str, Any] = {"is_training": True, "batch_size": 5, "target_key": "objects/label"} | more
    return ParserTfds(root, "boxed", preprocess=preprocess, **arguments)


def examples_of(parser: Any, epochs: range = range(2), fields: tuple[str, ...] = FIELDS) -> list[dict[str, Any]]:
    """Returns the fields of each example of some epochs."""
    return [
        {name: values[row] for name, values in batch.features.items()} | {"index": index, "image": batch.image[row]}
        for epoch in epochs
        for batch in parser.batches(World(), epoch, fields=fields)
        for row, index in enumerate(batch.index.tolist())
    ]


def count_rows(index: int) -> int:
    return len(make_boxes(index))


# What moves


@pytest.mark.parametrize("name", CROPS)
def test_boxes_end_where_the_objects_in_their_images_do(name: str, root: Path) -> None:
    examples, num_left = examples_of(open_boxed(root, CROPS[name])), 0
    for example in examples:
        channels = example["label"].tolist()
        num_left += len(channels)
        assert_seen(example["image"], channels, example["objects/bbox"])
        assert list(example["objects/name"]) == [CLASSES[channel].encode() for channel in channels]
    assert num_left > 20
    whole = sum(count_rows(example["index"]) for example in examples)
    assert (num_left < whole) is (name in ("train", "padding", "own", "eval"))


def test_a_whole_dictionary_of_objects_moves_alike(root: Path) -> None:
    fields = ("image", "objects", "objects/bbox", "objects/label")
    for example in examples_of(open_boxed(root), fields=fields):
        objects = example["objects"]
        np.testing.assert_array_equal(objects["bbox"], example["objects/bbox"])
        np.testing.assert_array_equal(objects["label"], example["objects/label"])
        assert len(objects["name"]) == len(objects["bbox"])
        assert_seen(example["image"], objects["label"].tolist(), objects["bbox"])


def test_a_single_box_moves_and_is_empty_where_it_is_out_of_sight(root: Path) -> None:
    num_empty = 0
    for example in examples_of(open_boxed(root), range(4), ("image", "head", "label", "objects/bbox")):
        if not count_rows(example["index"]):
            continue
        assert (example["head"].dtype, example["head"].shape) == (np.float32, (4,))
        if 0 in example["label"].tolist():
            np.testing.assert_array_equal(example["head"], example["objects/bbox"][0])
        else:
            num_empty += 1
            assert not example["head"].any()
    assert num_empty


def test_boxes_stay_where_there_is_no_image_or_no_preprocess(root: Path) -> None:
    parsers = (open_boxed(root), ("objects/bbox",)), (open_boxed(root, None), ("objects/bbox", "image"))
    for parser, fields in parsers:
        for batch in parser.batches(fields=fields):
            for index, boxes in zip(batch.index.tolist(), batch.features["objects/bbox"], strict=True):
                np.testing.assert_array_equal(boxes, make_boxes(index))
    boxes = open_boxed(root).examples_by_index([3], ["image", "objects/bbox"])[0].features["objects/bbox"]
    np.testing.assert_array_equal(boxes, make_boxes(3))


def test_min_visible_says_which_boxes_stay(root: Path) -> None:
    kept = []
    for least in (0.0, 0.05, 0.6, 1.0):
        parser = open_boxed(root, TrainPreprocess(size=64, scale=(0.2, 0.5), min_visible=least))
        kept.append(sum(len(example["label"]) for example in examples_of(parser, range(6))))
    assert kept == sorted(kept, reverse=True)
    assert len(set(kept)) == 4
    assert kept[-1] > 0


# Ways of reading


def assert_equal_examples(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name], name)


def test_a_stream_moves_boxes(root: Path) -> None:
    arguments: dict[str, Any] = {
        "root": root,
        "name": "boxed",
        "batch_size": 5,
        "is_training": True,
        "target_key": "objects/label",
    }
    arguments |= {"preprocess": TRAIN, "read": ReadOptions(mode="examples")}
    (came,) = call_reader(read_transformed, arguments, fields=FIELDS)
    assert came
    for example in came:
        assert_seen(example.image, example.features["label"].tolist(), example.features["objects/bbox"])


@pytest.mark.parametrize("most", [None, 60])
def test_boxes_of_a_decoded_cache_move_alike(most: int | None, root: Path, tmp_path: Path) -> None:
    cached = open_boxed(root, cache=DecodedCache(tmp_path, max_resolution=most))
    for example in examples_of(cached):
        within = 1.0 if most is None else 2.5
        assert_seen(example["image"], example["label"].tolist(), example["objects/bbox"], within=within)
    if most is None:
        assert_equal_examples(examples_of(cached), examples_of(open_boxed(root)))


def test_a_mixture_moves_the_boxes_of_its_members(root: Path, jpeg_root: Path) -> None:
    members = {"png": ParserTfds(root, "boxed", target_key="objects/label")}
    members["jpeg"] = ParserTfds(jpeg_root, "boxed", target_key="objects/label")
    parser = ParserMixture(members, {"png": 0.5, "jpeg": 0.5}, is_training=True, batch_size=6, preprocess=TRAIN)
    for example in examples_of(parser):
        assert_seen(example["image"], example["label"].tolist(), example["objects/bbox"])


# Boxes that no dataset declares


def test_named_boxes_of_json_move_with_their_labels(tmp_path: Path) -> None:
    path = write_tar_of_boxes(tmp_path / "boxes.tar")
    preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes={"json/boxes": ["json/labels"]})
    parser = ParserWebDataset(
        str(path), is_training=True, batch_size=5, preprocess=preprocess, fields=["image", "json"]
    )
    for example in examples_of(parser, fields=("image", "json")):
        facts = example["json"]
        assert facts["id"] == example["index"]
        assert_seen(example["image"], [CLASSES.index(name) for name in facts["labels"]], facts["boxes"])


def test_arrays_of_one_size_become_lists_of_what_is_left(tmp_path: Path) -> None:
    path = write_beton_of_boxes(tmp_path / "boxes.beton")
    preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes={"boxes": ("codes",)})
    parser = ParserBeton(path, is_training=True, batch_size=5, preprocess=preprocess, target_key="number")
    for example in examples_of(parser, fields=("image", "boxes", "codes")):
        is_own = [code < count_rows(example["index"]) for code in example["codes"].tolist()]
        assert_seen(example["image"], example["codes"][is_own].tolist(), example["boxes"][is_own])


@pytest.mark.parametrize("is_nested", [False, True])
def test_named_boxes_of_a_dataset_of_ones_own_move(is_nested: bool) -> None:
    def row(number: int) -> dict[str, Any]:
        boxes = make_boxes(number)
        objects: dict[str, Any] = {"boxes": boxes, "names": CLASSES[: len(boxes)]}
        return {"image": encode(draw(number)), **({"objects": objects} if is_nested else objects)}

    prefix = "objects/" if is_nested else ""
    preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes={f"{prefix}boxes": (f"{prefix}names",)})
    parser = ParserMapStyle(
        [row(number) for number in range(NUM_EXAMPLES)], is_training=True, batch_size=5, preprocess=preprocess
    )
    num_left = 0
    for example in examples_of(parser, fields=("image", *(("objects",) if is_nested else ("boxes", "names")))):
        objects = example["objects"] if is_nested else example
        assert_seen(example["image"], [CLASSES.index(name) for name in objects["names"]], objects["boxes"])
        num_left += len(objects["names"])
    assert num_left


def test_boxes_named_alone_move_with_their_sequence_and_what_lies_beside_must_be_named(root: Path) -> None:
    rows = [{"image": encode(draw(n)), "o/boxes": make_boxes(n), "o/names": CLASSES[: count_rows(n)]} for n in range(9)]
    preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes=("o/boxes",))
    named = ParserMapStyle(rows, is_training=True, batch_size=3, preprocess=preprocess)
    for example in examples_of(named, fields=("image", "o/boxes", "o/names")):
        assert_seen(example["image"], [CLASSES.index(name) for name in example["o/names"]], example["o/boxes"])
    parser: Any
    for parser in (
        ParserMapStyle(
            [{"image": row["image"], "bboxes": row["o/boxes"], "codes": row["o/names"]} for row in rows],
            batch_size=3,
            preprocess=EvalPreprocess(size=64, boxes=("bboxes",)),
        ),
        open_boxed(root, EvalPreprocess(size=64), batch_size=3),  # A sequence of boxes, and one of numbers.
    ):
        assert len(next(parser.batches(fields=("image", "bboxes"))).index) == 3
        with pytest.raises(ConfigError, match=r"'codes' may have a row .* boxes=\{'bboxes': \('codes',\)\}"):
            next(parser.batches(fields=("image", "bboxes", "codes")))
    preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes={"bboxes": ("label",)})
    for example in examples_of(open_boxed(root, preprocess, target_key="codes"), fields=("image", "label", "bboxes")):
        assert_seen(example["image"], example["label"].tolist(), example["bboxes"])


def test_named_boxes_of_tfds_move_with_their_sequence(root: Path) -> None:
    preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes=("objects/bbox",))
    for example in examples_of(open_boxed(root, preprocess), fields=(*FIELDS, "bboxes")):
        assert_seen(example["image"], example["label"].tolist(), example["objects/bbox"])
        assert len(example["objects/name"]) == len(example["label"])
        np.testing.assert_array_equal(example["bboxes"], make_boxes(example["index"]))


# What does not move, and what cannot be


def warnings_of(parser: Any, fields: tuple[str, ...]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ImageDataset(parser, fields=fields)
    return [str(one.message) for one in caught]


def test_boxes_of_another_form_stay_with_a_warning(root: Path) -> None:
    (text,) = warnings_of(open_boxed(root, batch_size=4), ("image", "corners", "head", "objects"))
    assert "TrainPreprocess crops or flips the images, and the boxes in 'corners' stay those of the whole" in text
    assert warnings_of(open_boxed(root, TrainPreprocess(size=8, boxes=()), batch_size=4), ("image", "corners")) == []
    for example in examples_of(open_boxed(root), fields=("image", "corners")):
        assert example["corners"].tolist() == [1, 2, 3, 4]


def test_boxes_of_an_unknown_form_stay_until_they_are_named(tmp_path: Path) -> None:
    root = write_boxed(tmp_path, form=None)
    parser = open_boxed(root, batch_size=4)
    (text,) = warnings_of(parser, ("image", "objects/bbox", "bboxes", "label"))
    assert "the boxes in 'objects/bbox', 'bboxes' stay those of the whole image" in text
    assert "the dataset does not say so (bbox_format=None), name their features in the preprocess" in text
    for example in examples_of(parser):
        np.testing.assert_array_equal(example["objects/bbox"], make_boxes(example["index"]))
        assert len(example["label"]) == count_rows(example["index"])
    named = open_boxed(root, TrainPreprocess(size=(72, 64), scale=(0.3, 1.0), boxes=("objects/bbox",)), batch_size=4)
    assert warnings_of(named, ("image", "objects/bbox")) == []
    for example in examples_of(named):
        assert_seen(example["image"], example["label"].tolist(), example["objects/bbox"])


def test_what_looks_like_boxes_stays_with_a_warning_where_none_are_declared() -> None:
    rows = [{"image": encode(draw(0)), "target/boxes": make_boxes(0), "count": 3}] * 4
    names = ("image", "target/boxes", "count")
    for preprocess, expected in ((TRAIN, 1), (TrainPreprocess(size=8, boxes=()), 0)):
        texts = warnings_of(ParserMapStyle(rows, batch_size=4, preprocess=preprocess), names)
        assert len(texts) == expected
        assert all("the boxes in 'target/boxes' stay those of the whole image" in text for text in texts)


def test_boxes_within_dictionaries_stay_with_a_warning_where_none_are_declared(root: Path) -> None:
    row = {"image": encode(draw(0)), "target": {"boxes": make_boxes(0)}}
    for parser, field, expected in (
        (ParserMapStyle([row] * 4, batch_size=4, preprocess=TRAIN), "target", ["'target/boxes' stay"]),
        (ParserMapStyle([row] * 4, batch_size=4, preprocess=TrainPreprocess(size=8, boxes=())), "target", []),
        (open_boxed(root), "objects", []),
        (ParserMixture({"one": open_boxed(root)}, is_training=True, batch_size=5, preprocess=TRAIN), "objects", []),
    ):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            assert len(list(parser.batches(fields=("image", field))))
        texts = [str(one.message) for one in caught if one.category is UserWarning]
        assert len(texts) == len(expected)
        assert all(words in text for words, text in zip(expected, texts, strict=True))


def test_boxes_beside_views_stay_with_a_warning(root: Path) -> None:
    parser = open_boxed(root, Views((TrainPreprocess(size=8), 2)), batch_size=4)
    (text,) = warnings_of(parser, ("image", "corners", "objects"))
    assert "Views makes several crops of each image, and the boxes in 'objects', 'corners' stay those of" in text
    assert warnings_of(parser, ("image", "label")) == []
    (batch,) = [one for one in parser.batches(fields=("image", "objects/bbox")) if one.batch == 0]
    for index, boxes in zip(batch.index.tolist(), batch.features["objects/bbox"], strict=True):
        np.testing.assert_array_equal(boxes, make_boxes(index))


def test_boxes_in_sequences_of_sequences_do_not_move() -> None:
    import tensorflow_datasets as tfds

    f = tfds.features
    tree = plain_features(
        f.FeaturesDict({"tracks": f.Sequence({"boxes": f.Sequence(f.BBoxFeature()), "name": f.Text()})})
    )
    paths = {"tracks": ("tracks",), "tracks/boxes": ("tracks", "boxes")}
    assert find_boxes(tree, paths, None) == ((), ["tracks", "tracks/boxes"])
    assert find_boxes(tree, paths, {}) == ((), [])
    with pytest.raises(ConfigError, match=r"names 'tracks/boxes', which lies in a sequence of sequences"):
        find_boxes(tree, paths, {"tracks/boxes": ()})


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        (("nowhere",), "'nowhere'"),
        ({"bboxes": ("nowhere",)}, "'nowhere'"),
        (("objects/bboxes",), "'objects/bboxes'"),
        ({"objects/bbox": ("objects/lable",)}, "'objects/lable'"),
        (("mask",), "boxes=('mask',) names 'mask', which is an image. Masks and other images go through the same crop"),
    ],
    ids=str,
)
def test_fields_that_cannot_be_boxes_are_refused(boxes: Any, message: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        open_boxed(root, TrainPreprocess(size=8, boxes=boxes))


def test_named_boxes_without_their_image_are_refused(root: Path) -> None:
    parser = open_boxed(root, TrainPreprocess(size=8, boxes=("bboxes",)))
    with pytest.raises(
        ConfigError, match="has \\['bboxes'\\] without 'image', whose crop they go through: add 'image'"
    ):
        next(parser.batches(fields=("bboxes",)))
    with pytest.raises(ConfigError, match="has \\['bboxes'\\] without 'image'"):
        ImageDataset(parser, fields=("bboxes", "codes"))


def test_members_whose_boxes_differ_are_refused(root: Path, tmp_path: Path) -> None:
    plain = write_boxed(tmp_path, name="plain", is_declared=False)
    members = {
        "declared": ParserTfds(root, "boxed", target_key=None),
        "plain": ParserTfds(plain, "plain", target_key=None),
    }

    def read(boxes: Any) -> list[dict[str, Any]]:
        preprocess = TrainPreprocess(size=64, scale=(0.3, 1.0), boxes=boxes)
        parser = ParserMixture(members, is_training=True, batch_size=6, preprocess=preprocess)
        return examples_of(parser, fields=("image", "bboxes", "codes"))

    message = "in 'declared' there move bboxes, and in 'plain' none. Name them in the preprocess, each with all fields"
    with pytest.raises(ConfigError, match=re.escape(message)):
        read(None)
    for example in read({"bboxes": ("codes",)}):
        assert_seen(example["image"], example["codes"].tolist(), example["bboxes"])
    assert all(len(example["codes"]) == count_rows(example["index"] % NUM_EXAMPLES) for example in read(()))


@pytest.mark.parametrize("on_error", ["raise", "replace"])
def test_a_box_outside_of_its_image_is_an_error_with_its_record(on_error: str, tmp_path: Path) -> None:
    records = [record(number) for number in range(4)]
    records[2] = record(2, boxes=np.array([[0.1, 0.2, 0.3, 0.4], [0.5, 0.2, 1.25, 0.4]]))
    root = write_boxed(tmp_path, records)
    parser = open_boxed(root, batch_size=4, read=ReadOptions(on_error=on_error))
    if on_error == "replace":
        (batch,) = parser.batches(fields=FIELDS)
        assert sorted(batch.index.tolist()) == [0, 1, 3, 3]
        return
    with pytest.raises(CorruptRecordError) as refused:
        list(parser.batches(fields=FIELDS))
    text = str(refused.value)
    assert "record 2 (index 2, id boxed-train.tfrecord-00000-of-00001__2)" in text
    assert "Its 'objects/bbox' has a box [0.5, 0.2, 1.25, 0.4]. A box is [ymin, xmin, ymax, xmax], each 0 to 1" in text
