"""How a batch leaves the worker that made it: its tensors in a shared slot, the rest as a short message."""

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.slot_packing import SlotPacking
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.torch_data.nested import map_tensors, tensors

_NO_SPACE = "No space left on device"
_LONGEST_MESSAGE = 2048  # Bytes. A pipe takes that whole: a worker that is killed leaves no half of one.
_MOST_INLINE_BYTES = 1 << 16  # Of a tensor; larger ones lie in a slot.


@dataclass(slots=True)
class Sent:
    """A batch, and how it came.

    Attributes:
        batch: it, or what failed.
        worker: that made it; None: this process.
        num_examples: in it.
        sent_at: when it was ready, by the machine's clock.
        received_at: when it was here.
    """

    batch: Any
    worker: int | None
    num_examples: int
    sent_at: float = 0.0
    received_at: float = 0.0


class SendingCollate:
    """Collates, measures, and packs a worker's batches; the `collate_fn` of torch's loader. Picklable.

    Args:
        collate: the user's, or torch's; None: the dataset makes the batches.
        is_batching: whether it gets lists of examples; else the dataset's items.
        metrics: what is reported to.
        slots: in which batches are handed over; None: there are none.
    """

    def __init__(
        self, collate: Callable[[Any], Any] | None, is_batching: bool, metrics: StageMetrics, slots: SharedSlots | None
    ) -> None:
        self.collate, self.is_batching, self.metrics, self.slots = collate, is_batching, metrics, slots

    def __call__(self, rows: Any) -> Any:
        """Returns what torch's loader hands on: a `Sent` batch, packed in a worker."""
        worker, start = torch.utils.data.get_worker_info(), time.monotonic()
        if worker is None:
            sent = self._collate(rows, None)
            self._note_ready(sent, start)
            return sent
        failure = rows[-1] if self.is_batching and isinstance(rows, list) and rows else rows
        if not isinstance(failure, Failure):
            try:
                sent, packing = self._collate(rows, worker.id), _Packing(self.slots)
                sent.batch = map_tensors(sent.batch, packing.refer)
                self._note_ready(sent, start)
                return packing.finish(sent)
            except Exception as error:
                failure = Failure.of(error)
                if isinstance(error, RuntimeError | OSError) and _NO_SPACE in str(error):
                    message = f"{describe_full_memory()} ({failure.message})"
                    failure = Failure(WorkerError.__module__, WorkerError.__name__, message, failure.trace)
        return _Packing(self.slots).finish(Sent(failure, worker.id, 0, time.monotonic()))

    def _collate(self, rows: Any, worker: int | None) -> Sent:
        try:
            batch = rows if self.collate is None else self.collate(rows)
        except StopIteration as error:  # It would pass for the end of the epoch.
            raise WorkerError(f"The collate_fn {self.collate!r} raised StopIteration.") from error
        return Sent(batch, worker, len(rows) if self.is_batching else count_examples(batch))

    def _note_ready(self, sent: Sent, start: float) -> None:
        sent.sent_at = time.monotonic()
        self.metrics.add("collate", sent.sent_at - start)
        self.metrics.add_batch(sent.num_examples)


class _Packed:
    """A batch on its way, pickled where an error can still be told; torch's queue would drop it with a message.

    Args:
        content: the pickled bytes; or their place in a slot: its number, offset and size.
        name: of the slots.
        slots: those that the batch lies in.
    """

    def __init__(self, content: bytes | tuple[int, int, int], name: str, slots: tuple[int, ...]) -> None:
        self._parts = content, name, slots

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._parts


def _unpack(content: bytes | tuple[int, int, int], name: str, slots: tuple[int, ...]) -> Sent:
    # All of them first: none is free before the whole batch is there.
    received = {slot: SharedSlots.named(name).receive(slot) for slot in slots}
    if not isinstance(content, bytes):
        slot, offset, size = content
        sent: Sent = pickle.loads(received[slot][offset : offset + size].data)  # noqa: S301 (from our own worker)
    else:
        sent = pickle.loads(content)  # noqa: S301 (from our own worker, over a private pipe)
    sent.received_at = time.monotonic()
    return sent


class _Packing:
    """Finds places in a worker's slots for what a batch consists of.

    Args:
        slots: of the worker; None: there are none.
    """

    def __init__(self, slots: SharedSlots | None) -> None:
        self._slots = None if slots is None else SlotPacking(slots)

    def refer(self, tensor: Tensor) -> Any:
        """Returns what stands for a tensor in a message: where it lies, or a copy of it; or the tensor itself.

        Raises:
            ConfigError: it cannot leave its process.
        """
        _check_can_leave(tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        packing = self._slots
        if not _is_plain(tensor):
            return tensor
        if packing is not None and tensor.nbytes:
            found = packing.refer(tensor.data_ptr(), _extent(tensor))
            if found is not None:
                return _InSlot((packing.slots.name, *found), tensor)
        strides = torch.empty_like(tensor, device="meta").stride()  # The same, where there are no gaps.
        # A small one beside the images: whoever keeps it does not keep them.
        is_small = tensor.nbytes <= _MOST_INLINE_BYTES
        place = None if packing is None or is_small else packing.place(tensor.nbytes)
        if packing is None or place is None:
            return _Inline(tensor, strides) if is_small else tensor
        slot, offset = place
        copy = _tensor_at(packing.slots.bytes_of(slot), offset, tensor.dtype, tuple(tensor.shape), strides)
        copy.copy_(tensor)
        return _InSlot((packing.slots.name, slot, offset), copy)

    def finish(self, sent: Sent) -> _Packed:
        """Returns the message; the receiver holds all of its slots from now on."""
        pickled = bytes(ForkingPickler.dumps(sent))
        if self._slots is None:
            return _Packed(pickled, "", ())
        content: bytes | tuple[int, int, int] = pickled
        size, slots = len(pickled), self._slots.slots
        place = self._slots.place(size) if size > _LONGEST_MESSAGE else None
        if place is not None:
            slot, offset = place
            slots.bytes_of(slot)[offset : offset + size] = np.frombuffer(pickled, np.uint8)
            content = slot, offset, size
        return _Packed(content, slots.name, self._slots.finish())


class _InSlot:
    """A tensor that lies in a slot; arrives as a tensor."""

    def __init__(self, place: tuple[str, int, int], tensor: Tensor) -> None:
        self._place, self._layout = place, (tensor.dtype, tuple(tensor.shape), tensor.stride())

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_tensor, (*self._place, *self._layout)


def _receive_tensor(
    name: str, slot: int, offset: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    return _tensor_at(SharedSlots.named(name).receive(slot), offset, dtype, shape, strides)


def _tensor_at(
    memory: NDArray[np.uint8], offset: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = torch.frombuffer(memory, dtype=dtype, count=extent, offset=offset)
    return flat.as_strided(shape, strides)


def _extent(tensor: Tensor) -> int:
    """Returns how many bytes a tensor spans, gaps included."""
    steps = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (1 + steps) * tensor.element_size()


def _is_plain(tensor: Tensor) -> bool:
    return (
        type(tensor) is Tensor
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_nested)
    )


def _check_can_leave(tensor: Tensor) -> None:
    """Raises ConfigError for a tensor that torch cannot hand to another process."""
    if tensor.requires_grad and not tensor.is_leaf:
        raise ConfigError(
            "A batch holds a tensor with a history of autograd (requires_grad, made by an operation), which cannot "
            "leave its worker. Call .detach() on it, or compute it in the training process."
        )
    if tensor.is_quantized:
        raise ConfigError(
            "A batch holds a quantized tensor, which torch hands to another process without its scale. Yield "
            ".dequantize() of it, or .int_repr() beside its scale and zero point."
        )
    if tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        raise ConfigError(
            "A batch holds a tensor of layout torch._mkldnn, which cannot leave its worker. Call .to_dense() on it."
        )


class _Inline:
    """A small tensor on its way: within the message, not in shared memory and a file descriptor of its own."""

    def __init__(self, tensor: Tensor, strides: tuple[int, ...]) -> None:
        self._tensor, self._strides = tensor, strides

    def __reduce__(self) -> tuple[Any, ...]:
        dense = torch.empty(self._tensor.numel(), dtype=self._tensor.dtype)
        dense.as_strided(self._tensor.shape, self._strides).copy_(self._tensor)
        return _from_bytes, (dense.view(torch.uint8).numpy(), dense.dtype, tuple(self._tensor.shape), self._strides)


def _from_bytes(
    content: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    return torch.from_numpy(content).view(dtype).as_strided(shape, strides)


def describe_full_memory() -> str:
    """Says that a batch does not fit into shared memory, and what to do."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108
        size = f", {found.f_blocks * found.f_frsize / 2**20:,.1f} MiB,"
    except OSError:
        size = ""
    return (
        f"A batch cannot be handed over: the machine's shared memory (/dev/shm){size} is full. Give the container more "
        f"(--shm-size=8g, or --ipc=host), take fewer workers, prefetch_batches or examples of a batch, or give the "
        f"parser a preprocess: whole batches of images need none of it."
    )


def count_examples(batch: Any) -> int:
    """Returns B of a batch that a dataset made: the size of its first tensor, or of its first list; else 1."""
    of_tensors = (tensor.size(0) for tensor in tensors(batch) if tensor.ndim)  # Nested ones have no shape.
    of_lists = (len(entry) for entry in batch if isinstance(entry, list)) if isinstance(batch, tuple | list) else ()
    return next(chain(of_tensors, of_lists), 1)
