"""People's transforms of PIL images: over a torch dataset in memory, over this package, and over timm's reader.

Configured: options of the task name the `transform` and the `way`. `memory` is a map-style dataset whose files lie in
memory, behind torch's DataLoader. `whole` and `fused` are this package's `ImageDataset(parser, transform=...)`: with
`fuse=False` behind torch's DataLoader, and with its default behind `create_loader`; `behind_torch` has the default
behind torch's DataLoader. `timm` is timm's `create_loader` over its own reader; `drop_in_whole` and `drop_in` are the
same script after `install(fuse=False)` and `install()`. Of timm's loader the batches are taken from the DataLoader
inside of `PrefetchLoader`, which would normalise them in the training process. All else is a default.
"""

import io
from typing import Any

from benchmarks.peers.ours import PACKAGES
from benchmarks.peers.timm_reader import declare_torchvision_operators
from benchmarks.protocol import Epochs, Task, serve

_declarations: list[Any] = []
_OF_TRAIN_PY = {
    "train.py": {"color_jitter": 0.4, "interpolation": "random"},
    "train.py, no jitter": {"color_jitter": 0.0, "interpolation": "random"},
    "rand-m5": {"auto_augment": "rand-m5", "color_jitter": 0.0, "interpolation": "bilinear"},
    "rand-m5, random": {"auto_augment": "rand-m5", "color_jitter": 0.0, "interpolation": "random"},
}
"""Name of a transform -> arguments of timm's `create_transform` and `create_loader`."""


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    _declarations.append(declare_torchvision_operators())
    way = task.options["way"]
    if way == "timm" or way.startswith("drop_in"):
        return _by_timm(task, way)
    loader = _in_memory(task) if way == "memory" else _ours(task, way)
    return lambda epoch: (batch[0] for batch in loader)


def _transform(task: Task) -> Any:
    if task.options["transform"] in _OF_TRAIN_PY:
        from timm.data import create_transform  # type: ignore[attr-defined, unused-ignore]

        options = _OF_TRAIN_PY[task.options["transform"]]
        return create_transform(task.size, is_training=True, use_prefetcher=True, **options)
    from torchvision.transforms import Compose, PILToTensor, RandomHorizontalFlip, RandomResizedCrop

    return Compose([RandomResizedCrop(task.size), RandomHorizontalFlip(), PILToTensor()])


def _ours(task: Task, way: str) -> Any:
    from torch.utils.data import DataLoader

    from tfds_torch import ImageDataset, ParserTfds, create_loader

    parser = ParserTfds(task.data_dir, task.dataset, is_training=True, batch_size=task.batch_size)
    dataset = ImageDataset(parser, transform=_transform(task), fuse="auto" if way != "whole" else False)
    if way == "fused":
        return create_loader(dataset, num_workers=task.num_workers)
    return DataLoader(
        dataset, batch_size=task.batch_size, num_workers=task.num_workers, persistent_workers=task.num_workers > 0
    )


class InMemory:
    """A map-style dataset: files in memory, opened by Pillow. Picklable."""

    def __init__(self, files: list[tuple[bytes, int]], transform: Any) -> None:
        self.files, self.transform = files, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        from PIL import Image

        file, label = self.files[number]
        return self.transform(Image.open(io.BytesIO(file)).convert("RGB")), label


def _in_memory(task: Task) -> Any:
    from torch.utils.data import DataLoader

    from tfds_torch import ImageDataset, ParserTfds

    encoded = ImageDataset(ParserTfds(task.data_dir, task.dataset, decode={"image": False}))
    return DataLoader(
        InMemory([(bytes(file), int(label)) for file, label in encoded], _transform(task)),  # type: ignore[arg-type]
        batch_size=task.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=task.num_workers,
        persistent_workers=task.num_workers > 0,
    )


def _by_timm(task: Task, way: str) -> Epochs:
    import torch

    if way != "timm":
        from tfds_torch.timm import install

        install(fuse="auto" if way == "drop_in" else False)
    from timm.data import create_dataset, create_loader  # type: ignore[attr-defined, unused-ignore]

    arguments = {"split": "train", "is_training": True, "batch_size": task.batch_size}
    dataset = create_dataset(f"tfds/{task.dataset}", root=task.data_dir, **arguments)
    loader = create_loader(
        dataset,
        input_size=task.image_shape,
        batch_size=task.batch_size,
        is_training=True,
        num_workers=task.num_workers,
        device=torch.device("cpu"),
        **_OF_TRAIN_PY[task.options["transform"]],
    )

    def epoch_of(epoch: int) -> Any:
        dataset.set_epoch(epoch)
        return (images for images, _ in loader.loader)

    return epoch_of


if __name__ == "__main__":
    serve(load, (*PACKAGES, "timm", "torchvision"))
