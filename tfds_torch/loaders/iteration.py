"""LoaderIteration: one epoch of a loader, as the training loop takes it."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from tfds_torch.errors import ConfigError, WorkerError
from tfds_torch.runtime.metrics import LoaderMetrics


class LoaderIteration(Iterator[Any]):
    """Yields batches, and counts those that the training loop has got.

    Args:
        batches: what is yielded, with the number of examples in each.
        metrics: what counts.
        num_expected: batches of an exact plan; None: it is unknown.
        on_delivery: called after each batch with their number.
        on_exhausted: called when the last batch has been delivered and another one is asked for.
        on_end: called once: True where a new iteration may go on with the same processes.
    """

    def __init__(
        self,
        batches: Iterator[tuple[Any, int]],
        metrics: LoaderMetrics,
        num_expected: int | None,
        on_delivery: Callable[[int], None],
        on_exhausted: Callable[[], None],
        on_end: Callable[[bool], None],
    ) -> None:
        self._batches: Iterator[tuple[Any, int]] | None = batches
        self._metrics, self._owner = metrics, os.getpid()
        self._num_expected, self._num_delivered = num_expected, 0
        self._on_delivery, self._on_exhausted, self._on_end = on_delivery, on_exhausted, on_end
        self._is_replaced = False
        metrics.note_iteration()

    def __next__(self) -> Any:
        if self._batches is None:
            if self._is_replaced:
                raise ConfigError(
                    "This iteration ended when another one of the same loader began, or when it was closed. A loader "
                    "has one iteration at a time: make a second loader for a second one."
                )
            raise StopIteration
        if os.getpid() != self._owner:
            raise ConfigError(
                f"This iteration belongs to the process that began it (pid {self._owner}), and this one (pid "
                f"{os.getpid()}) was forked from it: it would take batches away from it. Begin another iteration "
                f"here, with iter(loader)."
            )
        asked_at = self._metrics.enter()
        try:
            batch, num_examples = next(self._batches)
        except StopIteration:
            self._metrics.add_waiting(asked_at)
            self._end(can_go_on=True)
            self._on_exhausted()
            self._check_number()
            raise
        except BaseException:
            self._metrics.add_waiting(asked_at)
            self._end(can_go_on=False)
            raise
        self._num_delivered += 1
        self._metrics.leave(asked_at, num_examples)
        self._on_delivery(self._num_delivered)
        return batch

    def _check_number(self) -> None:
        if self._num_expected is not None and self._num_delivered != self._num_expected:
            raise WorkerError(
                f"The workers ended after {self._num_delivered} batches, and {self._num_expected} were planned. A "
                f"transform or collate_fn that drops examples cannot be used with an ImageDataset."
            )

    def replace(self) -> None:
        """Ends the iteration because of another one."""
        if self._batches is not None:
            self._is_replaced = True
            self._end(can_go_on=True)

    def close(self) -> None:
        """Ends the iteration; batches that were read ahead are dropped."""
        self._end(can_go_on=True)

    def _end(self, can_go_on: bool) -> None:
        batches, self._batches = self._batches, None
        if batches is None:
            return
        self._metrics.note_iteration()
        close = getattr(batches, "close", None)
        try:
            if close is not None:
                close()
        finally:
            self._on_end(can_go_on)

    def __del__(self) -> None:
        if hasattr(self, "_is_replaced"):
            self._end(can_go_on=True)
