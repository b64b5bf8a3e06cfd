"""How examples are read: in whole batches wherever that can be, with the usual preprocess, as one would write it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tfds_torch.check.content import ImageSizes
from tfds_torch.check.delivery import choose_delivery, choose_preprocess, describe, read_sizes
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.recipes import Config
from tfds_torch.plan.world import World


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
        "TrainPreprocess(size=(20, 32), scale=(0.5, 1.0), crop_padding=4, also=('mask',))",
        "EvalPreprocess(size=32, crop_pct=1.0, interpolation='bicubic')",
    ],
)
def test_a_preprocess_is_written_without_what_is_usual(text: str) -> None:
    assert describe(eval(text)) == text


@given(st.booleans(), st.integers(1, 300), st.integers(1, 300))
def test_what_is_written_makes_the_same_preprocess(is_training: bool, width: int, height: int) -> None:
    preprocess = choose_preprocess(is_training, of_size(width, height))
    assert eval(describe(preprocess)) == preprocess


def test_without_sizes_the_usual_preprocess_has_224_pixels() -> None:
    assert choose_preprocess(True, None) == TrainPreprocess(224)


DIGITS = Config(name="digits", split="test[:100]", batch_size=10, num_workers=0)


def test_images_are_read_in_whole_batches_with_the_recipes_preprocess_or_the_usual_one(digits: Path) -> None:
    parser = DIGITS.make_parser(digits)
    for own, wanted in ((None, "EvalPreprocess(size=8, crop_pct=1.0)"), (EvalPreprocess(6), "EvalPreprocess(size=6)")):
        config = replace(DIGITS, preprocess=own)
        delivery, batched = choose_delivery(config, parser, of_size(8, 8), is_plain=False, is_single=False)
        assert (delivery.is_batched, delivery.preprocess, delivery.reason) == (True, wanted, None)
        assert delivery.is_own is (own is not None)
        assert describe(batched.preprocess) == wanted
    assert parser.preprocess is None


def test_the_same_examples_are_read_again(digits: Path) -> None:
    config = replace(DIGITS, seed=7, image_mode="L", class_map={str(number): 0 for number in range(10)})
    parser = config.make_parser(digits.parents[1])
    _, again = choose_delivery(config, parser, None, is_plain=True, is_single=False)
    names = ("fingerprint", "dataset_name", "batch_size", "seed", "class_to_idx", "data_dir")
    assert [getattr(again, name) for name in names] == [getattr(parser, name) for name in names]
    assert again.plan(World()) == parser.plan(World())


def test_single_examples_are_read_where_they_are_asked_for_or_nothing_else_can_be(digits: Path) -> None:
    for changes, is_single, reason in (
        ({}, True, "they were asked for"),
        ({"image_key": None}, False, "the dataset has no image"),
        ({"image_mode": None}, False, "image_mode"),
        ({"batch_size": None, "num_workers": 2}, False, "batch_size"),
    ):
        config = replace(DIGITS, **changes)
        parser = config.make_parser(digits)
        delivery, read = choose_delivery(config, parser, of_size(8, 8), is_plain=False, is_single=is_single)
        assert (delivery.is_batched, delivery.preprocess, read is parser) == (False, None, True)
        assert delivery.reason
        assert reason in delivery.reason


def test_a_recipes_preprocess_that_does_not_fit_is_an_error(digits: Path) -> None:
    config = replace(DIGITS, preprocess=EvalPreprocess(8, also=("nowhere",)))
    with pytest.raises(ConfigError, match="nowhere"):
        choose_delivery(config, DIGITS.make_parser(digits), None, is_plain=False, is_single=False)


def test_the_sizes_of_images_are_told_without_decoding_them(digits: Path) -> None:
    assert read_sizes(DIGITS.make_parser(digits), [0, 99, 3]) == [(8, 8)] * 3
    assert read_sizes(replace(DIGITS, image_key=None).make_parser(digits), [0]) == []
