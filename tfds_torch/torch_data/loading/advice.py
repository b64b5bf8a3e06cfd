"""What is said before a loader starts anything: how many workers, who reads what how often, and how much memory."""

import inspect
import logging
import os
import warnings
from typing import Any

from torch.utils.data import IterableDataset

from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import height_and_width
from tfds_torch.parsers.parser import Parser
from tfds_torch.plan.world import World
from tfds_torch.runtime.machine_share import choose_workers, num_local_ranks, usable_cores
from tfds_torch.runtime.memory_limits import available_bytes, memory_limit
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loading.iterables import is_plain_iterable
from tfds_torch.torch_data.loading.options import LoaderOptions
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
    choice = choose_workers(usable_cores(), num_local_ranks(os.environ), available_bytes())
    _logger.info("num_workers='auto': %s", choice.reason)
    return choice.num_workers, choice.reason


def warn_of_foreign(dataset: Any, options: LoaderOptions, num_workers: int) -> None:
    """Warns where a dataset that is not ours would be read several times, or by nobody but the training loop."""
    if find_layer(dataset, ImageDataset) is not None:
        return
    name = type(dataset).__name__
    is_shared_out = options.worker_init_fn is not None or _asks_for_worker(type(dataset))
    if isinstance(dataset, IterableDataset) and num_workers > 1 and not is_shared_out:
        _warn(
            f"Each of the {num_workers} workers reads all of {name}, so that every example comes {num_workers} times: "
            f"its __iter__ does not ask torch.utils.data.get_worker_info() for its share, and there is no "
            f"worker_init_fn. Do so, or use one worker."
        )
    if num_workers == 0 and options.device is not None and not is_plain_iterable(dataset):
        _warn(
            f"The training process reads {name} for itself, between its steps: nothing is fetched while it computes. "
            f"Use num_workers=1 or more, or 'auto'."
        )


def worker_bytes(dataset: Any, num_workers: int, prefetch_batches: int) -> tuple[int, str]:
    """Returns about what one worker takes, and what that is made of, in words."""
    if not isinstance(dataset, ImageDataset):
        return _TORCH_BYTES, f"{_gigabytes(_TORCH_BYTES)} for Python and torch, its data not counted"
    parser = dataset.parser
    mean_bytes, read = parser.mean_example_bytes, parser.read
    num_batches, buffer_bytes = prefetch_batches + 1 + read.prefetch_batches, 0
    needs_tensorflow = parser.preprocess is not None and parser.preprocess.map_fn is not None
    if _is_stream(parser, num_workers):
        buffer_bytes = read.shuffle_buffer_of_worker(num_workers, mean_bytes) * mean_bytes
        buffer_bytes += read.cycle_length * read.read_buffer_bytes
        needs_tensorflow = True
    tensorflow_bytes = _TENSORFLOW_BYTES if needs_tensorflow else 0
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
    free_bytes = available_bytes() if num_workers else None
    if free_bytes is None:
        return
    each_bytes, words = worker_bytes(dataset, num_workers, prefetch_batches)
    if num_workers * each_bytes <= free_bytes:
        return
    limit = memory_limit()
    of_limit = f" of {_gigabytes(limit.bytes)} ({limit.source})" if limit is not None else ""
    _warn(
        f"{num_workers} workers will take about {_gigabytes(num_workers * each_bytes)} of memory: "
        f"{_gigabytes(each_bytes)} each ({words}). {_gigabytes(free_bytes)} are free{of_limit}. Use fewer workers, or "
        f"a smaller batch_size, prefetch_batches or shuffle_buffer."
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


def _is_stream(parser: Parser, num_workers: int) -> bool:
    """Whether examples go through a shuffle buffer, for all that can be known before the rank is."""
    try:
        return parser.read_mode(World(num_workers=num_workers)) != "index"
    except ConfigError:  # It will be said where the loader is iterated.
        return True


def _image_bytes(parser: Parser) -> int:
    """Returns the size of a decoded image, as it lies in a batch."""
    if parser.preprocess is None:
        return parser.mean_example_bytes * _PIXELS_PER_ENCODED_BYTE
    height, width = height_and_width(parser.preprocess.size)
    return height * width * 3


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def _warn(text: str) -> None:
    warnings.warn(text, UserWarning, stacklevel=5)
