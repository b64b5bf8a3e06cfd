"""How fast whole batches come: what is timed, and what goes wrong there."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfds_torch.check import fused_reading
from tfds_torch.check.content import ImageSizes
from tfds_torch.check.fused_reading import _time, measure_fused, time_transform
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import EvalPreprocess, TrainPreprocess
from tfds_torch.parsers.config import Config
from tfds_torch.plan.world import World
from tfds_torch.runtime.loader_stats import LoaderStats

SIZES = ImageSizes((8, 8), (8, 8), (8, 8), 64.0)
DIGITS = Config(name="digits", split="test[:100]", batch_size=10)


class PlayedLoader:
    """Batches of 1, 2, 3, ... examples; every look at its stages finds them a second later."""

    def __init__(self, num_batches: int) -> None:
        self.num_batches, self.num_epochs, self.num_looks = num_batches, 0, 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self.num_epochs += 1
        return iter([(np.zeros(number + 1), None) for number in range(self.num_batches)])

    def stats(self) -> LoaderStats:
        self.num_looks += 1
        return LoaderStats(0, 0, 0.0, *[float(self.num_looks)] * 9)


def test_of_a_short_epoch_the_whole_second_one_is_timed() -> None:
    loader = PlayedLoader(4)
    speed = _time(loader, 0.0)  # type: ignore[arg-type]
    assert speed
    assert (speed.num_batches, speed.num_examples, loader.num_epochs) == (4, 10, 2)
    assert speed.examples_per_s == pytest.approx(10 / speed.timed_s)
    assert set(speed.stages.values()) == {1.0}  # Since the second epoch began.


def test_of_a_long_epoch_what_follows_the_first_batch_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_reading, "_SHORT_EPOCH_S", 0.0)
    loader = PlayedLoader(4)
    speed = _time(loader, 0.0)  # type: ignore[arg-type]
    assert speed
    assert (speed.num_batches, speed.num_examples, loader.num_epochs) == (3, 9, 1)
    assert set(speed.stages.values()) == {1.0}


@pytest.mark.parametrize("num_epochs", [1, 2])
def test_reading_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch, num_epochs: int) -> None:
    monkeypatch.setattr(fused_reading, "_MOST_S", 0.0)
    loader = PlayedLoader(4 if num_epochs == 1 else 1)
    speed = _time(loader, 0.0)  # type: ignore[arg-type]
    assert speed
    assert (speed.num_batches, loader.num_epochs) == (1, num_epochs)


def test_an_epoch_of_one_batch_is_timed_and_one_without_is_not() -> None:
    speed = _time(PlayedLoader(1), 0.0)  # type: ignore[arg-type]
    assert speed
    assert (speed.num_batches, speed.num_examples) == (1, 1)
    assert _time(PlayedLoader(0), 0.0) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "preprocess",
    [
        TrainPreprocess(24),
        TrainPreprocess((8, 12), interpolation="random"),
        TrainPreprocess(8, crop_padding=4),
        EvalPreprocess(24, crop_mode="border", interpolation="bicubic"),
    ],
)
@pytest.mark.parametrize("size", [(8, 8), (300, 20)])
def test_pillow_can_make_the_crops_of_every_preprocess(preprocess: Any, size: tuple[int, int]) -> None:
    for mode in ("RGB", "L", "RGBA"):
        assert time_transform(preprocess, size, mode) > 0


@pytest.mark.parametrize("own", [None, EvalPreprocess(6)])
def test_whole_batches_of_a_recipe_are_measured_with_its_own_preprocess_or_the_usual_one(
    digits: Path, own: Any
) -> None:
    parser = DIGITS.make_parser(digits)
    measured = measure_fused(replace(DIGITS, preprocess=own), parser, SIZES, 2, 1)
    assert measured.error is None
    assert measured.speed
    assert measured.transform_s
    usual = "EvalPreprocess(size=8, crop_pct=1.0)"
    assert (measured.preprocess, measured.is_own) == (
        (usual, False) if own is None else ("EvalPreprocess(size=6)", True)
    )
    assert measured.num_workers == 1
    assert (measured.speed.num_batches, measured.speed.num_examples) == (5, 50)  # Of one of two ranks.
    assert len(measured.speed.memory) >= 2
    assert next(iter(measured.speed.memory)) == os.getpid()
    assert parser.preprocess is None


def test_what_goes_wrong_is_a_reason_and_no_error(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(DIGITS, batch_size=None)
    measured = measure_fused(config, config.make_parser(digits), SIZES, 1, 1)
    assert measured.speed is None
    assert measured.error == "A preprocess needs batch_size: images are written into the memory of their batch."
    for error, reason in (
        (ConfigError("first line\nsecond line"), "first line"),
        (OSError(28, "No space left on device"), "OSError: [Errno 28] No space left on device"),
        (RuntimeError(), "RuntimeError: no reason given"),
    ):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(fused_reading, "read_fused", fail)
        measured = measure_fused(DIGITS, DIGITS.make_parser(digits), SIZES, 1, 1)
        assert (measured.speed, measured.error) == (None, reason)


def test_a_rank_without_batches_is_said(digits: Path) -> None:
    empty = replace(DIGITS, split="test[:0]", preprocess=EvalPreprocess(8))
    with pytest.raises(ConfigError, match=r"^digits:1\.0\.0, split 'test\[:0\]': rank 0 has no batches that could be"):
        fused_reading.read_fused(empty.make_parser(digits), 1, 0)


def test_a_map_fn_without_workers_is_left_to_a_fresh_process(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def call(function: object, *arguments: object) -> None:
        asked.extend([function, *arguments[1:]])

    monkeypatch.setattr(fused_reading.fresh_process, "call", call)
    monkeypatch.setattr(fused_reading, "read_fused", lambda parser, *arguments: asked.extend(["here", *arguments]))
    with_map_fn = replace(DIGITS, preprocess=EvalPreprocess(8, map_fn="colours:invert"))
    measure_fused(with_map_fn, DIGITS.make_parser(digits), SIZES, 3, 0)
    assert asked == [fused_reading.read_fused, 3, 0]
    asked.clear()
    measure_fused(DIGITS, DIGITS.make_parser(digits), SIZES, 3, 0)
    measure_fused(with_map_fn, DIGITS.make_parser(digits), SIZES, 3, 1)
    assert asked == ["here", 3, 0, "here", 3, 1]


def test_the_same_examples_are_read_again(digits: Path) -> None:
    config = replace(DIGITS, seed=7, image_mode="L", class_map={str(number): 0 for number in range(10)})
    parser = config.make_parser(digits.parents[1])
    again = fused_reading._reopen(config, parser, EvalPreprocess(8))
    names = ("fingerprint", "dataset_name", "batch_size", "seed", "image_mode", "class_to_idx", "data_dir")
    assert [getattr(again, name) for name in names] == [getattr(parser, name) for name in names]
    assert again.plan(World()) == parser.plan(World())
    assert again.preprocess == EvalPreprocess(8)
