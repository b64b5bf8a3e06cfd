"""What a loader is told at its birth: how many workers, and what would go wrong with a dataset that is not ours."""

import inspect
import logging
import os
import warnings
from typing import Any

from torch.utils.data import IterableDataset

from tfds_torch.runtime.machine_share import choose_workers, num_local_ranks, usable_cores
from tfds_torch.runtime.memory_limits import available_bytes
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loading.options import LoaderOptions
from tfds_torch.torch_data.wrapped_datasets import unwrap

_logger = logging.getLogger(__name__)


def find_num_workers(asked: int | str) -> tuple[int, str]:
    """Returns the number of workers, and why so many."""
    if not isinstance(asked, str):
        return asked, f"num_workers={asked} was asked for."
    choice = choose_workers(usable_cores(), num_local_ranks(os.environ), available_bytes())
    _logger.info("num_workers='auto': %s", choice.reason)
    return choice.num_workers, choice.reason


def warn_of_foreign(dataset: Any, options: LoaderOptions, num_workers: int) -> None:
    """Warns where a dataset that is not ours would be read several times, or by nobody but the training loop."""
    if any(isinstance(layer, ImageDataset) for layer in unwrap(dataset)):
        return
    name = type(dataset).__name__
    is_shared_out = options.worker_init_fn is not None or _asks_for_worker(type(dataset))
    if isinstance(dataset, IterableDataset) and num_workers > 1 and not is_shared_out:
        _warn(
            f"Each of the {num_workers} workers reads all of {name}, so that every example comes {num_workers} times: "
            f"its __iter__ does not ask torch.utils.data.get_worker_info() for its share, and there is no "
            f"worker_init_fn. Do so, or use one worker."
        )
    if num_workers == 0 and options.device is not None:
        _warn(
            f"The training process reads {name} for itself, between its steps: nothing is fetched while it computes. "
            f"Use num_workers=1 or more, or 'auto'."
        )


def _asks_for_worker(kind: type) -> bool:
    """Whether a class's code mentions torch's worker info; True for code that cannot be looked at."""
    for base in kind.__mro__:
        if base.__module__.startswith("torch."):
            continue
        for member in vars(base).values():
            code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
            if code is not None and "get_worker_info" in code.co_names:
                return True
    return False


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)
