"""What `torch.utils.data.get_worker_info()` returns in our own workers: the only use of a private part of torch."""

import logging
from typing import Any

_logger = logging.getLogger(__name__)


def fill_worker_info(worker: int, num_workers: int, seed: int, dataset: Any) -> None:
    """Lets `get_worker_info()` describe this process, a worker, as it does in the workers of torch's DataLoader.

    torch has no public way. Where a later torch keeps it elsewhere, `get_worker_info()` stays None, and this is logged.

    Args:
        worker: number of the worker.
        num_workers: of the loader.
        seed: of the worker: the loader's base seed and the worker's number, added.
        dataset: the user's own.
    """
    try:
        from torch.utils.data._utils import worker as torch_worker

        info = torch_worker.WorkerInfo(id=worker, num_workers=num_workers, seed=seed, dataset=dataset)
        torch_worker._worker_info = info
    except (ImportError, AttributeError, TypeError) as error:
        _logger.warning("torch.utils.data.get_worker_info() is None in workers: %s: %s", type(error).__name__, error)
