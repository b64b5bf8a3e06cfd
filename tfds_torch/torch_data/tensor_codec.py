"""Tensors on their way between processes: in shared slots, or within the message. For our own workers' pipes only."""

import io
import os
import pickle
import struct
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
from tfds_torch.torch_data.nested import map_tensors

_NO_SPACE = "No space left on device"
_ALIGNMENT = 16
_SIZE = struct.Struct("<Q")
_LONGEST_MESSAGE = 2048  # Bytes. A pipe takes that whole: a worker that is killed leaves no half of one.
_MOST_INLINE_BYTES = 1 << 16  # Of a tensor; larger ones lie in a slot.


class TensorCodec:
    """Carries batches through the pipe of a pool: tensors in slots, everything else pickled. Picklable."""

    def encode(self, message: Message, packing: SlotPacking) -> Sequence[Any]:
        """Returns the bytes of a message's item, in pieces.

        Raises:
            ConfigError: a tensor cannot leave its process.
            WorkerError: the machine's shared memory is full.
        """
        tensors, file, buffers = TensorPacking(packing, is_streamed=True), io.BytesIO(), list[pickle.PickleBuffer]()
        try:
            _Pickler(file, buffers).dump(map_tensors(message.item, tensors.refer))
        except (RuntimeError, OSError) as error:
            if _NO_SPACE not in str(error):
                raise
            raise WorkerError(f"{describe_full_memory()} ({error})") from error
        frames = [file.getbuffer(), *(buffer.raw() for buffer in buffers)]
        parts: list[Any] = [struct.pack(f"<{1 + len(frames)}Q", len(frames), *(frame.nbytes for frame in frames))]
        end = len(parts[0])
        for frame in frames:
            padding = -end % _ALIGNMENT
            parts += [bytes(padding), frame]
            end += padding + frame.nbytes
        return parts

    def decode(self, content: memoryview, slots: Mapping[int, NDArray[Any]]) -> Any:
        """Returns the item; its small arrays lie in the message."""
        (num_frames,) = _SIZE.unpack_from(content)
        sizes = struct.unpack_from(f"<{num_frames}Q", content, _SIZE.size)
        frames, end = [], _SIZE.size * (1 + num_frames)
        for size in sizes:
            start = end + -end % _ALIGNMENT
            end = start + size
            frames.append(content[start:end])
        return pickle.loads(frames[0], buffers=frames[1:])  # noqa: S301 (from our own worker, over a private pipe)


class _Pickler(ForkingPickler):
    """Pickles, but for the memory of arrays, which is listed beside.

    Args:
        file: where the pickled bytes go.
        buffers: gets the memory of arrays.
    """

    def __init__(self, file: io.BytesIO, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, 5, True, buffers.append)


class TensorPacking:
    """Finds places in a worker's slots for the tensors of a batch.

    Args:
        packing: of the batch.
        is_streamed: whether a message may be long; else a large tensor without a place is left to torch.
    """

    def __init__(self, packing: SlotPacking, is_streamed: bool = False) -> None:
        self._packing, self._is_streamed = packing, is_streamed

    def refer(self, tensor: Tensor) -> Any:
        """Returns what stands for a tensor in a message: where it lies, or a copy of it; or the tensor itself.

        Raises:
            ConfigError: it cannot leave its process.
        """
        _check_can_leave(tensor)
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        if not _is_plain(tensor):
            return tensor
        packing = self._packing
        found = packing.refer(tensor.data_ptr(), _extent(tensor)) if tensor.nbytes else None
        if found is not None:
            return _InSlot(packing, found, tensor)
        strides = torch.empty_like(tensor, device="meta").stride()  # The same, where there are no gaps.
        # A small one beside the images: a loop that keeps it does not keep them.
        is_small = tensor.nbytes <= _MOST_INLINE_BYTES
        place = None if is_small else packing.place(tensor.nbytes)
        if packing.slots is None or place is None:
            return _Inline(tensor, strides) if is_small or self._is_streamed else tensor
        slot, offset = place
        copy = _tensor_at(packing.slots.bytes_of(slot), offset, tensor.dtype, tuple(tensor.shape), strides)
        copy.copy_(tensor)
        return _InSlot(packing, place, copy)

    def finish(self, value: Any) -> tuple[bytes | tuple[int, int, int], tuple[int, ...]]:
        """Returns a value as pickled bytes, or their place in a slot: its number, offset and size; and its slots.

        The receiver holds the slots from now on.
        """
        pickled = bytes(ForkingPickler.dumps(value))
        size, slots = len(pickled), self._packing.slots
        place = self._packing.place(size) if size > _LONGEST_MESSAGE else None
        if slots is None or place is None:
            return pickled, self._packing.finish()
        slot, offset = place
        slots.bytes_of(slot)[offset : offset + size] = np.frombuffer(pickled, np.uint8)
        return (slot, offset, size), self._packing.finish()


def unpack(content: bytes | tuple[int, int, int], name: str, numbers: tuple[int, ...]) -> Any:
    """Returns the value that `TensorPacking.finish` has packed.

    Args:
        content: the pickled bytes, or their place in a slot.
        name: of the slots.
        numbers: of the slots that it lies in.
    """
    # All of them first: none is free before the whole batch is there.
    received = {slot: SharedSlots.named(name).receive(slot) for slot in numbers}
    if isinstance(content, bytes):
        return pickle.loads(content)  # noqa: S301 (from our own worker, over a private pipe)
    slot, offset, size = content
    return pickle.loads(received[slot][offset : offset + size].data)  # noqa: S301 (from our own worker)


class _InSlot:
    """A tensor that lies in a slot; arrives as a tensor."""

    def __init__(self, packing: SlotPacking, place: tuple[int, int], tensor: Tensor) -> None:
        name = "" if packing.slots is None else packing.slots.name
        self._place, self._layout = (name, *place), (tensor.dtype, tuple(tensor.shape), tensor.stride())

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
