"""The metrics that a loader's processes report to: how long each stage took, and what each of them is reading."""

import os
import threading
from multiprocessing import get_context
from multiprocessing.context import get_spawning_popen
from typing import Any

from tfds_torch.errors import ConfigError

STAGES = ("read", "decode", "transform", "fetch", "collate", "hand_over", "device_copy", "waiting", "consumer")
"""What time is spent on: `fetch` is all that a dataset does, `read`, `decode` and `transform` what it tells of that."""

_PID, _NUM_BEGUN, _READING, _IS_DONE, _BATCHES, _EXAMPLES, _REPLACED, _STARTED = range(8)
_STAGE_COLUMNS = {stage: number for number, stage in enumerate(STAGES, _STARTED + 1)}
_ROW = _STARTED + 1 + len(STAGES)


class StageMetrics:
    """Sums of seconds and counts, in memory that a training process shares with its workers.

    Every process has a row of its own: workers 0 to num_workers - 1, and the training process after them. Any thread of
    a process may report. They are inherited by forked workers and travel to spawned ones; other copies begin anew.

    Args:
        num_workers: of the loader, 0 for none.
    """

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        # Of the spawn context: it can be handed to any kind of worker.
        self._numbers: Any = get_context("spawn").RawArray("d", _ROW * (num_workers + 1))
        self.bind(num_workers)

    def bind(self, worker: int) -> None:
        """Lets this process report as a worker; as the training process with `num_workers`."""
        self._row = worker * _ROW
        self._lock = threading.Lock()  # Not the parent's, which may have been held when this process was forked.
        self._numbers[self._row + _PID] = os.getpid()

    def add(self, stage: str, seconds: float) -> None:
        """Adds the time that a stage took.

        Args:
            stage: one of `STAGES`.
            seconds: how long.

        Raises:
            ConfigError: there is no such stage.
        """
        column = _STAGE_COLUMNS.get(stage)
        if column is None:
            raise ConfigError(f"There is no stage {stage!r}: the stages are {', '.join(STAGES)}.")
        self._add(self._row + column, seconds)

    def add_hand_over(self, worker: int, seconds: float) -> None:
        """Adds the time that a worker's batch was on its way; the training process alone reports it."""
        self._add(worker * _ROW + _STAGE_COLUMNS["hand_over"], seconds)

    def add_batch(self, num_examples: int) -> None:
        """Counts a batch that this process has made."""
        self._add(self._row + _BATCHES, 1)
        self._add(self._row + _EXAMPLES, num_examples)
        self.note_started()

    def note_reading(self, index: int) -> None:
        """Notes the example whose reading has just begun."""
        self._numbers[self._row + _READING] = index + 1

    def note_started(self) -> None:
        """Notes that this process has made its first batch, or will make none."""
        self._numbers[self._row + _STARTED] = 1

    def has_started(self, worker: int) -> bool:
        """Returns whether a worker has made its first batch, or will make none."""
        return bool(self._numbers[worker * _ROW + _STARTED])

    def note_replaced(self) -> None:
        """Counts a damaged example whose place another one took."""
        self._add(self._row + _REPLACED, 1)

    def num_replaced(self, worker: int) -> int:
        """Returns how many damaged examples of a worker others took the place of."""
        return int(self._numbers[worker * _ROW + _REPLACED])

    def note_begun(self) -> None:
        """Notes that an iteration has begun in this process."""
        self._numbers[self._row + _IS_DONE] = 0
        self._add(self._row + _NUM_BEGUN, 1)

    def note_done(self) -> None:
        """Notes that this process has read all of its part of an iteration."""
        self._numbers[self._row + _IS_DONE] = 1

    def is_done(self, worker: int) -> bool:
        """Returns whether a worker has read all of its part of the iteration."""
        return bool(self._numbers[worker * _ROW + _IS_DONE])

    def pid(self, worker: int) -> int | None:
        """Returns the process of a worker, None before it has reported."""
        return int(self._numbers[worker * _ROW + _PID]) or None

    def num_begun(self, worker: int) -> int:
        """Returns how many iterations a worker has begun."""
        return int(self._numbers[worker * _ROW + _NUM_BEGUN])

    def reading(self, worker: int) -> int | None:
        """Returns the index of the example that a worker read last, or is reading; None: it told of none."""
        noted = int(self._numbers[worker * _ROW + _READING])
        return noted - 1 if noted else None

    def counts(self, worker: int) -> tuple[int, int]:
        """Returns how many batches and examples a worker has made."""
        row = worker * _ROW
        return int(self._numbers[row + _BATCHES]), int(self._numbers[row + _EXAMPLES])

    def seconds(self, worker: int) -> dict[str, float]:
        """Returns stage -> seconds of a worker, of the training process with `num_workers`."""
        return {stage: float(self._numbers[worker * _ROW + column]) for stage, column in _STAGE_COLUMNS.items()}

    def _add(self, place: int, amount: float) -> None:
        with self._lock:
            self._numbers[place] += amount

    def __getstate__(self) -> dict[str, Any]:
        numbers = self._numbers if get_spawning_popen() is not None else None
        return {"num_workers": self.num_workers, "_numbers": numbers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["_numbers"] is None:
            self.__init__(state["num_workers"])  # type: ignore[misc]
            return
        self.__dict__.update(state)
        self._row, self._lock = self.num_workers * _ROW, threading.Lock()  # Until it is bound.
