"""LoaderPosition: which epoch a MultiLoader reads, and how much of it was delivered."""

from collections.abc import Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.loader_state import state_at
from tfds_torch.parsers.parser import Parser
from tfds_torch.plan.shared_progress import SharedProgress
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World


class LoaderPosition:
    """Counts the epochs of a loader, and over a parser what was delivered of the latest one.

    Args:
        parser: that is read; None: another source, which has epochs only.
        rank: of this process, and the number of ranks.
        num_workers: of the loader.
    """

    def __init__(self, parser: Parser | None, rank: World, num_workers: int) -> None:
        self._parser, self._rank, self._num_workers = parser, rank, num_workers
        self._progress = SharedProgress()
        self._began: LoaderState | None = None  # Where the latest iteration over a parser began,
        self.num_delivered = 0  # how many batches the training loop has got of it,
        self.has_ended = False  # and whether it has got them all.

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        self._progress.set_epoch(epoch)

    def begin(self, *, is_tried_first: bool) -> tuple[int, int, int | None]:
        """Returns epoch and first batch of an iteration that begins now, and how many batches it has, if that is known.

        Args:
            is_tried_first: whether an iteration of which nothing was taken is begun again: frameworks try one first.
        """
        began, progress = self._began, self._progress.current()
        is_untouched = is_tried_first and progress.has_begun and not (self.num_delivered or self.has_ended)
        if began is None or not is_untouched or progress.start != (began.epoch, began.batches_delivered):
            epoch, start_batch = self._progress.begin(None, self._num_workers, is_counted_elsewhere=True)
            began = None if self._parser is None else self._state_at(epoch, start_batch)
        else:
            epoch, start_batch = progress.start
        self._began, self.num_delivered, self.has_ended = began, 0, False
        return epoch, start_batch, None if began is None else began.num_batches - start_batch

    def state(self) -> LoaderState:
        """Returns where the training loop is.

        Raises:
            ConfigError: the source is not a parser.
        """
        progress = self._progress.current()
        if self._began is None or not progress.has_begun:
            return self._state_at(*progress.start)
        return self._began.at(self._began.batches_delivered + self.num_delivered)

    def load(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration go on where a state was taken.

        Raises:
            ConfigError: the source is not a parser.
            StateMismatchError: the state does not fit; nothing is changed.
        """
        loaded = LoaderState.load(state, self._state_at(0, 0))
        is_bound = loaded.read_mode != "index" and loaded.batches_delivered > 0
        self._progress.resume(loaded.epoch, loaded.batches_delivered, loaded.num_workers if is_bound else None)

    def _state_at(self, epoch: int, batches_delivered: int) -> LoaderState:
        if self._parser is None:
            raise ConfigError(
                "A MultiLoader has a state over a Parser only: another source does not say which items come after "
                "which. Keep a state of your own, or read the dataset with a Parser."
            )
        return state_at(self._parser, self._rank, epoch, batches_delivered, self._num_workers)
