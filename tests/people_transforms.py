"""Objects whose classes have the names of torchvision's transforms: those that are taken over must not be called."""

from functools import cache
from typing import Any

import numpy as np

V1, V2 = "torchvision.transforms.transforms", "torchvision.transforms.v2._geometry"


class _Named:
    """Has the attributes that it is given. Picklable."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def __call__(self, image: Any) -> Any:
        raise AssertionError(f"{type(self).__name__} was to be taken over, and is called with {image!r:.80}")

    def __reduce__(self) -> tuple[Any, ...]:
        return named, (type(self).__module__, type(self).__name__, vars(self))


class _Compose(_Named):
    def __call__(self, image: Any) -> Any:
        for transform in self.transforms:  # type: ignore[attr-defined]
            image = transform(image)
        return image


class _PILToTensor(_Named):
    def __call__(self, image: Any) -> Any:
        import torch

        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


class _ToTensor(_Named):
    def __call__(self, image: Any) -> Any:
        return _PILToTensor()(image).contiguous().float().div(255)


class _Normalize(_Named):
    def __call__(self, image: Any) -> Any:
        import torch

        mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))  # type: ignore[attr-defined]
        return (image - mean) / std


_RUN = {"Compose": _Compose, "PILToTensor": _PILToTensor, "ToTensor": _ToTensor, "Normalize": _Normalize}


@cache
def _class(module: str, name: str) -> type[_Named]:
    return type(name, (_RUN.get(name, _Named),), {"__module__": module})


def named(module: str, name: str, attributes: dict[str, Any]) -> Any:
    """Returns an object whose class has the name and module of a transform."""
    return _class(module, name)(**attributes)


def theirs(module: str, name: str, **attributes: Any) -> Any:
    return named(module, name, attributes)


def compose(*steps: Any) -> Any:
    return theirs(V1, "Compose", transforms=list(steps))


def crop(**changes: Any) -> Any:
    values = {"size": (8, 8), "scale": (0.08, 1.0), "ratio": (0.75, 1.25), "interpolation": 2, "antialias": True}
    return theirs(V2, "RandomResizedCrop", **values | changes)


def resize(**changes: Any) -> Any:
    values = {"size": [9], "interpolation": "bilinear", "max_size": None, "antialias": True}
    return theirs(V2, "Resize", **values | changes)


def random_crop(**changes: Any) -> Any:
    values = {"size": (8, 8), "padding": None, "pad_if_needed": False, "fill": 0, "padding_mode": "constant"}
    return theirs(V1, "RandomCrop", **values | changes)


def center_crop(size: int = 8) -> Any:
    return theirs(V1, "CenterCrop", size=(size, size))


def hflip(p: float = 0.5) -> Any:
    return theirs(V1, "RandomHorizontalFlip", p=p)


def vflip(p: float = 0.5) -> Any:
    return theirs(V1, "RandomVerticalFlip", p=p)


TO_TENSOR = theirs(V1, "ToTensor")
PIL_TO_TENSOR = theirs(V1, "PILToTensor")
JITTER = theirs(V1, "ColorJitter", brightness=1, contrast=1, saturation=1, hue=0)
NORMALIZE = theirs(V1, "Normalize", mean=[0.5, 0.25, 0], std=[1.0, 0.5, 0.25])
