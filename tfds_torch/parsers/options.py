"""ParserOptions: the arguments that every parser takes, and what can be wrong with them."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.parsers.undecoded import check_decode
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.order import MOST_SLOTS
from tfds_torch.runtime.arguments import check_flag, check_integer
from tfds_torch.runtime.printable import quoted


@dataclass(frozen=True)
class ParserOptions:
    """The arguments that every parser takes, checked as far as no dataset is needed; ParserTfds documents them."""

    shuffle: bool | None
    is_training: bool
    batch_size: int | None
    repeats: int
    seed: int
    remainder: Remainder | str | None
    preprocess: Preprocess | None
    image_mode: str | None
    class_map: Mapping[Any, int] | str | os.PathLike[str] | None
    read: ReadOptions
    epoch_size: int | None = None
    decode: Mapping[str, bool] | None = None

    def __post_init__(self) -> None:
        check_flag("is_training", self.is_training)
        if self.is_training and self.batch_size is None:
            raise ConfigError("Training needs batch_size: how many examples of a rank make a batch.")
        if self.epoch_size is not None:
            object.__setattr__(self, "epoch_size", check_integer("epoch_size", self.epoch_size, 1, MOST_SLOTS))
        if not isinstance(self.shuffle, bool | None):
            raise ConfigError(f"shuffle={quoted(self.shuffle)} must be True, False or None (as is_training).")
        if not isinstance(self.read, ReadOptions):
            raise ConfigError(
                f"read={quoted(self.read)} must be ReadOptions, for example ReadOptions(mode='examples')."
            )
        check_decode(self.decode)
        if self.image_mode not in CHANNELS:
            raise ConfigError(
                f"Unknown image_mode {quoted(self.image_mode)}: choose 'RGB', 'L', 'RGBA' or None (as stored)."
            )


def check_preprocess(preprocess: object, batch_size: int | None, image_mode: str | None) -> None:
    """Raises ConfigError for a preprocess that cannot work with a parser's other arguments."""
    if preprocess is None:
        return
    if not isinstance(preprocess, Preprocess) or not is_dataclass(type(preprocess)):  # Ranks compare its fields.
        raise ConfigError(
            f"preprocess={quoted(preprocess)} must be a TrainPreprocess or an EvalPreprocess, for example "
            f"TrainPreprocess(size=224), or a dataclass of your own that is derived from one of them or from "
            f"tfds_torch.images.preprocess.Preprocess. Several crops of an image are Views((TrainPreprocess(224), 2))."
        )
    if batch_size is None:
        raise ConfigError("A preprocess needs batch_size: images are written into the memory of their batch.")
    if image_mode is None:
        raise ConfigError(
            "A preprocess needs image_mode 'RGB', 'L' or 'RGBA': with None, images may differ in their channels."
        )
    channels = CHANNELS[image_mode]
    each = preprocess.each if isinstance(preprocess, Views) else (preprocess,)
    levels = next((one.fill for one in each if isinstance(one.fill, tuple) and len(one.fill) != channels), None)
    if isinstance(levels, tuple):
        raise ConfigError(
            f"The fill {levels} of the preprocess has {len(levels)} grey levels, and image_mode "
            f"{quoted(image_mode)} has {channels} channels: give one level, or one for each."
        )


def check_has_image(fields: Sequence[str], preprocess: Preprocess) -> None:
    """Raises ConfigError where fields are asked for that move with the image, without the image."""
    moved = sorted(set(preprocess.moved_fields) & set(fields))
    if moved and "image" not in fields:
        raise ConfigError(
            f"fields={tuple(fields)} has {moved} without 'image', whose crop they go through: add 'image'."
        )


def check_single_examples(dataset_name: str, preprocess: Preprocess | None) -> None:
    """Raises ConfigError for a preprocess that single examples cannot go through."""
    if isinstance(preprocess, Views):
        raise ConfigError(
            f"{dataset_name}: single examples cannot go through {quoted(preprocess)}: views come in whole batches. "
            f"Read them with ImageDataset; or take one of the views: parser.with_preprocess(...)."
        )


def check_class_names(class_names: object) -> tuple[str, ...] | None:
    """Returns the names of labels that a user gives; ConfigError where they are not different texts."""
    if class_names is None:
        return None
    names = () if isinstance(class_names, str) or not isinstance(class_names, Sequence) else tuple(class_names)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise ConfigError(
            f"class_names={quoted(class_names)} must be a sequence of different texts, one for each label."
        )
    return names
