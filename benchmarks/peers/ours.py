"""This package: whole batches through `create_loader`, or single PIL images behind torch's own DataLoader.

Configured, for whole batches: `is_training`, batch size, workers, and the work as `TrainPreprocess` or
`EvalPreprocess`; an evaluation of all examples without shuffling. Images that are delivered as they are have a
preprocess that finds nothing to do, or none (`has_preprocess`). A mixture has `weights="sizes"`, and an epoch of as
many examples as the dataset. Without workers, threads of the training process decode, and no batch travels. Windows of
episodes are an action of 16 steps, both cameras and the state; their images are delivered as they are stored.

For single examples: `transform=` with the shared transform, and `persistent_workers`, as timm's loader has it. All else
is a default: torch's collation, its prefetch factor of 2, the start method of the system.

Options of the task: `read`: arguments of `ReadOptions`; `is_single`; `has_preprocess`; `source`: `tars` (of
`task.tars`), `beton` (in `task.files`), `mixture` (`num_members` equal parts), `cached` (a decoded cache in
`cache_dir`), `windows`, or none of them.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import EVAL, TRAIN, Epochs, Task, serve
from benchmarks.transform import CROP_PCT, RandomResizedCropFlip

PACKAGES = ("tfds-torch", "torch", "tensorflow-datasets", "turbojpeg", "simplejpeg")
NUM_ACTIONS = 16
CAMERAS = {"image_primary": "observation/image_0", "image_wrist": "observation/image_1"}
_WINDOW_FIELDS = (*CAMERAS, "action", "action_pad", "state", "episode", "step")
_PADDING = 4


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    from tfds_torch import ImageDataset, create_loader

    parser, options = make_parser(task), task.options
    if options.get("is_single"):
        from torch.utils.data import DataLoader

        loader: Any = DataLoader(
            ImageDataset(parser, transform=RandomResizedCropFlip()),
            batch_size=task.batch_size,
            num_workers=task.num_workers,
            persistent_workers=task.num_workers > 0,
        )
        return lambda epoch: (images for images, _ in loader)
    if options.get("source") == "windows":
        dataset = ImageDataset(parser, fields=_WINDOW_FIELDS)
    else:
        dataset = ImageDataset(parser, batched=True)
    loader = create_loader(dataset, num_workers=task.num_workers)
    if options.get("is_read"):
        return lambda epoch: (read_all(batch) for batch in loader)
    return lambda epoch: (batch[0] for batch in loader)


def read_all(batch: Any) -> Any:
    """Reads every byte of images and labels, and returns the images."""
    images, labels = batch[:2]
    images.permute(0, 2, 3, 1).numpy().reshape(-1).view(np.uint64).sum()
    labels.sum()
    return images


def make_parser(task: Task) -> Any:
    """Returns the parser that the task's options name."""
    from tfds_torch import DecodedCache, ParserBeton, ParserMixture, ParserTfds, ParserWebDataset, ReadOptions

    source = task.options.get("source")
    common: dict[str, Any] = {"is_training": task.is_training, "batch_size": task.batch_size}
    read = ReadOptions(**task.options.get("read", {}))
    if source == "windows":
        return _windows(task, common, read)
    if not task.options.get("is_single"):
        common["preprocess"] = _preprocess(task)
    if source == "tars":
        return ParserWebDataset(sorted(map(str, Path(task.tars).glob("*.tar"))), **common)
    if source == "beton":
        return ParserBeton(str(next(Path(task.files).glob("*.beton"))), **common)
    if source == "mixture":
        num_members = int(task.options["num_members"])
        bounds = [task.num_examples * number // num_members for number in range(num_members + 1)]
        parts = {
            f"part {number}": ParserTfds(task.data_dir, task.dataset, f"train[{start}:{stop}]")
            for number, (start, stop) in enumerate(pairwise(bounds))
        }
        return ParserMixture(parts, weights="sizes", epoch_size=task.num_examples, read=read, **common)
    if source == "cached":
        common["cache"] = DecodedCache(task.options["cache_dir"])
    return ParserTfds(task.data_dir, task.dataset, read=read, **common)


def _windows(task: Task, common: dict[str, Any], read: Any) -> Any:
    from tfds_torch import ParserTfds, Windows

    return ParserTfds(
        task.data_dir,
        task.dataset,
        windows=Windows("steps", offsets={"action": range(NUM_ACTIONS)}),
        fields={**CAMERAS, "state": "observation/state"},
        read=read,
        **common,
    )


def _preprocess(task: Task) -> Any:
    from tfds_torch import EvalPreprocess, TrainPreprocess

    if not task.options.get("has_preprocess", True):
        return None
    if task.work == TRAIN:
        if task.options.get("is_padded"):
            return TrainPreprocess(size=task.size, crop_padding=_PADDING)
        return TrainPreprocess(size=task.size)
    return EvalPreprocess(size=task.size, crop_pct=CROP_PCT if task.work == EVAL else 1.0)


if __name__ == "__main__":
    serve(load, PACKAGES)
