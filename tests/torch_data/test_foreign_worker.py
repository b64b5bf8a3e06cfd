"""How a batch of a ForeignReader's worker travels: through a slot where it can, and always as it was."""

import re
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedSlots, SlotPacking
from tfds_torch.runtime.worker_output import WorkerOutput
from tfds_torch.torch_data.foreign_worker import PackingCollate, WorkerContext

SLOT_BYTES = 1 << 18
DTYPES = [torch.uint8, torch.bool, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64]


class Pair(NamedTuple):
    left: Any
    right: Any


@pytest.fixture(autouse=True)
def as_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: SimpleNamespace(id=0))


def flags(slots: SharedSlots, count: int) -> list[int]:
    """Returns which of the first slots are held, by whomever."""
    of_workers, of_receiver = slots._flags[: slots._all_slots], slots._flags[slots._all_slots :]
    return (of_workers[:count] | of_receiver[:count]).tolist()


def packing_collate(collate: Any, is_batching: bool, slots: SharedSlots | None) -> PackingCollate:
    return PackingCollate(collate, is_batching, WorkerContext(StageMetrics(1), WorkerOutput(0), slots))


def travel(batch: Any, slots: SharedSlots | None) -> tuple[Any, int]:
    """Returns a batch as it arrives, and the size of its message, bytes."""
    packed = packing_collate(lambda found: found, False, slots)(batch)
    del batch
    message = bytes(ForkingPickler.dumps(packed))
    return ForkingPickler.loads(message).batch, len(message)


def assert_equal(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    if isinstance(expected, Tensor):
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for name in expected:
            assert_equal(found[name], expected[name])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


@pytest.mark.parametrize("with_slots", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(5000),
        lambda: torch.arange(12.0).reshape(3, 4).t(),
        lambda: torch.zeros(2, 3, 40, 40, dtype=torch.uint8).contiguous(memory_format=torch.channels_last),
        lambda: torch.arange(10000)[::2],
        lambda: torch.ones(3, 1).expand(3, 5000),
        lambda: torch.empty(0, 3),
        lambda: torch.tensor(7.5),
        lambda: torch.nn.Parameter(torch.ones(2000), requires_grad=False),
        lambda: {"image": torch.ones(4, 3, 20, 20), "label": torch.arange(4), "id": ["a"] * 4},
        lambda: Pair([torch.ones(3000), (torch.zeros(2), None)], np.arange(4000)),
        lambda: [f"text {number}" for number in range(2000)],
        lambda: torch.zeros(2 * SLOT_BYTES, dtype=torch.uint8),
        lambda: torch.full((3,), 1 + 2j).conj(),
        lambda: torch.ones(20, dtype=torch.bfloat16),
    ],
)
def test_a_batch_arrives_as_it_was(make: Any, with_slots: bool) -> None:
    slots = SharedSlots(1, 4, SLOT_BYTES) if with_slots else None
    arrived, _ = travel(make(), slots)
    assert_equal(arrived, make())
    if with_slots:
        del arrived
        assert slots is not None
        assert flags(slots, 4) == [0] * 4


@given(st.data())
def test_any_tensors_arrive_as_they_were(data: st.DataObject) -> None:
    def tensor() -> Tensor:
        shape = data.draw(st.lists(st.integers(0, 40), max_size=3))
        found = (torch.arange(int(np.prod(shape))) % 2).reshape(shape).to(data.draw(st.sampled_from(DTYPES)))
        return found.t() if found.ndim == 2 and data.draw(st.booleans()) else found

    slots = SharedSlots(1, 2, 4096)
    batch = [tensor() for _ in range(data.draw(st.integers(1, 6)))]
    for _ in range(3):
        arrived, _ = travel(list(batch), slots)
        assert_equal(arrived, batch)
        del arrived
    assert flags(slots, 2) == [0, 0]


def test_the_message_is_short_however_large_the_batch() -> None:
    """A pipe takes a short message whole: a worker that is killed leaves no half of one."""
    slots = SharedSlots(1, 4, 1 << 22)
    batch = {
        "image": torch.zeros(256, 3, 32, 32, dtype=torch.uint8),
        "id": [f"train.tfrecord__{n}" for n in range(256)],
    }
    batch |= {"label": torch.arange(256), "points": np.zeros((256, 8))}
    _, size = travel(batch, slots)
    assert size < 4096


def test_images_that_were_written_into_a_slot_are_not_copied() -> None:
    slots = SharedSlots(1, 2, SLOT_BYTES)
    memory = slots.take(4 * 8 * 8 * 3)
    assert memory is not None
    memory[:] = np.arange(memory.size) % 251
    expected, address = memory.copy(), memory.ctypes.data
    images = torch.from_numpy(memory.reshape(4, 8, 8, 3)).permute(0, 3, 1, 2)
    del memory
    batch = (images, torch.arange(2000))
    del images
    arrived, _ = travel(batch, slots)
    del batch
    assert arrived[0].data_ptr() == address
    assert arrived[0].is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(arrived[0].permute(0, 2, 3, 1).numpy().ravel(), expected)
    assert arrived[1].tolist() == list(range(2000))
    assert flags(slots, 2) == [1, 0]
    part = arrived[0][2:]
    del arrived
    assert flags(slots, 2) == [1, 0]
    del part
    assert flags(slots, 2) == [0, 0]


@pytest.mark.parametrize(
    "change",
    [
        lambda images: images[1:],
        lambda images: images.contiguous(),
        lambda images: images.float(),
        lambda images: images[:, :, 1:],
        lambda images: images.view(torch.int8),
        lambda images: (images, images.flatten()),
    ],
)
def test_what_a_collate_makes_of_a_slot_arrives_as_it_was(change: Any) -> None:
    slots = SharedSlots(1, 3, SLOT_BYTES)
    memory = slots.take(4 * 8 * 8 * 3)
    assert memory is not None
    memory[:] = np.arange(memory.size) % 251
    images = torch.from_numpy(memory.reshape(4, 8, 8, 3)).permute(0, 3, 1, 2)
    expected = change(images.clone())
    batch = [change(images)]
    del memory, images
    (arrived,), _ = travel(batch, slots)
    assert_equal(arrived, expected)
    del batch, arrived
    assert flags(slots, 3) == [0] * 3


def test_a_batch_that_comes_again_is_copied_out_of_the_slot_that_is_the_receivers_now() -> None:
    slots = SharedSlots(1, 3, SLOT_BYTES)
    memory = slots.take(3000)
    assert memory is not None
    memory[:] = 5
    kept = torch.from_numpy(memory)
    first, _ = travel([kept], slots)
    second, _ = travel([kept], slots)
    assert first[0].data_ptr() != second[0].data_ptr()
    assert torch.equal(first[0], second[0])


def test_what_comes_between_parts_of_a_batch_does_not_overwrite_them() -> None:
    slots = SharedSlots(1, 4, 1 << 20)
    memory = slots.take(200_000)
    assert memory is not None
    memory[:] = np.arange(memory.size) % 251
    images, labels = torch.from_numpy(memory), torch.arange(20_000)
    batch = [images[:50_000], labels, images[50_000:100_000], labels.float(), images[100_000:], memory[5:]]
    expected = [part.clone() if isinstance(part, Tensor) else part.copy() for part in batch]
    arrived, _ = travel(batch, slots)
    assert_equal(arrived, expected)


def test_whoever_keeps_the_labels_keeps_no_images() -> None:
    slots = SharedSlots(1, 2, SLOT_BYTES)
    kept = []
    for number in range(5):
        memory = slots.take(30_000)
        assert memory is not None
        batch = (torch.from_numpy(memory), torch.full((128,), number))
        del memory
        arrived, _ = travel(batch, slots)
        del batch
        kept.append(arrived[1])
        del arrived
        assert flags(slots, 2) == [0, 0]
    assert [int(labels[0]) for labels in kept] == list(range(5))


def test_a_batch_that_the_worker_remembers_is_not_overwritten() -> None:
    slots, remembered = SharedSlots(1, 3, SLOT_BYTES), []
    for number in range(8):
        memory = slots.take(3000)
        pixels = np.empty(3000, np.uint8) if memory is None else memory
        pixels[:] = number
        remembered.append(torch.from_numpy(pixels))
        del memory, pixels
        arrived, _ = travel([remembered[-1], remembered[max(0, number - 2)]], slots)
        assert [int(part[0]) for part in arrived] == [number, max(0, number - 2)]
        remembered = remembered if number < 3 else [None] * 2 + remembered[2:]
        del arrived
    assert [int(images[7]) for images in remembered if images is not None] == list(range(2, 8))


@pytest.mark.parametrize("with_slots", [True, False])
def test_the_layout_in_memory_stays(with_slots: bool) -> None:
    slots = SharedSlots(1, 4, 1 << 20) if with_slots else None
    for size in (4, 64):
        images = torch.rand(2, 3, size, size).contiguous(memory_format=torch.channels_last)
        arrived, _ = travel(images, slots)
        assert arrived.stride() == images.stride()


def test_nothing_waits_for_a_slot() -> None:
    slots = SharedSlots(1, 1, SLOT_BYTES)
    batches = [travel(torch.full((30_000,), number), slots)[0] for number in range(3)]
    assert [int(batch[-1]) for batch in batches] == [0, 1, 2]
    assert flags(slots, 1) == [1]


def test_slots_are_free_again_where_a_batch_cannot_be_pickled() -> None:
    slots = SharedSlots(1, 2, SLOT_BYTES)
    failure, _ = travel([torch.zeros(30_000), lambda: None], slots)
    assert isinstance(failure, Failure)
    assert flags(slots, 2) == [0, 0]


def test_a_batch_for_which_shared_memory_has_no_room_is_an_error_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    def place(self: SlotPacking, num_bytes: int) -> None:
        if num_bytes == 120_000:
            raise RuntimeError("unable to allocate shared memory(shm) for file </x>: No space left on device (28)")

    monkeypatch.setattr(SlotPacking, "place", place)
    failure, _ = travel([torch.zeros(30_000)], SharedSlots(1, 2, SLOT_BYTES))
    error = failure.to_error("worker 0 (pid 1)")
    assert isinstance(error, WorkerError)
    assert re.match(
        r"A batch cannot leave its worker: the machine's shared memory \(/dev/shm\), [\d,.]+ MiB, is full", str(error)
    )
    assert "--shm-size" in str(error)
