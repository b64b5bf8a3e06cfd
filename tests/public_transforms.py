"""Thirty transforms as people's training scripts have them. Loads torch, torchvision and timm."""

from collections.abc import Iterable
from functools import cache
from typing import Any

from torchvision_build import declare_where_needed

_held = declare_where_needed()

import presets  # noqa: E402 (torchvision)
import torch  # noqa: E402
from timm.data import create_transform  # type: ignore[attr-defined, unused-ignore]  # noqa: E402
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import InterpolationMode, v2  # noqa: E402
from torchvision.transforms._presets import ImageClassification  # noqa: E402

from tfds_torch import EvalPreprocess, TrainPreprocess  # noqa: E402
from tfds_torch.images.compose import take_over  # noqa: E402

_NORMALIZE = {"mean": presets.MEAN, "std": presets.STD}


def _to_float(module: Any) -> list[Any]:
    if module is v1:
        return [v1.ToTensor(), v1.Normalize(**_NORMALIZE)]
    return [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(**_NORMALIZE)]


@cache
def training() -> dict[str, Any]:
    """Returns transforms of training, by what they are."""
    cifar = [v1.RandomCrop(32, padding=4), v1.RandomHorizontalFlip()]
    return {
        "PyTorch's ImageNet example": v1.Compose(
            [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), *_to_float(v1)]
        ),
        "torchvision's references": presets.ClassificationPresetTrain(crop_size=176),
        "torchvision's references, TrivialAugment and erasing": presets.ClassificationPresetTrain(
            crop_size=176, auto_augment=True, erasing=0.1
        ),
        "torchvision's references, v2 on tensors": presets.ClassificationPresetTrain(
            crop_size=176, backend="tensor", use_v2=True
        ),
        "torchvision's v2 tutorial": v2.Compose(
            [
                v2.ToImage(),
                v2.ToDtype(torch.uint8, scale=True),
                v2.RandomResizedCrop(size=(224, 224), antialias=True),
                v2.RandomHorizontalFlip(p=0.5),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize(**_NORMALIZE),
            ]
        ),
        "timm's train.py": create_transform(224, is_training=True, use_prefetcher=True),
        "timm's train.py, --color-jitter 0": create_transform(
            224, is_training=True, color_jitter=0.0, use_prefetcher=True
        ),
        "timm, random interpolation and rand-m9": create_transform(
            224, is_training=True, auto_augment="rand-m9-mstd0.5", interpolation="random"
        ),
        "timm, 3-Augment, vertical flips": create_transform(224, is_training=True, auto_augment="3a", vflip=0.5),
        "timm, --no-aug": create_transform(224, is_training=True, no_aug=True),
        "timm, --train-crop-mode rkrc": create_transform(224, is_training=True, train_crop_mode="rkrc"),
        "CIFAR": v1.Compose([*cifar, *_to_float(v1)]),
        "CIFAR, padding reflected": v1.Compose(
            [v1.RandomCrop(32, padding=4, padding_mode="reflect"), v1.RandomHorizontalFlip(), *_to_float(v1)]
        ),
        "CIFAR, tensors first": v1.Compose([v1.ToTensor(), *cifar, v1.Normalize(**_NORMALIZE)]),
        "CIFAR, normalised first": v1.Compose([*_to_float(v1), *cifar]),
        "CIFAR, AutoAugment and Cutout": v1.Compose(
            [*cifar, v1.AutoAugment(v1.AutoAugmentPolicy.CIFAR10), *_to_float(v1), v1.RandomErasing(p=1.0)]
        ),
        "fine-tuning, exact size": v1.Compose([v1.Resize((224, 224)), v1.RandomHorizontalFlip(), *_to_float(v1)]),
        "fine-tuning, resized and cut": v1.Compose(
            [v1.Resize(256), v1.RandomCrop(224), v1.RandomHorizontalFlip(), v1.ColorJitter(0.2), *_to_float(v1)]
        ),
        "fine-tuning, rotated first": v1.Compose([v1.RandomRotation(15), v1.RandomResizedCrop(224), *_to_float(v1)]),
        "SimCLR": v2.Compose(
            [
                v2.RandomResizedCrop(224, scale=(0.2, 1.0)),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
                v2.RandomGrayscale(p=0.2),
                *_to_float(v2),
            ]
        ),
        "satellite images, both flips": v1.Compose(
            [v1.RandomHorizontalFlip(), v1.RandomVerticalFlip(), v1.RandomCrop(64), v1.ToTensor()]
        ),
        "pad_if_needed": v2.Compose([v2.RandomCrop(224, pad_if_needed=True), *_to_float(v2)]),
        "nearest": v1.Compose([v1.Resize((64, 64), InterpolationMode.NEAREST), v1.ToTensor()]),
    }


@cache
def evaluation() -> dict[str, Any]:
    """Returns transforms of evaluation, by what they are."""
    return {
        "PyTorch's ImageNet example, evaluation": v1.Compose([v1.Resize(256), v1.CenterCrop(224), *_to_float(v1)]),
        "torchvision's references, evaluation, v2": presets.ClassificationPresetEval(
            crop_size=224, resize_size=232, use_v2=True
        ),
        "the transforms of torchvision's weights": ImageClassification(crop_size=224, resize_size=232),
        "timm's validate.py": create_transform(224, interpolation="bicubic", crop_pct=0.9, use_prefetcher=True),
        "timm, crop mode border, not square": create_transform((3, 192, 256), crop_mode="border"),
        "timm, crop mode squash": create_transform(224, crop_mode="squash", crop_pct=1.0),
        "CIFAR, evaluation": v1.Compose(_to_float(v1)),
    }


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def _make_training(values: dict[str, Any]) -> TrainPreprocess:
    return TrainPreprocess(**values)


def _make_evaluation(values: dict[str, Any]) -> EvalPreprocess:
    return EvalPreprocess(**values)


def table() -> list[str]:
    """Returns the lines of the table of docs/pil-transforms.md: what of each is done while images are decoded."""
    lines = ["| transform | done while decoding | left | why |", "|---|---|---|---|"]
    for is_random, every in ((True, training()), (False, evaluation())):
        for name, transform in every.items():
            taken = take_over(transform, is_random=is_random, check=_make_training if is_random else _make_evaluation)
            left = [type(step).__name__ for step in taken.rest.transforms]
            why = taken.left or ("`mean`, `std`" if taken.mean else "bytes")
            lines.append(f"| {name} | {_list(taken.names)} | {_list(left) if taken.names else 'all'} | {why} |")
    return lines
