"""Functions over whole examples: a Transform of this package, and the same function in a dataset of torch.

Configured: images in memory are 256, uint8 [224, 224, 3] with eight boxes each, behind any number of rows. Photographs
are read by `ParserTfds` with `TrainPreprocess`, or decoded by Pillow from files in memory. Functions get numpy. torch's
DataLoader has persistent workers, and its defaults; timm's transform has `rand-m5`, bilinear, no colour jitter, and
uint8 results, which `fast_collate` joins as in timm's loader.

Options of the task: `way`: one of `WAYS`.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import read_tars

RAND_AUGMENT = "rand-m5"
_NUM_IMAGES, _NUM_BOXES, _MOST_SHIFTED = 256, 8, 24
_held: list[Any] = []


class Rows:
    """A dataset in memory: dictionaries of an image and its boxes. With a function, as torch's collation takes them."""

    def __init__(self, task: Task, function: Any = None) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (_NUM_IMAGES, task.size, task.size, 3), np.uint8)
        corners = np.sort(rng.random((_NUM_IMAGES, _NUM_BOXES, 2, 2), np.float32), axis=2)
        self.boxes = corners.reshape(_NUM_IMAGES, _NUM_BOXES, 4)  # ymin, xmin, ymax, xmax
        self.num_rows = task.num_examples
        self.function = function
        self.rng: Any = None

    def __len__(self) -> int:
        return self.num_rows

    def __getitem__(self, number: int) -> dict[str, Any]:
        row = {"image": self.images[number % _NUM_IMAGES], "bbox": self.boxes[number % _NUM_IMAGES]}
        if self.function is None:
            return row
        import torch

        if self.rng is None:  # A worker's.
            self.rng = np.random.default_rng(torch.initial_seed())
        found = self.function(row | {"bbox": row["bbox"].copy()}, self.rng)
        return {"image": torch.from_numpy(found["image"].transpose(2, 0, 1).copy()), "bbox": found["bbox"]}


class Files:
    """Photographs in memory, through a transform of PIL images."""

    def __init__(self, task: Task, transform: Callable[[Image.Image], Any]) -> None:
        self.files = list(read_tars(task.tars))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        file, label = self.files[number]
        return self.transform(Image.open(io.BytesIO(file)).convert("RGB")), label


def flip_and_shift(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Moves images by some pixels, and flips half of them; boxes follow."""
    image, boxes = example["image"], example["bbox"]
    down, right = rng.integers(-_MOST_SHIFTED, _MOST_SHIFTED + 1, 2).tolist()
    height, width = image.shape[:2]
    moved = np.zeros_like(image)
    into, out_of = (
        (slice(max(y, 0), height + min(y, 0)), slice(max(x, 0), width + min(x, 0)))
        for y, x in ((down, right), (-down, -right))
    )
    moved[into] = image[out_of]
    boxes = np.clip(boxes + np.array([down / height, right / width] * 2, np.float32), 0, 1)
    if rng.random() < 0.5:
        moved = moved[:, ::-1]
        boxes[:, [1, 3]] = 1 - boxes[:, [3, 1]]
    return {"image": moved, "bbox": boxes}


def nothing(example: dict[str, Any]) -> dict[str, Any]:
    """Returns an example as it is."""
    return example


class RandAugment:
    """timm's RandAugment of an image, in numpy."""

    def __init__(self) -> None:
        _declare_operators()
        from timm.data.auto_augment import rand_augment_transform

        self.augment = rand_augment_transform(RAND_AUGMENT, {"interpolation": Image.Resampling.BILINEAR})

    def __call__(self, example: dict[str, Any]) -> dict[str, Any]:
        """Returns the image that it makes of one."""
        return {"image": np.asarray(self.augment(Image.fromarray(example["image"])))}


def _declare_operators() -> None:
    from benchmarks.peers.timm_reader import declare_torchvision_operators

    if not _held:
        _held.append(declare_torchvision_operators())


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    loader, of_image = WAYS[task.options["way"]](task)
    return lambda epoch: (batch[of_image] for batch in loader)


def _in_memory(task: Task, transform: Any = None, *, as_dict: bool = False) -> tuple[Any, Any]:
    from tfds_torch import ImageDataset, ParserMapStyle, create_loader

    parser = ParserMapStyle(
        Rows(task), is_training=True, batch_size=task.batch_size, transform=transform, target_key=None
    )
    dataset = ImageDataset(parser, fields=("image", "bbox"), as_dict=as_dict, batched=True)
    return create_loader(dataset, num_workers=task.num_workers), "image" if as_dict else 0


def _photos(task: Task, transform: Any = None) -> tuple[Any, Any]:
    from tfds_torch import ImageDataset, ParserTfds, TrainPreprocess, create_loader

    parser = ParserTfds(
        task.data_dir,
        task.dataset,
        is_training=True,
        batch_size=task.batch_size,
        preprocess=TrainPreprocess(size=task.size),
        transform=transform,
    )
    return create_loader(ImageDataset(parser), num_workers=task.num_workers), 0


def _flipped(task: Task, *, threads: bool) -> tuple[Any, Any]:
    from tfds_torch import Transform

    names = ("image", "bbox")
    return _in_memory(task, Transform(flip_and_shift, reads=names, gives=names, threads=threads))


def _augmented(task: Task) -> tuple[Any, Any]:
    from tfds_torch import Transform

    return _photos(task, Transform(RandAugment(), reads=["image"], gives=["image"]))


def _torch(task: Task, dataset: Any, of_image: Any, **options: Any) -> tuple[Any, Any]:
    from torch.utils.data import DataLoader

    options |= {"num_workers": task.num_workers, "persistent_workers": task.num_workers > 0}
    return DataLoader(dataset, task.batch_size, shuffle=True, **options), of_image


def _torch_augmented(task: Task) -> tuple[Any, Any]:
    _declare_operators()
    from timm.data import create_transform
    from timm.data.loader import fast_collate

    made = create_transform(
        task.size,
        is_training=True,
        use_prefetcher=True,
        auto_augment=RAND_AUGMENT,
        color_jitter=None,
        interpolation="bilinear",
    )
    return _torch(task, Files(task, made), 0, collate_fn=fast_collate)


WAYS: dict[str, Callable[[Task], tuple[Any, Any]]] = {
    "flip": lambda task: _flipped(task, threads=False),
    "flip_threads": lambda task: _flipped(task, threads=True),
    "torch_flip": lambda task: _torch(task, Rows(task, flip_and_shift), "image"),
    "tuples": _in_memory,
    "dictionaries": lambda task: _in_memory(task, as_dict=True),
    "none": _photos,
    "nothing": lambda task: _photos(task, nothing),
    "rand_augment": _augmented,
    "torch_rand_augment": _torch_augmented,
}
"""What is measured: a task -> a loader, and where the images lie in its batches."""


if __name__ == "__main__":
    serve(load, ("tfds-torch", "torch", "timm"))
