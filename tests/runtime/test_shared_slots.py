"""Memory of batches: who may use it when, and how it travels."""

import multiprocessing
import os
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tfds_torch.runtime.shared_slots import LocalMemory, SharedMemory

SHAPE = (4, 8, 8, 3)
SLOT_BYTES = 4 * 8 * 8 * 3


def images_of(pixels: Any) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2)


def flags(memory: SharedMemory, count: int) -> list[int]:
    return memory._flags[:count].tolist()


def test_local_memory_is_used_again_only_when_nothing_refers_to_it() -> None:
    memory = LocalMemory()
    pixels = memory.take(SHAPE)
    address = pixels.ctypes.data
    images = images_of(pixels)
    del pixels
    part = images[1:2]
    del images
    array = part.numpy()
    del part
    other = memory.take(SHAPE)
    assert other.ctypes.data != address
    del array
    assert memory.take(SHAPE).ctypes.data == address


def test_local_memory_of_another_size_is_not_mixed_up() -> None:
    memory = LocalMemory()
    first = memory.take(SHAPE)
    del first
    larger = memory.take((5, 8, 8, 3))
    assert larger.shape == (5, 8, 8, 3)
    larger[:] = 7
    assert (larger == 7).all()


def test_local_memory_keeps_no_more_than_it_may() -> None:
    memory = LocalMemory(most_kept=2)
    taken = [memory.take(SHAPE) for _ in range(5)]
    taken.clear()
    assert len(memory._blocks) == 2


@pytest.mark.timeout(30)
def test_memory_may_be_given_back_while_some_is_taken_by_the_same_thread() -> None:
    """As garbage collection does it, which may run at any moment."""
    memory = LocalMemory()
    taken = [memory.take(SHAPE)]

    class Blocks(list[Any]):
        def pop(self, *where: Any) -> Any:
            taken.clear()
            return super().pop(*where)

    memory._blocks = Blocks([np.empty(SLOT_BYTES, np.uint8)])
    kept = memory.take(SHAPE)
    assert kept.shape == SHAPE
    assert len(memory._blocks) == 1


def test_a_slot_is_free_again_when_it_was_not_sent() -> None:
    memory = SharedMemory(2, 3, SLOT_BYTES)
    memory.bind(1)
    pixels = memory.take(SHAPE)
    assert flags(memory, 6) == [0, 0, 0, 1, 0, 0]
    del pixels
    assert flags(memory, 6) == [0] * 6


def test_a_worker_takes_its_own_slots_only_and_none_beyond_them() -> None:
    memory = SharedMemory(2, 3, SLOT_BYTES)
    memory.bind(0)
    taken = [memory.take(SHAPE) for _ in range(3)]
    assert all(pixels is not None for pixels in taken)
    assert memory.take(SHAPE) is None
    assert flags(memory, 6) == [1, 1, 1, 0, 0, 0]


def test_a_batch_that_is_too_large_gets_no_slot() -> None:
    memory = SharedMemory(1, 1, 4096)
    assert memory.take((4, 32, 32, 3)) is None
    assert memory.take((1, 32, 32, 3)) is not None


def test_a_sent_batch_arrives_in_the_same_memory_and_frees_its_slot_at_the_end() -> None:
    memory = SharedMemory(1, 2, SLOT_BYTES)
    pixels = memory.take(SHAPE)
    assert pixels is not None
    pixels[:] = np.arange(SLOT_BYTES, dtype=np.uint32).reshape(SHAPE) % 251
    expected = pixels.copy()
    address = pixels.ctypes.data
    images = images_of(pixels)
    del pixels
    sent = pickle.dumps(memory.refer({"image": images, "label": torch.arange(4), "id": ["a"]}))
    del images
    assert flags(memory, 2) == [1, 0]
    received = pickle.loads(sent)
    assert received["image"].data_ptr() == address
    assert received["image"].is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(received["image"].permute(0, 2, 3, 1).numpy(), expected)
    assert (received["label"].tolist(), received["id"]) == ([0, 1, 2, 3], ["a"])
    part = received["image"][2:]
    del received
    assert flags(memory, 2) == [1, 0]
    del part
    assert flags(memory, 2) == [0, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images[1:],
        lambda images: images.contiguous(),
        lambda images: images.float(),
        lambda images: images[:, :, 1:],
        lambda images: images.view(torch.int8),
    ],
)
def test_what_a_collate_made_of_a_slot_is_sent_as_it_is(change: Any) -> None:
    memory = SharedMemory(1, 2, SLOT_BYTES)
    pixels = memory.take(SHAPE)
    assert pixels is not None
    changed = change(images_of(pixels))
    assert memory.refer(changed) is changed
    del pixels, changed
    assert flags(memory, 2) == [0, 0]


def send(memory: SharedMemory, worker: int, connection: Any) -> None:
    memory.bind(worker)
    pixels = memory.take(SHAPE)
    assert pixels is not None
    pixels[:] = worker + 7
    connection.send_bytes(pickle.dumps(memory.refer(images_of(pixels))))
    del pixels
    connection.recv_bytes()
    assert memory.take(SHAPE) is not None
    connection.send_bytes(b"taken again")


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_worker_and_its_parent_share_slots(method: str) -> None:
    context = multiprocessing.get_context(method)
    memory = SharedMemory(2, 1, SLOT_BYTES)
    ours, theirs = context.Pipe()
    worker = context.Process(target=send, args=(memory, 1, theirs))
    worker.start()
    theirs.close()
    images = pickle.loads(ours.recv_bytes())
    assert (images == 8).all()
    assert flags(memory, 2) == [0, 1]
    del images
    assert flags(memory, 2) == [0, 0]
    ours.send_bytes(b"go on")
    assert ours.recv_bytes() == b"taken again"
    worker.join()
    assert worker.exitcode == 0


def test_nothing_of_it_lies_in_a_folder_and_it_goes_with_its_last_user() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    before = set(os.listdir("/dev/shm"))
    memory = SharedMemory(2, 3, SLOT_BYTES)
    assert set(os.listdir("/dev/shm")) == before
    del memory
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_it_is_no_thing_to_be_saved() -> None:
    with pytest.raises(TypeError, match="travels to new processes only"):
        pickle.dumps(SharedMemory(1, 1, SLOT_BYTES))


def test_a_slot_is_taken_as_long_as_a_numpy_slice_of_it_lives() -> None:
    memory = SharedMemory(1, 2, SLOT_BYTES)
    pixels = memory.take(SHAPE)
    assert pixels is not None
    images = images_of(pixels)
    del pixels
    part = images[1:2].numpy()[0, 0]
    del images
    assert flags(memory, 2) == [1, 0]
    other = memory.take(SHAPE)
    assert other is not None
    other[:] = 9
    assert not (part == 9).all()
    del part
    assert flags(memory, 2) == [0, 1]
