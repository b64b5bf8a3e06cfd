"""Which epoch an iteration belongs to, shared by a training process and its loader workers."""

import os
from multiprocessing import get_context
from multiprocessing.context import get_spawning_popen
from typing import Any

from tfds_torch.plan.arguments import check_integer

_NOT_SET = -1
_NUM_REMEMBERED = 16
_FIXED, _LATEST, _NEXT_SLOT, _SLOTS = 0, 1, 2, 3  # The layout of the shared numbers; slots hold (loader seed, epoch).


class EpochCounter:
    """Counts epochs by itself, until an epoch is set by hand.

    Every iteration of a loader is an epoch. The workers of one iteration share the loader's base seed, so the first of
    them to begin advances the count and the others find the seed remembered; persistent workers keep one seed for ever
    and count their own iterations from their first epoch. Loaders that follow each other over one dataset share the
    count; where a loader with persistent workers takes turns with another one, set the epoch by hand.

    The numbers lie in shared memory and are changed under a lock, so that they also reach workers that already run.
    Thread-safe; survives fork, and travels to workers of spawn and forkserver. Copies made by `deepcopy` or `pickle`
    get a counter of their own, with the same state.
    """

    def __init__(self) -> None:
        self._numbers = _shared_numbers([_NOT_SET, _NOT_SET, 0] + [_NOT_SET] * (2 * _NUM_REMEMBERED))
        self._persistent: tuple[tuple[int, int], int] | None = None

    def set(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        Raises:
            ConfigError: epoch is no integer >= 0.
        """
        epoch = check_integer("set_epoch: epoch", epoch, 0)
        with self._numbers.get_lock():
            self._numbers[_FIXED] = epoch

    def begin(self, loader_seed: int | None) -> int:
        """Returns the epoch of an iteration that begins now.

        Args:
            loader_seed: the base seed of the loader whose worker this is; None outside of workers.
        """
        with self._numbers.get_lock():
            if self._numbers[_FIXED] != _NOT_SET:
                return int(self._numbers[_FIXED])
            if loader_seed is None:
                return self._advance()
            place = (os.getpid(), loader_seed)
            if self._persistent and self._persistent[0] == place:
                epoch = self._persistent[1] + 1
                self._numbers[_LATEST] = max(self._numbers[_LATEST], epoch)
            else:
                epoch = self._epoch_of(loader_seed)
            self._persistent = (place, epoch)
            return epoch

    def _epoch_of(self, loader_seed: int) -> int:
        for slot in range(_SLOTS, len(self._numbers), 2):
            if self._numbers[slot] == loader_seed:
                return int(self._numbers[slot + 1])
        epoch = self._advance()
        slot = _SLOTS + 2 * self._numbers[_NEXT_SLOT]
        self._numbers[slot : slot + 2] = [loader_seed, epoch]
        self._numbers[_NEXT_SLOT] = (self._numbers[_NEXT_SLOT] + 1) % _NUM_REMEMBERED
        return epoch

    def _advance(self) -> int:
        self._numbers[_LATEST] += 1
        return int(self._numbers[_LATEST])

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return {"shared": self._numbers}
        with self._numbers.get_lock():
            return {"numbers": list(self._numbers)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._numbers = state["shared"] if "shared" in state else _shared_numbers(state["numbers"])
        self._persistent = None


def _shared_numbers(values: list[int]) -> Any:
    # A lock of the spawn context can be handed to any kind of worker; one of the fork context cannot be spawned.
    return get_context("spawn").Array("q", values)
