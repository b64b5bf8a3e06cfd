"""How examples are read: through which loader, in whole batches or one by one, and with what done to their images."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields

import numpy as np

from tfds_torch.check.content import ImageSizes
from tfds_torch.check.reference import CheckedParser, SingleParser, datasets_of, parts_of, stored_image_key
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
from tfds_torch.parsers.recipes import Config
from tfds_torch.storage.pillow_files import open_image

_USUAL_SIDE, _SMALL_SIDE, _CROP_PADDING = 224, 64, 4  # Pixels.
_UNREADABLE = (CorruptRecordError, OSError, SyntaxError, TypeError, ValueError)  # Those of Pillow among them.


@dataclass(frozen=True)
class Delivery:
    """How examples are read.

    Attributes:
        loader: `create_loader` or `DataLoader`.
        is_batched: whether whole batches come; else single examples.
        preprocess: what is done to the images, as one would write it; None: nothing.
        is_own: whether the recipe asks for that preprocess; else it is the usual one for images of this size.
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
        whose = "the recipe's own" if self.is_own else "the usual one; a recipe gives another"
        return f"{self.loader}, whole batches, preprocess={self.preprocess} ({whose})"


def choose_delivery(
    config: Config, parser: CheckedParser, sizes: ImageSizes | None, *, is_plain: bool, is_single: bool
) -> tuple[Delivery, CheckedParser]:
    """Returns how examples are read, and the parser that does so.

    Args:
        config: what is checked; its preprocess is used, or the usual one where it has none.
        parser: of the config, without a preprocess.
        sizes: of the images; None: they are not known.
        is_plain: whether torch's DataLoader is asked for.
        is_single: whether single examples are asked for.

    Raises:
        ConfigError: the preprocess of the config does not fit the dataset.
    """
    loader = "DataLoader" if is_plain else "create_loader"
    reason = None
    if is_single:
        reason = "they were asked for"
    elif not parser.dataset.has_field("image"):
        reason = "the dataset has no image"
    preprocess = config.preprocess or choose_preprocess(parser.is_training, sizes)
    if reason is None:
        try:
            batched = _with_preprocess(config, parser, preprocess)
            return Delivery(loader, True, describe(preprocess), config.preprocess is not None, None), batched
        except ConfigError as error:
            if config.preprocess is not None:
                raise
            reason = str(error)
    return Delivery(loader, False, None, False, reason), parser


def choose_preprocess(is_training: bool, sizes: ImageSizes | None) -> Preprocess:
    """Returns the usual preprocess: 224 pixels, or for small images their own size."""
    width, height = (_USUAL_SIDE, _USUAL_SIDE) if sizes is None else sizes.median
    if max(width, height) >= _SMALL_SIDE:
        return TrainPreprocess(_USUAL_SIDE) if is_training else EvalPreprocess(_USUAL_SIDE)
    size = height if height == width else (height, width)
    if not is_training:
        return EvalPreprocess(size, crop_pct=1.0)
    return TrainPreprocess(size, crop_padding=min(_CROP_PADDING, min(width, height) - 1))


def describe(preprocess: Preprocess) -> str:
    """Returns a preprocess as one would write it, without what is usual."""
    known = fields(preprocess)  # type: ignore[arg-type] # Both kinds are dataclasses.
    values = [(field.name, getattr(preprocess, field.name), field.default) for field in known]
    given = ", ".join(f"{name}={value!r}" for name, value, usual in values if value != usual)
    return f"{type(preprocess).__name__}({given})"


def read_sizes(parser: CheckedParser, indices: Sequence[int]) -> list[tuple[int, int]]:
    """Returns (width, height) of the images of some examples, as far as Pillow can tell."""
    parts = parts_of(parser, indices)
    return [size for name, _, own in parts for size in _read_sizes(datasets_of(parser)[name], own)]


def _read_sizes(parser: SingleParser, indices: Sequence[int]) -> list[tuple[int, int]]:
    source, key = parser.source, stored_image_key(parser)
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


def _with_preprocess(config: Config, parser: CheckedParser, preprocess: Preprocess) -> CheckedParser:
    if parser.batch_size is None and config.num_workers < 2:
        parser = parser.with_batch_size(1)  # As it is planned.
    return parser.with_preprocess(preprocess)
