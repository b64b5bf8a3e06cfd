"""Small images that are stored as pixels in one `.beton` file, in a random order: this package's loader, and FFCV's.

Both deliver whole epochs, of which nothing is dropped, and of every batch every byte is read. With augmentation, FFCV
flips half of the images and translates them by up to 4 pixels (`RandomHorizontalFlip`, `RandomTranslate`); we flip half
of them, pad them by 4 pixels and cut them. FFCV is configured as its CIFAR example: `OrderOption.RANDOM`,
`os_cache=True`; its threads are as many as the suite has workers. We read in the training process, `num_workers=0`.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.task import TRAIN, Task

PADDING = 4


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images of this package, torch uint8 [B, 3, H, W]."""
    from tfds_torch import ImageDataset, ParserBeton, TrainPreprocess, create_loader

    if task.image_shape is None:
        raise ValueError("a preprocess needs a size")
    preprocess = TrainPreprocess(size=task.image_shape[-1], crop_padding=PADDING) if task.work == TRAIN else None
    parser = ParserBeton(_path(task), is_training=True, batch_size=task.batch_size, preprocess=preprocess)
    loader = create_loader(ImageDataset(parser, batched=True))
    return lambda epoch: _read_all(loader)


def load_ffcv(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the same function of FFCV."""
    from ffcv.fields.decoders import IntDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, RandomTranslate, Squeeze, ToTensor, ToTorchImage

    changes = [RandomHorizontalFlip(), RandomTranslate(PADDING)] if task.work == TRAIN else []
    loader = Loader(
        _path(task),
        batch_size=task.batch_size,
        num_workers=max(1, task.num_workers),
        order=OrderOption.RANDOM,
        os_cache=True,
        drop_last=False,
        pipelines={
            "image": [SimpleRGBImageDecoder(), *changes, ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )
    return lambda epoch: _read_all(loader)


def _path(task: Task) -> str:
    (path,) = Path(str(task.converted_dir)).glob("*.beton")
    return str(path)


def _read_all(batches: Iterable[Any]) -> Iterator[Any]:
    """Yields images whose every byte has been read."""
    for images, labels in batches:
        images.permute(0, 2, 3, 1).numpy().reshape(-1).view(np.uint64).sum()
        labels.sum()
        yield images
