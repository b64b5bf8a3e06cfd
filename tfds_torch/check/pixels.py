"""Compares the pixels of a sample of examples with Pillow's of the same files. Pure.

An undistorted image must equal Pillow's; a resized one lies within a grey level on average, and 40 dB, of Pillow's for
the same box.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.check.ledger import CappedList
from tfds_torch.check.report import NotJudged, Promise
from tfds_torch.images.batch_buffer import resize_with_pillow
from tfds_torch.images.crops import CropParameters
from tfds_torch.images.decoding import ImageDecodeError, ImageDecoder
from tfds_torch.images.preprocess import Preprocess, height_and_width
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.storage.pillow_files import convert, open_image

PIXELS_PROMISE = "pixels are Pillow's"
_MOST_MEAN = 1.0  # Grey levels.
_LEAST_PSNR = 40.0  # dB.
_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}
"""Number of channels -> Pillow's mode."""

Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Distance:
    """How far an image is from Pillow's.

    Attributes:
        mean: grey levels, on average.
        psnr: dB; infinite where they are equal.
        must_be_equal: whether nothing was resized.
    """

    mean: float
    psnr: float
    must_be_equal: bool

    @property
    def is_close(self) -> bool:
        """Whether it is as close as promised."""
        return self.mean == 0 or (not self.must_be_equal and self.mean <= _MOST_MEAN and self.psnr >= _LEAST_PSNR)


def judge_pixels(
    came: Mapping[int, Pixels],
    encoded: Mapping[int, bytes],
    ids: Mapping[int, str],
    preprocess: Preprocess | None,
    plan: EpochPlan,
    passes: Mapping[int, int] = MappingProxyType({}),
) -> Promise | NotJudged:
    """Return whether the pixels of some examples of epoch 0 are Pillow's, or why that cannot be judged.

    Args:
        came: index -> uint8 [h, w, C], the image of a loader.
        encoded: index -> the same example's image file.
        ids: index -> id, for messages.
        preprocess: the preprocess of the images; None without one.
        plan: of the epoch, which determines their random numbers.
        passes: index -> in which pass it came, where that is known.
    """
    if preprocess is not None and preprocess.augments:
        kind = type(preprocess).__name__
        return NotJudged(PIXELS_PROMISE, f"the preprocess has an augment ({kind}), which may change them in any way")
    compared = sorted(came.keys() & encoded.keys())
    if not compared:
        return NotJudged(PIXELS_PROMISE, "no encoded image was found that came in epoch 0")
    # A wrapped or repeated example has the random numbers of a later pass.
    num_passes = max(1, -(-plan.num_batches * plan.global_batch_size // max(1, plan.order.num_slots)))
    wrong = CappedList()
    num_equal, largest_mean, lowest_psnr = 0, 0.0, float("inf")
    for index in compared:
        possible = [passes[index]] if index in passes else range(num_passes)
        keys = [number * plan.num_examples + index for number in possible]
        try:
            distances = [measure(came[index], encoded[index], preprocess, key, plan.seed) for key in keys]
        except (OSError, ValueError, ImageDecodeError) as error:
            wrong.add(f"{ids[index]}: Pillow cannot read it: {error}")
            continue
        distance = min(distances, key=lambda one: (not one.is_close, one.mean))
        num_equal += distance.mean == 0
        largest_mean, lowest_psnr = max(largest_mean, distance.mean), min(lowest_psnr, distance.psnr)
        if not distance.is_close:
            fault = f"{ids[index]}: {distance.mean:.2f} grey levels on average, {distance.psnr:.1f} dB"
            if distance.must_be_equal:
                fault += ", where they must be equal"
            wrong.add(fault)
    detail = f"{num_equal} of {len(compared)} examples equal"
    if num_equal < len(compared):
        detail += f", the others within {largest_mean:.2f} grey levels on average and {lowest_psnr:.0f} dB"
    return Promise(PIXELS_PROMISE, not wrong, str(wrong) or detail)


def measure(came: Pixels, encoded: bytes, preprocess: Preprocess | None, key: int, seed: int) -> Distance:
    """Return how far pixels are from Pillow's.

    Args:
        came: uint8 [h, w, C].
        encoded: the same image as a file.
        preprocess: its preprocess; None without one.
        key: the sample key of its random numbers, see `plan.order`.
        seed: of the random numbers.

    Raises:
        OSError: Pillow cannot read it.
        ImageDecodeError: its header cannot be read.
    """
    image = convert(open_image(encoded), _MODES[came.shape[-1]])
    if preprocess is None:
        return _distance(came, np.asarray(image).reshape(image.height, image.width, -1), must_be_equal=True)
    decoder = ImageDecoder("RGB", preprocess.max_pixels)
    shrinkable = np.array([decoder.read_header(encoded).is_shrinkable])
    sizes = np.array([[image.height, image.width]], np.int64)
    crop = preprocess.crop_parameters(sizes, np.array([key], np.int64), seed, shrinkable)
    wanted = _cut(image, crop, height_and_width(preprocess.size), preprocess.fill)
    is_undistorted = bool((crop.steps == 1).all() and (crop.shrinks == 1).all())
    return _distance(came, wanted, must_be_equal=is_undistorted)


def _cut(image: Image.Image, crop: CropParameters, size: tuple[int, int], fill: int | tuple[int, ...]) -> Pixels:
    """Return uint8 [*size, C]: the crop of the parameters of one image, made by Pillow."""
    ((resized, steps, offset, flip, bicubic, columns_first),) = crop.rows()
    top, left, height, width = crop.windows[0].tolist()
    window = image.crop((left, top, left + width, top + height))
    shrink = int(crop.shrinks[0])
    pixels = np.asarray(window).reshape(window.height, window.width, -1)
    if (height, width) != tuple(resized) or steps != [1.0, 1.0]:
        # Of an image whose centre is cut out, more lies in the window than the result shows.
        bottom = min(height, resized[0] * steps[0] * shrink)
        right = min(width, resized[1] * steps[1] * shrink)
        whole_steps = bottom / resized[0], right / resized[1]
        pixels = resize_with_pillow(
            pixels, (resized[0], resized[1]), whole_steps, bicubic=bicubic, columns_first=columns_first
        )
    part = pixels[max(offset[0], 0) : offset[0] + size[0], max(offset[1], 0) : offset[1] + size[1]]
    out = np.empty((*size, pixels.shape[-1]), np.uint8)
    out[:] = fill
    first = [max(-start, 0) for start in offset]
    out[first[0] : first[0] + part.shape[0], first[1] : first[1] + part.shape[1]] = part
    out = out[:, ::-1] if flip else out
    return out[::-1] if crop.vflips[0] else out


def _distance(came: Pixels, wanted: Pixels, must_be_equal: bool) -> Distance:
    if came.shape != wanted.shape:
        return Distance(float("inf"), 0.0, must_be_equal)
    difference = came.astype(np.float64) - wanted
    mean_square = float((difference**2).mean())
    psnr = float("inf") if mean_square == 0 else 10 * float(np.log10(255**2 / mean_square))
    return Distance(float(np.abs(difference).mean()), psnr, must_be_equal)
