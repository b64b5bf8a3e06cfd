"""timm's `create_loader` over its `ReaderTfds`, with timm's own transforms.

Configured: `is_training`, batch size, workers and the device `cpu`; `set_epoch` before every epoch, as timm's train.py
does. `color_jitter=0`, because no other competitor changes colors: timm's default would cost it more. An evaluation has
`crop_pct=0.875`; images that are delivered as they are have `no_aug=True`. All else is timm's default: bilinear
(antialiased), a shuffle buffer of 8,192 and a prefetch of 2,048 decoded images, divided among the workers (and limited
by the number of images); persistent workers; `fast_collate`.

The batches are uint8, taken from the DataLoader inside of `PrefetchLoader`, because that one would also turn them to
float32 and normalise them, which no other competitor does.
"""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.peers.timm_reader import declare_torchvision_operators
from benchmarks.task import IMAGE_SHAPE, PLAIN, Task
from benchmarks.transform import CROP_PCT

_declarations: list[Any] = []


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    import torch

    _declarations.append(declare_torchvision_operators())
    from timm.data import create_dataset, create_loader  # type: ignore[attr-defined, unused-ignore]

    dataset = create_dataset(
        f"tfds/{task.dataset}",
        root=task.data_dir,
        split="train",
        is_training=task.is_training,
        batch_size=task.batch_size,
    )
    loader = create_loader(
        dataset,
        input_size=task.image_shape or IMAGE_SHAPE,
        batch_size=task.batch_size,
        is_training=task.is_training,
        no_aug=task.work == PLAIN,
        color_jitter=0.0,
        crop_pct=CROP_PCT,
        num_workers=task.num_workers,
        device=torch.device("cpu"),
    )

    def epoch_of(epoch: int) -> Iterable[Any]:
        dataset.set_epoch(epoch)
        return (images for images, _ in loader.loader)

    return epoch_of
