"""What a loader's worker does before it reads."""

import os
import signal
from collections.abc import Callable

from torch.utils.data._utils import worker as torch_worker

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure
from tfds_torch.runtime.stage_metrics import StageMetrics
from tfds_torch.runtime.worker_watch import end_with_parent, offer_stack
from tfds_torch.torch_data.loading.timing import TimedIterable, TimedMap


class WorkerStart:
    """What a worker does before it reads; the `worker_init_fn` of torch's loader. Picklable.

    Args:
        metrics: what it reports to.
        initialise: the user's own function, called last with the worker's number.
    """

    def __init__(self, metrics: StageMetrics, initialise: Callable[[int], None] | None) -> None:
        self.metrics, self.initialise = metrics, initialise

    def __call__(self, worker: int) -> None:
        """Prepares this process, a worker of that number."""
        # Ctrl-C reaches the whole process group: the training process ends its workers when it gives up.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        # Torch's handler lets a worker that its parent asks to end do so with exit code 0, as if its work were done.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent()
        self.metrics.bind(worker)
        descriptor = offer_stack()
        if descriptor is not None:
            self.metrics.note_stack_file(descriptor)
        self._show_own_dataset()
        if self.initialise is None:
            return
        try:
            self.initialise(worker)
        except Exception as error:
            failure = Failure.of(error)
            raise WorkerError(
                f"worker_init_fn failed in worker {worker} (pid {os.getpid()}): {failure.message}\n{failure.trace}"
            ) from None

    def _show_own_dataset(self) -> None:
        """Lets `get_worker_info().dataset` be the user's dataset; torch has no public way."""
        info = torch_worker._worker_info
        if info is not None and isinstance(info.dataset, TimedMap | TimedIterable):
            fields = {name: getattr(info, name) for name in ("id", "num_workers", "seed")}
            torch_worker._worker_info = type(info)(**fields, dataset=info.dataset.dataset)
