"""Figures of the order, where they are known beforehand."""

import pytest

from tfds_torch.bench.order_speed import num_places, slice_peak_bytes, slice_times_s
from tfds_torch.plan.order import BlockShuffle


def test_there_is_a_time_for_every_slice() -> None:
    times = slice_times_s(10**6, 5)
    assert len(times) == 5
    assert min(times) > 0


@pytest.mark.parametrize("blocks", [None, BlockShuffle(1024, 8)])
def test_memory_counts_the_slice_and_not_the_examples(blocks: BlockShuffle | None) -> None:
    small, large = (slice_peak_bytes(num_examples, blocks) for num_examples in (10**6, 10**10))
    assert 8 * 4096 < small < 1e6
    assert 8 * 4096 < large < 1e6


@pytest.mark.parametrize(
    ("consecutive", "blocks", "places"),
    [
        (1024, BlockShuffle(1024, 1), 1.0),  # A window is one block.
        (8192, BlockShuffle(8192, 1), 1.0),
        (8192, None, 1.0),  # All examples there are.
    ],
)
def test_places_of_whole_windows_are_their_blocks(consecutive: int, blocks: BlockShuffle | None, places: float) -> None:
    assert num_places(8192, consecutive, blocks) == places


def test_a_global_shuffle_has_hardly_any_neighbours() -> None:
    assert 127 < num_places(1_000_000, 128) <= 128
