"""Tensors on their way between processes: in shared slots, or within the message. For our own workers' pipes only."""

import io
import os
import pickle
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.loaders.transport import Message
from tfds_torch.runtime.shared_slots import SharedSlots, SlotPacking

_NO_SPACE = "No space left on device"
_MOST_INLINE_BYTES = 1 << 16
"""The size of the largest tensor that travels in the message; larger ones lie in a slot.

A loop that keeps labels therefore does not keep the slot of the images. torch's way, a file descriptor for each tensor,
takes three times as long for 786 kB.
"""


class TensorCodec:
    """Carries batches through the pipe of a pool: tensors in slots, everything else pickled. Picklable."""

    def encode(self, message: Message, packing: SlotPacking) -> Sequence[Any]:
        """Return a message's item as pickled bytes and memory of arrays."""
        buffers: list[pickle.PickleBuffer] = []
        return [pack(message.item, packing, buffers), *(buffer.raw() for buffer in buffers)]

    def decode(self, frames: Sequence[Any], slots: Mapping[int, NDArray[Any]]) -> Any:
        """Return the item; its small arrays lie in the message."""
        return pickle.loads(frames[0], buffers=frames[1:])  # noqa: S301 (from our own worker, over a private pipe)


def pack(value: Any, packing: SlotPacking, buffers: "list[pickle.PickleBuffer] | None" = None) -> memoryview:
    """Return a batch as pickled bytes, for `pickle.loads`; its large tensors lie in slots.

    `buffers` receives the memory of arrays, and of tensors for which no slot is free; None: arrays are pickled, too,
    and torch carries such tensors.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, packing, buffers).dump(value)
    except (RuntimeError, OSError) as error:
        if _NO_SPACE not in str(error):
            raise
        raise WorkerError(f"{describe_full_memory()} ({error})") from error
    return file.getbuffer()


class _Pickler(ForkingPickler):
    """Pickles a batch; see `pack`."""

    def __init__(self, file: io.BytesIO, packing: SlotPacking, buffers: "list[pickle.PickleBuffer] | None") -> None:
        super().__init__(file, 5, True, None if buffers is None else buffers.append)
        self._packing, self._can_be_long = packing, buffers is not None

    def reducer_override(self, value: Any) -> Any:
        """Return the call that rebuilds a tensor; pickle asks this for all but plain values and containers."""
        return self._reduce(value) if isinstance(value, Tensor) else NotImplemented

    def _reduce(self, tensor: Tensor) -> Any:
        _check_can_leave(tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not _is_plain(tensor):
            return self._reduce_by_torch(tensor)
        packing, layout = self._packing, (tensor.dtype, tuple(tensor.shape), tensor.stride())
        place = packing.find_slot(tensor.data_ptr(), _extent(tensor)) if tensor.nbytes else None
        if place is not None and packing.slots is not None:
            return _tensor_in_slot, (packing.slots.name, *place, *layout)
        if not tensor.is_contiguous():
            layout = (*layout[:2], torch.empty_like(tensor, device="meta").stride())  # The same, but for gaps.
        # A small one beside the images: a loop that keeps it does not keep them.
        is_small = tensor.nbytes <= _MOST_INLINE_BYTES
        place = None if is_small else packing.place(tensor.nbytes)
        if place is not None and packing.slots is not None:
            slot, offset = place
            _tensor_at(packing.slots.bytes_of(slot), offset, *layout).copy_(tensor)
            return _tensor_in_slot, (packing.slots.name, slot, offset, *layout)
        return self._reduce_inline(tensor, layout) if is_small or self._can_be_long else self._reduce_by_torch(tensor)

    def _reduce_inline(self, tensor: Tensor, layout: Any) -> Any:
        """Return the function that makes a tensor of the bytes of its elements."""
        flat = tensor
        if not tensor.is_contiguous():
            flat = torch.empty(tensor.numel(), dtype=tensor.dtype, device="cpu")
            flat.as_strided(*layout[1:]).copy_(tensor)
        # Not reshape(-1): where there is one element or none, it keeps any stride, and a view of bytes asks for 1.
        flat = flat.as_strided((flat.numel(),), (1,))
        return _tensor_of_bytes, (flat.view(torch.uint8).numpy(), *layout)

    def _reduce_by_torch(self, tensor: Tensor) -> Any:
        reduce = self.dispatch_table.get(type(tensor))
        return tensor.__reduce_ex__(5) if reduce is None else reduce(tensor)  # type: ignore[no-untyped-call]


def _tensor_in_slot(
    name: str, slot: int, offset: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    return _tensor_at(SharedSlots.named(name).receive(slot), offset, dtype, shape, strides)


def _tensor_of_bytes(
    content: NDArray[np.uint8], dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    return torch.from_numpy(content).view(dtype).as_strided(shape, strides)


def _tensor_at(
    memory: NDArray[np.uint8], offset: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
) -> Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    flat = torch.frombuffer(memory, dtype=dtype, count=extent, offset=offset)
    return flat.as_strided(shape, strides)


def _extent(tensor: Tensor) -> int:
    """Return how many bytes a tensor spans, gaps included."""
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
    """Raise ConfigError for a tensor that torch cannot hand to another process."""
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


def describe_full_memory(failed: str = "A batch cannot leave its worker") -> str:
    """Return the message for shared memory that is full; `failed` is a clause."""
    try:
        found = os.statvfs("/dev/shm")  # noqa: S108
        size = f", {found.f_blocks * found.f_frsize / 2**20:,.1f} MiB,"
    except OSError:
        size = ""
    return (
        f"{failed}: the machine's shared memory (/dev/shm){size} is full. Give the container more "
        f"(--shm-size=8g, or --ipc=host), take fewer workers, prefetch_batches or examples of a batch, or give the "
        f"parser a preprocess: whole batches of images need none of it."
    )
