"""Which epoch an iteration belongs to and where it begins, shared by a training process and its loader workers."""

import os
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.arguments import check_integer

_NOT_SET = -1
_NUM_REMEMBERED, _NUM_OWNERS = 16, 128
_MOST_EPOCHS = 2**62
_NUM_ARRIVED_WORDS, _WORD_BITS = 8, 62  # Workers beyond these begin when the others do.
_SLOT = 2 + _NUM_ARRIVED_WORDS
_NO_SEEDS = [0] + ([_NOT_SET] * 2 + [0] * _NUM_ARRIVED_WORDS) * _NUM_REMEMBERED

# A row of numbers.
_OWNER = 0  # The training process.
_FIXED = 1  # The epoch that was set by hand.
_LATEST = 2  # The latest epoch that was counted.
_RESUMED_EPOCH, _RESUMED_BATCH, _RESUMED_WORKERS = 3, 4, 5  # Where a loaded state goes on, and its number of workers.
_IS_BOUND = 6  # Whether only as many workers can go on there.
_RESUMED_SEED, _NUM_RESUMED = 7, 8  # The loader that went on there, and how often a state was loaded.
_EPOCH, _START_BATCH, _NUM_WORKERS, _NUM_PRODUCED = 9, 10, 11, 12  # The latest iteration, since any of these was set.
_COUNTED_ELSEWHERE = 13  # Whether its loader knows itself what is delivered.
_NEXT_SLOT, _SLOTS = 14, 15  # Slots hold a loader's seed, its epoch, and which workers have begun it.
_ROW = _NEXT_SLOT + len(_NO_SEEDS)


@dataclass(frozen=True)
class Progress:
    """How far a training process is.

    Attributes:
        epoch: of the latest iteration; of the next one where none began since the epoch was set or a state was loaded.
        start_batch: the rank's batch at which that iteration begins.
        num_workers: loader workers that read it, 0 for none; None: it did not begin yet.
        num_produced: the rank's batches of the epoch before this number have been read, are being read, or come before
            start_batch.
        is_counted_elsewhere: whether the loader itself knows where it began and what is delivered.
        is_resumed: whether the next iteration goes on where a loaded state was taken, and none began since.
        resumed_workers: loader workers of that state; None: it does not say how many.
    """

    epoch: int
    start_batch: int
    num_workers: int | None
    num_produced: int
    is_counted_elsewhere: bool = False
    is_resumed: bool = False
    resumed_workers: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether an iteration has begun since the epoch was set or a state was loaded."""
        return self.num_workers is not None

    @property
    def start(self) -> tuple[int, int]:
        """Epoch and first batch."""
        return self.epoch, self.start_batch

    @property
    def facts(self) -> dict[str, object]:
        """What must be equal on every rank."""
        return {"epoch": self.epoch, "start_batch": self.start_batch}


class SharedProgress:
    """Counts epochs by itself until an epoch is set by hand, and knows where a loaded state goes on.

    Every iteration of a loader is an epoch. The workers of one iteration share the loader's base seed, so the first of
    them to begin advances the count and the others find the seed remembered. Each worker begins an iteration once: one
    that begins a second time under the same seed begins the next epoch, as where `torch.manual_seed` lets loaders draw
    equal seeds. Persistent workers keep one seed for ever and count their own iterations from their first epoch.
    Loaders that follow each other over one dataset share the count; where a loader with persistent workers takes turns
    with another one, set the epoch by hand.

    The numbers lie in shared memory and are changed under a lock, so that they also reach workers that already run.
    Each training process has a row of its own: ranks that were forked or spawned with one dataset, as by
    `torch.multiprocessing.spawn`, count alike, from where the process that built it was.
    Thread-safe; survives fork, and travels to workers of spawn and forkserver. Copies made by `deepcopy` or `pickle`
    get numbers of their own, with the same values.
    """

    _persistent: tuple[tuple[int, int, int], int] | None
    _num_taken: int
    _owner_of_iteration: int

    def __init__(self) -> None:
        self._numbers = _shared_rows([_NOT_SET] * (_NEXT_SLOT - 1) + _NO_SEEDS)
        self._forget_process()

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        Raises:
            ConfigError: epoch is not an integer in 0..2**62.
        """
        epoch = check_integer("set_epoch: epoch", epoch, 0)
        if epoch > _MOST_EPOCHS:
            raise ConfigError(f"set_epoch: epoch={epoch} must be in 0..{_MOST_EPOCHS}.")
        with self._numbers.get_lock():
            row = self._row_of(os.getpid())
            self._numbers[row + _FIXED] = epoch
            if self._numbers[row + _EPOCH] != _NOT_SET:  # An iteration has gone on from the loaded state.
                self._numbers[row + _RESUMED_EPOCH] = _NOT_SET
            self._numbers[row + _EPOCH] = _NOT_SET

    def resume(self, epoch: int, start_batch: int, num_workers: int | None = None, *, is_bound: bool = False) -> None:
        """Lets the next iteration be that of an epoch, from a batch on, and the count go on from there.

        Should another epoch be set by hand, that one begins at its first batch.

        Args:
            epoch: which epoch.
            start_batch: the rank's batch at which to begin.
            num_workers: workers of the loader whose state it is, 1 also for none; None: unknown.
            is_bound: whether only as many workers can go on; of no effect where they are unknown.
        """
        with self._numbers.get_lock():
            row = self._row_of(os.getpid())
            self._numbers[row + _FIXED] = _NOT_SET
            self._numbers[row + _LATEST] = epoch - 1
            workers = _NOT_SET if num_workers is None else num_workers
            resumed = [epoch, start_batch, workers, is_bound and num_workers is not None, _NOT_SET]
            self._numbers[row + _RESUMED_EPOCH : row + _NUM_RESUMED] = resumed
            self._numbers[row + _NUM_RESUMED] += 1  # Persistent workers count on from here.
            self._numbers[row + _EPOCH] = _NOT_SET
            self._numbers[row + _NEXT_SLOT : row + _ROW] = _NO_SEEDS

    def begin(
        self, loader_seed: int | None, num_workers: int, worker: int = 0, *, is_counted_elsewhere: bool = False
    ) -> tuple[int, int]:
        """Returns epoch and first batch of an iteration that begins now.

        Args:
            loader_seed: the base seed of the loader whose worker this is; None outside of workers.
            num_workers: workers of the loader; 0 outside of workers.
            worker: which of them this is.
            is_counted_elsewhere: whether the loader itself knows what is delivered.

        Raises:
            StateMismatchError: a loaded state goes on with another number of workers only.
        """
        self._owner_of_iteration = _owner(loader_seed)
        with self._numbers.get_lock():
            row = self._row_of(self._owner_of_iteration)
            self._check_workers(row, num_workers)
            self._end_resume(row, loader_seed, worker)
            if self._numbers[row + _FIXED] != _NOT_SET:
                epoch = int(self._numbers[row + _FIXED])
                if loader_seed is not None:
                    self._remember(row, loader_seed, epoch, worker)
            elif loader_seed is None:
                epoch = self._advance(row)
            else:
                place = (os.getpid(), loader_seed, self._numbers[row + _NUM_RESUMED])
                if self._persistent and self._persistent[0] == place:
                    epoch = self._persistent[1] + 1
                    self._numbers[row + _LATEST] = max(self._numbers[row + _LATEST], epoch)
                else:
                    epoch = self._epoch_of(row, loader_seed, worker)
                self._persistent = (place, epoch)
            start_batch = self._take_start(row, epoch, loader_seed, num_workers)
            self._note_begin(row, epoch, start_batch, num_workers, is_counted_elsewhere)
            return epoch, start_batch

    def begin_at(
        self, loader_seed: int | None, num_workers: int, epoch: int, start_batch: int, worker: int = 0
    ) -> None:
        """Notes an iteration whose epoch and first batch come from a loader's own state.

        The count goes on from there, in this process and for the loader's other workers.
        """
        self._owner_of_iteration = _owner(loader_seed)
        with self._numbers.get_lock():
            row = self._row_of(self._owner_of_iteration)
            self._numbers[row + _LATEST] = epoch
            if loader_seed is not None:
                self._persistent = ((os.getpid(), loader_seed, self._numbers[row + _NUM_RESUMED]), epoch)
                self._remember(row, loader_seed, epoch, worker)
            self._note_begin(row, epoch, start_batch, num_workers, is_counted_elsewhere=True)

    def fixed_epoch(self, loader_seed: int | None) -> int | None:
        """Returns the epoch that was set by hand, if one was.

        Args:
            loader_seed: the base seed of the loader whose worker this is; None outside of workers.
        """
        with self._numbers.get_lock():
            fixed = int(self._numbers[self._row_of(_owner(loader_seed)) + _FIXED])
        return None if fixed == _NOT_SET else fixed

    def note_produced(self, num_batches: int) -> None:
        """Notes that the rank's batches before a number have been read, or are being read."""
        with self._numbers.get_lock():
            at = self._row_of(self._owner_of_iteration) + _NUM_PRODUCED
            self._numbers[at] = max(self._numbers[at], num_batches)

    def current(self) -> Progress:
        """Returns how far this training process is."""
        with self._numbers.get_lock():
            row = self._row_of(os.getpid())
            epoch, start_batch, num_workers, num_produced, is_elsewhere = self._numbers[row + _EPOCH : row + _NEXT_SLOT]
            if epoch != _NOT_SET:
                return Progress(epoch, start_batch, num_workers, num_produced, bool(is_elsewhere))
            fixed = self._numbers[row + _FIXED]
            epoch = self._numbers[row + _LATEST] + 1 if fixed == _NOT_SET else fixed
            if epoch != self._numbers[row + _RESUMED_EPOCH]:
                return Progress(epoch, 0, None, 0)
            resumed, workers = self._numbers[row + _RESUMED_BATCH], self._numbers[row + _RESUMED_WORKERS]
            num_workers = None if workers == _NOT_SET else workers
            return Progress(epoch, resumed, None, resumed, is_resumed=True, resumed_workers=num_workers)

    def _check_workers(self, row: int, num_workers: int) -> None:
        """Refuses the next iteration, before anything is counted, where a loaded state waits for other workers."""
        epoch, _, asked, is_bound, taken_by = self._numbers[row + _RESUMED_EPOCH : row + _NUM_RESUMED]
        waits = epoch != _NOT_SET and taken_by == _NOT_SET and self._numbers[row + _FIXED] in (_NOT_SET, epoch)
        if waits and is_bound and asked != max(1, num_workers):
            raise StateMismatchError(
                f"num_workers: {asked} in the state, {num_workers or 'none, which counts as 1,'} here. A stream goes "
                f"on in the same world only: use num_workers={asked}. Read mode 'index' would go on with any number."
            )

    def _take_start(self, row: int, epoch: int, loader_seed: int | None, num_workers: int) -> int:
        """Returns the batch at which an iteration begins: once, for all workers of a loader, that of a loaded state."""
        if epoch != self._numbers[row + _RESUMED_EPOCH]:
            return 0
        times, taken_by = self._numbers[row + _NUM_RESUMED], self._numbers[row + _RESUMED_SEED]
        if self._num_taken == times or taken_by not in (_NOT_SET, loader_seed):
            return 0
        self._num_taken = times
        if loader_seed is None:
            self._numbers[row + _RESUMED_EPOCH] = _NOT_SET
        else:
            self._numbers[row + _RESUMED_SEED] = loader_seed
        return int(self._numbers[row + _RESUMED_BATCH])

    def _end_resume(self, row: int, loader_seed: int | None, worker: int) -> None:
        """Lets nobody go on from a loaded state any more where a worker begins again under the seed that did."""
        if loader_seed is None or self._numbers[row + _RESUMED_SEED] != loader_seed:
            return
        slot = self._slot_of(row, loader_seed)
        if slot is not None and self._has_begun(slot, worker):
            self._numbers[row + _RESUMED_EPOCH] = _NOT_SET

    def _note_begin(self, row: int, epoch: int, start_batch: int, num_workers: int, is_counted_elsewhere: bool) -> None:
        if [epoch, start_batch] != self._numbers[row + _EPOCH : row + _NUM_WORKERS]:  # Not the first worker's word.
            self._numbers[row + _NUM_PRODUCED] = start_batch
        self._numbers[row + _EPOCH : row + _NUM_PRODUCED] = [epoch, start_batch, num_workers]
        self._numbers[row + _COUNTED_ELSEWHERE] = is_counted_elsewhere

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
        of_first = self._numbers[_FIXED:_EPOCH]
        self._numbers[free : free + _ROW] = [owner, *of_first, *[_NOT_SET] * (_NEXT_SLOT - _EPOCH), *_NO_SEEDS]
        return free

    def _epoch_of(self, row: int, loader_seed: int, worker: int) -> int:
        """Returns the epoch of a worker's iteration: that of the others under its seed, or the next one."""
        slot = self._slot_of(row, loader_seed)
        if slot is not None and not self._has_begun(slot, worker):
            epoch = int(self._numbers[slot + 1])
        else:
            epoch = self._advance(row)
        self._remember(row, loader_seed, epoch, worker)
        return epoch

    def _remember(self, row: int, loader_seed: int, epoch: int, worker: int) -> None:
        """Notes that a worker has begun an epoch under a seed."""
        slot = self._slot_of(row, loader_seed)
        if slot is None:
            slot = row + _SLOTS + _SLOT * self._numbers[row + _NEXT_SLOT]
            self._numbers[row + _NEXT_SLOT] = (self._numbers[row + _NEXT_SLOT] + 1) % _NUM_REMEMBERED
        if self._numbers[slot : slot + 2] != [loader_seed, epoch] or self._has_begun(slot, worker):
            self._numbers[slot : slot + _SLOT] = [loader_seed, epoch] + [0] * _NUM_ARRIVED_WORDS
        at, bit = _place_of(slot, worker)
        self._numbers[at] |= bit

    def _slot_of(self, row: int, loader_seed: int) -> int | None:
        slots = range(row + _SLOTS, row + _ROW, _SLOT)
        return next((slot for slot in slots if self._numbers[slot] == loader_seed), None)

    def _has_begun(self, slot: int, worker: int) -> bool:
        at, bit = _place_of(slot, worker)
        return bool(self._numbers[at] & bit)

    def _advance(self, row: int) -> int:
        self._numbers[row + _LATEST] += 1
        return int(self._numbers[row + _LATEST])

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return {"shared": self._numbers}
        with self._numbers.get_lock():
            row = self._row_of(os.getpid())
            of_iteration = [_NOT_SET] * (_NEXT_SLOT - _EPOCH)  # The copy has none yet.
            numbers = self._numbers[row + _FIXED : row + _EPOCH] + of_iteration
            return {"numbers": numbers + self._numbers[row + _NEXT_SLOT : row + _ROW]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._numbers = state["shared"] if "shared" in state else _shared_rows(state["numbers"])
        self._forget_process()

    def _forget_process(self) -> None:
        """What one process knows of its own iterations."""
        self._persistent = None
        self._num_taken = _NOT_SET  # Which loaded state this process has gone on from.
        self._owner_of_iteration = os.getpid()


def _place_of(slot: int, worker: int) -> tuple[int, int]:
    """Returns where a slot notes that a worker has begun, and the bit of it; 0 where there is none."""
    word, bit = divmod(worker, _WORD_BITS)
    return (slot + 2 + word, 1 << bit) if word < _NUM_ARRIVED_WORDS else (slot + 2, 0)


def _owner(loader_seed: int | None) -> int:
    """Returns the training process: this one, or the parent of a loader's worker."""
    parent = parent_process()
    return os.getpid() if loader_seed is None or parent is None or parent.pid is None else parent.pid


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
