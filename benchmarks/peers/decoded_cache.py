"""This package with `DecodedCache`, in whole batches without workers; the cache is built before the first epoch.

What it is compared with is timm's loader (`peers/timm_loader.py`), which decodes in every epoch.
"""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.task import Task


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]; `converted_dir` holds the cache."""
    from tfds_torch import DecodedCache, ImageDataset, ParserTfds, create_loader

    cache = DecodedCache(task.converted_dir)
    parser = ParserTfds(
        task.data_dir, task.dataset, task.split, is_training=True, batch_size=task.batch_size, cache=cache
    )
    loader = create_loader(ImageDataset(parser, batched=True))
    return lambda epoch: (images for images, _ in loader)
