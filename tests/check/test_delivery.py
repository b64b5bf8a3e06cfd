"""How examples are read: in whole batches wherever that can be, with the usual preprocess, as one would write it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch import ParserTfds
from tfds_torch.check.delivery import (
    Delivery,
    ImageSizes,
    choose_delivery,
    choose_preprocess,
    delivery_of,
    describe,
    measure_images,
    read_sizes,
)
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.world import World


def of_size(width: int, height: int) -> ImageSizes:
    return ImageSizes(3, (1, 1), (width, height), (9999, 9999), 1.0)


def choose(parser: ParserTfds, preprocess: Preprocess | None, **changes: Any) -> tuple[Delivery, DatasetParser]:
    read: dict[str, Any] = {"num_workers": 0, "is_plain": False, "is_single": False} | changes
    return choose_delivery(parser, preprocess, of_size(8, 8), **read)


@pytest.mark.parametrize(
    ("size", "training", "evaluation"),
    [
        (None, TrainPreprocess(224), EvalPreprocess(224)),
        ((500, 375), TrainPreprocess(224), EvalPreprocess(224)),
        ((64, 3), TrainPreprocess(224), EvalPreprocess(224)),
        ((63, 63), TrainPreprocess(63, crop_padding=4), EvalPreprocess(63, crop_pct=1.0)),
        ((32, 20), TrainPreprocess((20, 32), crop_padding=4), EvalPreprocess((20, 32), crop_pct=1.0)),
        ((3, 40), TrainPreprocess((40, 3), crop_padding=2), EvalPreprocess((40, 3), crop_pct=1.0)),
        ((1, 1), TrainPreprocess(1, crop_padding=0), EvalPreprocess(1, crop_pct=1.0)),
    ],
)
def test_small_images_keep_their_size_and_others_have_224_pixels(
    size: tuple[int, int] | None, training: Preprocess, evaluation: Preprocess
) -> None:
    sizes = None if size is None else of_size(*size)
    assert choose_preprocess(True, sizes) == training
    assert choose_preprocess(False, sizes) == evaluation


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


def test_images_are_read_in_whole_batches_with_the_preprocess_asked_for_or_the_usual_one(digits: Path) -> None:
    parser = ParserTfds(digits, "digits", "test[:100]", batch_size=10, seed=7, image_mode="L")
    for own, wanted in ((None, "EvalPreprocess(size=8, crop_pct=1.0)"), (EvalPreprocess(6), "EvalPreprocess(size=6)")):
        delivery, batched = choose(parser, own)
        assert (delivery.is_batched, delivery.preprocess, delivery.reason) == (True, wanted, None)
        assert delivery.is_own is (own is not None)
        assert describe(batched.preprocess) == wanted
        names = ("fingerprint", "dataset_name", "batch_size", "seed", "class_to_idx", "data_dir")
        assert [getattr(batched, name) for name in names] == [getattr(parser, name) for name in names]
        assert batched.plan(World()) == parser.plan(World())
    assert parser.preprocess is None
    assert delivery_of(parser, is_plain=True) == Delivery(
        "DataLoader", False, None, False, "the parser has no preprocess"
    )
    assert delivery_of(parser.with_preprocess(EvalPreprocess(6)), is_plain=False) == Delivery(
        "create_loader", True, "EvalPreprocess(size=6)", True, None
    )


def test_single_examples_are_read_where_they_are_asked_for_or_nothing_else_can_be(digits: Path) -> None:
    for changes, read, reason in (
        ({}, {"is_single": True}, "they were asked for"),
        ({"image_key": None}, {}, "the dataset has no image"),
        ({"image_mode": None}, {}, "image_mode"),
        ({"batch_size": None}, {"num_workers": 2}, "batch_size"),
    ):
        parser = ParserTfds(digits, "digits", **({"batch_size": 10} | changes))  # type: ignore[arg-type]
        delivery, read_by = choose(parser, None, **read)
        assert (delivery.is_batched, delivery.preprocess, read_by is parser) == (False, None, True)
        assert reason in (delivery.reason or "")


def test_a_preprocess_asked_for_that_does_not_fit_is_an_error(digits: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        choose(ParserTfds(digits, "digits", batch_size=10), EvalPreprocess(8, also=("nowhere",)))


def test_the_sizes_of_images_are_told_without_decoding_them(digits: Path) -> None:
    assert read_sizes(ParserTfds(digits, "digits"), [0, 99, 3]) == [(8, 8)] * 3
    assert read_sizes(ParserTfds(digits, "digits", image_key=None), [0]) == []


def test_sizes_are_ordered_by_their_pixels() -> None:
    sizes = [(9, 9), (1, 50), (200, 1), (3, 3), (10, 10)]
    measured = measure_images(sizes)
    assert measured == ImageSizes(num_images=5, smallest=(3, 3), median=(9, 9), largest=(200, 1), mean_pixels=88.0)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1))
def test_sizes_are_those_of_images_that_came(sizes: list[tuple[int, int]]) -> None:
    measured = measure_images(sizes)
    assert measured is not None
    pixels = sorted(width * height for width, height in sizes)
    found = (measured.smallest, measured.median, measured.largest)
    assert [width * height for width, height in found] == [pixels[0], pixels[len(pixels) // 2], pixels[-1]]
    assert set(found) <= set(sizes)
    assert measured.mean_pixels == pytest.approx(sum(pixels) / len(pixels))


@given(st.permutations([(4, 2), (2, 4), (4, 2)]))
def test_smallest_and_largest_are_equal_only_where_all_are(sizes: list[tuple[int, int]]) -> None:
    """Upright and wide photographs of as many pixels: the report says 'all' where the two are equal."""
    measured = measure_images(sizes)
    assert measured is not None
    assert measured.smallest != measured.largest
