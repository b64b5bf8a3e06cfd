"""ExampleEpochs: which epoch the examples belong to that are asked for one by one."""

import weakref
from typing import Any

import torch.utils.data

from tfds_torch.plan.shared_progress import SharedProgress
from tfds_torch.torch_data.torch_fetch import find_iteration


class ExampleEpochs:
    """Counts the iterations of the loaders over a map-style dataset, until an epoch is set by hand.

    A map-style dataset is not asked when an iteration begins. The first example that a process is asked for in an
    iteration begins the epoch there; how the workers of one loader agree on it is described in `SharedProgress`.
    Thread-safe; survives fork, and travels to workers of spawn and forkserver.
    """

    def __init__(self) -> None:
        self._progress = SharedProgress()
        self._of_iteration: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come, in this process and in workers that already run.

        Raises:
            ConfigError: epoch is not an integer >= 0.
        """
        self._progress.set_epoch(epoch)

    def current(self) -> int:
        """Returns the epoch of the example that is asked for now; outside of a loader, that of the latest iteration."""
        iteration, worker = find_iteration(), torch.utils.data.get_worker_info()
        loader_seed = None if worker is None else worker.seed - worker.id
        if iteration is None:
            return self._progress.current().epoch if worker is None else self._progress.fixed_epoch(loader_seed) or 0
        epoch = self._of_iteration.get(iteration)
        if epoch is None:
            number, num_workers = (0, 0) if worker is None else (worker.id, worker.num_workers)
            epoch, _ = self._progress.begin(loader_seed, num_workers, number)
            self._of_iteration[iteration] = epoch
        return epoch

    def __getstate__(self) -> dict[str, Any]:
        return {"progress": self._progress}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._progress = state["progress"]
        self._of_iteration = weakref.WeakKeyDictionary()
