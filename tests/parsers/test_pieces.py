"""Large batches are decoded in pieces: together they are the batches, whatever the size of the pieces."""

from collections.abc import Iterator
from itertools import groupby
from unittest import mock

import numpy as np
import pytest
from tfds_fixtures import Datasets, call_reader, grid

from tfds_torch.engines import request as read_request
from tfds_torch.engines.batch import Batch
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import find_chunk_size
from tfds_torch.parsers.tfds.parser import ParserTfds

BATCH_SIZE = 10
FIELDS = ("image", "label", "id")


def read(root: str, chunk_bytes: int, in_pieces: bool) -> list[list[Batch]]:
    """Returns the batches of evaluation and training, by index and streamed, from two batches on."""
    with mock.patch.object(read_request, "_CHUNK_BYTES", chunk_bytes):
        return [list(batches) for batches in _iterate(root, in_pieces)]


def _iterate(root: str, in_pieces: bool) -> Iterator[Iterator[Batch]]:
    for is_training, mode in ((False, "index"), (True, "index"), (True, "files")):
        parser = ParserTfds(root, "shapes", is_training=is_training, batch_size=BATCH_SIZE, read=ReadOptions(mode=mode))
        for world in grid(2, 2)[::3]:
            for start_batch in (0, 1):
                yield parser.batches(world, 0, start_batch, fields=FIELDS, in_pieces=in_pieces)


@pytest.fixture(scope="module")
def whole(datasets: Datasets) -> list[list[Batch]]:
    return call_reader(read, str(datasets.shapes), 2**30, in_pieces=False)


@pytest.fixture(scope="module")
def joined(datasets: Datasets) -> list[list[Batch]]:
    return call_reader(read, str(datasets.shapes), 1, in_pieces=False)


@pytest.fixture(scope="module")
def pieces(datasets: Datasets) -> list[list[Batch]]:
    return call_reader(read, str(datasets.shapes), 1, in_pieces=True)


def assert_equal(ours: Batch, theirs: Batch) -> None:
    assert (ours.epoch, ours.batch, ours.id) == (theirs.epoch, theirs.batch, theirs.id)
    for name in ("index", "valid", "label"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    for image, other in zip(ours.image, theirs.image, strict=True):
        np.testing.assert_array_equal(image, other)
    assert ours.features.keys() == theirs.features.keys()


def test_joined_pieces_are_the_whole_batches(whole: list[list[Batch]], joined: list[list[Batch]]) -> None:
    assert sum(map(len, whole)) > 20
    assert {len(batch) for batches in whole for batch in batches} == {BATCH_SIZE}
    assert any(not batch.valid.all() for batches in whole for batch in batches)
    for ours, theirs in zip(joined, whole, strict=True):
        for batch, other in zip(ours, theirs, strict=True):
            assert_equal(batch, other)


def test_pieces_are_the_whole_batches_cut(whole: list[list[Batch]], pieces: list[list[Batch]]) -> None:
    num_pieces = 0
    for ours, theirs in zip(pieces, whole, strict=True):
        groups = [list(group) for _, group in groupby(ours, key=lambda piece: piece.batch)]
        assert [group[0].batch for group in groups] == [batch.batch for batch in theirs]
        for group, batch in zip(groups, theirs, strict=True):
            assert sum(map(len, group)) == len(batch)
            assert [id for piece in group for id in piece.id] == batch.id
            for name in ("index", "valid", "label"):
                values = np.concatenate([getattr(piece, name) for piece in group])
                np.testing.assert_array_equal(values, getattr(batch, name))
            images = [image for piece in group for image in piece.image]
            for image, other in zip(images, batch.image, strict=True):
                np.testing.assert_array_equal(image, other)
            num_pieces += len(group)
    assert num_pieces >= 3 * sum(map(len, whole)), "batches of 10 come in pieces of 4 at most"


@pytest.mark.parametrize(
    ("batch_size", "mean_example_bytes", "chunk_size"),
    [
        (128, 91_000, 16),  # ImageNet: 17 fit into a chunk; eight equal pieces.
        (256, 91_000, 16),
        (100, 91_000, 17),
        (16, 91_000, 16),
        (4, 91_000, 16),  # Small batches are decoded together,
        (3, 91_000, 15),
        (1, 2_500, 32),
        (256, 2_500, 256),  # CIFAR: whole batches.
        (1024, 2_500, 512),
        (64, 5_000_000, 4),
        (2, 5_000_000, 4),
        (1, 0, 32),
        (4096, 0, 4096),  # An unknown size is no reason to cut.
    ],
)
def test_a_chunk_is_part_of_a_large_batch_or_several_small_ones(
    batch_size: int, mean_example_bytes: int, chunk_size: int
) -> None:
    assert find_chunk_size(batch_size, mean_example_bytes, in_buffers=False) == chunk_size


@pytest.mark.parametrize(("batch_size", "chunk_size"), [(128, 32), (256, 32), (100, 34), (16, 32), (1, 32)])
def test_twice_as_many_images_are_decoded_at_a_time_into_batch_buffers(batch_size: int, chunk_size: int) -> None:
    assert find_chunk_size(batch_size, 91_000, in_buffers=True) == chunk_size
