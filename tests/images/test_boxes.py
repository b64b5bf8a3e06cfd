"""Boxes and masks go where torchvision's v2 functions move them; what is out of sight leaves with its row."""

from typing import Any

import numpy as np
import pytest
import torch
import torchvision_build
from own_preprocess import ShiftedEval, SquareCrop
from tfds_fixtures import call_reader

from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.errors import ConfigError
from tfds_torch.images.boxes import BadBoxError, BoxRows, FieldPart, move_boxes
from tfds_torch.images.crops import CropParameters, Crops
from tfds_torch.images.cutting import cut_alike
from tfds_torch.images.preprocess import ExampleRandom, Preprocess, height_and_width

SEED = 5
SIZES = np.array([(300, 200), (97, 411), (640, 480), (31, 29), (1200, 900), (224, 224)] * 4, np.int64)
KEYS = np.arange(len(SIZES), dtype=np.int64)
PREPROCESSES: dict[str, Preprocess] = {
    "train": TrainPreprocess(size=(64, 48)),
    "small crops": TrainPreprocess(size=96, scale=(0.01, 0.1), hflip=1.0),
    "padding": TrainPreprocess(size=(40, 56), crop_padding=8),
    "center": EvalPreprocess(size=(60, 90)),
    "one side": EvalPreprocess(size=64),
    "squash": EvalPreprocess(size=50, crop_mode="squash"),
    "border": EvalPreprocess(size=64, crop_mode="border", crop_pct=1.0),
    "windows": TrainPreprocess(size=(40, 56), resize=64, crop_padding=8, vflip=0.5),
    "own squares": SquareCrop(size=72),
    "own shifts": ShiftedEval(size=40),
}
BOXES = FieldPart("bbox")


def random_boxes(count: int, rng: np.random.Generator) -> np.ndarray:
    ends = np.sort(rng.random((count, 2, 2)), axis=1)
    return ends.reshape(count, 4).astype(np.float32)


def own_crops(preprocess: Preprocess) -> Crops:
    return preprocess.crop(SIZES, ExampleRandom(KEYS, SEED))


def parameters_of(preprocess: Preprocess, *, shrinkable: bool) -> CropParameters:
    return preprocess.crop_parameters(SIZES, KEYS, SEED, np.full(len(KEYS), shrinkable))


def move(
    columns: dict[str, Any], preprocess: Preprocess, *groups: BoxRows, shrinkable: bool = False, least: float = 0.0
) -> dict[str, Any]:
    columns = dict(columns)
    size = height_and_width(preprocess.size)
    move_boxes(columns, groups, least, parameters_of(preprocess, shrinkable=shrinkable), SIZES, size)
    return columns


# Held against torchvision


@pytest.fixture(scope="module", autouse=True)
def _torchvision() -> None:
    """Finds out whether torchvision can be imported once, and not in each call of the reader."""
    torchvision_build.needs_declarations()


Steps = list[tuple[str, tuple[Any, ...]]]


def steps_of(preprocess: Preprocess, *, shrinkable: bool) -> list[Steps]:
    """Returns what torchvision is to do with each image: the names of its functions, and their arguments."""
    crops, parameters = own_crops(preprocess), parameters_of(preprocess, shrinkable=shrinkable)
    size, every = height_and_width(preprocess.size), []
    for number in range(len(KEYS)):
        steps: Steps = []
        if crops.resized is not None:
            steps.append(("resize", (crops.resized[number].tolist(),)))
            if crops.starts is None:
                steps.append(("center_crop", (list(size),)))
            else:
                steps.append(("crop", (*crops.starts[number].tolist(), *size)))
        else:
            assert crops.boxes is not None
            shrunk = parameters.shrinks[number] > 1  # Whole pixels of the shrunk image are cut out.
            box = (parameters.windows if shrunk else crops.boxes)[number].tolist()
            steps += [("crop", tuple(box)), ("resize", (list(size),))]
        if crops.flips is not None and crops.flips[number]:
            steps.append(("horizontal_flip", ()))
        if crops.vflips is not None and crops.vflips[number]:
            steps.append(("vertical_flip", ()))
        every.append(steps)
    return every


def boxes_of_torchvision(every: list[Steps], boxes: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the moved boxes of each image, and the shares of their areas that are left. Loads torch."""
    import torch
    from torchvision_build import declare_where_needed

    held = declare_where_needed()
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    results = []
    for steps, own, (height, width) in zip(every, boxes, SIZES.tolist(), strict=True):
        pixels = torch.from_numpy(own[:, [1, 0, 3, 2]].astype(np.float64)) * torch.tensor([width, height] * 2)
        moved: Any = tv_tensors.BoundingBoxes(pixels, format="XYXY", canvas_size=(height, width), dtype=torch.float64)
        share = torch.ones(len(own), dtype=torch.float64)
        for name, arguments in steps:
            before = area(moved)
            moved = getattr(functional, name)(moved, *arguments)
            if name in ("crop", "center_crop"):
                moved = functional.clamp_bounding_boxes(moved)
                share = area(moved) / before
        rows, columns = moved.canvas_size
        relative = (moved.as_subclass(torch.Tensor) / torch.tensor([columns, rows] * 2))[:, [1, 0, 3, 2]]
        results.append((relative.numpy(), share.numpy()))
    del held
    return results


def area(boxes: Any) -> Any:
    left, top, right, bottom = boxes.unbind(-1)
    return (right - left) * (bottom - top)


@pytest.mark.parametrize("shrinkable", [False, True])
@pytest.mark.parametrize("name", PREPROCESSES)
def test_boxes_move_as_torchvision_moves_them(name: str, shrinkable: bool) -> None:
    preprocess, rng = PREPROCESSES[name], np.random.default_rng(3)
    boxes = [random_boxes(count, rng) for count in rng.integers(0, 12, len(SIZES))]
    labels = [np.arange(len(one)) for one in boxes]
    theirs = call_reader(boxes_of_torchvision, steps_of(preprocess, shrinkable=shrinkable), boxes)
    for least in (0.0, 0.3):
        group = BoxRows((BOXES,), (FieldPart("label"),))
        came = move({"bbox": boxes, "label": labels}, preprocess, group, shrinkable=shrinkable, least=least)
        for number, (wanted, shares) in enumerate(theirs):
            assert np.abs(shares - least).min(initial=1) > 2e-5 or least == 0  # None is at the edge.
            kept = (shares > 1e-9) & (shares >= least)
            assert came["label"][number].tolist() == np.flatnonzero(kept).tolist()
            moved = came["bbox"][number]
            assert (moved.dtype, moved.shape) == (np.float32, (kept.sum(), 4))
            np.testing.assert_allclose(moved, wanted[kept], atol=2e-6)


def masks_of_torchvision(every: list[Steps], masks: list[np.ndarray]) -> list[np.ndarray]:
    """Returns the masks that torchvision's functions make of PIL's. Loads torch."""
    from PIL import Image
    from torchvision_build import declare_where_needed

    held = declare_where_needed()
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.v2 import functional

    results = []
    for steps, mask in zip(every, masks, strict=True):
        moved: Any = Image.fromarray(mask)
        for name, arguments in steps:
            options = {"interpolation": InterpolationMode.NEAREST} if name == "resize" else {}
            moved = getattr(functional, name)(moved, *arguments, **options)
        results.append(np.array(moved))
    del held
    return results


@pytest.mark.parametrize("name", PREPROCESSES)
def test_masks_are_those_of_torchvision(name: str) -> None:
    preprocess = PREPROCESSES[name]
    # Each pixel says in which line, or in which column, it lies.
    masks = [np.indices(size)[number % 2].astype(np.uint8) for number, size in enumerate(SIZES.tolist())]
    theirs = call_reader(masks_of_torchvision, steps_of(preprocess, shrinkable=False), masks)
    size = height_and_width(preprocess.size)
    came = cut_alike([mask[..., None] for mask in masks], parameters_of(preprocess, shrinkable=False), size)
    for number, (mask, wanted) in enumerate(zip(came, theirs, strict=True)):
        apart = (mask[..., 0] - wanted).astype(np.int8)  # Modulo 256.
        # Two pixels may be equally near: Pillow takes either, by its rounding.
        assert np.abs(apart).max() <= 1, f"mask {number}"
        assert (apart != 0).mean() <= 0.2, f"mask {number}: {(apart != 0).mean():.2%} of the pixels differ"


# Rows, forms and single boxes

FLIP = TrainPreprocess(size=8, scale=(1, 1), ratio=(1, 1), hflip=1.0)
ONE = np.array([(100, 100)], np.int64)
LEFT_HALF = Crops(np.array([(0, 0, 100, 50)]))
"""The left half of one image."""


def move_one(columns: dict[str, Any], *groups: BoxRows, crops: Crops = LEFT_HALF, least: float = 0.05) -> Any:
    columns = {name: [value] for name, value in columns.items()}
    move_boxes(columns, groups, least, crops.parameters(ONE, (8, 8), np.array([False])), ONE, (8, 8))
    return {name: values[0] for name, values in columns.items()}


ROWS: Any = np.array([[0.2, 0.1, 0.4, 0.3], [0.2, 0.6, 0.4, 0.9], [0.0, 0.25, 1.0, 0.75]], np.float32)


@pytest.mark.parametrize(
    ("rows", "left"),
    [
        (np.array([7, 8, 9]), [7, 9]),
        (["a", "b", "c"], ["a", "c"]),
        ([b"a", b"b", b"c"], [b"a", b"c"]),
        (np.arange(6).reshape(3, 2), [[0, 1], [4, 5]]),
        ([np.array([1]), np.array([2, 3]), np.array([])], [[1], []]),
        (torch.arange(3), [0, 2]),
    ],
    ids=["numbers", "texts", "bytes", "matrix", "nested", "tensor"],
)
def test_a_row_leaves_with_its_box(rows: Any, left: list[Any]) -> None:
    came = move_one({"bbox": ROWS, "rows": rows}, BoxRows((BOXES,), (FieldPart("rows"),)))
    np.testing.assert_allclose(came["bbox"], [[0.2, 0.2, 0.4, 0.6], [0.0, 0.5, 1.0, 1.0]], atol=1e-6)
    assert [np.asarray(row).tolist() for row in came["rows"]] == left


def test_boxes_within_dictionaries_move_in_copies_of_these() -> None:
    objects: dict[str, Any] = {"bbox": ROWS, "inner": {"label": np.array([7, 8, 9])}, "other": "kept"}
    group = BoxRows((FieldPart("objects", ("bbox",)),), (FieldPart("objects", ("inner", "label")),))
    came = move_one({"objects": objects}, group)["objects"]
    assert (came["inner"]["label"].tolist(), came["other"], len(came["bbox"])) == ([7, 9], "kept", 2)
    assert objects["bbox"] is ROWS
    assert len(objects["inner"]["label"]) == 3


def test_the_other_keys_beside_the_boxes_have_a_row_for_each() -> None:
    holder: dict[str, Any] = {"bbox": ROWS, "label": np.arange(3), "names": ["a", "b", "c"]}
    group = BoxRows((FieldPart("json", ("target", "bbox")),), has_siblings=True)
    came = move_one({"json": {"target": holder, "id": 3}}, group)["json"]["target"]
    assert (came["label"].tolist(), came["names"], len(came["bbox"])) == ([0, 2], ["a", "c"], 2)
    with pytest.raises(BadBoxError, match=r"'json/target/width' has no rows.* boxes=\{'json/target/bbox': \(...\)\}"):
        move_one({"json": {"target": holder | {"width": 9}}}, group)


@pytest.mark.parametrize(
    ("value", "may_have_rows"),
    [
        (np.arange(3), True),
        (["a", "b"], True),
        (np.zeros((3, 2)), True),
        (np.zeros((8, 8, 3), np.uint8), False),
        (b"abc", False),
        (7, False),
    ],
    ids=["numbers", "texts", "points", "image", "text", "number"],
)
def test_a_field_that_may_have_a_row_for_each_box_must_be_named(value: Any, may_have_rows: bool) -> None:
    columns = {"bbox": ROWS, "other": value}
    group = BoxRows((BOXES,), unsaid=("other",))
    if may_have_rows:
        with pytest.raises(ConfigError, match=r"'other' may have .* boxes=\{'bbox': \('other',\)\}; or, .*: \(\)\}"):
            move_one(columns, group)
        columns = {"bbox": ROWS[0], "other": value}  # A single box never leaves.
    assert np.array_equal(move_one(columns, group)["other"], value)


@pytest.mark.parametrize(("least", "left"), [(0.0, [0, 2]), (0.5, [0, 2]), (0.51, [0]), (1.0, [0])])
def test_a_box_stays_where_so_much_of_it_is_visible(least: float, left: list[int]) -> None:
    came = move_one({"bbox": ROWS, "rows": np.arange(3)}, BoxRows((BOXES,), (FieldPart("rows"),)), least=least)
    assert came["rows"].tolist() == left


def test_a_box_at_the_edges_of_a_whole_image_stays_where_all_of_it_must_be_visible() -> None:
    boxes = [random_boxes(20, np.random.default_rng(1)) for _ in SIZES]
    for one in boxes:
        one[0] = 0, 0, 1, 1
    came = move({"bbox": boxes}, FLIP, BoxRows((BOXES,)), least=1.0)
    assert [len(one) for one in came["bbox"] if len(one) != 20] == [
        len(one) for one, size in zip(came["bbox"], SIZES, strict=True) if size[0] != size[1]
    ]
    squash = EvalPreprocess(size=8, crop_mode="squash", crop_pct=1)
    came = move({"bbox": boxes}, squash, BoxRows((BOXES,)), least=1.0)
    np.testing.assert_allclose(np.stack(came["bbox"]), np.stack(boxes), atol=1e-7)


def test_a_box_without_area_stays_where_it_is_visible() -> None:
    boxes: Any = np.array([[0.5, 0.2, 0.5, 0.4], [0.1, 0.25, 0.1, 0.25], [0.1, 0.75, 0.3, 0.75]], np.float32)
    came: Any = move_one({"bbox": boxes}, BoxRows((BOXES,)))
    np.testing.assert_allclose(came["bbox"], [[0.5, 0.4, 0.5, 0.8], [0.1, 0.5, 0.1, 0.5]], atol=1e-6)


def test_of_several_boxes_in_a_row_one_keeps_it() -> None:
    others: Any = ROWS[[1, 1, 0]]
    came: Any = move_one({"bbox": ROWS, "head": others}, BoxRows((BOXES, FieldPart("head"))))
    np.testing.assert_allclose(came["bbox"], [[0.2, 0.2, 0.4, 0.6], [0.0, 0.5, 1.0, 1.0]], atol=1e-6)
    np.testing.assert_allclose(came["head"], [[0.0, 0.0, 0.0, 0.0], [0.2, 0.2, 0.4, 0.6]], atol=1e-6)


def test_a_single_box_out_of_sight_becomes_empty() -> None:
    seen = move_one({"bbox": ROWS[0]}, BoxRows((BOXES,)))["bbox"]
    np.testing.assert_allclose(seen, [0.2, 0.2, 0.4, 0.6], atol=1e-6)
    assert move_one({"bbox": ROWS[1]}, BoxRows((BOXES,)))["bbox"].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("boxes", [[], np.zeros((0, 4), np.float32), np.zeros(0), [[0.2, 0.1, 0.4, 0.3]]], ids=str)
def test_an_example_without_boxes_has_none_afterwards(boxes: Any) -> None:
    came = move_one({"bbox": boxes}, BoxRows((BOXES,)))["bbox"]
    assert (came.dtype, came.shape) == (np.float32, (len(boxes), 4))


# What cannot be


@pytest.mark.parametrize(
    ("boxes", "reason"),
    [
        (
            [[0.1, 0.1, 0.2, 1.2]],
            "Its 'bbox' has a box [0.1, 0.1, 0.2, 1.2]. A box is [ymin, xmin, ymax, xmax], each 0",
        ),
        ([[-0.1, 0.1, 0.2, 0.2]], "has a box [-0.1, 0.1, 0.2, 0.2]"),
        ([[0.3, 0.1, 0.2, 0.2]], "has a box [0.3, 0.1, 0.2, 0.2]"),
        ([[0.1, 0.1, 0.2, float("nan")]], "has a box [0.1, 0.1, 0.2, nan]"),
        ([[10, 20, 100, 200]], "has a box [10.0, 20.0, 100.0, 200.0]"),
        (
            [[0.1, 0.1, 0.2]],
            "Its 'bbox' is [[0.1, 0.1, 0.2]]: boxes are numbers [number of boxes, 4], or one box, [4].",
        ),
        (np.zeros((2, 3, 4)), "Its 'bbox' is float64 [2, 3, 4]: boxes are numbers"),
        ("abc", "Its 'bbox' is 'abc': boxes are numbers"),
        (None, "Its 'bbox' is None: boxes are numbers"),
        ([["a", "b", "c", "d"]], "Its 'bbox' is [['a', 'b', 'c', 'd']]: boxes are"),
        (ROWS[0], "Its 'bbox' is float64 [4], and those before it have another form."),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_a_box_is_refused_with_its_example(boxes: Any, reason: str) -> None:
    columns: dict[str, Any] = {"bbox": [ROWS, ROWS[:0], boxes]}
    parameters = Crops(np.array([(0, 0, 100, 50)] * 3)).parameters(ONE.repeat(3, 0), (8, 8), np.zeros(3, np.bool_))
    with pytest.raises(BadBoxError) as refused:
        move_boxes(columns, [BoxRows((BOXES,))], 0.05, parameters, ONE.repeat(3, 0), (8, 8))
    assert reason in refused.value.reason
    assert refused.value.position == 2


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (np.arange(2), "Its 'rows' has 2 rows, and its 'bbox' 3: each box needs a row of its own."),
        (np.int64(3), "Its 'rows' has no rows, and its 'bbox' 3"),
        ("abc", "Its 'rows' has no rows"),
    ],
    ids=str,
)
def test_rows_that_are_not_as_many_as_boxes_are_refused(rows: Any, reason: str) -> None:
    with pytest.raises(BadBoxError) as refused:
        move_one({"bbox": ROWS, "rows": rows}, BoxRows((BOXES,), (FieldPart("rows"),)))
    assert reason in refused.value.reason


def test_other_boxes_that_are_not_as_many_are_refused() -> None:
    with pytest.raises(BadBoxError, match="Its 'head' has not as many boxes as its 'bbox'"):
        move_one({"bbox": ROWS, "head": ROWS[:2]}, BoxRows((BOXES, FieldPart("head"))))


def test_a_part_that_an_example_lacks_is_refused() -> None:
    with pytest.raises(BadBoxError, match="Its field 'json' has no 'boxes'"):
        move_one({"json": {"labels": []}}, BoxRows((FieldPart("json", ("boxes",)),)))
