"""Cursor: which epoch a loader reads, where its latest iteration began, and what was delivered of it."""

from dataclasses import dataclass, replace
from typing import Any

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.order import MOST_SLOTS
from tfds_torch.runtime.arguments import check_integer


@dataclass(frozen=True)
class Start:
    """Where an iteration begins, on every rank.

    Attributes:
        epoch: which one, >= 0.
        start_batch: the rank's batch at which to begin, counted from `first_example` on.
        first_example: examples of the epoch, of all ranks together, that were delivered under another global batch
            size; batches are dealt and counted from there on.
    """

    epoch: int
    start_batch: int = 0
    first_example: int = 0


@dataclass
class Position:
    """How far one iteration of a loader is. The iteration owns it, and counts in it.

    Attributes:
        start: where the iteration began.
        num_workers: of the loader, 0 for none; of one that did not begin, those of the loaded state. None: unknown.
        delivered: batches that the training loop has taken.
        has_ended: whether it has taken them all.
    """

    start: Start
    num_workers: int | None
    delivered: int = 0
    has_ended: bool = False

    @property
    def now(self) -> Start:
        """Where the training loop is."""
        return replace(self.start, start_batch=self.start.start_batch + self.delivered)


class Cursor:
    """Counts the epochs of the loaders over one dataset until an epoch is set, and knows where a loaded state begins.

    Every iteration is an epoch, also one that is broken off. Use a cursor in one thread. A copy continues to count from
    the same epoch, and has no iteration yet.

    Args:
        num_workers: of the loader, until an iteration begins; None: unknown.
    """

    def __init__(self, num_workers: int | None = None) -> None:
        self._num_workers = num_workers
        self._fixed: int | None = None
        self._counted = -1  # The latest epoch.
        self._loaded: Position | None = None
        self._must_keep_workers = False
        self._latest: Position | None = None  # Since an epoch was set or a state was loaded.

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the iterations to come, an integer >= 0."""
        self._fixed = check_set_epoch(epoch)
        if self._latest is not None:  # An iteration has continued from the loaded state.
            self._loaded = None
        self._latest = None

    def load(self, start: Start, num_workers: int | None = None, *, must_keep_workers: bool = False) -> None:
        """Let the next iteration begin at a given place, and continue to count epochs from there.

        If another epoch is set by hand afterwards, that epoch begins at its first batch.

        Args:
            start: where it begins.
            num_workers: of the loader whose state it is; None: unknown.
            must_keep_workers: whether only the same number of workers can continue; without effect where it is unknown.
        """
        self._loaded, self._must_keep_workers = Position(start, num_workers), must_keep_workers
        self._fixed, self._counted, self._latest = None, start.epoch - 1, None

    def begin(self, num_workers: int, earlier: Position | None = None) -> Position:
        """Return the position of an iteration that begins now.

        Args:
            num_workers: of the loader, 0 for none.
            earlier: the loader's previous iteration, which is over. Where no batch of it was taken, it begins again:
                frameworks begin an iteration just to try it.
        """
        if earlier is not None and earlier is self._latest and not (earlier.delivered or earlier.has_ended):
            start = earlier.start
        else:
            start = self._next.start
            if self._loaded is not None and self._loaded.start is start:
                if self._must_keep_workers:
                    check_num_workers(self._loaded.num_workers, num_workers)
                self._loaded = None
            if self._fixed is None:
                self._counted = start.epoch
        self._latest = Position(start, num_workers)
        return self._latest

    def count_from(self, epoch: int) -> None:
        """Continue to count after an epoch that something else has read, from the loaded state where there was one."""
        self._counted, self._loaded, self._latest = epoch, None, None

    @property
    def has_begun(self) -> bool:
        """Whether an iteration has begun since an epoch was set or a state was loaded."""
        return self._latest is not None

    def position(self, own: Position | None = None) -> Position:
        """Return the position of the latest iteration; where none has begun, of the next one.

        Args:
            own: the latest iteration of the loader that asks, which may not be the latest one of all loaders.
        """
        return self._next if self._latest is None else own or self._latest

    @property
    def _next(self) -> Position:
        epoch = self._counted + 1 if self._fixed is None else self._fixed
        if self._loaded is not None and self._loaded.start.epoch == epoch:
            return self._loaded
        return Position(Start(epoch), self._num_workers)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None}


def check_set_epoch(epoch: object) -> int:
    """Return an epoch that is to be set, as an int."""
    number = check_integer("set_epoch: epoch", epoch, 0)
    if number > MOST_SLOTS:
        raise ConfigError(f"set_epoch: epoch={number} must be in 0..{MOST_SLOTS}.")
    return number


def check_num_workers(asked: int | None, num_workers: int) -> None:
    """Check that as many workers continue with the state of a stream as saved it."""
    if asked is not None and asked != max(1, num_workers):
        raise StateMismatchError(
            f"num_workers: {asked} in the state, {num_workers or 'none, which counts as 1,'} here. A stream goes on in "
            f"the same world only: use num_workers={asked}. Read mode 'index' would go on with any number."
        )
