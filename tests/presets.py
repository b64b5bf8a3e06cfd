"""The presets of torchvision's training script for classification, in their shape: a class that holds a Compose.

Loads torch and torchvision. Source: torchvision, `references/classification/presets.py`.
"""

from typing import Any

import torch
from torchvision import transforms
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ClassificationPresetTrain:
    """What train.py has in training."""

    def __init__(
        self,
        *,
        crop_size: int,
        auto_augment: bool = False,
        erasing: float = 0.0,
        backend: str = "pil",
        use_v2: bool = False,
    ) -> None:
        module: Any = v2 if use_v2 else transforms
        steps: list[Any] = [module.PILToTensor()] if backend == "tensor" else []
        steps.append(module.RandomResizedCrop(crop_size, interpolation=InterpolationMode.BILINEAR, antialias=True))
        steps.append(module.RandomHorizontalFlip(0.5))
        if auto_augment:
            steps.append(module.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR))
        if backend == "pil":
            steps.append(module.PILToTensor())
        to_float = v2.ToDtype(torch.float, scale=True) if use_v2 else transforms.ConvertImageDtype(torch.float)
        steps += [to_float, module.Normalize(mean=MEAN, std=STD)]
        if erasing:
            steps.append(module.RandomErasing(p=erasing))
        if use_v2:
            steps.append(v2.ToPureTensor())
        self.transforms = module.Compose(steps)

    def __call__(self, image: Any) -> Any:
        """Returns what the Compose returns."""
        return self.transforms(image)


class ClassificationPresetEval:
    """What train.py has in evaluation."""

    def __init__(self, *, crop_size: int, resize_size: int = 256, use_v2: bool = False) -> None:
        module: Any = v2 if use_v2 else transforms
        to_float = v2.ToDtype(torch.float, scale=True) if use_v2 else transforms.ConvertImageDtype(torch.float)
        self.transforms = module.Compose(
            [
                module.Resize(resize_size, interpolation=InterpolationMode.BILINEAR, antialias=True),
                module.CenterCrop(crop_size),
                module.PILToTensor(),
                to_float,
                module.Normalize(mean=MEAN, std=STD),
            ]
        )

    def __call__(self, image: Any) -> Any:
        """Returns what the Compose returns."""
        return self.transforms(image)
