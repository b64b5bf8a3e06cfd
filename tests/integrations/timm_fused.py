"""A script that reads one dataset through timm's loader in several ways, and prints what came. Loads timm."""

import json
import sys
from typing import Any

import torch

from tfds_torch.timm import install

install()

from timm.data import FastCollateMixup, create_dataset, create_loader  # type: ignore[attr-defined, unused-ignore]  # noqa: E402, I001
from tfds_torch.integrations.timm.fusing import CollateRows, DoneByReader  # noqa: E402

CPU, SIZE, BATCH_SIZE = torch.device("cpu"), 48, 8


def load(root: str, is_training: bool, fuse: bool | str = "auto", **options: Any) -> Any:
    install(fuse)
    dataset = create_dataset("tfds/photos", root, split="train", is_training=is_training, batch_size=BATCH_SIZE)
    return create_loader(
        dataset,
        (3, SIZE, SIZE),
        BATCH_SIZE,
        is_training,
        **{"device": CPU, "num_workers": 2, "color_jitter": 0.0, "persistent_workers": False} | options,
    )


def read(loader: Any, epoch: int = 0) -> tuple[torch.Tensor, list[int]]:
    """Returns the images and targets of an epoch."""
    loader.dataset.set_epoch(epoch)
    batches = list(loader)
    return torch.cat([images for images, _ in batches]), torch.cat([targets for _, targets in batches]).tolist()


def of_way(loader: Any) -> tuple[str, str]:
    return type(loader.loader.collate_fn).__name__, type(loader.dataset.transform).__name__


def main(root: str) -> dict[str, Any]:
    """Returns what is to be judged."""
    found: dict[str, Any] = {}
    for is_training in (False, True):
        loaders = {name: load(root, is_training, fuse) for name, fuse in (("fused", "auto"), ("whole", False))}
        (fused, targets), (whole, wanted) = (read(loader) for loader in loaders.values())
        name = "training" if is_training else "evaluation"
        found[f"{name}: equal targets"] = targets == wanted and len(targets) == len(
            loaders["fused"]
        ) * BATCH_SIZE - 3 * (not is_training)
        # Images are normalised: a grey level is 1 / 255 / std, and std is 0.225, about.
        found[f"{name}: apart"] = float((fused - whole).abs().mean()) * 255 * 0.225
        found[f"{name}: spread"] = abs(float(fused.mean() - whole.mean())) * 255 * 0.225
        found[f"{name}: ways"] = {key: of_way(loader) for key, loader in loaders.items()}
    training = load(root, True)
    found["an epoch again is equal"] = torch.equal(read(training)[0], read(training)[0])
    found["another epoch is not"] = not torch.equal(read(training)[0], read(training, 1)[0])
    found["without workers it is equal"] = torch.equal(read(training)[0], read(load(root, True, num_workers=0))[0])
    found["batches are not copied"] = [
        batch[0].is_contiguous(memory_format=torch.channels_last) and batch[0].is_shared() for batch in training.loader
    ]
    jitter = load(root, True, color_jitter=0.4)
    found["with jitter"] = [of_way(jitter), list(read(jitter)[0].shape)]
    mixup = load(root, True, collate_fn=FastCollateMixup(num_classes=2))
    images, targets = next(iter(mixup))
    found["mixup"] = [of_way(mixup), list(images.shape), list(targets.shape)]
    later = load(root, True)
    later.dataset.transform = lambda image: torch.full((3, 4, 4), image.width % 256, dtype=torch.uint8)
    images, targets = next(iter(later))
    found["set again"] = [list(images.shape), len(images.unique()) > 1]
    assert CollateRows
    assert DoneByReader
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
