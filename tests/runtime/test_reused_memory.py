"""Memory of one process: it is used again, but never while something refers to it."""

from typing import Any

import numpy as np
import pytest
import torch

from tfds_torch.runtime.reused_memory import ReusedMemory

SHAPE = (4, 8, 8, 3)


def test_memory_is_used_again_only_when_nothing_refers_to_it() -> None:
    memory = ReusedMemory()
    pixels = memory.take(SHAPE)
    address = pixels.ctypes.data
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    del pixels
    part = images[1:2]
    del images
    array = part.numpy()
    del part
    other = memory.take(SHAPE)
    assert other.ctypes.data != address
    del array
    assert memory.take(SHAPE).ctypes.data == address


def test_memory_of_another_size_is_not_mixed_up() -> None:
    memory = ReusedMemory()
    first = memory.take(SHAPE)
    del first
    larger = memory.take((5, 8, 8, 3))
    assert larger.shape == (5, 8, 8, 3)
    larger[:] = 7
    assert (larger == 7).all()


def test_no_more_is_kept_than_may_be() -> None:
    for kept_bytes, number in ((0, 2), (2 * 768, 2), (4 * 768, 4), (9 * 768, 5)):
        memory = ReusedMemory(most_kept=2, kept_bytes=kept_bytes)
        taken = [memory.take(SHAPE) for _ in range(5)]
        taken.clear()
        assert len(memory._blocks) == number


def test_small_memory_is_not_kept_beside_large_memory_without_end() -> None:
    memory = ReusedMemory(most_kept=1, kept_bytes=100)
    taken = [memory.take((90,)), *(memory.take((5,)) for _ in range(4))]
    while taken:
        taken.pop(0)
    assert sorted(block.size for block in memory._blocks) == [5, 5, 90]


@pytest.mark.timeout(30)
def test_memory_may_be_given_back_while_some_is_taken_by_the_same_thread() -> None:
    """As garbage collection does it, which may run at any moment."""
    memory = ReusedMemory()
    taken = [memory.take(SHAPE)]

    class Blocks(list[Any]):
        def pop(self, *where: Any) -> Any:
            taken.clear()
            return super().pop(*where)

    memory._blocks = Blocks([np.empty(np.prod(SHAPE), np.uint8)])
    kept = memory.take(SHAPE)
    assert kept.shape == SHAPE
    assert len(memory._blocks) == 1
