"""How a batch leaves the process that made it, and what is measured of that."""

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.utils.data
from torch import Tensor

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.runtime.shared_slots import SharedMemory
from tfds_torch.torch_data.nested import map_tensors, tensors

_NO_SPACE = "No space left on device"
_MOST_INLINE_BYTES = 1 << 16
_NUMPY_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float32,
    torch.float64,
)


@dataclass(slots=True)
class Sent:
    """A batch, and how it came.

    Attributes:
        batch: it, or what failed.
        worker: that made it; None: this process.
        num_examples: in it.
        sent_at: when it was ready, by the machine's metrics.
        received_at: when it was here.
    """

    batch: Any
    worker: int | None
    num_examples: int
    sent_at: float
    received_at: float = 0.0


class _Packed:
    """A batch of a worker, pickled where an error can still be told; torch's queue would drop it with a message."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, (self.content,)


def _unpack(content: bytes) -> Sent:
    sent: Sent = pickle.loads(content)  # noqa: S301 (from our own worker, over a private pipe)
    sent.received_at = time.monotonic()
    return sent


class _Inline:
    """A small tensor on its way: beside the batch, not in shared memory and a file descriptor of its own."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.from_numpy, (self.tensor.numpy(),)


def _inline(tensor: Tensor) -> Any:
    is_plain = tensor.dtype in _NUMPY_DTYPES and tensor.device.type == "cpu" and not tensor.requires_grad
    return _Inline(tensor) if is_plain and tensor.nbytes <= _MOST_INLINE_BYTES else tensor


class SendingCollate:
    """Collates, measures, and packs a worker's batches; the `collate_fn` of torch's loader. Picklable.

    Args:
        collate: the user's, or torch's.
        is_batching: whether it gets lists of examples; else the dataset's items.
        metrics: what is reported to.
        memory: in which images may lie that need not be sent; None: there is none.
    """

    def __init__(
        self,
        collate: Callable[[Any], Any],
        is_batching: bool,
        metrics: StageMetrics,
        memory: SharedMemory | None,
    ) -> None:
        self.collate, self.is_batching, self.metrics, self.memory = collate, is_batching, metrics, memory

    def __call__(self, rows: Any) -> Any:
        """Returns what torch's loader hands on: a `Sent` batch, packed in a worker."""
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return self._collate(rows, None)
        failure = rows[-1] if self.is_batching and isinstance(rows, list) and rows else rows
        if not isinstance(failure, Failure):
            try:
                sent = self._collate(rows, worker.id)
                if self.memory is not None:
                    sent.batch = self.memory.refer(sent.batch)
                sent.batch = map_tensors(sent.batch, _inline)
                return _Packed(bytes(ForkingPickler.dumps(sent)))
            except Exception as error:
                failure = Failure.of(error)
                if isinstance(error, RuntimeError | OSError) and _NO_SPACE in str(error):
                    message = f"{describe_full_memory()} ({failure.message})"
                    failure = Failure(WorkerError.__module__, WorkerError.__name__, message, failure.trace)
        return _Packed(bytes(ForkingPickler.dumps(Sent(failure, worker.id, 0, time.monotonic()))))

    def _collate(self, rows: Any, worker: int | None) -> Sent:
        start = time.monotonic()
        try:
            batch = self.collate(rows)
        except StopIteration as error:  # It would pass for the end of the epoch.
            raise WorkerError(f"The collate_fn {self.collate!r} raised StopIteration.") from error
        num_examples = len(rows) if self.is_batching else count_examples(batch)
        end = time.monotonic()
        self.metrics.add("collate", end - start)
        self.metrics.add_batch(num_examples)
        return Sent(batch, worker, num_examples, end, end)


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
    sizes = [len(tensor) for tensor in tensors(batch) if tensor.ndim]
    if not sizes and isinstance(batch, tuple | list):
        sizes = [len(entry) for entry in batch if isinstance(entry, list)]
    return sizes[0] if sizes else 1
