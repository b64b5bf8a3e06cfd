"""StoredPixels: images of one size where they lie in memory."""

import pickle
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ShardError
from tfds_torch.storage.stored_pixels import MergedPixels, StoredPixels

MEMORY = np.random.default_rng(0).integers(0, 256, 8192, dtype=np.uint8)
SHAPE = (4, 8, 3)  # 96 bytes.


@pytest.mark.parametrize("starts", [[0, 8096, 96, 96], [3, 1001, 8095]])
def test_each_image_is_what_lies_at_its_start(starts: list[int]) -> None:
    images = StoredPixels(MEMORY, np.array(starts), SHAPE)
    expected = [MEMORY[start : start + 96].reshape(SHAPE) for start in starts]
    assert (images.copy() == np.stack(expected)).all()
    for place, one in enumerate(expected):
        assert (images[place] == one).all()
        assert (images[-1] == expected[-1]).all()
    assert [(image == one).all() for image, one in zip(images, expected, strict=True)]
    assert (images[1:].copy() == np.stack(expected[1:])).all()
    assert len(images[1:]) == len(starts) - 1


def test_the_last_byte_of_memory_may_be_an_images() -> None:
    images = StoredPixels(MEMORY[:192], np.array([96, 0]), SHAPE)
    assert (images.copy()[0] == MEMORY[96:192].reshape(SHAPE)).all()
    assert (StoredPixels(MEMORY[:191], np.array([95]), SHAPE).copy()[0] == MEMORY[95:191].reshape(SHAPE)).all()


def test_no_images_are_no_images() -> None:
    empty: Any = np.empty(0, np.int64)
    assert StoredPixels(MEMORY, empty, SHAPE).copy().shape == (0, *SHAPE)


def test_pickled_they_are_a_list_of_arrays() -> None:
    images = pickle.loads(pickle.dumps(StoredPixels(MEMORY, np.array([5, 7]), SHAPE)))
    assert isinstance(images, list)
    assert (images[1] == MEMORY[7:103].reshape(SHAPE)).all()


@pytest.mark.parametrize("look", [1, 2])
def test_a_cut_is_found_before_images_are_copied_and_one_meanwhile_afterwards(look: int) -> None:
    looks = []

    def check() -> None:
        looks.append(0)
        if len(looks) == look:
            raise ShardError("it was cut")

    images = StoredPixels(MEMORY, np.array([0, 96]), SHAPE, check)
    with pytest.raises(ShardError, match="it was cut"):
        images.copy()
    assert len(looks) == look
    assert (images.copy() == StoredPixels(MEMORY, np.array([0, 96]), SHAPE).copy()).all()


@pytest.mark.parametrize("some", [slice(0, 7), slice(2, 5), slice(6, 7), slice(3, 3), slice(None), slice(4, 99)])
def test_images_of_several_files_are_one_sequence(some: slice) -> None:
    places = [np.array([1, 3, 6]), np.array([0, 2, 4, 5])]
    starts = [np.array([0, 96, 5]), np.array([192, 7, 300, 41])]
    merged = MergedPixels([StoredPixels(MEMORY, one, SHAPE) for one in starts], places)
    expected = np.empty((7, *SHAPE), np.uint8)
    for where, first in zip(places, starts, strict=True):
        expected[where] = StoredPixels(MEMORY, first, SHAPE).copy()
    images = merged[some]
    assert len(images) == len(expected[some])
    assert (images.copy() == expected[some]).all()
    assert all((ours == theirs).all() for ours, theirs in zip(images, expected[some], strict=True))
    assert (merged[-1] == expected[-1]).all()
    assert len(pickle.loads(pickle.dumps(images))) == len(images)


def test_a_cut_of_one_of_several_files_is_found() -> None:
    def check() -> None:
        raise ShardError("it was cut")

    parts = [StoredPixels(MEMORY, np.array([0]), SHAPE), StoredPixels(MEMORY, np.array([96]), SHAPE, check)]
    merged = MergedPixels(parts, [np.array([1]), np.array([0])])
    assert (merged[1] == MEMORY[:96].reshape(SHAPE)).all()
    with pytest.raises(ShardError, match="it was cut"):
        merged.copy()
