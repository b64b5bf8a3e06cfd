"""Functions over whole examples: what they get, what becomes of what they give, and which of their faults are named."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tfds_fixtures import call_reader

from parsers.boxed_pictures import NAME, NUM_EXAMPLES, draw, make_boxes, write_boxed
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    ParserMixture,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    Transform,
    Views,
    create_loader,
    demo,
    export_dataset,
)
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.batches import Padded

BOXES, LABELS = "objects/bbox", "objects/label"


@pytest.fixture(scope="module")
def boxed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_boxed(tmp_path_factory.mktemp("boxed"))


@pytest.fixture(scope="module")
def digits() -> Path:
    return demo.prepare("digits")


def open_boxed(boxed: Path, transform: Any, **options: Any) -> ParserTfds:
    values = {"target_key": None, "batch_size": 4, "transform": transform, **options}
    return ParserTfds(boxed, NAME, **values)


def flip(example: dict[str, Any]) -> dict[str, Any]:
    """Mirror image, mask and boxes."""
    boxes = example[BOXES]
    boxes[:, [1, 3]] = 1 - boxes[:, [3, 1]]
    return {BOXES: boxes, **{name: example[name][:, ::-1] for name in ("image", "mask") if name in example}}


def first_box(example: dict[str, Any]) -> dict[str, Any]:
    return {name: example[name][:1] for name in (BOXES, LABELS)}


def read_flipped(boxed: Path, mode: str) -> dict[int, list[Any]]:
    """Return index -> image, mask, boxes and labels. A stream mode loads tensorflow."""
    parser = open_boxed(boxed, flip, is_training=True, shuffle=False, read=ReadOptions(mode=mode))
    found = {}
    for batch in parser.batches(fields=["image", "mask", BOXES, LABELS]):
        columns = batch.image, *(batch.features[name] for name in ("mask", BOXES, LABELS))
        found |= dict(zip(batch.index.tolist(), map(list, zip(*columns, strict=True)), strict=True))
    return found


@pytest.mark.parametrize("mode", ["index", "files", "examples"])
def test_boxes_and_masks_follow_the_image_in_every_read_mode(boxed: Path, mode: str) -> None:
    found = call_reader(read_flipped, boxed, mode)
    assert sorted(found) == list(range(NUM_EXAMPLES))
    for number, (image, mask, boxes, labels) in found.items():
        stored = make_boxes(number)
        np.testing.assert_array_equal(image, draw(number)[:, ::-1])
        np.testing.assert_array_equal(mask, draw(number)[:, ::-1])
        np.testing.assert_array_equal(boxes[:, [3, 1]], 1 - stored[:, [1, 3]])
        assert (labels.tolist(), boxes.dtype) == (list(range(len(stored))), np.float32)


def test_it_sees_what_the_preprocess_made_and_writes_into_the_batch(boxed: Path) -> None:
    seen: dict[int, Any] = {}

    def note(example: dict[str, Any]) -> dict[str, Any]:
        seen[example["index"]] = {name: np.copy(value) for name, value in example.items()}
        example["image"][...] = 7
        return example if example["index"] % 2 else {}

    preprocess = TrainPreprocess(32, scale=(0.3, 1), also=("mask",))
    reads = ["image", "mask", BOXES, LABELS, "index", "id"]
    values = {"is_training": True, "preprocess": preprocess}
    plain = open_boxed(boxed, None, **values)
    fields = ["image", "mask", BOXES, LABELS, "index"]
    for batch in plain.batches(fields=fields):
        (other,) = (
            one
            for one in open_boxed(boxed, Transform(note, reads), **values).batches(fields=fields)
            if one.batch == batch.batch
        )
        for row, number in enumerate(batch.index.tolist()):
            np.testing.assert_array_equal(seen[number]["image"], batch.image[row])
            np.testing.assert_array_equal(seen[number]["mask"], batch.features["mask"][row])
            np.testing.assert_array_equal(seen[number][BOXES], batch.features[BOXES][row])
            changed = other.image[row]
            assert (changed == 7).all() if number % 2 else (changed == batch.image[row]).all(), "copies come out"


def test_what_varies_is_a_list_and_can_be_padded(boxed: Path) -> None:
    preprocess = EvalPreprocess(16)
    at_most_one = Transform(first_box, [BOXES, LABELS], [BOXES, LABELS])
    for transform in (flip, at_most_one):
        dataset = ImageDataset(open_boxed(boxed, transform, preprocess=preprocess), fields=["image", BOXES])
        assert {type(batch[1]) for batch in create_loader(dataset)} == {list}
    dataset = ImageDataset(
        open_boxed(boxed, flip, preprocess=preprocess), fields=["image", BOXES, LABELS], pad={BOXES: 0, LABELS: -1}
    )
    for batch in create_loader(dataset):
        assert isinstance(batch[1], Padded)
        assert batch[1].lengths.tolist() == batch[2].lengths.tolist()

    def fixed(example: dict[str, Any]) -> dict[str, Any]:
        return {BOXES: np.resize(np.append(example[BOXES], np.zeros((3, 4), np.float32), 0), (3, 4))}

    declared = Transform(fixed, [BOXES], {BOXES: ((3, 4), "float32")})
    dataset = ImageDataset(open_boxed(boxed, declared, preprocess=preprocess), fields=["image", BOXES])
    assert [tuple(batch[1].shape) for batch in create_loader(dataset)] == [(4, 3, 4)] * 3


def test_a_mask_that_is_given_is_channels_first_in_whole_batches(boxed: Path) -> None:
    preprocess = EvalPreprocess(16, also=("mask",))
    parser = open_boxed(boxed, flip, preprocess=preprocess)
    for batch in create_loader(ImageDataset(parser, fields=["image", "mask", BOXES])):
        assert (batch[0].shape, batch[1].shape) == ((4, 3, 16, 16), (4, 3, 16, 16))
        assert torch.equal(batch[0], batch[1])


def test_what_nobody_reads_is_not_decoded(boxed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(example: dict[str, Any]) -> dict[str, Any]:
        return {"count": len(example[BOXES])}

    transform = Transform(count, [BOXES], {"count": ((), "int64")})
    parser = open_boxed(boxed, [transform, Transform(flip, ["image", BOXES], ["image", BOXES])])
    content = parser.dataset.content(["count", LABELS])
    assert {*content.keys} == {BOXES, LABELS}
    assert parser.element_spec.fields["count"].shape == ()
    (batch,) = parser.with_batch_size(12).batches(fields=["count"])
    assert batch.features["count"].tolist() == [number % 4 for number in range(NUM_EXAMPLES)]
    assert {*parser[3].features} >= {"count", BOXES}


def test_several_run_in_turn_and_give_what_the_next_one_reads(boxed: Path) -> None:
    def add(example: dict[str, Any]) -> dict[str, Any]:
        return {"total": example.get("total", 0) + len(example[LABELS])}

    class Doubled:
        """As Grain's."""

        def map(self, element: dict[str, Any]) -> dict[str, Any]:
            return {**element, "total": 2 * element["total"]}

    class Drawn:
        def random_map(self, element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
            return {**element, "drawn": rng.integers(9)}

    parser = open_boxed(boxed, [add, add, Doubled(), Drawn()], batch_size=12)
    (batch,) = parser.batches(fields=[LABELS])
    assert batch.features["total"].tolist() == [4 * (number % 4) for number in range(NUM_EXAMPLES)]
    assert len({*batch.features["drawn"].tolist()}) > 3
    assert parser.with_transform(None)[2].features.keys().isdisjoint({"total"})


def test_what_is_given_is_copied(digits: Path) -> None:
    """A function may use its memory again, change later what it gave, or give a part of a large array."""
    canvas, number, kept = np.zeros((8, 8, 3), np.uint8), np.zeros(1), list[Any]()

    def reuse(example: dict[str, Any]) -> dict[str, Any]:
        canvas[...], number[0] = example["label"], example["label"]
        for one in kept:
            one.append("changed")
        kept.append([str(example["label"])])
        return {"image": canvas, "number": number, "tensor": torch.from_numpy(number), "texts": kept[-1]}

    for preprocess in (None, EvalPreprocess(8, crop_pct=1)):
        parser = ParserTfds(digits, "digits", "test[:8]", batch_size=8, transform=reuse, preprocess=preprocess)
        (batch,) = parser.batches(fields=["image", "label"])
        assert batch.label is not None
        assert [int(image[0, 0, 0]) for image in batch.image] == batch.label.tolist()
        assert (
            batch.features["number"][:, 0].tolist() == batch.features["tensor"][:, 0].tolist() == batch.label.tolist()
        )
        assert batch.features["texts"] == [[str(label)] for label in batch.label.tolist()]


def test_pictures_of_pillow_are_images(boxed: Path) -> None:
    def turn(example: dict[str, Any]) -> dict[str, Any]:
        return {"image": Image.fromarray(example["image"]).rotate(180)}

    parser = open_boxed(boxed, turn, batch_size=12)
    (batch,) = parser.batches(fields=["image"])
    for number, image in enumerate(batch.image):
        np.testing.assert_array_equal(image, draw(number)[::-1, ::-1])


def test_functions_that_count_on_the_preprocess_also_serve_single_examples(boxed: Path) -> None:
    def edges(example: dict[str, Any]) -> dict[str, Any]:
        return {"edges": np.diff(example["image"].astype(np.int16), axis=0)}

    parser = open_boxed(
        boxed, Transform(edges, ["image"], {"edges": ((15, 16, 3), "int16")}), preprocess=EvalPreprocess(16)
    )
    assert [one.features["edges"].ndim for one in parser[:3]] == [3] * 3
    assert next(parser.batches(fields=["edges"])).features["edges"].shape == (4, 15, 16, 3)
    learnt = open_boxed(boxed, edges, preprocess=EvalPreprocess(16))
    assert next(learnt.batches(fields=["image"])).features["edges"].shape == (4, 15, 16, 3)
    smaller = learnt.with_preprocess(EvalPreprocess(8))
    assert next(smaller.batches(fields=["image"])).features["edges"].shape == (4, 7, 8, 3)


def test_patterns_stand_for_what_is_asked_for_and_may_be_left_out(boxed: Path) -> None:
    def keep_one(example: dict[str, Any]) -> dict[str, Any]:
        return {BOXES: example[BOXES][:1]}

    transform = Transform(keep_one, ["image", "objects/*"], ["objects/*"])
    parser = open_boxed(boxed, transform, batch_size=12)
    (batch,) = parser.batches(fields=[BOXES, LABELS])
    for number in range(NUM_EXAMPLES):
        assert len(batch.features[BOXES][number]) == min(1, number % 4)
        assert len(batch.features[LABELS][number]) == number % 4
    assert {*parser.dataset.content([BOXES]).keys} == {"image", BOXES}


# Labels, targets, exports


def parity(example: dict[str, Any]) -> dict[str, Any]:
    return {"label": example["label"] % 2, "digit": example["label"]}


def soften(example: dict[str, Any]) -> dict[str, Any]:
    return {"label": np.eye(10, dtype=np.float32)[example["label"]]}


def test_labels_and_targets_are_what_a_transform_makes_of_them(digits: Path) -> None:
    stored = ParserTfds(digits, "digits", "test[:50]").targets()
    parser = ParserTfds(digits, "digits", "test[:50]", batch_size=32, transform=Transform(parity, ["label"]))
    assert parser.targets().tolist() == (stored % 2).tolist()
    assert parser.targets(stored=True).tolist() == stored.tolist()
    (first, last) = parser.batches(fields=["label", "digit"])
    assert np.concatenate([first.label, last.label]).tolist() == (stored % 2).tolist()
    assert parser[7].label == stored[7] % 2
    pad = ParserTfds(digits, "digits", "test[:3]", batch_size=4, remainder="pad", transform=[parity, soften])
    (batch,) = pad.batches(fields=["label"])
    assert (batch.label, batch.features["label"].shape) == (None, (4, 10))
    assert np.isnan(batch.features["label"][3]).all()


@pytest.mark.parametrize("label", ["cat", [1, 2], None, 1.5])
def test_labels_that_are_no_integers_are_a_feature(digits: Path, label: Any) -> None:
    transform = Transform(lambda example: {"label": label}, ["label"], ["label"])
    parser = ParserTfds(digits, "digits", "test[:3]", batch_size=3, transform=transform)
    (batch,) = parser.batches(fields=["label"])
    assert (batch.label, list(batch.features["label"])) == (None, [label] * 3)
    assert (parser[0].label, parser[0].features["label"]) == (None, label)


def test_a_label_that_only_a_transform_has_is_one(boxed: Path) -> None:
    parser = open_boxed(boxed, Transform(lambda example: {"label": len(example[LABELS])}, [LABELS], ["label"]))
    assert [batch.label.tolist() for batch in parser.batches(fields=["label"])] == [[0, 1, 2, 3]] * 3
    assert (parser[6].label, parser.targets().tolist()) == (2, [0, 1, 2, 3] * 3)


def test_classes_are_balanced_by_what_is_known_without_an_image(digits: Path) -> None:
    def count(transform: Any) -> list[int]:
        parser = ParserTfds(digits, "digits", "train", is_training=True, batch_size=100, transform=transform)
        return np.bincount(next(parser.balanced().batches(fields=["digit"])).features["digit"]).tolist()

    assert count(Transform(parity, ["label"])) == pytest.approx([10] * 10, abs=4)
    assert len(count(Transform(parity, ["label"]))) == 10

    def both(example: dict[str, Any]) -> dict[str, Any]:
        return {"digit": example["label"], "image": example["image"]}

    def broken(example: dict[str, Any]) -> dict[str, Any]:
        return {"label": example["lable"]}

    parser = ParserTfds(digits, "digits", is_training=True, batch_size=9, transform=Transform(broken, ["label"]))
    with pytest.raises(ConfigError, match="broken cannot be used for"):
        parser.balanced()
    parser = ParserTfds(digits, "digits", "train", is_training=True, batch_size=100, transform=both)
    assert np.bincount(next(parser.balanced().batches()).features["digit"]).tolist() == pytest.approx([10] * 10, abs=2)


def test_exports_have_what_transforms_give_without_an_image(digits: Path, tmp_path: Path) -> None:
    parser = ParserTfds(digits, "digits", "test[:9]", transform=Transform(parity, ["label"], ["label", "digit"]))
    export_dataset(parser, tmp_path / "tars", format="webdataset", num_workers=1)
    there = ParserWebDataset(sorted((tmp_path / "tars").glob("*.tar")))
    for ours, theirs in zip(parser[:], there[:], strict=True):
        assert theirs.label == ours.label
    plain = parser.with_transform(parity)
    for one in (plain, ParserMixture({"a": plain})):
        with pytest.raises(ConfigError, match=r"an export cannot run the transform parity.* parser.as_stored\(\)"):
            export_dataset(one, tmp_path / "more", format="webdataset", num_workers=1)
        assert one.as_stored().targets().tolist() == parser.targets(stored=True).tolist()


# Mixtures


def test_members_are_made_alike_by_transforms_of_their_own(boxed: Path, digits: Path) -> None:
    def of_boxes(example: dict[str, Any]) -> dict[str, Any]:
        return {"size": np.float32(len(example[LABELS])), "image": 255 - example["image"]}

    def of_digits(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"size": np.float32(-1 - example["label"] - rng.random())}

    members = {
        "boxes": open_boxed(boxed, Transform(of_boxes, ["image", LABELS], ["size", "image"]), batch_size=None),
        "digits": ParserTfds(digits, "digits", "test[:20]", transform=Transform(of_digits, ["label"], ["size"])),
    }
    last = Transform(lambda example: {"twice": 2 * example["size"]}, ["size"])
    whole = EvalPreprocess(8, crop_pct=1)
    mixture = ParserMixture(members, batch_size=8, preprocess=whole, transform=last)
    plain = ParserMixture(
        {name: one.with_transform(None) for name, one in members.items()}, batch_size=8, preprocess=whole
    )
    assert "size" in mixture.element_spec.fields
    labels = members["digits"].targets(stored=True)
    for batch, other in zip(
        mixture.batches(fields=["image", "size", "member"]), plain.batches(fields=["image"]), strict=True
    ):
        sizes, twice = batch.features["size"], batch.features["twice"]
        assert (sizes.dtype, twice.tolist()) == (np.float32, (2 * sizes).tolist())
        for row, index in enumerate(batch.index.tolist()):
            is_boxed = index < NUM_EXAMPLES
            assert batch.features["member"][row] == (0 if is_boxed else 1)
            assert np.ceil(sizes[row]) == (index % 4 if is_boxed else -1 - labels[index - NUM_EXAMPLES])
            expected = 255 - other.image[row] if is_boxed else other.image[row]
            np.testing.assert_array_equal(batch.image[row], expected)
    single = ParserMixture(members, batch_size=8)
    assert single[NUM_EXAMPLES + 4].features["size"] < 0
    np.testing.assert_array_equal(single[2].image, 255 - draw(2))


def test_a_member_leaves_the_number_of_the_member_alone(digits: Path) -> None:
    def count(example: dict[str, Any]) -> dict[str, Any]:
        return {**example, "member": 77}

    member = ParserTfds(digits, "digits", "test[:4]", transform=count)
    with pytest.raises(ConfigError, match="'member'"):
        next(ParserMixture({"a": member, "b": member}, batch_size=4).batches(fields=["label", "member"]))


def test_members_that_stay_unlike_are_named(boxed: Path, digits: Path) -> None:
    wide = Transform(lambda example: {"code": np.zeros(3)}, ["image"], ["code"])
    narrow = Transform(lambda example: {"code": np.zeros(2)}, ["image"], ["code"])
    members = {"a": ParserTfds(digits, "digits", transform=wide), "b": ParserTfds(digits, "digits", transform=narrow)}
    mixture = ParserMixture(members, "sizes", is_training=True, batch_size=4)
    with pytest.raises(ConfigError, match=r"'code' is float64 \[[23]\] in the example .* and float64 \[[23]\] in"):
        next(mixture.batches(fields=["code"]))
    members["b"] = members["b"].with_transform(None)
    with pytest.raises(ConfigError, match="'code' is not one of all members: 'b' lacks it"):
        next(ParserMixture(members, "sizes", is_training=True, batch_size=4).batches(fields=["code"]))
    reads_boxes = Transform(lambda example: {"n": len(example[BOXES])}, [BOXES], ["n"])
    counts = Transform(lambda example: {"n": 0}, ["label"], ["n"])
    members = {"a": open_boxed(boxed, reads_boxes, batch_size=None), "b": members["a"].with_transform(counts)}
    mixture = ParserMixture(members, batch_size=4, preprocess=EvalPreprocess(8))
    with pytest.raises(ConfigError, match="boxes that other members lack"):
        next(mixture.batches(fields=["image", "n"]))


# Refusals


def returned(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda example: value


def read(fields: Any = ("image", BOXES), **options: Any) -> Callable[..., Any]:
    return lambda boxed, transform: list(open_boxed(boxed, transform, **options).batches(fields=fields))


class Filter:
    def filter(self, element: Any) -> bool:
        return True


class Albumentations:
    __module__ = "albumentations.core.composition"

    def __call__(self, **values: Any) -> Any:
        return values


class Vision(torch.nn.Module):
    __module__ = "torchvision.transforms.v2._geometry"


REFUSED: list[tuple[Any, Any, str]] = [
    # What is no transform.
    ("f", read(), "transform='f' must be a function of a dictionary"),
    (Filter, read(), "is a class: give an object of it, Filter(...)"),
    (Filter(), read(), "has filter(), which maps no example. Which examples there are is the parser's: parser.subset"),
    (type("M", (), {"map": dict}), read(), "is a class: give an object of it, M(...)"),
    (torch.nn.Sequential(torch.nn.Identity(), Vision()), read(), "tfds_torch.integrations.torchvision.transform(tran"),
    (Albumentations(), read(), "tfds_torch.integrations.albumentations.transform(compose)"),
    (lambda: 0, read(), "it must be function(example) or function(example, rng)"),
    (lambda a, b, c: 0, read(), "takes the arguments (a, b, c)"),
    # What does not fit the dataset.
    (Transform(len, ["objects/box"]), read(), "There is no feature 'objects/box'"),
    (Transform(len, gives=["index"]), read(), "gives 'index', which examples have anyway"),
    (flip, read(preprocess=Views(EvalPreprocess(8))), "makes several views of an image, and the transform flip gets"),
    (Transform(flip, [BOXES], [BOXES]), read(["imgae"]), "Did you mean 'image'?"),
    (Transform(flip, [BOXES, "more"]), read(), "There is no feature 'more'"),
    ([Transform(flip, ["n"]), Transform(len, [BOXES], ["n"])], read(), "flip reads 'n', which the later one len gives"),
    (Transform, read(), "transform=Transform is the class"),
    ([Transform(returned({}), ["image"]), Transform(len, ["more"])], read(), "It reads 'more', which no transform"),
    (flip, read(["image", BOXES, "area"]), "no transform gave 'area' for the example"),
    (flip, read(["image", BOXES, "msak"]), "and the dataset does not have it. boxed:1.0.0: There is no feature 'msak'"),
    (flip, read(["image", "objects"]), "KeyError: 'objects/bbox'. It got the fields image, objects."),
    (returned({BOXES: 0}), read(["objects"]), "'objects' is asked for as a whole. Ask for its parts, by names such as"),
    (
        lambda example: {"many": 1} if len(example[BOXES]) > 1 else {},
        read(batch_size=12),
        "no transform gave 'many' for the example 'boxed-train.tfrecord-00000-of-00001__0', and one did for others",
    ),
    # What it returns.
    (returned(None), read(), "It returned None: return a dictionary of fields."),
    (returned([1]), read(), "It returned a list: return a dictionary"),
    (returned({1: 2}), read(), "It returned 1, which is no name of a field"),
    (Transform(returned({"a": 1}), gives=["image"]), read(), "It returned ['a'], and gives= names 'image'."),
    (Transform(lambda example: {"id": "x"}, ["id"]), read(), "It returned 'id', which says which example it is"),
    (returned({"image": None}), read(), "It returned 'image' as a NoneType. Images are [H, W, C] here"),
    (returned({"image": [1]}), read(), "It returned 'image' as a list. Images are"),
    (returned({"image": np.zeros((3, 8, 8), np.uint8)}), read(), "as uint8 [3, 8, 8]. Images are [H, W, C] here"),
    (returned({"mask": np.zeros(8)}), read(["mask"]), "as float64 [8]. Images are [H, W, C]"),
    (
        returned({"a": torch.zeros(2, dtype=torch.bfloat16)}),
        read(),
        "as a tensor that numpy cannot have",
    ),
    (
        lambda example: {"area": example[BOXES][:, 0]},
        read(),
        "'area' is float32 [1], and was float32 [0] in",
    ),
    (lambda example: {"area": example[BOXES][:, 0]}, read(), "gives={'area': ((None,), 'float32'), ...}"),
    (
        Transform(lambda example: {BOXES: example[BOXES]}, gives={BOXES: ((None, 5), "float32")}),
        read(),
        "'objects/bbox' is float32 [0, 4], and gives= declares float32 [?, 5].",
    ),
    (
        lambda example: {"image": example["image"][: 8 + len(example[BOXES])]},
        lambda boxed, transform: list(
            ImageDataset(open_boxed(boxed, transform, preprocess=EvalPreprocess(16)), fields=["image", BOXES])
        ),
        "the transform made uint8 [8, 16, 3] of boxed-train.tfrecord-00000-of-00001__0, and uint8 [9, 16, 3] of",
    ),
]


@pytest.mark.parametrize(("transform", "use", "message"), REFUSED)
def test_what_cannot_work_is_named(boxed: Path, transform: Any, use: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        use(boxed, transform)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reads": "image"}, "reads='image' must be a list of the names of fields"),
        ({"reads": []}, "reads=[] must be a list"),
        ({"gives": [1]}, "gives=[1] must be a list"),
        ({"gives": {"a": 3}}, "gives={'a': 3} must be shape and dtype of one value"),
        ({"gives": {"a": ((2,), "flot")}}, "must be shape and dtype of one value"),
        ({"threads": 1}, "Transform: threads=1 must be True or False"),
        ({"version": 2}, "Transform: version=2 must be a text"),
    ],
)
def test_an_argument_that_cannot_be_is_named(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Transform(len, **arguments)


def test_a_partial_is_named_by_its_function(boxed: Path) -> None:
    def scale(example: dict[str, Any], by: float) -> dict[str, Any]:
        return {BOXES: example["boxes"] * by}

    with pytest.raises(ConfigError, match=r"scale cannot be used for .* KeyError: 'boxes'. It got the fields"):
        read()(boxed, partial(scale, by=2))
