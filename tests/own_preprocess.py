"""Preprocesses as a user writes them, in a module that workers can import: good ones, and ones that fail."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.images.preprocess import Crops, ExampleRandom, Preprocess


@dataclass(frozen=True)
class Shade(TrainPreprocess):
    """Adds a grey level of the example's own, modulo 256."""

    most: int = 256

    def augment(self, images: np.ndarray, random: ExampleRandom) -> None:
        assert (images.dtype, images.shape[1:3]) == (np.uint8, (self.size, self.size))
        images += (random.uniforms(1) * self.most).astype(np.uint8)[:, :, None, None]


@dataclass(frozen=True)
class SquareCrop(Preprocess):
    """The largest square, anywhere; flipped by chance."""

    size: int

    def crop(self, sizes: np.ndarray, random: ExampleRandom) -> Crops:
        sides = sizes.min(axis=1, keepdims=True)
        starts = np.floor(random.uniforms(2) * (sizes - sides + 1)).astype(np.int64)
        return Crops(np.hstack([starts, sides, sides]), flips=random.uniforms(1)[:, 0] < 0.5)


@dataclass(frozen=True)
class ShiftedEval(EvalPreprocess):
    """Random in evaluation, where ours is not."""

    def crop(self, sizes: np.ndarray, random: ExampleRandom) -> Crops:
        starts = np.floor(random.uniforms(2) * 5).astype(np.int64) - 2
        return Crops(np.hstack([starts, np.full_like(sizes, self.size)]))


@dataclass(frozen=True)
class Failing(TrainPreprocess):
    """Does what cannot be, for an example whose first random number is less than a half."""

    how: str = ""

    def crop(self, sizes: np.ndarray, random: ExampleRandom) -> Any:
        crops, which = super().crop(sizes, random), random.uniforms(1)[:, 0] < 0.5
        if self.how == "raises in crop" and which.any():
            raise KeyError("no such box")
        if self.how == "raises for several" and len(which) > 1:
            raise KeyError("too many")
        if self.how == "wrong dtype":
            return Crops(crops.boxes / 1.0)  # type: ignore[arg-type]
        if self.how == "wrong count":
            return Crops(crops.boxes[:0])
        if self.how == "returns boxes":
            return crops.boxes
        if self.how == "returns nothing":
            return None
        if self.how == "lies outside" and which.any():
            crops.boxes[which.argmax(), 0] = 1000
        return crops

    def augment(self, images: np.ndarray, random: ExampleRandom) -> Any:
        which = random.uniforms(1)[:, 0] < 0.5
        if self.how == "raises in augment" and which.any():
            raise ZeroDivisionError("no light")
        if self.how == "runs out of memory":
            raise MemoryError("no room")
        if self.how == "casts in place":
            images += 0.5
        if self.how == "returns an image":
            return images * 2
        if self.how == "another shape":
            images[:] = images[:, :3]
        return None


@dataclass(frozen=True)
class FailingCrop(SquareCrop):
    """Fails without an augment."""

    def crop(self, sizes: np.ndarray, random: ExampleRandom) -> Crops:
        raise KeyError("no such box")


class NoDataclass(Preprocess):
    """Its attributes cannot be compared between ranks."""

    size = 8

    def crop(self, sizes: np.ndarray, random: ExampleRandom) -> Crops:
        return Crops(resized=sizes)
