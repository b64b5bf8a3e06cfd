"""Grain: a parser is a random-access source, and its loaders read every example exactly once."""

import pickle
import sys
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from tfds_torch import ParserTfds, TrainPreprocess
from tfds_torch.engines.batch import Example

NUM_PHOTOS, BATCH_SIZE = 61, 8


def make_arrays(example: Example) -> dict[str, Any]:
    """What a Grain pipeline makes batches of; the sum stands for images of different sizes."""
    return {"index": example.index, "label": example.label, "sum": int(example.image.sum())}


@pytest.fixture(scope="module")
def parser(data_root: Path) -> ParserTfds:
    return ParserTfds(str(data_root), "photos")


@pytest.fixture(scope="module")
def sums(parser: ParserTfds) -> dict[int, int]:
    return {example.index: int(example.image.sum()) for example in parser}


def read(batches: Any) -> list[list[int]]:
    return [[*row] for batch in batches for row in zip(batch["index"].tolist(), batch["sum"].tolist(), strict=True)]


def test_a_shuffled_pipeline_over_a_parser_gives_every_example_once(parser: ParserTfds, sums: dict[int, int]) -> None:
    dataset = grain.MapDataset.source(parser).shuffle(seed=1).map(make_arrays).batch(BATCH_SIZE)
    rows = read(dataset.to_iter_dataset(grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)))
    assert [index for index, _ in rows] != list(range(NUM_PHOTOS))
    assert sorted(index for index, _ in rows) == list(range(NUM_PHOTOS))
    assert dict(rows) == sums  # type: ignore[arg-type]
    assert len(dataset) == -(-NUM_PHOTOS // BATCH_SIZE)


@pytest.mark.slow
def test_processes_of_grain_read_it_too(parser: ParserTfds, sums: dict[int, int]) -> None:
    dataset = grain.MapDataset.source(parser).shuffle(seed=1).map(make_arrays).batch(BATCH_SIZE).to_iter_dataset()
    rows = read(dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=2)))
    assert len(rows) == NUM_PHOTOS
    assert dict(rows) == sums  # type: ignore[arg-type]


def test_a_parser_is_what_grain_asks_of_a_source(parser: ParserTfds) -> None:
    copied = pickle.dumps(parser)
    assert len(copied) < 20_000
    assert len(pickle.loads(copied)) == len(parser) == NUM_PHOTOS
    for index in (7, np.int64(7), np.int32(7), -54):
        assert parser[index].index == 7  # type: ignore[index]
    with pytest.raises(IndexError):
        parser[NUM_PHOTOS]
    assert "tensorflow" not in sys.modules


def test_an_example_is_whole_whatever_the_preprocess(parser: ParserTfds, data_root: Path) -> None:
    """Crops belong to a pass and an epoch, which a source does not know: they are Grain's `random_map` here."""
    cropping = ParserTfds(str(data_root), "photos", is_training=True, batch_size=8, preprocess=TrainPreprocess(size=32))
    np.testing.assert_array_equal(cropping[3].image, parser[3].image)
