"""Memory for the images of batches, used over and over.

A batch of 128 photographs takes 19 MB. Fresh memory of that size comes from the system page by page, which took a sixth
of a worker's time, and is given back at once. Here it is kept: by one process for itself, or by a loader's worker
together with the training process, so that a worker's batch is handed over as a number.
"""

import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfds_torch.images.decoding import Pixels
from tfds_torch.torch_data.nested import map_tensors

_PAGE = 4096
_FREE, _TAKEN = 0, 1


class LocalMemory:
    """Memory that one process keeps for its own batches. Thread-safe.

    What was handed out is used again as soon as nothing refers to it, neither tensors nor arrays nor views.

    Args:
        most_kept: blocks that are kept while nobody uses them.
    """

    def __init__(self, most_kept: int = 4) -> None:
        self._most_kept = most_kept
        # No lock: garbage collection may give memory back at any moment, also within `take` in the same thread.
        self._blocks: list[Pixels] = []

    def take(self, shape: tuple[int, ...]) -> Pixels:
        """Returns memory of any content, uint8, contiguous."""
        num_bytes = int(np.prod(shape))
        block = self._pop(num_bytes)
        if block is None:
            block = np.empty(num_bytes, np.uint8)
        # A new object over the same memory: it lives as long as anything that was made of it.
        array = np.frombuffer(block.data, np.uint8).reshape(shape)
        weakref.finalize(_owner_of(array), self._give_back, block).atexit = False
        return array

    def _pop(self, num_bytes: int) -> Pixels | None:
        """Returns a block that is kept, of this size; None: there is none. Each step is atomic."""
        others: list[Pixels] = []
        found: Pixels | None = None
        while found is None and self._blocks:
            try:
                block = self._blocks.pop()
            except IndexError:  # Another thread took it.
                break
            if block.size == num_bytes:
                found = block
            else:
                others.append(block)
        self._blocks.extend(others)
        return found

    def _give_back(self, block: Pixels) -> None:
        if len(self._blocks) < self._most_kept:
            self._blocks.append(block)


class SharedMemory:
    """Memory for the batches of a loader's workers, which the training process sees, too.

    Every worker has slots of its own. A slot is taken by the worker and free again as soon as nothing in the training
    process refers to the batch any more; a worker that finds none takes memory of another kind. Nothing waits. It lies
    in a file without a name (memfd), not in /dev/shm, and goes with the last process that has it open. It is inherited
    by forked workers and travels to spawned ones.

    Args:
        num_workers: of the loader.
        num_slots: of each worker.
        slot_bytes: of a whole batch.

    Raises:
        OSError: the system has no such files, or no memory for it.
    """

    def __init__(self, num_workers: int, num_slots: int, slot_bytes: int) -> None:
        self._num_slots = num_slots
        self._slot_bytes = -(-slot_bytes // _PAGE) * _PAGE
        self._flag_bytes = -(-num_workers * num_slots // _PAGE) * _PAGE
        self._size = self._flag_bytes + num_workers * num_slots * self._slot_bytes
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
        _memories[self.name] = self

    def bind(self, worker: int) -> None:
        """Lets this process take the slots of a worker."""
        self._first_slot = worker * self._num_slots

    def take(self, shape: tuple[int, ...]) -> Pixels | None:
        """Returns memory of any content, uint8, contiguous, in a free slot of this worker; None: there is none.

        It is free again when the worker drops it without having sent it.
        """
        num_bytes = int(np.prod(shape))
        if num_bytes > self._slot_bytes:
            return None
        for slot in range(self._first_slot, self._first_slot + self._num_slots):
            if self._flags[slot] == _FREE:
                self._flags[slot] = _TAKEN
                return self._array(slot, shape)
        return None

    def refer(self, batch: Any) -> Any:
        """Returns a batch in which tensors that lie in a slot are `SlotReference`s, for sending."""
        return map_tensors(batch, self._refer)

    def _refer(self, tensor: Tensor) -> Any:
        offset = tensor.untyped_storage().data_ptr() - self._address - self._flag_bytes
        slot, rest = divmod(offset, self._slot_bytes)
        is_whole = tensor.dtype == torch.uint8 and tensor.ndim == 4 and tensor.permute(0, 2, 3, 1).is_contiguous()
        if not 0 <= offset < self._size - self._flag_bytes or rest or not is_whole or tensor.storage_offset():
            return tensor
        self._releases.pop(slot).detach()  # It is the receiver's now.
        return SlotReference(self.name, slot, tuple(tensor.permute(0, 2, 3, 1).shape))

    def restore(self, slot: int, shape: tuple[int, ...]) -> Tensor:
        """Returns the tensor [B, C, H, W] that was referred to, and with it the duty to free the slot."""
        return torch.from_numpy(self._array(slot, shape)).permute(0, 3, 1, 2)

    def _array(self, slot: int, shape: tuple[int, ...]) -> Pixels:
        start = self._flag_bytes + slot * self._slot_bytes
        block = self._bytes[start : start + int(np.prod(shape))]
        array = np.frombuffer(block.data, np.uint8).reshape(shape)
        release = weakref.finalize(_owner_of(array), _set_free, self._flags, slot)
        release.atexit = False
        self._releases[slot] = release
        return array

    def _map(self, descriptor: int) -> None:
        self._bytes = np.frombuffer(mmap.mmap(descriptor, self._size), np.uint8)
        self._flags = self._bytes[: self._flag_bytes]
        self._address = self._bytes.ctypes.data
        self._releases: dict[int, weakref.finalize[..., Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            raise TypeError("SharedMemory travels to new processes only.")
        state = {key: getattr(self, key) for key in ("_num_slots", "_slot_bytes", "_flag_bytes", "_size", "name")}
        return state | {"descriptor": reduction.DupFd(self._descriptor)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        descriptor = state.pop("descriptor").detach()
        self.__dict__.update(state)
        self._map(descriptor)
        os.close(descriptor)
        self._first_slot = 0
        _memories[self.name] = self


class SlotReference:
    """A batch's images on their way from a worker; arrives as a tensor."""

    def __init__(self, memory: str, slot: int, shape: tuple[int, ...]) -> None:
        self._origin = (memory, slot, shape)

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[str, int, tuple[int, ...]]]:
        return _restore, self._origin


_memories: "weakref.WeakValueDictionary[str, SharedMemory]" = weakref.WeakValueDictionary()


def _restore(name: str, slot: int, shape: tuple[int, ...]) -> Tensor:
    return _memories[name].restore(slot, shape)


def _set_free(flags: Pixels, slot: int) -> None:
    flags[slot] = _FREE


def _owner_of(array: Pixels) -> Any:
    """Returns the object that every view of an array keeps alive."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
