"""This package in whole batches, with a preprocess or with `batched=True`, through `create_loader`.

Configured: `is_training`, batch size, workers, and the work as `TrainPreprocess` or `EvalPreprocess`; an evaluation of
all examples without shuffling. Images that are delivered as they are have a preprocess that finds nothing to do, or,
in `load_batched`, none. All else is a default. Without workers, threads of the training process decode, and nothing is
handed over.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.task import EVAL, IMAGE_SHAPE, TRAIN, Task
from benchmarks.transform import CROP_PCT


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    from tfds_torch import EvalPreprocess, TrainPreprocess

    if task.image_shape is None:
        raise ValueError("a preprocess needs a size")
    size = task.image_shape[-1]
    preprocess = (
        TrainPreprocess(size=size)
        if task.work == TRAIN
        else EvalPreprocess(size=size, crop_pct=CROP_PCT if task.work == EVAL else 1.0)
    )
    return _epochs(task, _tfds_parser(task, preprocess))


def load_tars(task: Task) -> Callable[[int], Iterable[Any]]:
    """As `load` does it for training, with the tar files of `converted_dir`."""
    from tfds_torch import ParserWebDataset, TrainPreprocess

    tars = sorted(map(str, Path(str(task.converted_dir)).glob("*.tar")))
    preprocess = TrainPreprocess(size=(task.image_shape or IMAGE_SHAPE)[-1])
    parser = ParserWebDataset(tars, is_training=True, batch_size=task.batch_size, preprocess=preprocess)
    return _epochs(task, parser)


def load_batched(task: Task) -> Callable[[int], Iterable[Any]]:
    """As `load`, without a preprocess: images of one size, as they are."""
    return _epochs(task, _tfds_parser(task, None))


def load_after_reading(task: Task) -> Callable[[int], Iterable[Any]]:
    """As `load`, after an epoch of another loader without workers, as in a notebook that first looks at its data.

    What reading has left in the process (threads, an imported tensorflow) must not slow down its workers.
    """
    for _ in load(replace(task, num_workers=0))(0):
        pass
    return load(task)


def _tfds_parser(task: Task, preprocess: Any) -> Any:
    from tfds_torch import ParserTfds, ReadOptions

    return ParserTfds(
        task.data_dir,
        task.dataset,
        task.split,
        is_training=task.is_training,
        batch_size=task.batch_size,
        preprocess=preprocess,
        read=ReadOptions(**task.read),
    )


def _epochs(task: Task, parser: Any) -> Callable[[int], Iterable[Any]]:
    from tfds_torch import ImageDataset, create_loader

    loader = create_loader(ImageDataset(parser, batched=True), num_workers=task.num_workers)
    return lambda epoch: (batch[0] for batch in loader)
