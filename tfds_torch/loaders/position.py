"""LoaderPosition: which epoch a MultiLoader reads, and how much of it was delivered."""

from collections.abc import Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.loader_state import state_at
from tfds_torch.parsers.parser import Parser
from tfds_torch.plan.delivered import DeliveredBatches
from tfds_torch.plan.shared_progress import SharedProgress
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World


class LoaderPosition:
    """Counts the epochs of a loader, and over a parser what was delivered of the latest one.

    Args:
        parser: that is read; None: another source, which has epochs only.
        rank: of this process, and the number of ranks.
        num_workers: of the loader.

    Attributes:
        delivered: of the latest iteration.
    """

    def __init__(self, parser: Parser | None, rank: World, num_workers: int) -> None:
        self.delivered = DeliveredBatches()
        self._parser, self._rank, self._num_workers = parser, rank, num_workers
        self._progress = SharedProgress()

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        self._progress.set_epoch(epoch)

    def begin(self, *, is_alone: bool) -> tuple[int, int, int | None]:
        """Returns epoch and first batch of an iteration that begins now, and how many batches it has, if that is known.

        Args:
            is_alone: whether no other iteration is under way. One of which nothing was taken is then begun again.
        """
        if self._parser is None:
            return *self._next_start(), None
        began = self.delivered.begin(self._progress.current(), self._next_state) if is_alone else self._next_state()
        return began.epoch, began.batches_delivered, began.num_batches - began.batches_delivered

    def state(self) -> LoaderState:
        """Returns where the training loop is.

        Raises:
            ConfigError: the source is not a parser.
        """
        progress = self._progress.current()
        delivered = self.delivered.state(progress)
        if delivered is not None:
            return delivered
        state = self._state_at(*progress.start)
        return state.with_workers(progress.resumed_workers) if progress.is_resumed else state

    def load(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration go on where a state was taken.

        Raises:
            ConfigError: the source is not a parser.
            StateMismatchError: the state does not fit; nothing is changed.
        """
        loaded = LoaderState.load(state, self._state_at(0, 0))  # Also of a stream: with as many workers as here.
        self._progress.resume(loaded.epoch, loaded.batches_delivered, loaded.num_workers)

    def _next_start(self) -> tuple[int, int]:
        return self._progress.begin(None, self._num_workers, is_counted_elsewhere=True)

    def _next_state(self) -> LoaderState:
        return self._state_at(*self._next_start())

    def _state_at(self, epoch: int, batches_delivered: int) -> LoaderState:
        if self._parser is None:
            raise ConfigError(
                "A MultiLoader has a state over a Parser only: another source does not say which items come after "
                "which. Keep a state of your own, or read the dataset with a Parser."
            )
        return state_at(self._parser, self._rank, epoch, batches_delivered, self._num_workers)
