"""This package with a preprocess: whole batches, through `create_loader`.

Configured: `is_training`, batch size, workers, and the work as `TrainPreprocess` or `EvalPreprocess`; an evaluation of
all examples without shuffling. Images that are delivered as they are have a preprocess that finds nothing to do. All
else is a default. Without workers, threads of the training process decode, and nothing is handed over. The extra `png`
is installed: kornia-rs decodes the small PNG images.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tfds_torch.bench.task import EVAL, TRAIN, Task
from tfds_torch.bench.transform import CROP_PCT


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds, TrainPreprocess, create_loader

    if task.image_shape is None:
        raise ValueError("a preprocess needs a size")
    size = task.image_shape[-1]
    preprocess = (
        TrainPreprocess(size=size)
        if task.work == TRAIN
        else EvalPreprocess(size=size, crop_pct=CROP_PCT if task.work == EVAL else 1.0)
    )
    parser = ParserTfds(
        task.data_dir,
        task.dataset,
        task.split,
        is_training=task.is_training,
        batch_size=task.batch_size,
        preprocess=preprocess,
    )
    loader = create_loader(ImageDataset(parser), num_workers=task.num_workers)
    return lambda epoch: (batch[0] for batch in loader)


def load_in_process(task: Task) -> Callable[[int], Iterable[Any]]:
    """As `load`, without workers."""
    return load(replace(task, num_workers=0))
