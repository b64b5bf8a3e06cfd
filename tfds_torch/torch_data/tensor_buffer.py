"""TensorBuffer: the images of a batch in a tensor, resized by torch, in memory that is used over and over."""

import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data
from numpy.typing import NDArray
from torch import Tensor

from tfds_torch.images.batch_buffer import resize_with_pillow
from tfds_torch.images.decoding import Pixels
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.storage.stored_pixels import gather_with_numpy

_PAUSE = 16  # Calls of one thread for each whose time threads have lost: a sixteenth is lost at most.
_LARGEST_SERIAL = 30_000  # Elements. Of more, torch makes several threads' work, and they would wait for each other.

# What `interpolate(..., antialias=True)` calls: it has no `out`.
_RESIZE_BILINEAR = torch.ops.aten._upsample_bilinear2d_aa.out
_RESIZE_BICUBIC = torch.ops.aten._upsample_bicubic2d_aa.out


class TensorBuffer:
    """A batch buffer whose memory is a tensor, uint8 [B, H, W, C].

    torch's resize of uint8 is Pillow's with the processor's vector instructions: three to four times as fast on one
    core. Its pixels differ by a grey level at most (bilinear).
    """

    def __init__(self, memory: Tensor) -> None:
        self._images = memory.permute(0, 3, 1, 2)
        self.pixels: Pixels = memory.numpy()

    @property
    def images(self) -> Tensor:
        """The images, uint8 [B, C, H, W] in channels_last memory, without a copy."""
        return self._images

    def channels_first(self, num_images: int | None) -> Tensor:  # noqa: D102
        return self._images if num_images is None else self._images.view(-1, num_images, *self._images.shape[1:])

    def part(self, start: int, stop: int, shape: tuple[int, int, int, int]) -> "TensorBuffer":  # noqa: D102
        with torch.inference_mode(False):
            return TensorBuffer(self._images.permute(0, 2, 3, 1).reshape(-1)[start:stop].view(shape))

    def gather(self, memory: Pixels, starts: NDArray[np.int64], out: Pixels) -> None:
        """Copy pieces of one length out of memory, with torch's threads where that is faster; see `BatchBuffer`."""
        if torch.get_num_threads() == 1:
            _gather_with_torch(memory, starts, out)
            return
        began_s, with_threads = time.perf_counter(), _threads.are_wanted
        (_gather_with_torch if with_threads else gather_with_numpy)(memory, starts, out)
        _threads.note((time.perf_counter() - began_s) / max(1, out.size), with_threads=with_threads)

    def resize(  # noqa: D102
        self,
        pixels: Pixels,
        size: tuple[int, int],
        steps: tuple[float, float],
        *,
        bicubic: bool,
        columns_first: bool = False,
    ) -> Pixels:
        if not _is_fast(pixels, size, steps):
            return resize_with_pillow(pixels, size, steps, bicubic=bicubic, columns_first=columns_first)
        result = torch.empty((1, *size, 3), dtype=torch.uint8, device="cpu")
        _resize(pixels, result.permute(0, 3, 1, 2), steps, bicubic, columns_first)
        return result[0].numpy()

    def fill_row(  # noqa: D102
        self,
        row: int,
        pixels: Pixels,
        steps: tuple[float, float],
        *,
        bicubic: bool,
        flip: bool,
        columns_first: bool = False,
    ) -> None:
        size = (self.pixels.shape[1], self.pixels.shape[2])
        if not _is_fast(pixels, size, steps):
            resized = resize_with_pillow(pixels, size, steps, bicubic=bicubic, columns_first=columns_first)
            self.pixels[row] = resized[:, ::-1] if flip else resized
        elif flip:
            scratch = _scratch(self._images)
            _resize(pixels, scratch, steps, bicubic, columns_first)
            _mirror(scratch, self.pixels[row])
        else:
            _resize(pixels, self._images[row : row + 1], steps, bicubic, columns_first)


class GatherThreads:
    """Whether torch's threads gather faster than one thread of numpy does, by how long both took.

    torch's threads spin until the last one of them has finished. Where other processes occupy the cores, that took a
    hundred times as long as one thread; else half as long. The time that threads save pays for a slow call now and
    then; when it is spent, the threads pause.
    """

    def __init__(self) -> None:
        self._one_s = 0.0  # Of one thread, for a byte, smoothed.
        self._saved_s = 0.0  # By threads, for a byte.
        self._num_waits = _PAUSE

    @property
    def are_wanted(self) -> bool:
        """Whether the next call is theirs."""
        return not self._num_waits

    def note(self, seconds: float, *, with_threads: bool) -> None:
        """Note how long a call took, seconds for a byte; the more threads have lost, the longer they pause."""
        if not with_threads:
            self._one_s = 0.75 * self._one_s + 0.25 * seconds if self._one_s else seconds
            self._num_waits = max(0, self._num_waits - 1)
            return
        self._saved_s = min(self._saved_s + self._one_s - seconds, _PAUSE * self._one_s)
        if self._saved_s < 0:
            self._num_waits = math.ceil(_PAUSE * -self._saved_s / self._one_s) if self._one_s else _PAUSE
            self._saved_s = 0.0


_threads = GatherThreads()
_has_used_threads = False


def _gather_with_torch(memory: Pixels, starts: NDArray[np.int64], out: Pixels) -> None:
    global _has_used_threads
    _has_used_threads |= torch.get_num_threads() > 1
    length = out.shape[1]
    if length > _LARGEST_SERIAL:  # torch would copy these one after the other.
        parts = next((one for one in range(2, 256) if not length % one and length // one <= _LARGEST_SERIAL), 1)
        length //= parts
        starts, out = (starts[:, None] + np.arange(parts) * length).reshape(-1), out.reshape(-1, length)
    windows = torch.from_numpy(np.asarray(_Windows(memory, length)))
    torch.index_select(windows, 0, torch.from_numpy(starts), out=torch.from_numpy(out))


class _Windows:
    """Every piece of a length in memory, uint8 [m - length + 1, length], as an array that can be written.

    Nothing writes to it, but torch warns of read-only memory, like that of a mapped file.
    """

    def __init__(self, memory: Pixels, length: int) -> None:
        self._memory = memory  # It must live as long.
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (memory.__array_interface__["data"][0], False),
            "shape": (len(memory) - length + 1, length),
            "strides": (1, 1),
        }


def _keep_to_one_thread() -> None:
    """Let torch use one thread in a forked process, which has none of torch's other threads."""
    if _has_used_threads:
        torch.set_num_threads(1)


os.register_at_fork(after_in_child=_keep_to_one_thread)


class TensorBuffers:
    """Makes buffers in memory that is used over and over; in a loader's worker, in memory that processes share.

    Without a Loader's slots, another loader's worker gets fresh shared memory.
    """

    def __init__(self, slots: SharedSlots | None = None) -> None:
        self._slots = slots

    def __call__(self, shape: tuple[int, int, int, int]) -> TensorBuffer:
        """Return a buffer of [B, H, W, C]."""
        if torch.utils.data.get_worker_info() is None:
            return make_own_buffer(shape)
        with torch.inference_mode(False):  # As of a process's own buffer.
            slot = None if self._slots is None else self._slots.take(math.prod(shape))
            return TensorBuffer(_empty_shared(shape) if slot is None else torch.from_numpy(slot.reshape(shape)))

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorBuffers, ()  # Memory is shared by inheritance only.


def make_own_buffer(shape: tuple[int, int, int, int]) -> TensorBuffer:
    """Return a buffer of [B, H, W, C] in this process's own memory, which is used over and over."""
    # Threads write into it that know nothing of the caller's `torch.inference_mode()`.
    with torch.inference_mode(False):
        return TensorBuffer(torch.from_numpy(_own_memory.take(shape)))


class ReusedMemory:
    """Memory that one process keeps for its own batches. Thread-safe.

    A batch of 128 photographs takes 19 MB. Fresh memory of that size comes from the system page by page, which took a
    sixth of a worker's time, and is given back at once. Here memory is used again as soon as nothing refers to it:
    tensors, arrays or views. `most_kept` unused blocks are kept, and more up to `kept_bytes` in all.
    """

    def __init__(self, most_kept: int = 4, kept_bytes: int = 1 << 24) -> None:
        self._most_kept, self._kept_bytes = most_kept, kept_bytes
        # No lock: garbage collection may give memory back at any moment, also within `take` in the same thread.
        self._blocks: list[NDArray[np.uint8]] = []

    def take(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """Return memory of any content, uint8, contiguous."""
        num_bytes = math.prod(shape)
        block = self._pop(num_bytes)
        if block is None:
            block = np.empty(num_bytes, np.uint8)
        # A new object over the same memory: it lives as long as any view of it.
        array = np.frombuffer(block.data, np.uint8)
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def _pop(self, num_bytes: int) -> NDArray[np.uint8] | None:
        """Return a kept block of this size, None where there is none. Each step is atomic."""
        others: list[NDArray[np.uint8]] = []
        found: NDArray[np.uint8] | None = None
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

    def _give_back(self, block: NDArray[np.uint8]) -> None:
        kept = list(self._blocks)
        if len(kept) < self._most_kept or sum(one.size for one in kept) + block.size <= self._kept_bytes:
            self._blocks.append(block)


_own_memory = ReusedMemory()


def _is_fast(pixels: Pixels, size: Sequence[int], steps: Sequence[float]) -> bool:
    """Return whether torch resizes an image fast, and as Pillow does."""
    # With an opacity, Pillow also weighs the colours by it. Along a side that keeps its length torch 2.13 copies,
    # whatever the step.
    is_copied = any(now == then and step != 1 for now, then, step in zip(pixels.shape, size, steps, strict=False))
    return pixels.shape[-1] == 3 and not is_copied


def _resize(pixels: Pixels, out: Tensor, steps: tuple[float, float], bicubic: bool, columns_first: bool) -> None:
    """Resize uint8 [h, w, 3] to uint8 [1, 3, H, W] in channels_last memory."""
    if bicubic and columns_first and steps[0] != 1:  # torch resizes rows first.
        height = out.shape[2]
        columns = torch.empty((1, height, pixels.shape[1], 3), dtype=torch.uint8, device="cpu")
        _resize(pixels, columns.permute(0, 3, 1, 2), (steps[0], 1.0), bicubic, False)
        pixels, steps = columns[0].numpy(), (1.0, steps[1])
    # torch copies a window itself if it must, in several threads, for which this one then waits.
    # Pixels of a PIL image, or of a user's array, may be read-only, of which torch warns.
    image = torch.from_numpy(np.require(pixels, requirements=("C", "W"))).permute(2, 0, 1).unsqueeze(0)
    resize = _RESIZE_BICUBIC if bicubic else _RESIZE_BILINEAR
    resize(image, list(out.shape[2:]), False, 1 / steps[0], 1 / steps[1], out=out)


def _mirror(image: Tensor, out: Pixels) -> None:
    """Write the mirror image of uint8 [1, 3, H, W] into uint8 [H, W, 3]."""
    height, width = out.shape[:2]
    lines = height if torch.get_num_threads() == 1 else max(1, _LARGEST_SERIAL // (3 * width))
    for top in range(0, height, lines):
        mirrored = image[:, :, top : top + lines].flip(3)
        out[top : top + lines] = mirrored.permute(0, 2, 3, 1)[0].numpy()


_of_thread = threading.local()


def _scratch(images: Tensor) -> Tensor:
    """Return memory of this thread for one image like those of [B, C, H, W]."""
    scratch: Tensor | None = getattr(_of_thread, "scratch", None)
    if scratch is None or scratch.shape[1:] != images.shape[1:]:
        with torch.inference_mode(False):
            scratch = _of_thread.scratch = torch.empty_like(images[:1])
    return scratch


def _empty_shared(shape: tuple[int, ...]) -> Tensor:
    # As torch's own collation does it in a worker: it then sends a file descriptor.
    storage = torch.UntypedStorage._new_shared(torch.Size(shape).numel())  # type: ignore[no-untyped-call]
    return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).view(shape)
