"""Large batches are decoded in pieces: together they are the batches, whatever the size of the pieces."""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tfds_fixtures import Datasets, call_reader, grid

from tfds_torch.engines import request as read_request
from tfds_torch.engines.batch import Batch
from tfds_torch.engines.direct import read_in_index_mode
from tfds_torch.engines.fields import Content, StoredField
from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.request import ReadRequest, find_chunk_size
from tfds_torch.errors import CorruptRecordError
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.world import World

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


# How batches are put together, of a source whose examples are their own numbers


class NumbersSource:
    """Examples that are their own numbers.

    Args:
        num_examples: how many.
        damaged: which of them cannot be read.
        late: which of them can be read and not decoded.
    """

    name, mean_example_bytes = "numbers:1.0.0", 0

    def __init__(self, num_examples: int, damaged: Sequence[int] = (), late: Sequence[int] = ()) -> None:
        self._num_examples, self._damaged, self._late = num_examples, damaged, late
        self.num_read = 0

    def __len__(self) -> int:
        return self._num_examples

    def check(self) -> None:
        pass

    def announce(self, index: Any) -> None:
        pass

    def ids(self, index: Any) -> list[str]:
        return [f"id {number}" for number in index]

    def read(self, index: Any, fields: Sequence[str]) -> dict[str, Any]:
        self.num_read += len(index)
        if {*index.tolist()} & {*self._damaged}:
            raise CorruptRecordError(f"one of {index.tolist()}")
        return {"number": ["late" if number in self._late else number for number in index.tolist()]}

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        return CorruptRecordError(f"example {index}: {reason}")


class NumberField(StoredField):
    def decode(self, columns: Any) -> Any:
        return [int(number) for number in super().decode(columns)]


def batches_of(source: Any, batch_size: int, chunk_bytes: int = 1, **options: Any) -> Iterator[Batch]:
    """Yields the batches of an evaluation in order; of chunks of 4 where none is given."""
    plan = EpochPlan(len(source), World(), batch_size, Remainder.KEEP, is_training=False, shuffle=False)
    content = Content({"number": NumberField("number")}, has_label=False)
    with (
        mock.patch.object(read_request, "_CHUNK_BYTES", chunk_bytes),
        mock.patch.object(NumbersSource, "mean_example_bytes", 1),
    ):
        yield from read_in_index_mode(ReadRequest(source, plan, 0, 0, content, ReadOptions(num_threads=1, **options)))


@pytest.mark.parametrize("kind", ["damaged", "late"])
@pytest.mark.parametrize("bad", [10, 11, 14])
def test_an_error_in_a_batch_does_not_swallow_the_one_before_it(kind: str, bad: int) -> None:
    batches = batches_of(NumbersSource(30, **{kind: [bad]}), 5)
    assert [(batch.batch, batch.features["number"]) for batch in islice(batches, 2)] == [
        (0, [0, 1, 2, 3, 4]),
        (1, [5, 6, 7, 8, 9]),
    ]
    with pytest.raises(CorruptRecordError):
        next(batches)


@pytest.mark.parametrize("chunk_bytes", [1, 2**30])
def test_a_last_batch_may_be_short(chunk_bytes: int) -> None:
    batches = list(batches_of(NumbersSource(13), 5, chunk_bytes))
    assert [(len(batch), batch.index.tolist(), batch.id) for batch in batches] == [
        (5, [0, 1, 2, 3, 4], ["id 0", "id 1", "id 2", "id 3", "id 4"]),
        (5, [5, 6, 7, 8, 9], ["id 5", "id 6", "id 7", "id 8", "id 9"]),
        (3, [10, 11, 12], ["id 10", "id 11", "id 12"]),
    ]


@pytest.mark.parametrize("batch_size", [1, 3, 5, 40, 200])
@pytest.mark.parametrize("chunk_bytes", [1, 7, 2**30])
def test_every_example_is_read_once_and_in_order_whatever_the_chunks(batch_size: int, chunk_bytes: int) -> None:
    source = NumbersSource(101)
    batches = list(batches_of(source, batch_size, chunk_bytes))
    assert [number for batch in batches for number in batch.features["number"]] == list(range(101))
    assert source.num_read == 101


@pytest.mark.parametrize("chunk_bytes", [1, 2**30])
def test_no_more_is_decoded_ahead_than_the_batches_asked_for(chunk_bytes: int) -> None:
    source = NumbersSource(1000)
    delivered, ahead = 0, []
    for batch in batches_of(source, BATCH_SIZE, chunk_bytes, prefetch_batches=3):
        delivered += len(batch)
        ahead.append(source.num_read - delivered)
    chunk_size = 4 if chunk_bytes == 1 else 30
    assert max(ahead) <= 3 * max(BATCH_SIZE, chunk_size) + chunk_size  # Of a chunk, batches come one after the other.
    assert min(ahead[20:60]) >= 2 * BATCH_SIZE - chunk_size
