"""Rebatching: any chunks become batches of exactly the size, along any axes, in linear time and without copies."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch import Feeder
from tfds_torch.loaders import rebatching
from tfds_torch.loaders.rebatching import Chunk, RowQueue, join_pieces

SHAPE = (5, 3, 4)  # Without the rows.


def arrays_of(rows: np.ndarray, axes: tuple[int, int]) -> tuple[np.ndarray, ...]:
    """Returns two arrays whose rows lie along an axis of each, and hold their number."""
    matrix = np.broadcast_to(rows[:, None], (len(rows), 2))
    block = np.broadcast_to(rows.reshape(-1, 1, 1, 1), (len(rows), *SHAPE))
    return np.moveaxis(matrix, 0, axes[0]).copy(), np.moveaxis(block, 0, axes[1]).copy()


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    takes=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    axes=st.tuples(st.sampled_from([0, 1, -1, -2]), st.sampled_from([0, 1, 2, 3, -1, -4])),
)
def test_rows_are_those_of_one_large_array(sizes: list[int], takes: list[int], axes: tuple[int, int]) -> None:
    queue, start = RowQueue(axes), 0
    for size in sizes:
        queue.append(Chunk(arrays_of(np.arange(start, start + size), axes), size))
        start += size
    position = 0
    for wanted in takes:
        num_rows = min(wanted, queue.num_rows)
        if not num_rows:
            break
        batch = join_pieces(queue.take(num_rows), ["a", "b"], axes)
        expected = arrays_of(np.arange(position, position + num_rows), axes)
        assert all(np.array_equal(found, want) for found, want in zip(batch.values(), expected, strict=True))
        position += num_rows
        assert queue.num_rows == sum(sizes) - position
        assert (len(queue) == 0) == (queue.num_rows == 0)


@given(sizes=st.lists(st.integers(1, 9), max_size=20), batch_size=st.integers(1, 12), keeps=st.booleans())
def test_a_feeder_cuts_any_chunks_into_batches(sizes: list[int], batch_size: int, keeps: bool) -> None:
    stops = np.cumsum(sizes).tolist()
    axes = (1, 0)
    chunks = [arrays_of(np.arange(stop - size, stop), axes) for stop, size in zip(stops, sizes, strict=True)]
    with Feeder() as feeder:
        feeder.add_source("a", chunks, ["a", "b"], batch_size, batch_axes=axes, last="keep" if keeps else "drop")
        feeder.start()
        batches = list(feeder.batches("a"))
    num_rows = sum(sizes) if keeps else sum(sizes) // batch_size * batch_size
    found = [batch["a"].shape[1] for batch in batches]
    assert found == [batch_size] * (num_rows // batch_size) + [num_rows % batch_size] * (num_rows % batch_size > 0)
    for position, batch in zip(range(0, num_rows, batch_size), batches, strict=True):
        expected = arrays_of(np.arange(position, min(position + batch_size, num_rows)), axes)
        assert np.array_equal(batch["a"], expected[0])
        assert np.array_equal(batch["b"], expected[1])


def count_lines(work: Callable[[], Any]) -> int:
    """Returns how many lines of the module under test are executed."""
    number = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal number
        if frame.f_code.co_filename != rebatching.__file__:
            return None
        number += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return number


def cut(num_rows: int, chunk_size: int, batch_size: int) -> list[dict[str, np.ndarray]]:
    queue, batches = RowQueue([0]), []
    for start in range(0, num_rows, chunk_size):
        queue.append(Chunk((np.arange(start, start + chunk_size),), chunk_size))
        while queue.num_rows >= batch_size:
            batches.append(join_pieces(queue.take(batch_size), ["x"], [0]))
    return batches


def cut_at_once(num_rows: int, chunk_size: int, batch_size: int) -> list[dict[str, np.ndarray]]:
    """All chunks are there before the first batch is taken."""
    queue = RowQueue([0])
    for start in range(0, num_rows, chunk_size):
        queue.append(Chunk((np.arange(start, start + chunk_size),), chunk_size))
    return [join_pieces(queue.take(batch_size), ["x"], [0]) for _ in range(num_rows // batch_size)]


@pytest.mark.parametrize(("chunk_size", "batch_size"), [(1, 256), (256, 1), (4096, 1), (100, 256), (256, 100)])
@pytest.mark.parametrize("way", [cut, cut_at_once])
def test_operations_are_linear_in_the_rows(way: Callable[..., Any], chunk_size: int, batch_size: int) -> None:
    unit = 8192
    once, four_times = (count_lines(lambda n=n: way(n * unit, chunk_size, batch_size)) for n in (1, 4))  # type: ignore[misc]
    assert once > 100
    assert four_times <= 4.05 * once + 100


@pytest.mark.parametrize(("chunk_size", "batch_size"), [(1, 64), (64, 1), (10, 64), (64, 10)])
def test_every_row_is_copied_at_most_once(monkeypatch: pytest.MonkeyPatch, chunk_size: int, batch_size: int) -> None:
    num_copied = 0
    real = np.concatenate

    def counting(arrays: Any, axis: int) -> Any:
        nonlocal num_copied
        num_copied += sum(len(array) for array in arrays)
        return real(arrays, axis=axis)

    monkeypatch.setattr(rebatching.np, "concatenate", counting)
    cut(6400, chunk_size, batch_size)
    assert num_copied <= 6400
    assert num_copied == 0 if batch_size == 1 else num_copied > 0


def test_what_is_left_of_a_chunk_stays_a_view_of_it() -> None:
    chunk = np.arange(10)
    queue = RowQueue([0])
    queue.append(Chunk((chunk,), 10))
    for start in (0, 4):
        ((piece,),) = queue.take(4)
        assert np.shares_memory(piece, chunk[start : start + 4])
    queue.append(Chunk((np.arange(10, 12),), 2))
    (left,), (whole,) = queue.take(4)
    assert np.shares_memory(left, chunk[8:])
    assert whole.tolist() == [10, 11]
    assert (len(queue), queue.num_rows) == (0, 0)
