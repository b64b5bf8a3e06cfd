"""What a loader's workers will take of the memory that is there, said before they are started."""

import warnings
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.plan.world import World
from tfds_torch.runtime.memory_limits import available_bytes, memory_limit
from tfds_torch.torch_data.image_dataset import ImageDataset

_TENSORFLOW_BYTES = 400 * 2**20
_TORCH_BYTES = 250 * 2**20
_PROCESS_BYTES = 115 * 2**20  # Of a forked worker; one that is spawned imports torch anew.
_PIXELS_PER_ENCODED_BYTE = 8  # Of a photograph as JPEG, three channels.


def worker_bytes(dataset: Any, num_workers: int, prefetch_batches: int) -> tuple[int, str]:
    """Returns about what one worker takes, and what that is made of, in words."""
    if not isinstance(dataset, ImageDataset):
        return _TORCH_BYTES, f"{_gigabytes(_TORCH_BYTES)} for Python and torch, its data not counted"
    parser: Any = dataset.parser
    mean_bytes, read = getattr(parser, "mean_example_bytes", 0), getattr(parser, "read", None)
    num_batches, buffer_bytes, tensorflow_bytes = prefetch_batches + 1, 0, 0
    if read is not None:
        num_batches += read.prefetch_batches
        if _is_stream(parser, num_workers):
            buffer_bytes = read.shuffle_buffer_of_worker(num_workers, mean_bytes) * mean_bytes
            buffer_bytes += read.cycle_length * read.read_buffer_bytes
            tensorflow_bytes = _TENSORFLOW_BYTES
    tensorflow_bytes = _TENSORFLOW_BYTES if getattr(parser.preprocess, "map_fn", None) else tensorflow_bytes
    batch_bytes = (parser.batch_size or 1) * _image_bytes(parser, mean_bytes)
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
    warnings.warn(
        f"{num_workers} workers will take about {_gigabytes(num_workers * each_bytes)} of memory: "
        f"{_gigabytes(each_bytes)} each ({words}). {_gigabytes(free_bytes)} are free{of_limit}. Use fewer workers, or "
        f"a smaller batch_size, prefetch_batches or shuffle_buffer.",
        UserWarning,
        stacklevel=4,
    )


def _is_stream(parser: Any, num_workers: int) -> bool:
    """Whether examples go through a shuffle buffer, for all that can be known before the rank is."""
    try:
        return bool(parser.read_mode(World(num_workers=num_workers)) != "index")
    except ConfigError:  # It will be said where the loader is iterated.
        return True


def _image_bytes(parser: Any, mean_bytes: int) -> int:
    """Returns the size of a decoded image, as it lies in a batch."""
    size = getattr(getattr(parser, "preprocess", None), "size", None)
    if size is None:
        return mean_bytes * _PIXELS_PER_ENCODED_BYTE
    height, width = (size, size) if isinstance(size, int) else size
    return int(height) * int(width) * 3


def _gigabytes(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"
