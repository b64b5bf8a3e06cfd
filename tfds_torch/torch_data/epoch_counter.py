"""Which epoch an iteration belongs to, shared by a training process and its loader workers."""

import os
from multiprocessing import get_context, parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import check_integer

_NOT_SET = -1
_NUM_REMEMBERED, _NUM_OWNERS = 16, 128
_OWNER, _FIXED, _LATEST, _NEXT_SLOT, _SLOTS = 0, 1, 2, 3, 4  # A row of numbers; slots hold (loader seed, epoch).
_NO_SEEDS = [0] + [_NOT_SET] * (2 * _NUM_REMEMBERED)
_ROW = _NEXT_SLOT + len(_NO_SEEDS)


class EpochCounter:
    """Counts epochs by itself, until an epoch is set by hand.

    Every iteration of a loader is an epoch. The workers of one iteration share the loader's base seed, so the first of
    them to begin advances the count and the others find the seed remembered; persistent workers keep one seed for ever
    and count their own iterations from their first epoch. Loaders that follow each other over one dataset share the
    count; where a loader with persistent workers takes turns with another one, set the epoch by hand.

    The numbers lie in shared memory and are changed under a lock, so that they also reach workers that already run.
    Each training process has a row of its own: ranks that were forked or spawned with one dataset, as by
    `torch.multiprocessing.spawn`, count alike, from where the process that built it was.
    Thread-safe; survives fork, and travels to workers of spawn and forkserver. Copies made by `deepcopy` or `pickle`
    get a counter of their own, with the same state.
    """

    def __init__(self) -> None:
        self._numbers = _shared_rows([_NOT_SET, _NOT_SET, *_NO_SEEDS])
        self._persistent: tuple[tuple[int, int], int] | None = None

    def set(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        Raises:
            ConfigError: epoch is no integer >= 0.
        """
        epoch = check_integer("set_epoch: epoch", epoch, 0)
        with self._numbers.get_lock():
            self._numbers[self._row_of(os.getpid()) + _FIXED] = epoch

    def begin(self, loader_seed: int | None) -> int:
        """Returns the epoch of an iteration that begins now.

        Args:
            loader_seed: the base seed of the loader whose worker this is; None outside of workers.
        """
        parent = parent_process()
        owner = os.getpid() if loader_seed is None or parent is None or parent.pid is None else parent.pid
        with self._numbers.get_lock():
            row = self._row_of(owner)
            if self._numbers[row + _FIXED] != _NOT_SET:
                return int(self._numbers[row + _FIXED])
            if loader_seed is None:
                return self._advance(row)
            place = (os.getpid(), loader_seed)
            if self._persistent and self._persistent[0] == place:
                epoch = self._persistent[1] + 1
                self._numbers[row + _LATEST] = max(self._numbers[row + _LATEST], epoch)
            else:
                epoch = self._epoch_of(row, loader_seed)
            self._persistent = (place, epoch)
            return epoch

    def _row_of(self, owner: int) -> int:
        """Returns where the row of a training process begins; a new one continues the count of the first row."""
        rows = range(0, len(self._numbers), _ROW)
        for row in rows:
            if self._numbers[row + _OWNER] == owner:
                return row
        free = next((row for row in rows if not _is_alive(self._numbers[row + _OWNER])), None)
        if free is None:
            raise ConfigError(
                f"More than {_NUM_OWNERS} training processes of this machine share one ImageDataset. Build the dataset "
                f"in each of them."
            )
        self._numbers[free : free + _ROW] = [owner, self._numbers[_FIXED], self._numbers[_LATEST], *_NO_SEEDS]
        return free

    def _epoch_of(self, row: int, loader_seed: int) -> int:
        for slot in range(row + _SLOTS, row + _ROW, 2):
            if self._numbers[slot] == loader_seed:
                return int(self._numbers[slot + 1])
        epoch = self._advance(row)
        slot = row + _SLOTS + 2 * self._numbers[row + _NEXT_SLOT]
        self._numbers[slot : slot + 2] = [loader_seed, epoch]
        self._numbers[row + _NEXT_SLOT] = (self._numbers[row + _NEXT_SLOT] + 1) % _NUM_REMEMBERED
        return epoch

    def _advance(self, row: int) -> int:
        self._numbers[row + _LATEST] += 1
        return int(self._numbers[row + _LATEST])

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return {"shared": self._numbers}
        with self._numbers.get_lock():
            row = self._row_of(os.getpid())
            return {"numbers": list(self._numbers[row + _FIXED : row + _ROW])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._numbers = state["shared"] if "shared" in state else _shared_rows(state["numbers"])
        self._persistent = None


def _is_alive(pid: int) -> bool:
    if pid == _NOT_SET:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It may not be sent signals.
        pass
    return True


def _shared_rows(values: list[int]) -> Any:
    """Returns shared rows, of which the first belongs to this process and holds the values."""
    # A lock of the spawn context can be handed to any kind of worker; one of the fork context cannot be spawned.
    first = [os.getpid(), *values]
    return get_context("spawn").Array("q", first + [_NOT_SET] * (len(first) * (_NUM_OWNERS - 1)))
