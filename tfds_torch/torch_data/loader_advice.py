"""Advice on a Loader, before it starts: how many workers it has, what they take, and what remains for this process."""

import logging
import os
from collections.abc import Iterator
from multiprocessing import current_process

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.advice import Facts, describe_memory, worker_parts
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.runtime.limits import available_bytes, choose_workers, memory_limit, num_local_ranks, usable_cores
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader_options import LoaderOptions, is_plain_iterable
from tfds_torch.torch_data.rows_dataset import RowsDataset
from tfds_torch.torch_data.wrapped_datasets import find_layer

_logger = logging.getLogger(__name__)

_OF_OTHERS = [(250 * 2**20, "Python and torch, its data not counted")]


def find_num_workers(asked: int | str) -> tuple[int, str]:
    """Return the number of workers, and why so many."""
    if not isinstance(asked, str):
        return asked, f"num_workers={asked} was asked for."
    if current_process().daemon:
        return 0, "num_workers=0: this process is a daemon of multiprocessing, which must not start workers."
    choice = choose_workers(usable_cores(), num_local_ranks(os.environ), available_bytes())
    _logger.info("num_workers='auto': %s", choice.reason)
    return choice.num_workers, choice.reason


def advise_loader(options: LoaderOptions, num_workers: int) -> Iterator[str]:
    """Yield the warnings of a Loader when it is made, on this machine."""
    if text := describe_own_reading(options, num_workers):
        yield text
    if num_workers:
        parts = _OF_OTHERS
        if isinstance(options.dataset, ImageDataset):
            parts = worker_parts(options.dataset.parser, num_workers, options.prefetch_batches)
        if text := describe_memory(num_workers, parts, available_bytes(), memory_limit()):
            yield text


def describe_own_reading(options: LoaderOptions, num_workers: int) -> str | None:
    """Return the warning for any other dataset that is read between the steps of the training loop."""
    dataset = options.dataset
    is_read_ahead = num_workers > 0 or find_layer(dataset, ImageDataset) is not None
    if is_read_ahead or options.device is None or is_plain_iterable(dataset):
        return None
    return (
        f"The training process reads {type(dataset).__name__} for itself, between its steps: nothing is fetched while "
        f"it computes. Use num_workers=1 or more, or 'auto'."
    )


def plan_rows(options: LoaderOptions) -> tuple[EpochPlan, Facts] | None:
    """Return the plan and the facts of other datasets' rows; None: no plan, or the rank is not clear yet."""
    if not isinstance(options.planned, RowsDataset):
        return None
    parser = options.planned.parser
    try:
        return options.planned.plan(), Facts(parser.dataset_name, parser.split)
    except ConfigError:  # Reported where the loader is iterated.
        return None
