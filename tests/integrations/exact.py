"""What two ranks read of the 61 photos, in batches of 8: every example exactly once."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

NUM_PHOTOS, NUM_RANKS, BATCH_SIZE, NUM_BATCHES = 61, 2, 8, 4
NUM_FILLED = NUM_RANKS * BATCH_SIZE * NUM_BATCHES - NUM_PHOTOS


def assert_exact_training(ranks: Iterable[Any]) -> None:
    """Asserts that an epoch of all ranks holds every example once, and the wrapped ones, in full batches."""
    ranks = list(ranks)
    assert [[len(batch) for batch in rank] for rank in ranks] == [[BATCH_SIZE] * NUM_BATCHES] * NUM_RANKS
    times = Counter(Counter(index for rank in ranks for batch in rank for index, *_ in batch).values())
    assert times == {1: NUM_PHOTOS - NUM_FILLED, 2: NUM_FILLED}


def assert_exact_evaluation(ranks: Iterable[Any]) -> None:
    rows = [row for rank in ranks for batch in rank for row in batch]
    assert sorted(index for index, _, valid, _ in rows if valid) == list(range(NUM_PHOTOS))
    assert [label for _, label, valid, _ in rows if not valid] == [-100] * NUM_FILLED
