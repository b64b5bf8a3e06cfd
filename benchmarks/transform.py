"""Images of tar files, and the transform of peers that have none of their own: Pillow and numpy alone."""

import math
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.protocol import EVAL, TRAIN, Task

CROP_PCT = 0.875
"""Side of the piece that an evaluation looks at, by the short side of the image."""

_NUM_ATTEMPTS = 10


def read_tars(folder: str) -> Iterator[tuple[bytes, int]]:
    """Yields the image file and the label of every sample of a folder of tar files that `formats.tars_of` wrote."""
    for path in sorted(Path(folder).glob("*.tar")):
        image = b""
        with tarfile.open(path) as tar:
            for member in tar:
                file = tar.extractfile(member)
                content = b"" if file is None else file.read()
                if member.name.endswith((".jpg", ".png")):
                    image = content
                elif member.name.endswith(".cls"):
                    yield image, int(content)


def transform_of(task: Task) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Returns a task's work, picklable: an RGB image -> uint8 [3, H, W], contiguous and writable."""
    if task.work not in (TRAIN, EVAL) or task.image_shape is None:
        return channels_first
    size = task.size
    return RandomResizedCropFlip(size) if task.work == TRAIN else ResizeCenterCrop(size)


def channels_first(image: Image.Image) -> NDArray[np.uint8]:
    """Returns the pixels of an RGB image: uint8 [3, H, W], contiguous and writable."""
    return np.ascontiguousarray(np.asarray(image).transpose(2, 0, 1))  # [H, W, 3] -> [3, H, W]


class ResizeCenterCrop:
    """The middle square of an image, resized with antialiasing: evaluation's usual transform. Picklable.

    As timm and torchvision do it, the whole image is resized, and then cropped; and they round as it is done here.

    Args:
        size: of the square result, pixels.
        crop_pct: `size` by the short side of the resized image.
    """

    def __init__(self, size: int = 224, crop_pct: float = CROP_PCT) -> None:
        self.size = size
        self.short_side = math.floor(size / crop_pct)

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        """Returns uint8 [3, size, size], contiguous and writable, of an RGB image."""
        width, height = (self.short_side * side // min(image.size) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - self.size) / 2), round((height - self.size) / 2)
        return channels_first(image.crop((left, top, left + self.size, top + self.size)))


class RandomResizedCropFlip:
    """A random piece of an image, resized with antialiasing, and flipped half of the time: training's usual transform.

    Random numbers come from the module `random`, which torch's loaders seed differently in every worker. Picklable.
    Source: timm's `RandomResizedCropAndInterpolation` and torchvision's `RandomResizedCrop`, which draw alike.

    Args:
        size: of the square result, pixels.
        scale: least and greatest share of the image's area.
        ratio: least and greatest width / height of the piece; its logarithm is drawn uniformly.
        flip: probability of a horizontal flip.
    """

    def __init__(
        self,
        size: int = 224,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
    ) -> None:
        self.size = size
        self.scale = scale
        self.ratio = ratio
        self.flip = flip

    def __call__(self, image: Image.Image) -> NDArray[np.uint8]:
        """Returns uint8 [3, size, size], contiguous and writable, of an RGB image."""
        # Pillow's resize averages over all pixels that a result's pixel covers: it is antialiased.
        piece = image.crop(self.draw_box(image.width, image.height))
        piece = piece.resize((self.size, self.size), Image.Resampling.BILINEAR)
        if random.random() < self.flip:  # noqa: S311
            piece = piece.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return channels_first(piece)

    def draw_box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Returns left, top, right and bottom of a random piece of an image, pixels.

        When no drawn piece fits, it is the largest middle piece whose ratio is allowed.
        """
        log_ratio = (math.log(self.ratio[0]), math.log(self.ratio[1]))
        for _ in range(_NUM_ATTEMPTS):
            area = random.uniform(*self.scale) * width * height  # noqa: S311
            ratio = math.exp(random.uniform(*log_ratio))  # noqa: S311
            piece_width, piece_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < piece_width <= width and 0 < piece_height <= height:
                left = random.randint(0, width - piece_width)  # noqa: S311
                top = random.randint(0, height - piece_height)  # noqa: S311
                return left, top, left + piece_width, top + piece_height
        piece_width = min(width, round(height * self.ratio[1]))
        piece_height = min(height, round(width / self.ratio[0]))
        left, top = (width - piece_width) // 2, (height - piece_height) // 2
        return left, top, left + piece_width, top + piece_height
