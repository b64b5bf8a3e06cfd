"""SharedSlots: memory in which a loader's workers hand over batches, used over and over; SlotPacking: places in it."""

import mmap
import os
import weakref
from functools import partial
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
from numpy.typing import NDArray

_PAGE, _ALIGNMENT = 4096, 64
_FREE, _TAKEN = 0, 1


class SharedSlots:
    """Memory for the batches of a loader's workers, which the training process sees, too.

    Every worker has its own slots. A slot is taken by the worker and free again as soon as nothing refers to the
    batch any more, neither there nor in the training process; a worker that finds none hands its batch over in another
    way. Nothing waits. Other processes do not count: copy a batch before you fork a process that uses it.
    The memory lies in a file without a name (memfd), not in /dev/shm, and is freed with the last process that has it
    open. Pages are taken from the machine when they are first written: slots that are larger than the batches cost
    nothing, and of the free slots the first is taken. It is inherited by forked workers and travels to spawned ones.
    """

    def __init__(self, num_workers: int, num_slots: int, slot_bytes: int) -> None:
        self._num_slots = num_slots
        self.slot_bytes = -(-slot_bytes // _PAGE) * _PAGE
        self._all_slots = num_workers * num_slots
        self._flag_bytes = -(-2 * self._all_slots // _PAGE) * _PAGE  # Of workers, then of the receiver.
        self._size = self._flag_bytes + self._all_slots * self.slot_bytes
        descriptor = os.memfd_create("tfds_torch")
        try:
            os.ftruncate(descriptor, self._size)
            self._map(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        weakref.finalize(self, os.close, descriptor)
        self._first_slot = 0
        self.name = f"{os.getpid()}.{id(self)}"
        _slots_by_name[self.name] = self

    @classmethod
    def named(cls, name: str) -> "SharedSlots":
        """Return the slots of a name, which belong to a loader of this process or of its parent."""
        return _slots_by_name[name]

    def bind(self, worker: int) -> None:
        """Let this process take the slots of a worker."""
        self._first_slot = worker * self._num_slots

    def take(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Return memory of any content, uint8 [num_bytes], in a free slot of this worker; None: there is none.

        It is free again when this process has dropped it, and the receiver too, if it was sent.
        """
        if num_bytes > self.slot_bytes:
            return None
        for slot in range(self._first_slot, self._first_slot + self._num_slots):
            if self._flags[slot] == self._flags[self._all_slots + slot] == _FREE:
                self._flags[slot] = _TAKEN
                memory = self._owned(slot, num_bytes, slot)
                self._unsent[slot] = weakref.ref(memory)
                return memory
        return None

    def find(self, address: int) -> tuple[int, int] | None:
        """Return the slot in which an address of this process lies, and the offset in it; None: it lies in no slot."""
        offset = address - self._address - self._flag_bytes
        return divmod(offset, self.slot_bytes) if 0 <= offset < self._size - self._flag_bytes else None

    def bytes_of(self, slot: int) -> NDArray[np.uint8]:
        """Return all bytes of a slot, for its owner: holding them does not keep the slot taken."""
        start = self._flag_bytes + slot * self.slot_bytes
        return self._bytes[start : start + self.slot_bytes]

    def num_unsent(self, slot: int) -> int | None:
        """Return the bytes of a slot that this process has taken and neither dropped nor sent; None: of another."""
        memory = self._unsent.get(slot, _nothing)()
        return None if memory is None else memory.size

    def note_sent(self, slot: int) -> None:
        """Note that the receiver holds a slot, too, from now on."""
        del self._unsent[slot]
        self._flags[self._all_slots + slot] = _TAKEN

    def receive(self, slot: int) -> NDArray[np.uint8]:
        """Return all bytes of a slot that was sent; the receiver holds it until nothing refers to them any more.

        A second call meanwhile returns the same object.
        """
        received = self._received.get(slot)
        if received is None:
            received = self._received[slot] = self._owned(slot, self.slot_bytes, self._all_slots + slot)
        return received

    def _owned(self, slot: int, num_bytes: int, flag: int) -> NDArray[np.uint8]:
        """Return bytes of a slot; a flag is cleared when nothing refers to them."""
        # A new object over the same memory: it lives as long as any view of it.
        array = np.frombuffer(self.bytes_of(slot)[:num_bytes].data, np.uint8)
        self._owners[flag] = weakref.ref(array, partial(_set_free, self._flags, flag, os.getpid()))
        return array

    def _map(self, descriptor: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(descriptor, self._size), np.uint8)
        self._flags = self._bytes[: self._flag_bytes]
        self._address = self._bytes.ctypes.data
        self._owners: dict[int, weakref.ref[NDArray[np.uint8]]] = {}  # Flag -> the object whose end clears it.
        self._unsent: dict[int, weakref.ref[NDArray[np.uint8]]] = {}
        self._received: weakref.WeakValueDictionary[int, NDArray[np.uint8]] = weakref.WeakValueDictionary()

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            raise TypeError("SharedSlots travel to new processes only.")
        state = {
            key: getattr(self, key)
            for key in ("_num_slots", "_all_slots", "slot_bytes", "_flag_bytes", "_size", "name")
        }
        return state | {"descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        descriptor = state.pop("descriptor").detach()
        self.__dict__.update(state)
        self._map(descriptor)
        os.close(descriptor)
        self._first_slot = 0
        _slots_by_name[self.name] = self


class SlotPacking:
    """Finds the places of parts of a batch in slots, or places to copy them to; if packing fails, slots are freed."""

    def __init__(self, slots: SharedSlots | None) -> None:
        self.slots = slots
        self._ends: dict[int, int] = {}  # Slot -> how far it is used by this batch.
        self._taken: list[NDArray[np.uint8]] = []

    def find_slot(self, address: int, num_bytes: int) -> tuple[int, int] | None:
        """Return slot and offset of memory that lies in a slot which this process has taken; None: it does not."""
        if self.slots is None or not num_bytes or (found := self.slots.find(address)) is None:
            return None
        num_taken = self.slots.num_unsent(found[0])
        if num_taken is None or found[1] + num_bytes > num_taken:
            return None
        self._ends.setdefault(found[0], num_taken)  # Behind all of it, also where this is a part.
        return found

    def place(self, num_bytes: int) -> tuple[int, int] | None:
        """Return a slot and an offset at which `num_bytes` may be written; None: there is not enough room."""
        slots = self.slots
        if slots is None:
            return None
        for slot, end in self._ends.items():
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            if offset + num_bytes <= slots.slot_bytes:
                self._ends[slot] = offset + num_bytes
                return slot, offset
        taken = slots.take(num_bytes)
        if taken is None or (found := slots.find(taken.ctypes.data)) is None:
            return None
        self._taken.append(taken)
        self._ends[found[0]] = num_bytes
        return found

    def finish(self) -> tuple[int, ...]:
        """Return the slots of the batch, which the receiver holds from now on."""
        if self.slots is not None:
            for slot in self._ends:
                self.slots.note_sent(slot)
        return tuple(self._ends)


def _nothing() -> None:
    return None


_slots_by_name: "weakref.WeakValueDictionary[str, SharedSlots]" = weakref.WeakValueDictionary()


def _set_free(flags: NDArray[np.uint8], flag: int, owner: int, _: object) -> None:
    if os.getpid() == owner:  # Not the copy that a fork has made.
        flags[flag] = _FREE
