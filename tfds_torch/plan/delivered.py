"""DeliveredBatches: how many batches of its latest iteration a loader has delivered, and so where training is."""

from collections.abc import Callable

from tfds_torch.plan.shared_progress import Progress
from tfds_torch.plan.state import LoaderState


class DeliveredBatches:
    """Counts what a loader has delivered, beside the `SharedProgress` that counts its epochs. For one thread.

    Attributes:
        number: batches of the latest iteration that the training loop has got.
        has_ended: whether it has got them all.
    """

    def __init__(self) -> None:
        self.number, self.has_ended = 0, False
        self._began: LoaderState | None = None

    def begin(self, progress: Progress, begin: Callable[[], LoaderState]) -> LoaderState:
        """Returns where an iteration begins that begins now.

        One of which nothing was taken is begun again: frameworks begin an iteration just to try it.

        Args:
            progress: of the epochs, so far.
            begin: counts an epoch, and returns where the iteration begins.

        Raises:
            StateMismatchError: `begin` refuses; nothing is changed.
        """
        began = self._began
        is_untouched = progress.has_begun and not (self.number or self.has_ended)
        if began is None or not is_untouched or progress.start != (began.epoch, began.batches_delivered):
            began = begin()
        self._began, self.number, self.has_ended = began, 0, False
        return began

    def state(self, progress: Progress) -> LoaderState | None:
        """Returns where the training loop is; None: no iteration began since the epoch was set or a state was loaded.

        Args:
            progress: of the epochs, so far.
        """
        if self._began is None or not progress.has_begun:
            return None
        return self._began.at(self._began.batches_delivered + self.number)
