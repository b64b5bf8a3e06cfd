"""Pixels against Pillow's: what the loaders' own transforms give is close, and every other image is not."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_preprocess import Shade, SquareCrop
from picture_fixtures import ENCODINGS, photograph
from tfds_fixtures import write_numbered

from tfds_torch.check.pixels import PIXELS_PROMISE, Distance, judge_pixels, measure
from tfds_torch.check.prove import How, prove
from tfds_torch.check.report import NotJudged, Promise
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.images.preprocess import EvalPreprocess, TrainPreprocess, height_and_width
from tfds_torch.images.transform import BufferRows, ImageTransform
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World

SEED = 7
PREPROCESSES = {
    "crop": TrainPreprocess((60, 80), interpolation="random"),
    "crop, enlarged": TrainPreprocess(300),
    "crop, shrunk while decoded": TrainPreprocess(20, scale=(0.6, 1.0), interpolation="bicubic"),
    "pad and crop": TrainPreprocess((150, 90), crop_padding=40, fill=9),
    "pad and crop, larger than the image": TrainPreprocess(400, crop_padding=2, hflip=1.0, fill=(1, 2, 3)),
    "center": EvalPreprocess(64),
    "squash": EvalPreprocess(64, crop_mode="squash", interpolation="bicubic"),
    "border": EvalPreprocess((64, 90), crop_mode="border", fill=200),
    "whole": EvalPreprocess((120, 180), crop_pct=1.0),
    "a crop of one's own": SquareCrop(50),
}


def transform(encoded: bytes, preprocess: Any, key: int, mode: str = "RGB") -> np.ndarray:
    """Returns what this package makes of an image."""
    size = height_and_width(preprocess.size)
    buffer = ArrayBuffer((1, *size, {"RGB": 3, "L": 1, "RGBA": 4}[mode]))
    images = ImageTransform(mode, preprocess, seed=SEED)
    images.write([encoded], np.array([key]), [BufferRows(buffer, 0, 1)])
    return np.array(buffer.pixels[0])


@pytest.mark.parametrize("preprocess", PREPROCESSES.values(), ids=PREPROCESSES)
def test_every_preprocess_is_close_to_pillow_and_other_crops_are_not(preprocess: Any) -> None:
    encoded = ENCODINGS["jpeg 4:2:0"](photograph("china", (180, 120)))
    is_random = not isinstance(preprocess, EvalPreprocess) and preprocess.size != 400  # There it lies in the middle.
    for key in range(3):
        came = transform(encoded, preprocess, key)
        distance = measure(came, encoded, preprocess, key, SEED)
        assert distance.is_close, (distance, key)
        assert distance.must_be_equal is (preprocess.size in ((150, 90), 400, (120, 180)))
        if is_random:
            assert not measure(came, encoded, preprocess, key + 10, SEED).is_close
            assert not measure(came, encoded, preprocess, key, SEED + 1).is_close
        assert not measure(np.roll(came, 1, axis=1), encoded, preprocess, key, SEED).is_close
        assert not measure(came[:, ::-1], encoded, preprocess, key, SEED).is_close
        assert not measure(came[:-1], encoded, preprocess, key, SEED).is_close


def is_pillows_as_it_is_and_cut(kind: str, mode: str) -> bool:
    """Tells also whether an image that is not Pillow's is told."""
    encoded = ENCODINGS[kind](photograph("flower", (120, 90)))
    (whole,) = ImageTransform(mode).decode([encoded])
    off_by_one = np.where(whole < 255, whole + 1, 254).astype(np.uint8)
    cut = transform(encoded, TrainPreprocess(40), 5, mode)
    return (
        measure(np.array(whole), encoded, None, 0, 0).mean == 0
        and not measure(off_by_one, encoded, None, 0, 0).is_close
        and measure(cut, encoded, TrainPreprocess(40), 5, SEED).is_close
    )


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_every_encoding_is_pillows_as_it_is_and_cut(mode: str) -> None:
    wrong = [kind for kind in ENCODINGS if not is_pillows_as_it_is_and_cut(kind, mode)]
    assert not wrong, str(wrong)


@pytest.mark.parametrize(("num_spots", "is_close"), [(1, True), (20, False)])
def test_a_resized_image_that_is_far_off_in_few_places_is_told(num_spots: int, is_close: bool) -> None:
    """Of 9,000 values, one that is 120 levels off leaves 46 dB, and 20 leave 33; their mean stays below one level."""
    encoded = ENCODINGS["png rgb"](photograph("china", (180, 120)))
    came = transform(encoded, TrainPreprocess((50, 60)), 1)
    spots = came.reshape(-1)[: num_spots * 400 : 400]
    spots[...] = np.where(spots < 128, spots + 120, spots - 120)
    distance = measure(came, encoded, TrainPreprocess((50, 60)), 1, SEED)
    assert distance.mean < 0.5
    assert distance.psnr == pytest.approx(10 * np.log10(255**2 * 9000 / (num_spots * 120**2)), abs=1.0)
    assert distance.is_close is is_close


@pytest.mark.parametrize(
    ("mean", "psnr", "is_close", "is_equal"),
    [
        (0.0, float("inf"), True, True),
        (1.0, 40.0, True, False),
        (1.01, 40.0, False, False),
        (1.0, 39.9, False, False),
        (0.001, 39.9, False, False),
        (0.001, 90.0, True, False),
        (float("inf"), 0.0, False, False),
    ],
)
def test_an_image_is_close_within_one_grey_level_and_40_db(
    mean: float, psnr: float, is_close: bool, is_equal: bool
) -> None:
    assert Distance(mean, psnr, must_be_equal=False).is_close is is_close
    assert Distance(mean, psnr, must_be_equal=True).is_close is is_equal


ENCODED = {index: ENCODINGS["png rgb"](photograph("china", (40 + index, 30))) for index in range(3)}
IDS = {index: f"x__{index}" for index in range(9)}


def plan(num_examples: int = 3, **changes: Any) -> EpochPlan:
    usual: dict[str, Any] = {"world": World(), "batch_size": 3, "remainder": Remainder.WRAP, "is_training": True}
    return EpochPlan(Passes(num_examples, SEED, shuffle=False), **usual | changes)


def test_a_sample_of_equal_and_of_close_images_is_a_kept_promise() -> None:
    whole = {index: np.asarray(photograph("china", (40 + index, 30))) for index in ENCODED}
    assert judge_pixels(whole, ENCODED, IDS, None, plan()) == Promise(PIXELS_PROMISE, True, "3 of 3 examples equal")
    cut = {index: transform(ENCODED[index], TrainPreprocess(20), index) for index in ENCODED}
    judged = judge_pixels(cut, ENCODED, IDS, TrainPreprocess(20), plan())
    assert isinstance(judged, Promise)
    assert judged.kept, judged
    assert "of 3 examples equal" in judged.detail


def test_an_image_of_another_example_is_told_by_its_id() -> None:
    cut = {index: transform(ENCODED[index], TrainPreprocess(20), index) for index in ENCODED}
    cut[1] = cut[0]
    judged = judge_pixels(cut, ENCODED, IDS, TrainPreprocess(20), plan())
    assert isinstance(judged, Promise)
    assert not judged.kept
    assert judged.detail.startswith("x__1: ")
    assert "and" not in judged.detail
    whole = {0: np.asarray(photograph("china", (40, 30))) ^ 1}
    judged = judge_pixels(whole, ENCODED, IDS, None, plan())  # type: ignore[arg-type]
    assert isinstance(judged, Promise)
    assert judged.detail == "x__0: 1.00 grey levels on average, 48.1 dB, where they must be equal"


def test_a_wrapped_or_repeated_example_has_the_crop_of_a_later_pass() -> None:
    """Of three examples, the fourth and fifth slot are of the next pass."""
    later = {0: transform(ENCODED[0], TrainPreprocess(20), 3)}
    for changes, is_kept in (({"batch_size": 5}, True), ({"repeats": 2}, True), ({}, False)):
        judged = judge_pixels(later, ENCODED, IDS, TrainPreprocess(20), plan(**changes))
        assert isinstance(judged, Promise)
        assert judged.kept is is_kept, changes


def test_of_several_passes_the_one_that_is_close_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where another one is nearer on average, and far off in one place."""
    distances = [Distance(0.1, 30.0, must_be_equal=False), Distance(0.9, 45.0, must_be_equal=False)]
    monkeypatch.setattr("tfds_torch.check.pixels.measure", lambda came, encoded, preprocess, key, seed: distances[key])
    two = plan(num_examples=1, batch_size=2)
    judged = judge_pixels({0: np.zeros((1, 1, 3), np.uint8)}, ENCODED, IDS, TrainPreprocess(20), two)
    assert isinstance(judged, Promise)
    assert judged.kept
    assert judged.detail.endswith("the others within 0.90 grey levels on average and 45 dB")


def test_what_pillow_cannot_read_is_told() -> None:
    judged = judge_pixels({0: np.zeros((3, 3, 3), np.uint8)}, {0: b"none"}, IDS, None, plan())
    assert isinstance(judged, Promise)
    assert not judged.kept
    assert judged.detail.startswith("x__0: Pillow cannot read it: ")


def test_what_cannot_be_compared_is_not_judged() -> None:
    judged = judge_pixels({0: np.zeros((20, 20, 3), np.uint8)}, ENCODED, IDS, Shade(20), plan())
    assert judged == NotJudged(
        PIXELS_PROMISE, "the preprocess has an augment (Shade), which may change them in any way"
    )
    assert isinstance(judge_pixels({}, ENCODED, IDS, None, plan()), NotJudged)
    assert isinstance(judge_pixels({5: np.zeros((1, 1, 1), np.uint8)}, ENCODED, IDS, None, plan()), NotJudged)


@pytest.mark.usefixtures("forked")
def test_of_gifs_is_said_whose_frames_are_read(tmp_path: Path) -> None:
    write_numbered(tmp_path, {"train": [9]})
    path = tmp_path / "numbered" / "1.0.0" / "features.json"
    features = json.loads(path.read_text())
    features["featuresDict"]["features"]["image"]["image"]["shape"]["dimensions"].insert(0, "-1")
    path.write_text(json.dumps(features))
    report = prove(ParserTfds(tmp_path, "numbered", batch_size=3), How(num_workers=0, num_epochs=1))
    reasons = {one.name: one.reason for one in report.not_judged}
    assert reasons[PIXELS_PROMISE].startswith("the dataset has no single image. The frames of 'image' are those of")
