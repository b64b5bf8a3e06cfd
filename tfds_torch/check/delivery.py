"""How examples are read: through which loader, in whole batches or one by one, and with which preprocess."""

import statistics
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

import numpy as np

from tfds_torch.check.reference import datasets_of, parts_of, stored_image_key
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.storage.pillow_files import open_image

_LOADERS = ("create_loader", "DataLoader")
_USUAL_SIDE, _SMALL_SIDE, _CROP_PADDING = 224, 64, 4  # Pixels.
_UNREADABLE = (CorruptRecordError, OSError, SyntaxError, TypeError, ValueError)  # Those of Pillow among them.


@dataclass(frozen=True)
class ImageSizes:
    """(width, height) in pixels of the smallest, the middle and the largest of some images, by pixels."""

    num_images: int
    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]
    mean_pixels: float


@dataclass(frozen=True)
class Delivery:
    """How examples are read.

    Attributes:
        loader: `create_loader` or `DataLoader`.
        is_batched: whether whole batches come; else single examples.
        preprocess: the preprocess of the images, in the form of code; None without one.
        is_own: whether recipe or parser ask for that preprocess; else it is the usual one for images of this size.
        reason: why single examples are read; None where whole batches are.
    """

    loader: str
    is_batched: bool
    preprocess: str | None
    is_own: bool
    reason: str | None

    def __str__(self) -> str:
        if not self.is_batched:
            return f"{self.loader}, single examples without a preprocess: {self.reason}"
        whose = "its own" if self.is_own else "the usual one; a recipe gives another"
        return f"{self.loader}, whole batches, preprocess={self.preprocess} ({whose})"


def choose_delivery(
    parser: DatasetParser,
    preprocess: Preprocess | None,
    sizes: ImageSizes | None,
    *,
    num_workers: int,
    is_plain: bool,
    is_single: bool,
) -> tuple[Delivery, DatasetParser]:
    """Return how examples are read, and the parser that does so.

    Args:
        parser: without a preprocess.
        preprocess: that of the recipe; None for the usual one of such images.
        sizes: of the images; None if they are not known.
        num_workers: loader processes of a rank.
        is_plain: whether torch's DataLoader is asked for.
        is_single: whether single examples are asked for.

    Raises:
        ConfigError: the recipe's preprocess does not fit the dataset.
    """
    loader = _LOADERS[is_plain]
    reason = None
    if is_single:
        reason = "they were asked for"
    elif not parser.dataset.has_field("image"):
        reason = "the dataset has no image"
    chosen = preprocess or choose_preprocess(parser.is_training, sizes)
    if reason is None:
        if parser.batch_size is None and num_workers < 2:
            parser = parser.with_batch_size(1)  # As it is planned.
        try:
            batched = parser.with_preprocess(chosen)
            return Delivery(loader, True, describe(chosen), preprocess is not None, None), batched
        except ConfigError as error:
            if preprocess is not None:
                raise
            reason = str(error)
    return Delivery(loader, False, None, False, reason), parser


def delivery_of(parser: DatasetParser, *, is_plain: bool) -> Delivery:
    """Return how the examples of a parser are read as it was made."""
    loader, preprocess = _LOADERS[is_plain], parser.preprocess
    if parser.dataset.cameras:
        return Delivery(loader, True, "one for each camera", True, None)
    if preprocess is None:
        return Delivery(loader, False, None, False, "the parser has no preprocess")
    return Delivery(loader, True, describe(preprocess), True, None)


def choose_preprocess(is_training: bool, sizes: ImageSizes | None) -> Preprocess:
    """Return the usual preprocess: 224 pixels, or for small images their own size."""
    width, height = (_USUAL_SIDE, _USUAL_SIDE) if sizes is None else sizes.median
    if max(width, height) >= _SMALL_SIDE:
        return TrainPreprocess(_USUAL_SIDE) if is_training else EvalPreprocess(_USUAL_SIDE)
    size = height if height == width else (height, width)
    if not is_training:
        return EvalPreprocess(size, crop_pct=1.0)
    return TrainPreprocess(size, crop_padding=min(_CROP_PADDING, min(width, height) - 1))


def describe(preprocess: Preprocess) -> str:
    """Return a preprocess in the form of code, without default values."""
    known = fields(preprocess)  # type: ignore[arg-type] # Both kinds are dataclasses.
    values = [(field.name, getattr(preprocess, field.name), field.default) for field in known]
    given = ", ".join(f"{name}={value!r}" for name, value, usual in values if value != usual)
    return f"{type(preprocess).__name__}({given})"


def read_sizes(parser: DatasetParser, indices: Sequence[int]) -> list[tuple[int, int]]:
    """Return (width, height) of the images of some examples, as far as Pillow can tell."""
    parts = parts_of(parser, indices)
    return [size for name, _, own in parts for size in _read_sizes(datasets_of(parser)[name], own)]


def _read_sizes(dataset: Dataset, indices: Sequence[int]) -> list[tuple[int, int]]:
    source, key = dataset.source, stored_image_key(dataset)
    if source.obstacle is not None or key is None:
        return []
    sizes = []
    if source.networks:
        with suppress(*_UNREADABLE):  # At once: shards are looked at side by side, with one bar.
            source.read(np.array(indices, np.int64), [key])
    for index in indices:
        try:
            (image,) = source.read(np.array([index], np.int64), [key])[key]
            is_raw = isinstance(image, np.ndarray)
            sizes.append((image.shape[1], image.shape[0]) if is_raw else open_image(image).size)
        except _UNREADABLE:  # Reading it raises.
            continue
    return sizes


def measure_images(sizes: Iterable[tuple[int, int]]) -> ImageSizes | None:
    """Return figures of (width, height); None without any."""
    ordered = sorted(sizes, key=_by_pixels)
    if not ordered:
        return None
    mean = statistics.fmean(width * height for width, height in ordered)
    return ImageSizes(len(ordered), ordered[0], ordered[len(ordered) // 2], ordered[-1], mean)


def _by_pixels(size: tuple[int, int]) -> tuple[int, int]:
    """Order by pixels, then by width: the first and the last are equal only where all are."""
    return size[0] * size[1], size[0]
