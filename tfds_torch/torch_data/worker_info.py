"""Provides in our workers what user code finds in torch's: `get_worker_info()`, by its private name; worker_init_fn."""

import logging
import os
from collections.abc import Callable
from typing import Any

from tfds_torch.errors import WorkerError
from tfds_torch.runtime.failure import Failure

_logger = logging.getLogger(__name__)


def fill_worker_info(worker: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Let `get_worker_info()` describe this process, a worker, as it does in the workers of torch's DataLoader.

    torch has no public way. Where a later torch keeps it elsewhere, `get_worker_info()` stays None, and this is logged.
    """
    try:
        from torch.utils.data._utils import worker as torch_worker

        info = torch_worker.WorkerInfo(id=worker, num_workers=num_workers, seed=seed, dataset=dataset)
        torch_worker._worker_info = info
    except (ImportError, AttributeError, TypeError) as error:
        _logger.warning("torch.utils.data.get_worker_info() is None in workers: %s: %s", type(error).__name__, error)


def call_worker_init(initialise: Callable[[int], None] | None, worker: int) -> None:
    """Call the user's `worker_init_fn`, if there is one, with the number of this worker."""
    if initialise is None:
        return
    try:
        initialise(worker)
    except Exception as error:
        failure = Failure.of(error)
        raise WorkerError(
            f"worker_init_fn failed in worker {worker} (pid {os.getpid()}): {failure.message}\n{failure.trace}"
        ) from None
