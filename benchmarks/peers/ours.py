"""This package: whole batches through `create_loader`, or single examples behind torch's own DataLoader; other levels.

Configured, for whole batches: `is_training`, batch size, workers, and the work as `TrainPreprocess` or
`EvalPreprocess`; an evaluation of all examples without shuffling. Images that are delivered as they are have a
preprocess that finds nothing to do, or, in `load_batched`, none. A mixture has `weights="sizes"`, and an epoch of as
many examples as the dataset. All else is a default. Without workers, threads of
the training process decode, and no batch travels.

For single examples: `is_training`, which shuffles (8,192 encoded examples, divided among the workers) and fills the
last batch; the `ReadOptions` of the task; the shared transform; `persistent_workers`, as timm's loader has it. All
else is a default: torch's collation, its prefetch factor of 2, the start method of the system. `parser_level` is
`ParserTfds.batches` in one process: decoded images, and no torch. With `decoded`, only the size of every image
travels to the training process; `as_arrays` sends the pixels of images that are all of one size.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.task import EVAL, IMAGE_SHAPE, TRAIN, Task
from benchmarks.transform import CROP_PCT, RandomResizedCropFlip

Epochs = Callable[[int], Iterable[Any]]


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    return _batches(task, _parser(task, _preprocess(task)))


def load_mixture(task: Task) -> Epochs:
    """As `load`, with equal parts of the dataset as the members of a mixture, weighted by their sizes."""
    return _batches(task, mixture_of(task))


def mixture_of(task: Task) -> Any:
    """Returns the mixture of a dataset's equal parts, whose epoch has every example once."""
    from tfds_torch import ParserMixture, ReadOptions

    return ParserMixture(
        _parts_of(task),
        weights="sizes",
        is_training=True,
        batch_size=task.batch_size,
        preprocess=_preprocess(task),
        epoch_size=task.num_photos,
        read=ReadOptions(**task.read),
    )


def _parts_of(task: Task) -> dict[str, Any]:
    """Returns equal parts of the dataset, as the members of a mixture: name -> parser."""
    from tfds_torch import ParserTfds

    bounds = [task.num_photos * number // task.num_members for number in range(task.num_members + 1)]
    return {
        f"part {number}": ParserTfds(task.data_dir, task.dataset, f"{task.split}[{start}:{stop}]")
        for number, (start, stop) in enumerate(pairwise(bounds))
    }


def load_tars(task: Task) -> Epochs:
    """As `load` for training, with the tar files of `converted_dir`."""
    from tfds_torch import ParserWebDataset, TrainPreprocess

    tars = sorted(map(str, Path(str(task.converted_dir)).glob("*.tar")))
    preprocess = TrainPreprocess(size=(task.image_shape or IMAGE_SHAPE)[-1])
    parser = ParserWebDataset(tars, is_training=True, batch_size=task.batch_size, preprocess=preprocess)
    return _batches(task, parser)


def load_batched(task: Task) -> Epochs:
    """As `load`, without a preprocess: images of one size, as they are."""
    return _batches(task, _parser(task))


def load_after_reading(task: Task) -> Epochs:
    """As `load`, after an epoch of another loader without workers, as in a notebook that first looks at its data.

    What reading has left in the process (threads, an imported tensorflow) must not slow down its workers.
    """
    for _ in load(replace(task, num_workers=0))(0):
        pass
    return load(task)


def load_cached(task: Task) -> Epochs:
    """As `load_batched` without workers, with the decoded cache in `converted_dir`, built before the first epoch."""
    from tfds_torch import DecodedCache

    return _batches(replace(task, num_workers=0), _parser(task, cache=DecodedCache(task.converted_dir)))


def load_single(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, 224, 224]."""
    return _loader(task, RandomResizedCropFlip())


def parser_level(task: Task) -> Epochs:
    """Returns the function epoch -> lists of decoded images."""
    parser = _parser(task)
    return lambda epoch: (batch.image for batch in parser.batches(epoch=epoch))


def decoded(task: Task) -> Epochs:
    """Returns the function epoch -> batches of sizes, torch int64 [B, 2]."""
    return _loader(task, _size)


def as_arrays(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, H, W, 3]."""
    return _loader(task, _pixels)


def _parser(task: Task, preprocess: Any = None, **options: Any) -> Any:
    from tfds_torch import ParserTfds, ReadOptions

    return ParserTfds(
        task.data_dir,
        task.dataset,
        task.split,
        is_training=task.is_training,
        batch_size=task.batch_size,
        preprocess=preprocess,
        read=ReadOptions(**task.read),
        **options,
    )


def _preprocess(task: Task) -> Any:
    from tfds_torch import EvalPreprocess, TrainPreprocess

    if task.image_shape is None:
        raise ValueError("a preprocess needs a size")
    size = task.image_shape[-1]
    if task.work == TRAIN:
        return TrainPreprocess(size=size)
    return EvalPreprocess(size=size, crop_pct=CROP_PCT if task.work == EVAL else 1.0)


def _batches(task: Task, parser: Any) -> Epochs:
    from tfds_torch import ImageDataset, create_loader

    loader = create_loader(ImageDataset(parser, batched=True), num_workers=task.num_workers)
    return lambda epoch: (batch[0] for batch in loader)


def _loader(task: Task, transform: Callable[[Image.Image], Any]) -> Epochs:
    from torch.utils.data import DataLoader

    from tfds_torch import ImageDataset

    loader = DataLoader(
        ImageDataset(_parser(task), transform=transform),
        batch_size=task.batch_size,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )
    return lambda epoch: (images for images, _ in loader)


def _size(image: Image.Image) -> NDArray[np.int64]:
    return np.array(image.size, np.int64)


def _pixels(image: Image.Image) -> NDArray[np.uint8]:
    return np.asarray(image).copy()  # torch asks for memory that it may write to.
