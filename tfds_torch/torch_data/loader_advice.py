"""Advice before a loader starts: the number of workers, their memory, and datasets that are read several times."""

import logging
import os
import warnings
from typing import Any

from torch.utils.data import IterableDataset

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import Parser, is_undecoded
from tfds_torch.plan.world import World
from tfds_torch.runtime.limits import available_bytes, choose_workers, memory_limit, num_local_ranks, usable_cores
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
from tfds_torch.torch_data.loader_options import LoaderOptions, is_plain_iterable
from tfds_torch.torch_data.rank_world import find_rank
from tfds_torch.torch_data.rows_dataset import RowsDataset
from tfds_torch.torch_data.wrapped_datasets import find_layer, knows_rank, mentions

_logger = logging.getLogger(__name__)

_WORKER_NAMES = {"get_worker_info"}

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


def warn_of_foreign(options: LoaderOptions, num_workers: int) -> None:
    """Warns where a dataset that is not ours would be read several times, or between the steps of the training loop."""
    dataset = options.dataset
    if find_layer(dataset, ImageDataset) is not None:
        return
    name = type(dataset).__name__
    is_shared_out = options.worker_init_fn is not None or mentions(dataset, _WORKER_NAMES)
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


def warn_of_ranks(options: LoaderOptions, stacklevel: int = 4) -> bool:
    """Warns where every rank would read all of a dataset that is not ours; returns whether there are several ranks.

    A sampler or batch sampler of the user's is taken to deal it out.
    """
    dataset = options.dataset
    try:
        world = find_rank(os.environ)
    except ConfigError:  # An ImageDataset reports it.
        return False
    if world.num_replicas > 1 and isinstance(options.planned, RowsDataset):
        _warn_of_padding(options.planned, stacklevel + 1)
    is_dealt_out = options.sampler is not None or options.batch_sampler is not None or is_plain_iterable(dataset)
    if world.num_replicas == 1 or is_dealt_out or options.planned is not None:
        return world.num_replicas > 1
    if knows_rank(dataset, options.worker_init_fn):
        return True
    step, name = world.num_replicas, type(dataset).__name__
    begin = f"This is rank {world.rank} of {world.num_replicas}, and each of them reads all of {name}"
    if isinstance(dataset, IterableDataset):
        advice = (
            f"nothing in its code asks for the rank. Let its __iter__ yield this rank's share (with "
            f"rank = torch.distributed.get_rank(), the items rank, rank + {step}, rank + {2 * step}, ...), and divide "
            f"that among the workers (torch.utils.data.get_worker_info())."
        )
    else:
        ours = " Or read it with ImageDataset, which does so." if find_layer(dataset, IndexedImageDataset) else ""
        advice = (
            f"deal it out with sampler=torch.utils.data.DistributedSampler(dataset), and call loader.set_epoch(epoch) "
            f"before every epoch; or give batch_size= and no collate_fn=: then create_loader does so.{ours} If it is "
            f"this rank's share already, give a sampler of its order."
        )
    warnings.warn(f"{begin}: {advice}", UserWarning, stacklevel=stacklevel)
    return True


def _warn_of_padding(dataset: RowsDataset, stacklevel: int) -> None:
    """Warns of an evaluation on several ranks that counts some items twice, because nothing tells them apart."""
    plan = dataset.plan()
    num_twice = plan.num_batches * plan.global_batch_size - plan.num_examples
    if plan.shuffle or num_twice <= 0:
        return
    warnings.warn(
        f"{dataset.parser.dataset_name} has {plan.num_examples} items, and {plan.world.num_replicas} ranks with "
        f"batch_size {plan.batch_size} read {num_twice} of them twice, so that all have as many batches. An evaluation "
        f"that must not count them twice reads which are padding: create_loader(ImageDataset(ParserMapStyle(rows, "
        f"batch_size={plan.batch_size}), fields=(..., 'valid'), batched=True)).",
        UserWarning,
        stacklevel=stacklevel,
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
    warnings.warn(text, UserWarning, stacklevel=5)
