"""SlotPacking: places in a worker's shared slots for what one batch consists of."""

import numpy as np
from numpy.typing import NDArray

from tfds_torch.runtime.shared_slots import SharedSlots

_ALIGNMENT = 64


class SlotPacking:
    """Finds where parts of a batch lie in slots, or may be copied to; slots are free again where packing fails.

    Args:
        slots: of the worker.
    """

    def __init__(self, slots: SharedSlots) -> None:
        self.slots = slots
        self._ends: dict[int, int] = {}  # Slot -> how far it is used by this batch.
        self._taken: list[NDArray[np.uint8]] = []

    def refer(self, address: int, num_bytes: int) -> tuple[int, int] | None:
        """Returns slot and offset of memory that lies in a slot which this process has taken; None: it does not.

        Args:
            address: where it begins.
            num_bytes: how far it reaches.
        """
        found = self.slots.find(address) if num_bytes else None
        num_taken = None if found is None else self.slots.num_unsent(found[0])
        if found is None or num_taken is None or found[1] + num_bytes > num_taken:
            return None
        self._ends.setdefault(found[0], num_taken)  # Behind all of it, also where this is a part.
        return found

    def place(self, num_bytes: int) -> tuple[int, int] | None:
        """Returns a slot and an offset at which so many bytes may be written; None: there is no room."""
        for slot, end in self._ends.items():
            offset = -(-end // _ALIGNMENT) * _ALIGNMENT
            if offset + num_bytes <= self.slots.slot_bytes:
                self._ends[slot] = offset + num_bytes
                return slot, offset
        taken = self.slots.take(num_bytes)
        found = None if taken is None else self.slots.find(taken.ctypes.data)
        if taken is None or found is None:
            return None
        self._taken.append(taken)
        self._ends[found[0]] = num_bytes
        return found

    def finish(self) -> tuple[int, ...]:
        """Returns the slots of the batch, which the receiver holds from now on."""
        for slot in self._ends:
            self.slots.note_sent(slot)
        return tuple(self._ends)
