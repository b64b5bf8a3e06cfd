"""SendingCollate: what torch's loader calls in a worker to make a batch, measure it and pack it."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.utils.data

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.shared_slots import SharedSlots
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.torch_data.nested import count_examples, map_tensors
from tfds_torch.torch_data.tensor_codec import TensorPacking, describe_full_memory, unpack

_NO_SPACE = "No space left on device"


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
                sent, packing = self._collate(rows, worker.id), TensorPacking(self.slots)
                sent.batch = map_tensors(sent.batch, packing.refer)
                self._note_ready(sent, start)
                return _Packed(sent, packing, self.slots)
            except Exception as error:
                failure = Failure.of(error)
                if isinstance(error, RuntimeError | OSError) and _NO_SPACE in str(error):
                    message = f"{describe_full_memory()} ({failure.message})"
                    failure = Failure(WorkerError.__module__, WorkerError.__name__, message, failure.trace)
        return _Packed(Sent(failure, worker.id, 0, time.monotonic()), TensorPacking(self.slots), self.slots)

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
        sent: the batch, whose tensors are packed.
        packing: of its tensors.
        slots: of the worker; None: there are none.
    """

    def __init__(self, sent: Sent, packing: TensorPacking, slots: SharedSlots | None) -> None:
        self._parts = (*packing.finish(sent), "" if slots is None else slots.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, self._parts


def _unpack(content: bytes | tuple[int, int, int], numbers: tuple[int, ...], name: str) -> Sent:
    sent: Sent = unpack(content, name, numbers)
    sent.received_at = time.monotonic()
    return sent
