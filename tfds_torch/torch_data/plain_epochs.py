"""The epochs of plain DataLoaders, counted by their workers in memory that they share with the training process."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.cursor import Start, check_num_workers, check_set_epoch
from tfds_torch.torch_data.tensor_codec import describe_full_memory

_NOT_SET = -1
_NUM_REMEMBERED, _NUM_OWNERS, _NUM_ARRIVED_BYTES = 16, 128, 64

_SEED = np.dtype([("seed", "i8"), ("epoch", "i8"), ("arrived", "u1", _NUM_ARRIVED_BYTES)])
"""A loader's base seed, its epoch, and a bit for each worker that has begun it; more workers begin with the others."""
_START = np.dtype([("epoch", "i8"), ("start_batch", "i8"), ("first_example", "i8")])
_ROW = np.dtype(
    [
        ("owner", "i8"),  # The training process; 0: the row is free.
        ("fixed", "i8"),  # The epoch that was set by hand.
        ("counted", "i8"),  # The latest epoch that was counted.
        ("loaded", _START),  # Where a loaded state goes on,
        ("loaded_workers", "i8"),  # the number of its workers, and whether only as many can go on there;
        ("must_keep_workers", "i8"),
        ("loaded_seed", "i8"),  # the loader that went on there, and how often a state was loaded.
        ("num_loaded", "i8"),
        ("start", _START),  # The latest iteration since any of these was set: where it began,
        ("num_workers", "i8"),
        ("num_produced", "i8"),
        ("knows_delivered", "i8"),  # and whether its loader itself knows what is delivered.
        ("next_seed", "i8"),
        ("seeds", _SEED, _NUM_REMEMBERED),
    ]
)
_OF_ITERATION = ("num_workers", "num_produced", "knows_delivered")


@dataclass(frozen=True)
class Progress:
    """How far the plain DataLoaders of a training process are.

    Attributes:
        start: where the latest iteration began; the next one, where none began since the epoch was set or a state was
            loaded.
        num_workers: loader workers that read it, 0 for none; None: it did not begin yet.
        num_produced: the rank's batches of the epoch before this number have been read, are being read, or come before
            the start.
        knows_delivered: whether the loader itself knows where it began and what is delivered.
        loaded_workers: of the next iteration: loader workers of the loaded state; None: unknown.
    """

    start: Start
    num_workers: int | None
    num_produced: int
    knows_delivered: bool = False
    loaded_workers: int | None = None

    @property
    def has_begun(self) -> bool:
        """Whether an iteration has begun since the epoch was set or a state was loaded."""
        return self.num_workers is not None


class PlainEpochs:
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

    _shared: Any  # With its lock.
    _persistent: tuple[tuple[int, int, int], int] | None
    _num_taken: int
    _owner: int

    def __init__(self) -> None:
        row = np.zeros(1, _ROW)
        for name in ("fixed", "counted", "loaded_seed"):
            row[name] = _NOT_SET
        row["loaded"]["epoch"] = row["start"]["epoch"] = row["seeds"]["seed"] = _NOT_SET
        self._share(row)

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        Raises:
            ConfigError: epoch is not an integer in 0..2**62.
        """
        epoch = check_set_epoch(epoch)
        with self._row(os.getpid()) as row:
            row["fixed"] = epoch
            if row["start"]["epoch"] != _NOT_SET:  # An iteration has gone on from the loaded state.
                row["loaded"]["epoch"] = _NOT_SET
            row["start"]["epoch"] = _NOT_SET

    def load(self, start: Start, num_workers: int | None = None, *, must_keep_workers: bool = False) -> None:
        """Lets the next iteration begin somewhere, and the count go on from there.

        Should another epoch be set by hand, that one begins at its first batch.

        Args:
            start: where.
            num_workers: workers of the loader whose state it is, 1 also for none; None: unknown.
            must_keep_workers: whether only as many workers can go on; of no effect where they are unknown.
        """
        with self._row(os.getpid()) as row:
            row["fixed"], row["counted"], row["loaded"] = _NOT_SET, start.epoch - 1, astuple(start)
            row["loaded_workers"] = _NOT_SET if num_workers is None else num_workers
            row["must_keep_workers"], row["loaded_seed"] = must_keep_workers, _NOT_SET
            row["num_loaded"] += 1  # Persistent workers count on from here.
            row["start"]["epoch"] = row["seeds"]["seed"] = _NOT_SET

    def count_from(self, epoch: int) -> None:
        """Counts on from an epoch that a Loader reads, from the loaded state on where there was one."""
        with self._row(os.getpid()) as row:
            row["counted"] = epoch
            row["loaded"]["epoch"] = row["start"]["epoch"] = _NOT_SET

    def begin(self, loader_seed: int | None, num_workers: int, worker: int = 0) -> Start:
        """Returns where an iteration begins that begins now.

        Args:
            loader_seed: the base seed of the loader whose worker this is; None outside of workers.
            num_workers: workers of the loader; 0 outside of workers.
            worker: which of them this is.

        Raises:
            StateMismatchError: a loaded state goes on with another number of workers only.
        """
        self._owner = _owner(loader_seed)
        with self._row(self._owner) as row:
            _check_workers(row, num_workers)
            if loader_seed is not None and row["loaded_seed"] == loader_seed and _has_begun(row, loader_seed, worker):
                row["loaded"]["epoch"] = _NOT_SET  # A worker begins again under the seed that went on there.
            start = self._take_start(row, self._next_epoch(row, loader_seed, worker), loader_seed)
            _note_begin(row, start, num_workers, knows_delivered=False)
            return start

    def begin_at(self, loader_seed: int | None, num_workers: int, start: Start, worker: int = 0) -> None:
        """Notes an iteration whose start comes from a loader's own state.

        The count goes on from there, in this process and for the loader's other workers.
        """
        self._owner = _owner(loader_seed)
        with self._row(self._owner) as row:
            row["counted"] = start.epoch
            if loader_seed is not None:
                self._persistent = ((os.getpid(), loader_seed, int(row["num_loaded"])), start.epoch)
                _remember(row, loader_seed, start.epoch, worker)
            _note_begin(row, start, num_workers, knows_delivered=True)

    def fixed_epoch(self, loader_seed: int | None) -> int | None:
        """Returns the epoch that was set by hand, if one was.

        Args:
            loader_seed: the base seed of the loader whose worker this is; None outside of workers.
        """
        with self._row(_owner(loader_seed)) as row:
            return _number(row["fixed"])

    def note_produced(self, num_batches: int) -> None:
        """Notes that the rank's batches before a number have been read, or are being read."""
        with self._row(self._owner) as row:
            row["num_produced"] = max(row["num_produced"], num_batches)

    def current(self) -> Progress:
        """Returns how far this training process is."""
        with self._row(os.getpid()) as row:
            if row["start"]["epoch"] != _NOT_SET:
                numbers = (int(row[name]) for name in _OF_ITERATION)
                return Progress(Start(*row["start"].tolist()), next(numbers), next(numbers), bool(next(numbers)))
            epoch = int(row["counted"]) + 1 if row["fixed"] == _NOT_SET else int(row["fixed"])
            if epoch != row["loaded"]["epoch"]:
                return Progress(Start(epoch), None, 0)
            loaded = Start(*row["loaded"].tolist())
            return Progress(loaded, None, loaded.start_batch, loaded_workers=_number(row["loaded_workers"]))

    def _next_epoch(self, row: np.void, loader_seed: int | None, worker: int) -> int:
        """Returns the epoch of an iteration that begins now, and notes that the worker has begun it."""
        if row["fixed"] != _NOT_SET:
            epoch = int(row["fixed"])
            if loader_seed is not None:
                _remember(row, loader_seed, epoch, worker)
            return epoch
        if loader_seed is None:
            return _advance(row)
        place = (os.getpid(), loader_seed, int(row["num_loaded"]))
        if self._persistent is not None and self._persistent[0] == place:
            epoch = self._persistent[1] + 1
            row["counted"] = max(int(row["counted"]), epoch)
        else:  # That of the others under its seed, or the next one.
            slot = _slot_of(row, loader_seed)
            is_known = slot is not None and not _has_begun(row, loader_seed, worker)
            epoch = int(slot["epoch"]) if slot is not None and is_known else _advance(row)
            _remember(row, loader_seed, epoch, worker)
        self._persistent = (place, epoch)
        return epoch

    def _take_start(self, row: np.void, epoch: int, loader_seed: int | None) -> Start:
        """Returns where an epoch begins: once, for all workers of a loader, where a loaded state goes on."""
        times, taken_by = int(row["num_loaded"]), _number(row["loaded_seed"])
        start = Start(*row["loaded"].tolist())
        if epoch != start.epoch or self._num_taken == times or taken_by not in (None, loader_seed):
            return Start(epoch)
        self._num_taken = times
        if loader_seed is None:
            row["loaded"]["epoch"] = _NOT_SET
        else:
            row["loaded_seed"] = loader_seed
        return start

    @contextmanager
    def _row(self, owner: int) -> Iterator[np.void]:
        """Holds the row of a training process; a new one continues the count of the first row."""
        rows = self._rows
        with self._shared.get_lock():
            (own,) = np.nonzero(rows["owner"] == owner)
            if len(own):
                yield rows[own[0]]
                return
            free = next((at for at, pid in enumerate(rows["owner"].tolist()) if not _is_alive(pid)), None)
            if free is None:
                raise ConfigError(
                    f"More than {_NUM_OWNERS} training processes of this machine share one ImageDataset. Build the "
                    f"dataset in each of them."
                )
            rows[free] = rows[0]
            rows[free]["seeds"]["seed"] = rows[free]["start"]["epoch"] = _NOT_SET
            rows[free]["owner"] = owner
            yield rows[free]

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            return {"shared": self._shared}
        with self._row(os.getpid()) as row:
            copied = np.array([row], _ROW)
        copied["start"]["epoch"] = _NOT_SET  # The copy has no iteration yet.
        return {"row": copied}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "row" in state:
            self._share(state["row"])
            return
        self._shared = state["shared"]
        self._forget_process()

    def _share(self, row: Any) -> None:
        """Makes shared rows, of which the first belongs to this process and holds the values of another one, [1]."""
        # A lock of the spawn context can be handed to any kind of worker; one of the fork context cannot be spawned.
        try:
            self._shared = get_context("spawn").Array("B", _ROW.itemsize * _NUM_OWNERS)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ConfigError(describe_full_memory("No lock can be made that processes share")) from error
        self._rows[:1] = row
        self._rows[0]["owner"] = os.getpid()
        self._forget_process()

    @property
    def _rows(self) -> Any:
        return np.frombuffer(self._shared.get_obj(), _ROW)

    def _forget_process(self) -> None:
        """What one process knows of its own iterations."""
        self._persistent = None
        self._num_taken = _NOT_SET  # Which loaded state this process has gone on from.
        self._owner = os.getpid()


def _check_workers(row: np.void, num_workers: int) -> None:
    """Refuses the next iteration, before anything is counted, where a loaded state waits for other workers."""
    epoch = row["loaded"]["epoch"]
    is_next = epoch != _NOT_SET and row["loaded_seed"] == _NOT_SET and row["fixed"] in (_NOT_SET, epoch)
    if is_next and row["must_keep_workers"]:
        check_num_workers(_number(row["loaded_workers"]), num_workers)


def _note_begin(row: np.void, start: Start, num_workers: int, *, knows_delivered: bool) -> None:
    if row["start"].tolist() != astuple(start):  # Not the first worker's word.
        row["num_produced"] = start.start_batch
    row["start"], row["num_workers"], row["knows_delivered"] = astuple(start), num_workers, knows_delivered


def _remember(row: np.void, loader_seed: int, epoch: int, worker: int) -> None:
    """Notes that a worker has begun an epoch under a seed."""
    slot = _slot_of(row, loader_seed)
    if slot is None:
        slot = row["seeds"][row["next_seed"]]
        row["next_seed"] = (row["next_seed"] + 1) % _NUM_REMEMBERED
    if (slot["seed"], slot["epoch"]) != (loader_seed, epoch) or _has_begun(row, loader_seed, worker):
        slot["seed"], slot["epoch"], slot["arrived"] = loader_seed, epoch, 0
    byte, bit = divmod(worker, 8)
    if byte < _NUM_ARRIVED_BYTES:
        slot["arrived"][byte] |= 1 << bit


def _slot_of(row: np.void, loader_seed: int) -> np.void | None:
    (found,) = np.nonzero(row["seeds"]["seed"] == loader_seed)
    return row["seeds"][found[0]] if len(found) else None


def _has_begun(row: np.void, loader_seed: int, worker: int) -> bool:
    """Tells whether a worker has begun the epoch of its seed; of one that is not counted, that it has not."""
    slot, (byte, bit) = _slot_of(row, loader_seed), divmod(worker, 8)
    return slot is not None and byte < _NUM_ARRIVED_BYTES and bool(slot["arrived"][byte] & 1 << bit)


def _advance(row: np.void) -> int:
    row["counted"] += 1
    return int(row["counted"])


def _number(value: Any) -> int | None:
    return None if value == _NOT_SET else int(value)


def _owner(loader_seed: int | None) -> int:
    """Returns the training process: this one, or the parent of a loader's worker."""
    parent = parent_process()
    return os.getpid() if loader_seed is None or parent is None or parent.pid is None else parent.pid


def _is_alive(pid: int) -> bool:
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It may not be sent signals.
        pass
    return True
