"""How examples are read: in whole batches wherever that can be, with the usual preprocess, as one would write it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.check.content import ImageSizes
from tfds_torch.check.delivery import choose_preprocess, describe
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess


def of_size(width: int, height: int) -> ImageSizes:
    return ImageSizes(3, (1, 1), (width, height), (9999, 9999), 1.0)


@pytest.mark.parametrize(
    ("size", "training", "evaluation"),
    [
        ((500, 375), TrainPreprocess(224), EvalPreprocess(224)),
        ((64, 3), TrainPreprocess(224), EvalPreprocess(224)),
        ((63, 63), TrainPreprocess(63, crop_padding=4), EvalPreprocess(63, crop_pct=1.0)),
        ((32, 20), TrainPreprocess((20, 32), crop_padding=4), EvalPreprocess((20, 32), crop_pct=1.0)),
        ((3, 40), TrainPreprocess((40, 3), crop_padding=2), EvalPreprocess((40, 3), crop_pct=1.0)),
        ((1, 1), TrainPreprocess(1, crop_padding=0), EvalPreprocess(1, crop_pct=1.0)),
    ],
)
def test_small_images_keep_their_size_and_others_have_224_pixels(
    size: tuple[int, int], training: Preprocess, evaluation: Preprocess
) -> None:
    assert choose_preprocess(True, of_size(*size)) == training
    assert choose_preprocess(False, of_size(*size)) == evaluation


@pytest.mark.parametrize(
    "text",
    [
        "TrainPreprocess(size=224)",
        "TrainPreprocess(size=(20, 32), scale=(0.5, 1.0), crop_padding=4, also=('mask',), map_fn='a:b')",
        "EvalPreprocess(size=32, crop_pct=1.0, interpolation='bicubic')",
    ],
)
def test_a_preprocess_is_written_without_what_is_usual(text: str) -> None:
    assert describe(eval(text)) == text


@given(st.booleans(), st.integers(1, 300), st.integers(1, 300))
def test_what_is_written_makes_the_same_preprocess(is_training: bool, width: int, height: int) -> None:
    preprocess = choose_preprocess(is_training, of_size(width, height))
    assert eval(describe(preprocess)) == preprocess
