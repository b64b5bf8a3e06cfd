"""Slots of a loader's workers: who may use them when, and how they travel."""

import multiprocessing
import os
import pickle
from typing import Any

import numpy as np
import pytest

from tfds_torch.runtime.shared_slots import SharedSlots

NUM_BYTES = 768


def flags(slots: SharedSlots, count: int) -> list[int]:
    """Returns which of the first slots are held, by whomever."""
    of_workers, of_receiver = slots._flags[: slots._all_slots], slots._flags[slots._all_slots :]
    return (of_workers[:count] | of_receiver[:count]).tolist()


def test_a_slot_is_free_again_when_it_was_not_sent() -> None:
    slots = SharedSlots(2, 3, NUM_BYTES)
    slots.bind(1)
    taken = slots.take(NUM_BYTES)
    assert taken is not None
    assert flags(slots, 6) == [0, 0, 0, 1, 0, 0]
    assert slots.num_unsent(3) == NUM_BYTES
    del taken
    assert flags(slots, 6) == [0] * 6
    assert slots.num_unsent(3) is None


def test_a_worker_takes_its_own_slots_only_and_none_beyond_them() -> None:
    slots = SharedSlots(2, 3, NUM_BYTES)
    slots.bind(0)
    taken = [slots.take(NUM_BYTES) for _ in range(3)]
    assert all(memory is not None for memory in taken)
    assert slots.take(NUM_BYTES) is None
    assert flags(slots, 6) == [1, 1, 1, 0, 0, 0]


def test_a_batch_that_is_too_large_gets_no_slot() -> None:
    slots = SharedSlots(1, 1, 4096)
    assert slots.take(4097) is None
    assert slots.take(4096) is not None


def test_slots_take_no_memory_of_the_machine_before_they_are_written() -> None:
    slots = SharedSlots(4, 8, 1 << 27)
    assert os.fstat(slots._descriptor).st_size > 1 << 31
    assert os.fstat(slots._descriptor).st_blocks * 512 < 1 << 20


def test_an_address_is_found_in_its_slot_and_others_are_not() -> None:
    slots = SharedSlots(2, 3, NUM_BYTES)
    slots.bind(1)
    taken = slots.take(NUM_BYTES)
    assert taken is not None
    assert slots.find(taken.ctypes.data) == (3, 0)
    assert slots.find(taken[5:].ctypes.data) == (3, 5)
    assert slots.find(np.empty(3).ctypes.data) is None
    assert slots.find(slots._address) is None  # The flags.


def test_what_was_sent_belongs_to_the_receiver_until_nothing_refers_to_it() -> None:
    slots = SharedSlots(1, 2, NUM_BYTES)
    taken = slots.take(NUM_BYTES)
    assert taken is not None
    taken[:] = np.arange(NUM_BYTES) % 251
    slots.note_sent(0)
    del taken
    assert flags(slots, 2) == [1, 0]
    received = slots.receive(0)
    assert slots.receive(0) is received
    np.testing.assert_array_equal(received[:NUM_BYTES], np.arange(NUM_BYTES) % 251)
    part = received[10:20]
    del received
    assert flags(slots, 2) == [1, 0]
    del part
    assert flags(slots, 2) == [0, 0]


def test_what_was_sent_is_not_used_again_while_the_worker_holds_it_either() -> None:
    slots = SharedSlots(1, 2, NUM_BYTES)
    taken = slots.take(NUM_BYTES)
    assert taken is not None
    slots.note_sent(0)
    assert slots.num_unsent(0) is None
    slots.receive(0)
    assert flags(slots, 2) == [1, 0]
    other = slots.take(NUM_BYTES)
    assert other is not None
    assert slots.find(other.ctypes.data) == (1, 0)
    del taken
    assert flags(slots, 2) == [0, 1]


def hold_and_drop(slots: SharedSlots, held: list[Any], connection: Any) -> None:
    held.clear()
    connection.send(flags(slots, 1))


def test_a_copy_by_fork_frees_nothing_that_its_parent_holds() -> None:
    slots = SharedSlots(1, 1, NUM_BYTES)
    held = [slots.take(NUM_BYTES)]
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_and_drop, args=(slots, held, theirs))
    process.start()
    assert ours.recv() == [1]
    process.join()
    assert flags(slots, 1) == [1]


def send(slots: SharedSlots, worker: int, connection: Any) -> None:
    slots.bind(worker)
    taken = slots.take(NUM_BYTES)
    assert taken is not None
    taken[:] = worker + 7
    slots.note_sent(worker)
    del taken
    connection.send_bytes(pickle.dumps((slots.name, worker)))
    connection.recv_bytes()
    assert slots.take(NUM_BYTES) is not None
    connection.send_bytes(b"taken again")


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_a_worker_and_its_parent_share_slots(method: str) -> None:
    context = multiprocessing.get_context(method)
    slots = SharedSlots(2, 1, NUM_BYTES)
    ours, theirs = context.Pipe()
    worker = context.Process(target=send, args=(slots, 1, theirs))
    worker.start()
    theirs.close()
    name, slot = pickle.loads(ours.recv_bytes())
    received = SharedSlots.named(name).receive(slot)
    assert (received[:NUM_BYTES] == 8).all()
    assert flags(slots, 2) == [0, 1]
    del received
    assert flags(slots, 2) == [0, 0]
    ours.send_bytes(b"go on")
    assert ours.recv_bytes() == b"taken again"
    worker.join()
    assert worker.exitcode == 0


def test_nothing_of_it_lies_in_a_folder_and_it_goes_with_its_last_user() -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    before = set(os.listdir("/dev/shm"))
    slots = SharedSlots(2, 3, NUM_BYTES)
    assert set(os.listdir("/dev/shm")) == before
    del slots
    assert set(os.listdir("/proc/self/fd")) <= descriptors


def test_it_is_no_thing_to_be_saved() -> None:
    with pytest.raises(TypeError, match="travel to new processes only"):
        pickle.dumps(SharedSlots(1, 1, NUM_BYTES))
