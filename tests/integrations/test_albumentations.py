"""albumentations: boxes, their rows and masks follow the image, and random numbers are the example's."""

import pickle
import random

import albumentations as A
import numpy as np
import pytest

from integrations.moved_boxes import KEPT, SEQUENCE, call, check_agreement, check_mirrored, check_worlds, make_example
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.albumentations import transform

FLIP = A.HorizontalFlip(p=1)
RANDOM = [
    A.HorizontalFlip(),
    A.OneOf([A.RandomRotate90(p=1), A.Compose([A.VerticalFlip(), A.Transpose()])], p=0.7),
    A.SomeOf([A.RandomCrop(12, 12), A.HorizontalFlip(), A.RandomBrightnessContrast()], n=2),
]


@pytest.mark.parametrize(
    ("compose", "size", "boxes", "rows"),
    [
        (FLIP, (20, 30), [(2, 21, 6, 27), (10, 3, 18, 15), (0, 0, 4, 10)], KEPT),
        (A.Crop(0, 0, 15, 20), (20, 15), [(2, 3, 6, 9)], [0]),
        (A.Crop(4, 4, 22, 14), (10, 18), [(0, 0, 2, 5), (6, 11, 10, 18)], [0, 1]),  # The last box ends where it begins.
        (A.Transpose(p=1), (30, 20), [(3, 2, 9, 6), (15, 10, 27, 18), (20, 0, 30, 4)], KEPT),
        (A.Resize(40, 30), (40, 30), [(4, 3, 12, 9), (20, 15, 36, 27), (0, 20, 8, 30)], KEPT),
        (A.RandomBrightnessContrast(p=1), (20, 30), [(2, 3, 6, 9), (10, 15, 18, 27), (0, 20, 4, 30)], KEPT),
        (A.Crop(9, 4, 12, 8), (4, 3), np.empty((0, 4)), []),
    ],
    ids=["flip", "crop", "crop at an edge", "transpose", "resize", "colours", "crop away"],
)
def test_boxes_rows_and_masks_follow(compose, size, boxes, rows) -> None:
    found = call(transform(compose, masks=["mask"]), make_example())
    assert found["image"].shape == (*size, 3)
    assert check_agreement(found) == rows
    np.testing.assert_allclose(found["objects/bbox"], np.array(boxes) / (size * 2), atol=1e-6)


def test_nested_transforms_draw_from_the_examples_numbers_alone() -> None:
    compose = A.Compose([*RANDOM], seed=1)
    made = transform(compose, masks=["mask"], version="2")
    assert made.version == "2"
    compose.transforms.clear()  # It is a copy.
    before = random.getstate(), repr(np.random.get_state())
    found = [call(made, make_example(), seed) for seed in range(12)]
    assert (random.getstate(), repr(np.random.get_state())) == before
    assert len({example["image"].tobytes() for example in found}) > 6
    assert {tuple(check_agreement(example)) for example in found} > {(0, 1, 3)}
    unpickled = pickle.loads(pickle.dumps(made))
    for seed in reversed(range(12)):
        for again in (call(made, make_example(), seed), call(unpickled, make_example(), seed)):
            assert all(np.array_equal(again[name], value) for name, value in found[seed].items())


def test_no_boxes_are_none_afterwards() -> None:
    for compose in (A.Compose(RANDOM), A.BBoxSafeRandomCrop(p=1), A.RandomSizedBBoxSafeCrop(8, 8, p=1)):
        assert check_agreement(call(transform(compose, masks=["mask"]), make_example(0))) == []


def test_limits_of_a_compose_count_and_its_format_does_not() -> None:
    for min_visibility, rows in ((0.6, [1]), (0.4, [0, 1, 3])):  # Half is left of the first and of the last box.
        params = A.BboxParams("coco", ["labels"], min_visibility=min_visibility)
        compose = A.Compose([A.Crop(6, 2, 30, 18)], bbox_params=params)
        assert call(transform(compose), make_example())["objects/label"].tolist() == rows


def test_tensors_become_images_again_and_further_targets_follow() -> None:
    example = make_example() | {"second": make_example()["image"][..., :1].copy()}
    for transpose_mask in (False, True):
        parts = [FLIP, A.Normalize(), A.ToTensorV2(transpose_mask=transpose_mask)]
        compose = A.Compose(parts, additional_targets={"second": "mask"})
        found = call(transform(compose, masks=["mask"]), example)
        assert (found["image"].shape, found["image"].dtype) == ((20, 30, 3), np.float32)
        assert check_agreement(found) == KEPT
        np.testing.assert_array_equal(found["second"], example["second"][:, ::-1])
    grey = example | {"image": example["second"][:, ::-1]}  # Not contiguous, as a transform before may leave it.
    np.testing.assert_array_equal(call(transform(FLIP), grey)["image"], example["second"])


@pytest.mark.parametrize(
    ("compose", "words"),
    [
        ("A.Compose", "must be a Compose of albumentations"),
        (A.Compose([FLIP], keypoint_params=A.KeypointParams("xy")), "keypoints, and second boxes, do not follow"),
        (A.Compose([FLIP], A.BboxParams("coco"), additional_targets={"b": "bboxes"}), "second boxes, do not follow"),
        (A.Compose([A.ConstrainedCoarseDropout(bbox_labels=[1])]), "bbox_labels .* leave them out"),
    ],
)
def test_what_cannot_follow_is_refused(compose, words) -> None:
    with pytest.raises(ConfigError, match=words):
        transform(compose)


def test_images_of_windows_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"an image is \[2, 4, 4, 3\].*integrations\.torchvision"):
        call(transform(FLIP, image="camera", version="2"), {"camera": np.zeros((2, 4, 4, 3), np.uint8)})


def test_wide_numbers_of_masks_are_kept() -> None:
    mask = np.full((20, 30), 2**31 - 1, np.int64)
    found = call(transform(A.Compose([FLIP, A.Resize(8, 8)]), None, ["mask"]), make_example() | {"mask": mask})["mask"]
    assert (found.dtype, found.shape, found.min()) == (np.int64, (8, 8), 2**31 - 1)


def test_without_boxes_image_and_masks_move() -> None:
    check_mirrored(transform(FLIP, None, ["mask"]))


def test_batches_are_alike_in_any_world() -> None:
    check_worlds(transform(A.Compose([*RANDOM, A.Resize(16, 16)]), SEQUENCE, ["mask"]))
