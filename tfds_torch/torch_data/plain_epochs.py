"""The epochs of a dataset, counted in memory that the workers of plain DataLoaders share with the training process."""

import errno
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.plan.cursor import Cursor, Position, Start
from tfds_torch.runtime.group_signals import start_servers
from tfds_torch.torch_data.tensor_codec import describe_full_memory

_NUM_OWNERS, _NUM_SEEDS, _NUM_COUNTED_WORKERS = 128, 16, 512
_ROW = np.dtype(
    [
        ("owner", "i8"),  # The training process; 0: the row is free.
        ("num_produced", "i8"),  # By itself: every batch changes it.
        ("count", "S2544"),  # The rest of its PlainCount.
    ]
)


class PlainCount(Cursor):
    """The cursor of a training process, and the data by which workers of plain DataLoaders tell iterations apart.

    Attributes:
        num_loaded: states that were loaded so far.
        num_changes: changes of this count, but for num_produced.
        num_produced: the rank's batches of the epoch with smaller numbers have been read, are being read, or come
            before the start.
        knows_delivered: whether the loader itself knows where the latest iteration began and how much is delivered.
        has_warned: whether the warning that nobody told the epoch has been given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_loaded = self.num_changes = self.num_produced = 0
        self.knows_delivered = self.has_warned = False
        # A loader's base seed -> its latest iteration, and a bit for each worker that has begun it.
        self._seeds: dict[int, tuple[Start, int]] = {}

    @property
    def fixed_epoch(self) -> int | None:
        """The epoch that was set by hand, if one was."""
        return self._fixed

    def set_epoch(self, epoch: int) -> None:  # noqa: D102
        super().set_epoch(epoch)
        self._seeds.clear()

    def load(self, start: Start, num_workers: int | None = None, *, must_keep_workers: bool = False) -> None:  # noqa: D102
        super().load(start, num_workers, must_keep_workers=must_keep_workers)
        self._seeds.clear()
        self.num_loaded += 1  # Persistent workers count on from here.

    def begin(self, num_workers: int, earlier: Position | None = None) -> Position:  # noqa: D102
        position = super().begin(num_workers, earlier)
        self.num_produced, self.knows_delivered = position.start.start_batch, False
        return position

    def join(self, start: Start, num_workers: int, *, knows_delivered: bool = False) -> None:
        """Note an iteration whose start is known, and that another worker may have begun."""
        if self._latest is None or self._latest.start != start:
            self.num_produced = start.start_batch
        self._latest, self.knows_delivered = Position(start, num_workers), knows_delivered
        self._counted = max(self._counted, start.epoch)

    def begun_by_others(self, seed: int, worker: int) -> Start | None:
        """Return where the latest iteration of a seed began, if the worker has not begun it yet."""
        start, arrived = self._seeds.get(seed, (None, 0))
        return None if arrived & _bit_of(worker) else start

    def remember(self, seed: int, start: Start, worker: int) -> None:
        """Note that a worker has begun an iteration under a seed."""
        known, arrived = self._seeds.get(seed, (start, 0))
        if known != start or arrived & _bit_of(worker):
            arrived = 0
        if seed not in self._seeds and len(self._seeds) == _NUM_SEEDS:
            del self._seeds[next(iter(self._seeds))]
        self._seeds[seed] = start, arrived | _bit_of(worker)

    def forget(self, *, seeds: bool) -> None:
        """Forget the latest iteration, as a copy does; with `seeds` also the seeds, as another process does."""
        self._latest = None
        if seeds:
            self._seeds.clear()


class PlainEpochs:
    """Counts epochs by itself until an epoch is set by hand, and knows where a loaded state continues.

    Every iteration of a loader is an epoch. The workers of one iteration share the loader's base seed: the first worker
    to begin advances the count, and the others find the seed remembered. Each worker begins an iteration once. A worker
    that begins a second time under the same seed begins the next epoch; that happens where `torch.manual_seed` lets
    loaders draw equal seeds. Persistent workers keep one seed for ever and count their own iterations from their first
    epoch. Loaders that follow each other over one dataset share the count; where a loader with persistent workers takes
    turns with another one, set the epoch by hand.

    The counts lie in shared memory and are changed under a lock: they also reach workers that already run. Each
    training process has its own row: ranks that were forked or spawned with one dataset, as by
    `torch.multiprocessing.spawn`, all count on from the count of the process that built it.
    Thread-safe; survives fork, and travels to workers of spawn and forkserver. Copies made by `deepcopy` or `pickle`
    get their own counts, with the same values.
    """

    _shared: Any  # With its lock.
    _of_loader: tuple[int, Position] | None  # The latest iteration of a Loader, and the number of its change.
    _persistent: tuple[tuple[int, int, int], int] | None
    _owner: int

    def __init__(self) -> None:
        self._share(PlainCount())

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the iterations to come, as `Cursor.set_epoch`."""
        with self._count(os.getpid()) as count:
            count.set_epoch(epoch)

    def load(self, start: Start, num_workers: int | None = None, *, must_keep_workers: bool = False) -> None:
        """Let the next iteration begin somewhere, as `Cursor.load`."""
        with self._count(os.getpid()) as count:
            count.load(start, num_workers, must_keep_workers=must_keep_workers)

    def begin_of_loader(self, num_workers: int, earlier: Position | None) -> Position:
        """Return the position of an iteration of a Loader that begins now, as `Cursor.begin`."""
        is_untouched = earlier is not None and not (earlier.delivered or earlier.has_ended)
        is_again = is_untouched and earlier is self.position_of_loader()
        with self._count(os.getpid()) as count:
            position = count.begin(num_workers, count.position() if is_again else None)
            self._of_loader = count.num_changes, position
            return position

    def position_of_loader(self) -> Position | None:
        """Return the position of the latest iteration, if it is one of a Loader."""
        number, position = self._of_loader or (0, None)
        count = self.current()
        return position if count.has_begun and count.num_changes == number else None

    def begin(self, loader_seed: int | None, num_workers: int, worker: int = 0) -> Start:
        """Return where an iteration that is about to start begins.

        The seed is the base seed of the loader whose worker this is; None outside of workers.
        """
        self._owner = _owner(loader_seed)
        with self._count(self._owner) as count:
            if loader_seed is None:
                return count.begin(num_workers).start
            place = (os.getpid(), loader_seed, count.num_loaded)
            if count.fixed_epoch is None and self._persistent is not None and self._persistent[0] == place:
                start = Start(self._persistent[1] + 1)
                count.join(start, num_workers)
            else:  # That of the others under its seed, or the next one.
                begun = count.begun_by_others(loader_seed, worker)
                start = begun or count.begin(num_workers).start
                if begun is not None:
                    count.join(begun, num_workers)
                count.remember(loader_seed, start, worker)
            self._persistent = (place, start.epoch)
            return start

    def begin_at(self, loader_seed: int | None, num_workers: int, start: Start, worker: int = 0) -> None:
        """Note an iteration whose start comes from a loader's own state.

        The count continues from there, in this process and for the loader's other workers.
        """
        self._owner = _owner(loader_seed)
        with self._count(self._owner) as count:
            count.count_from(start.epoch)
            count.join(start, num_workers, knows_delivered=True)
            if loader_seed is not None:
                self._persistent = ((os.getpid(), loader_seed, count.num_loaded), start.epoch)
                count.remember(loader_seed, start, worker)

    def fixed_epoch(self, loader_seed: int | None) -> int | None:
        """Return the epoch that was set by hand, if one was; the loader's seed as for `begin`."""
        with self._row(_owner(loader_seed)) as row:
            return _read(row).fixed_epoch

    def note_produced(self, num_batches: int) -> None:
        """Note that the rank's batches before a number have been read, or are being read."""
        with self._row(self._owner) as row:
            row["num_produced"] = max(row["num_produced"], num_batches)

    def current(self) -> PlainCount:
        """Return how far this training process is, as it is now."""
        with self._row(os.getpid()) as row:
            return _read(row)

    @contextmanager
    def _count(self, owner: int) -> Iterator[PlainCount]:
        """Hold the count of a training process, to change it; where there is an error it stays as it was."""
        with self._row(owner) as row:
            count = _read(row)
            count.num_changes += 1
            yield count
            _write(row, count)

    @contextmanager
    def _row(self, owner: int) -> Iterator[Any]:
        """Hold the row of a training process; a new one continues the count of the first row."""
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
            count = _read(rows[0])
            count.forget(seeds=True)
            _write(rows[free], count)
            rows[free]["owner"] = owner
            yield rows[free]

    def __getstate__(self) -> dict[str, Any]:
        return {"shared": self._shared} if get_spawning_popen() is not None else {"count": self.current()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "count" in state:
            self._share(state["count"])
            return
        self._shared = state["shared"]
        self._forget_process()

    def _share(self, count: PlainCount) -> None:
        """Make shared rows, of which the first is that of this process."""
        # A lock of the spawn context can be handed to any kind of worker; one of the fork context cannot be spawned.
        start_servers("spawn")
        try:
            self._shared = get_context("spawn").Array("B", _ROW.itemsize * _NUM_OWNERS)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise ConfigError(describe_full_memory("No lock can be made that processes share")) from error
        count.forget(seeds=False)
        _write(self._rows[0], count)
        self._rows[0]["owner"] = os.getpid()
        self._forget_process()

    @property
    def _rows(self) -> Any:
        return np.frombuffer(self._shared.get_obj(), _ROW)

    def _forget_process(self) -> None:
        """Forget the data that a process has of its own iterations."""
        self._persistent = self._of_loader = None
        self._owner = os.getpid()


class ExampleEpochs(PlainEpochs):
    """The epoch of a map-style dataset, which must be told: loaders do not tell when an iteration begins."""

    def now(self, loader_seed: int | None) -> int | None:
        """Return the epoch that was told last, None where none was; the seed is as for `begin`."""
        with self._row(_owner(loader_seed)) as row:
            count = _read(row)
        is_told = count.has_begun or count.fixed_epoch is not None
        return count.position().start.epoch if is_told else None

    def must_warn(self, loader_seed: int | None) -> bool:
        """Return True once for a training process and all of its workers."""
        with self._count(_owner(loader_seed)) as count:
            has_warned, count.has_warned = count.has_warned, True
            return not has_warned


def _read(row: Any) -> PlainCount:
    count = PlainCount.__new__(PlainCount)
    vars(count).update(pickle.loads(row["count"]), num_produced=int(row["num_produced"]))  # noqa: S301 (our own)
    return count


def _write(row: Any, count: PlainCount) -> None:
    row["count"], row["num_produced"] = pickle.dumps(vars(count)), count.num_produced


def _bit_of(worker: int) -> int:
    """Return the bit of a worker; 0 for workers beyond the counted ones, which begin with the others."""
    return 1 << worker if worker < _NUM_COUNTED_WORKERS else 0


def _owner(loader_seed: int | None) -> int:
    """Return the training process: this one, or the parent of a loader's worker."""
    parent = parent_process()
    return os.getpid() if loader_seed is None or parent is None or parent.pid is None else parent.pid


def _is_alive(pid: int) -> bool:
    try:
        if pid:
            os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # It may not be sent signals.
        pass
    return pid != 0
