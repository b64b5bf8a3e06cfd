"""What follows an image, whatever library moves it: rows of boxes, a single box, and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from integrations.moved_boxes import KEPT, PIXELS, SIDES, call, make_example
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.image_fields import ImageFields


class LeftPart(ImageFields):
    """Cuts the left of an image, and leaves boxes outside of it as they are."""

    share = 0.5

    def apply(self, moving, rng):
        width = round(moving.image.shape[1] * self.share)
        masks = {name: mask[:, :width, 0] for name, mask in moving.masks.items()}
        boxes = None if moving.boxes is None else moving.boxes / [self.share, 1, self.share, 1]
        return replace(moving, image=moving.image[:, :width], masks=masks, boxes=boxes)


def test_where_all_names_are_known_they_are_read_and_given() -> None:
    assert left_part(masks=["mask"]).reads is None
    for boxes, names in ((None, ()), ({"bbox": ["label"]}, ("bbox", "label"))):
        made = left_part(boxes, ["mask"])
        assert made.reads == tuple(made.gives) == ("image", "mask", *names)


def left_part(boxes="objects/bbox", masks=()):
    return LeftPart(boxes, masks).as_transform(None)


def test_all_fields_of_the_boxes_sequence_follow_and_others_stay() -> None:
    example = make_example() | {"objects/list": [[number] for number in range(4)], "label": 3, "objective": np.zeros(4)}
    found = left_part(masks=["mask"])(example, np.random.default_rng())
    assert found.keys() == {"image", "mask", *(f"objects/{name}" for name in ("bbox", "label", "name", "list"))}
    np.testing.assert_array_equal(found["objects/bbox"], np.array([[0.1, 0.2, 0.3, 0.6]], np.float32))
    assert found["objects/bbox"].dtype == np.float32
    assert (found["objects/label"].tolist(), found["objects/list"]) == ([0], [[0]])
    assert found["mask"].shape == (20, 15, 1)


def test_boxes_end_at_the_edges_and_empty_ones_go_with_their_rows_before_the_transform_sees_them() -> None:
    seen = []

    class Noting(LeftPart):
        share = 1

        def apply(self, moving, rng):
            seen.append(moving)
            return super().apply(moving, rng)

    found = call(Noting("objects/bbox", ()), make_example())
    expected = np.clip(PIXELS / SIDES, 0, 1)[KEPT]
    np.testing.assert_allclose(seen[0].boxes, expected[:, [1, 0, 3, 2]], atol=1e-7)
    np.testing.assert_array_equal(found["objects/bbox"], expected)
    assert seen[0].rows.tolist() == found["objects/label"].tolist() == KEPT
    example = make_example() | {"objects/bbox": np.array([[0, 0, 1, np.nan]] * 4, np.float32)}
    assert call(left_part(), example)["objects/bbox"].shape == (0, 4)


@pytest.mark.parametrize(("box", "expected"), [((0, 0, 1, 0.25), (0, 0, 1, 0.5)), ((0, 0.5, 1, 1), (0, 0, 0, 0))])
def test_a_single_box_stays_and_is_zeros_out_of_sight(box: tuple[float, ...], expected: tuple[float, ...]) -> None:
    found = call(left_part("bbox"), {"image": make_example()["image"], "bbox": np.array(box, np.float32), "label": 3})
    assert found["bbox"].tolist() == list(expected)
    assert found["bbox"].dtype == np.float32


@pytest.mark.parametrize("boxes", [[], np.zeros(0), [[0, 0, 1, 0.25], [0, 0.5, 1, 1]]], ids=["none", "empty", "two"])
def test_boxes_may_be_lists_and_none_of_them_are_no_single_box(boxes) -> None:
    example = {"image": make_example()["image"], "boxes": boxes, "labels": [b"a", b"b"][: len(boxes)]}
    found = call(left_part({"boxes": ["labels"]}), example)
    assert found["boxes"].tolist() == [[0, 0, 1, 0.5]][: len(boxes)]
    assert (found["boxes"].shape[1:], found["labels"]) == ((4,), [b"a"][: len(boxes)])


def test_masks_may_have_no_axis_of_channels_and_keep_their_type() -> None:
    example = make_example()
    mask = example["mask"][..., 0].astype(np.int64)
    found = call(left_part(None, ["mask"]), {"image": example["image"], "mask": mask})
    assert found["mask"].dtype == np.int64
    np.testing.assert_array_equal(found["mask"], mask[:, :15])


def test_fields_that_have_rows_may_be_named() -> None:
    single = {"image": make_example()["image"], "bbox": np.zeros(4, np.float32), "label": 3}
    assert call(left_part({"bbox": ["label"]}), single)["label"] == 3
    example = make_example() | {"label": np.arange(4), "objects/count": 4}
    found = call(left_part({"objects/bbox": ["label", "not asked for"]}), example)
    assert (found["label"].tolist(), found["objects/label"].tolist()) == ([0], [0, 1, 2, 3])


def test_what_is_not_asked_for_needs_no_transform() -> None:
    assert left_part()({"label": 3}, np.random.default_rng()) == {}
    image = make_example()["image"]
    assert left_part()({"image": image, "label": 3}, np.random.default_rng()).keys() == {"image"}
    assert left_part(masks=["mask"])({"image": image}, np.random.default_rng()).keys() == {"image"}
    assert left_part(None)(make_example(), np.random.default_rng()).keys() == {"image"}


def without(*names):
    return {name: value for name, value in make_example().items() if name not in names}


def two_boxes():
    return {"image": make_example()["image"], "boxes": np.zeros((2, 4))}


@pytest.mark.parametrize(
    ("boxes", "masks", "example", "words"),
    [
        ("objects/bbox", ["masks"], make_example(), r"'masks'.* It gets the fields .*'mask'"),
        ("objects/bbox", [], without("objects/bbox"), r"'objects/bbox'.* must be asked for"),
        ("objects/bbox", [], {"image": 0, "objects": {}}, r"'objects/bbox'.* must be asked for"),
        ("objects/bbox", [], make_example() | {"objects": {}}, r"'objects' has no row for each of 4 boxes"),
        ("objects/box", [], make_example(), r"'objects/box'.* must be asked for"),
        ("objects/bbox", [], without("image"), r"'image'.* must be asked for"),
        ("objects/bbox", [], make_example() | {"label": np.arange(4)}, r"'label' may have a row for each of 4 boxes"),
        ("objects/bbox", [], make_example() | {"objects/count": 4}, r"'objects/count' has no row for each of 4 boxes"),
        ({"objects/bbox": ["other"]}, [], make_example() | {"other": [1]}, r"'other' has no row for each of 4 boxes"),
        ("boxes", [], two_boxes() | {"labels": np.arange(3)}, r"'labels' may have a row for each of the boxes 'boxes'"),
        ("objects/bbox", [], two_boxes(), r"\['boxes'\] would stay where they are"),
        ("objects/bbox", [], make_example() | {"objects/bbox": np.zeros((4, 5))}, r"\[4, 5\], and boxes are numbers"),
        ("objects/bbox", [], make_example() | {"objects/bbox": [b"a"]}, r"\[b'a'\], and boxes are numbers"),
        (None, ["mask"], make_example() | {"mask": np.array([[-(2**31)]])}, r"'mask' has numbers from -2147483648"),
        ({"a": [], "b": []}, [], None, r"boxes=.* must be the name of a field"),
        ("objects/bbox", "mask", None, r"masks='mask' must be a list"),
    ],
)
def test_what_would_stay_behind_is_refused(boxes, masks, example, words) -> None:
    with pytest.raises(ConfigError, match=words):
        left_part(boxes, masks)(example, np.random.default_rng())


def test_boxes_in_pixels_and_names_that_are_not_there_are_refused() -> None:
    in_pixels = make_example() | {"objects/bbox": np.full((4, 4), 17, np.float32)}
    with pytest.raises(ConfigError, match=r"are \[\[17.0, .* from 0 to 1, relative to the image. Divide pixels"):
        call(LeftPart("objects/bbox", ()), in_pixels)
    with pytest.raises(ConfigError, match=r"'object/bbox'.* must be asked for"):
        call(LeftPart("object/bbox", ()), make_example())


def test_what_would_stay_behind_a_moved_image_is_refused() -> None:
    example = make_example()
    other = {"image": example["image"], "faces/bbox": example["objects/bbox"]}
    with pytest.raises(ConfigError, match=r"\['faces/bbox'\] would stay where they are .* boxes='faces/bbox'"):
        call(LeftPart("objects/bbox", ()), other)
    np.testing.assert_array_equal(call(LeftPart(None, ()), other)["faces/bbox"], example["objects/bbox"])
    with pytest.raises(ConfigError, match=r"\['image'\] must be asked for.* in image="):
        call(LeftPart("objects/bbox", ()), {"image_primary": example["image"]})
    assert call(LeftPart("objects/bbox", ()), {"label": 3}) == {"label": 3}
