"""torchvision.transforms.v2: boxes, their rows and masks follow the image."""

import pickle

import numpy as np
import pytest
import torch
import torchvision_build

from integrations.moved_boxes import KEPT, SEQUENCE, call, check_agreement, check_mirrored, check_worlds, make_example
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.torchvision import transform

OPERATORS = torchvision_build.declare_where_needed()

from torchvision import transforms as old  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

FLIP = v2.RandomHorizontalFlip(1)


class Cut(v2.Transform):
    """Cuts a rectangle: top, left, height, width."""

    def __init__(self, *rectangle):
        super().__init__()
        self.rectangle = rectangle

    def transform(self, inpt, params):
        return self._call_kernel(v2.functional.crop, inpt, *self.rectangle)


@pytest.mark.parametrize(
    ("v2_transform", "size", "boxes", "rows"),
    [
        (FLIP, (20, 30), [(2, 21, 6, 27), (10, 3, 18, 15), (0, 0, 4, 10)], KEPT),
        (Cut(0, 0, 20, 15), (20, 15), [(2, 3, 6, 9)], [0]),
        (Cut(4, 4, 10, 18), (10, 18), [(0, 0, 2, 5), (6, 11, 10, 18)], [0, 1]),  # The last box ends where it begins.
        (v2.RandomRotation((90, 90), expand=True), (30, 20), [(21, 2, 27, 6), (3, 10, 15, 18), (0, 0, 10, 4)], KEPT),
        (v2.Resize((40, 30)), (40, 30), [(4, 3, 12, 9), (20, 15, 36, 27), (0, 20, 8, 30)], KEPT),
        (v2.ColorJitter(0.5), (20, 30), [(2, 3, 6, 9), (10, 15, 18, 27), (0, 20, 4, 30)], KEPT),
        (Cut(4, 9, 4, 3), (4, 3), np.empty((0, 4)), []),
    ],
    ids=["flip", "crop", "crop at an edge", "rotate", "resize", "colours", "crop away"],
)
def test_boxes_rows_and_masks_follow(v2_transform, size, boxes, rows) -> None:
    found = call(transform(v2_transform, masks=["mask"]), make_example())
    assert found["image"].shape == (*size, 3)
    assert check_agreement(found) == rows
    np.testing.assert_allclose(found["objects/bbox"], np.array(boxes) / (size * 2), atol=1e-6)


@pytest.mark.parametrize("num_boxes", [0, 1, 4])
def test_sanitized_boxes_take_their_rows_along_and_leave_masks_whole(num_boxes: int) -> None:
    """It cuts masks whose first side is the number of boxes."""
    parts = [v2.RandomIoUCrop(), v2.RandomCrop(12, pad_if_needed=True), FLIP, v2.SanitizeBoundingBoxes(min_size=2)]
    made = transform(v2.Compose([*parts, v2.ConvertBoundingBoxFormat("CXCYWH")]), masks=["mask", "other"])
    other = np.arange(20 * 30 * 4, dtype=np.int32).reshape(20, 30, 4)
    found = [call(made, make_example(num_boxes) | {"other": other}, seed) for seed in range(12)]
    for example in found:
        left = [1_000 * (row + 1) for row in example["objects/label"]]
        example["mask"][~np.isin(example["mask"], left)] = 0  # Of boxes that were too small.
        check_agreement(example)
        assert (example["other"].shape, example["other"].dtype) == ((12, 12, 4), np.int32)
    assert len({len(example["objects/label"]) for example in found}) > min(num_boxes, 1)


def test_boxes_that_touch_an_edge_are_not_lost_to_rounding() -> None:
    """SanitizeBoundingBoxes drops a box that is a millionth of a pixel outside, as resizing leaves many."""
    parts = [v2.RandomApply([v2.RandomCrop(60)]), v2.Resize((47, 47)), v2.SanitizeBoundingBoxes()]
    made = transform(v2.Compose(parts), {"boxes": []})
    boxes = np.array([(0, 0, 1, 1), (0.1, 0.1, 1, 0.9), (0, 0, 0.01, 0.01)], np.float32)
    lost = 0
    for seed in range(40):
        image = np.zeros((61 + seed, 67 + seed, 3), np.uint8)
        found = call(made, {"image": image, "boxes": boxes}, seed)["boxes"]
        np.testing.assert_allclose(found[0], [0, 0, 1, 1], atol=1e-6)
        assert len(found) >= 2
        lost += len(found) == 2  # Outside of the crop, or too small.
    assert lost
    assert len(parts) == 3  # What was given is left as it was.


def test_the_default_generator_of_torch_decides() -> None:
    made = transform(
        v2.Compose([v2.RandomHorizontalFlip(), v2.RandomChoice([v2.RandomCrop(12), v2.RandomVerticalFlip()])])
    )
    found = [call(made, make_example(), seed) for seed in range(8)]
    assert len({example["image"].tobytes() for example in found}) > 4
    unpickled = pickle.loads(pickle.dumps(made))
    for seed in reversed(range(8)):
        for again in (call(made, make_example(), seed), call(unpickled, make_example(), seed)):
            assert all(np.array_equal(again[name], value) for name, value in found[seed].items())


def test_floats_windows_and_images_that_are_not_contiguous() -> None:
    scaled = call(transform(v2.Compose([FLIP, v2.ToDtype(torch.float32, scale=True)])), make_example())
    expected = make_example()["image"][:, ::-1]
    np.testing.assert_allclose(scaled["image"], expected / 255, atol=1e-6)
    assert scaled["image"].dtype == np.float32
    example = {"camera": np.stack([expected, expected]), "mask": np.stack([make_example()["mask"]] * 2)}
    made = transform(FLIP, masks=["mask"], image="camera", version="2")
    assert made.version == "2"
    found = call(made, example)
    np.testing.assert_array_equal(found["camera"], example["camera"][:, :, ::-1])
    np.testing.assert_array_equal(found["mask"], example["mask"][:, :, ::-1])


@pytest.mark.parametrize(
    ("v2_transform", "words"),
    [
        (old.RandomHorizontalFlip(), r"must be a transform of torchvision\.transforms\.v2"),
        (3, "3 must be a transform"),
        (v2.ToPILImage(), "returns no tensor as 'image': leave ToPILImage out"),
        (list, "returns no tensor as 'image'.* return this dictionary"),
        (v2.ToPureTensor(), "returns 3 'boxes' of type Tensor .*leave ToPureTensor out"),
        (v2.Compose([Cut(0, 0, 20, 15), v2.SanitizeBoundingBoxes(labels_getter=None)]), "1 'boxes' .* 3 'labels'"),
    ],
)
def test_what_cannot_follow_is_refused(v2_transform, words) -> None:
    with pytest.raises(ConfigError, match=words):
        call(transform(v2_transform), make_example())


def test_without_boxes_image_and_masks_move() -> None:
    check_mirrored(transform(FLIP, None, ["mask"]))


def test_batches_are_alike_in_any_world() -> None:
    check_worlds(transform(v2.Compose([v2.RandomHorizontalFlip(), v2.RandomResizedCrop(16)]), SEQUENCE, ["mask"]))
