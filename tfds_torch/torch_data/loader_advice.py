"""Advice before a loader starts: the number of workers, their memory, and items that are read twice."""

import logging
import os
import warnings
from multiprocessing import current_process
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import Parser, is_undecoded
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import available_bytes, choose_workers, memory_limit, num_local_ranks, usable_cores
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader_options import LoaderOptions, is_plain_iterable
from tfds_torch.torch_data.rank_world import find_rank
from tfds_torch.torch_data.rows_dataset import RowsDataset
from tfds_torch.torch_data.wrapped_datasets import find_layer

_logger = logging.getLogger(__name__)

_TENSORFLOW_BYTES = 400 * 2**20
_TORCH_BYTES = 250 * 2**20
_PROCESS_BYTES = 115 * 2**20  # Of a forked worker; one that is spawned imports torch anew.
_PIXELS_PER_ENCODED_BYTE = 8  # Of a photograph as JPEG, three channels.


def find_num_workers(asked: int | str) -> tuple[int, str]:
    """Returns the number of workers, and why so many."""
    if not isinstance(asked, str):
        return asked, f"num_workers={asked} was asked for."
    if current_process().daemon:
        return 0, "num_workers=0: this process is a daemon of multiprocessing, which must not start workers."
    choice = choose_workers(usable_cores(), num_local_ranks(os.environ), available_bytes())
    _logger.info("num_workers='auto': %s", choice.reason)
    return choice.num_workers, choice.reason


def warn_of_own_reading(options: LoaderOptions, num_workers: int) -> None:
    """Warns where a dataset that is not ours is read between the steps of the training loop."""
    dataset = options.dataset
    if find_layer(dataset, ImageDataset) is not None:
        return
    if num_workers == 0 and options.device is not None and not is_plain_iterable(dataset):
        _warn(
            f"The training process reads {type(dataset).__name__} for itself, between its steps: nothing is fetched "
            f"while it computes. Use num_workers=1 or more, or 'auto'."
        )


def warn_of_padding(options: LoaderOptions, stacklevel: int = 5) -> bool:
    """Warns of an evaluation on several ranks that counts some items twice, because nothing tells them apart.

    Returns whether there are several ranks.
    """
    try:
        num_replicas = find_rank(os.environ).num_replicas
    except ConfigError:  # An ImageDataset reports it.
        return False
    dataset = options.planned
    if num_replicas == 1 or not isinstance(dataset, RowsDataset):
        return num_replicas > 1
    plan = dataset.plan()
    num_twice = plan.num_batches * plan.global_batch_size - plan.num_examples
    if not plan.order.shuffle and num_twice > 0:
        warnings.warn(
            f"{dataset.parser.dataset_name} has {plan.num_examples} items, and {num_replicas} ranks with batch_size "
            f"{plan.batch_size} read {num_twice} of them twice, so that all have as many batches. An evaluation that "
            f"must not count them twice reads which are padding: create_loader(ImageDataset(ParserMapStyle(rows, "
            f"batch_size={plan.batch_size}), fields=(..., 'valid'), batched=True)).",
            UserWarning,
            stacklevel=stacklevel,
        )
    return True


def worker_bytes(dataset: Any, num_workers: int, prefetch_batches: int) -> tuple[int, str]:
    """Returns about what one worker takes, and what that is made of, in words."""
    if not isinstance(dataset, ImageDataset):
        return _TORCH_BYTES, f"{_gigabytes(_TORCH_BYTES)} for Python and torch, its data not counted"
    parser = dataset.parser
    mean_bytes, read = parser.mean_example_bytes, parser.read
    num_batches, buffer_bytes, tensorflow_bytes = prefetch_batches + 1 + read.prefetch_batches, 0, 0
    if _is_stream(parser, num_workers):
        buffer_bytes = read.shuffle_buffer_of_worker(num_workers, mean_bytes) * mean_bytes
        buffer_bytes += read.cycle_length * read.read_buffer_bytes
        tensorflow_bytes = _TENSORFLOW_BYTES
    batch_bytes = (parser.batch_size or 1) * _image_bytes(parser)
    parts = [
        (_PROCESS_BYTES, "Python, its libraries and images being decoded"),
        (tensorflow_bytes, "tensorflow"),
        (buffer_bytes, "the shuffle buffer and open files"),
        (num_batches * batch_bytes, f"{num_batches} batches of {batch_bytes / 2**20:.0f} MiB"),
    ]
    words = ", ".join(f"{_gigabytes(size)} for {name}" for size, name in parts if size)
    return sum(size for size, _ in parts), words


def warn_of_memory(dataset: Any, num_workers: int, prefetch_batches: int) -> None:
    """Warns where the workers of a loader would take more memory than is free."""
    if not num_workers:
        return
    free_bytes = available_bytes()
    each_bytes, words = worker_bytes(dataset, num_workers, prefetch_batches)
    if num_workers * each_bytes <= free_bytes:
        return
    limit = memory_limit()
    _warn(
        f"{num_workers} workers will take about {_gigabytes(num_workers * each_bytes)} of memory: "
        f"{_gigabytes(each_bytes)} each ({words}). {_gigabytes(free_bytes)} are free of {_gigabytes(limit.bytes)} "
        f"({limit.source}). Use fewer workers, or a smaller batch_size, prefetch_batches or shuffle_buffer."
    )


def _is_stream(parser: Parser, num_workers: int) -> bool:
    """Whether examples go through a shuffle buffer, as far as is known before the rank is."""
    try:
        return parser.read_mode(World(num_workers=num_workers)) != "index"
    except ConfigError:  # It is reported where the loader is iterated.
        return True


def _image_bytes(parser: Parser) -> int:
    """Returns the size of an image, as it lies in a batch."""
    if parser.preprocess is None:
        if is_undecoded(parser, "image"):
            return parser.mean_example_bytes
        return parser.mean_example_bytes * _PIXELS_PER_ENCODED_BYTE
    return parser.preprocess.num_pixels * 3


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=6)
