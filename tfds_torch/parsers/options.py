"""The options that every parser takes, as two values: those of an epoch, and those of reading and decoding."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from functools import partial
from typing import Any

from tfds_torch.engines.options import ReadOptions
from tfds_torch.engines.transforms import Transform, read_transforms
from tfds_torch.errors import ConfigError
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.images.views import Views
from tfds_torch.plan.epoch import MOST_BATCH, Remainder
from tfds_torch.plan.order import MOST_SLOTS
from tfds_torch.runtime.arguments import check_choice, check_flag, check_integer
from tfds_torch.runtime.printable import quoted

Check = Callable[[str, Any], Any]
"""Takes the name and the value of an argument, and returns the value as it is kept, or raises ConfigError."""


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _flag(name: str, value: object) -> object:
    check_flag(name, value)
    return value


def _shuffle(name: str, value: object) -> object:
    if not isinstance(value, bool | None):
        raise ConfigError(f"{name}={quoted(value)} must be True, False or None (as is_training).")
    return value


def _batch_size(name: str, value: object) -> int:
    return check_integer(name, check_integer(name, value, 1), 1, MOST_BATCH)


def _remainder(name: str, value: object) -> object:
    check_choice(name, value, [one.value for one in Remainder])
    return value


def _image_mode(name: str, value: Any) -> Any:
    if not isinstance(value, str | None) or value not in CHANNELS:
        raise ConfigError(f"Unknown {name} {quoted(value)}: choose 'RGB', 'L', 'RGBA' or None (as stored).")
    return value


def _read(name: str, value: object) -> object:
    if not isinstance(value, ReadOptions):
        raise ConfigError(f"{name}={quoted(value)} must be ReadOptions, for example ReadOptions(mode='examples').")
    return value


def _decode(name: str, value: object) -> dict[str, bool]:
    if value is None:
        return {}
    if (
        not isinstance(value, Mapping)
        or not all(isinstance(key, str) for key in value)
        or not all(isinstance(one, bool) for one in value.values())
    ):
        raise ConfigError(
            f"{name}={quoted(value)} must map fields to whether they are decoded, such as {{'image': False}}, with "
            f"which images come as the bytes of their files."
        )
    return dict(value)


def _preprocess(name: str, value: Any) -> Any:
    # Ranks compare the fields of a preprocess, so that it must be a dataclass.
    if value is not None and (not isinstance(value, Preprocess) or not is_dataclass(type(value))):
        raise ConfigError(
            f"{name}={quoted(value)} must be a TrainPreprocess or an EvalPreprocess, for example "
            f"TrainPreprocess(size=224), or a dataclass of your own that is derived from one of them or from "
            f"tfds_torch.images.preprocess.Preprocess. Several crops of an image are Views((TrainPreprocess(224), 2))."
        )
    return value


EPOCH_BOUNDS: Mapping[str, Check] = {
    "is_training": _flag,
    "batch_size": _or_none(_batch_size),
    "epoch_size": _or_none(partial(check_integer, least=1, most=MOST_SLOTS)),
    "shuffle": _shuffle,
    "repeats": partial(check_integer, least=0),
    "seed": partial(check_integer, least=0),
    "remainder": _or_none(_remainder),
}
"""Argument of an epoch -> how it is checked."""


def _transform(name: str, value: Any) -> tuple[Transform, ...]:
    return read_transforms(value)


DECODE_BOUNDS: Mapping[str, Check] = {
    "read": _read,
    "transform": _transform,
    "decode": _decode,
    "image_mode": _image_mode,
    "preprocess": _preprocess,
}
"""Argument of reading and decoding -> how it is checked; a class map is checked where its classes are known."""


def _check(options: object, bounds: Mapping[str, Check]) -> None:
    for name, check in bounds.items():
        object.__setattr__(options, name, check(name, getattr(options, name)))


@dataclass(frozen=True, kw_only=True)
class EpochOptions:
    """The options of an epoch, as every parser takes them; ParserTfds documents the arguments.

    Raises:
        ConfigError: a value is out of its bounds, or training has no batch_size.
    """

    shuffle: bool | None = None
    is_training: bool = False
    batch_size: int | None = None
    repeats: int = 0
    seed: int = 42
    remainder: Remainder | str | None = None
    epoch_size: int | None = None

    def __post_init__(self) -> None:
        _check(self, EPOCH_BOUNDS)
        if self.is_training and self.batch_size is None:
            raise ConfigError("Training needs batch_size: how many examples of a rank make a batch.")

    @property
    def is_shuffled(self) -> bool:
        """Whether each pass has another order."""
        return self.is_training if self.shuffle is None else self.shuffle


@dataclass(frozen=True, kw_only=True)
class DecodeOptions:
    """The options of reading and decoding, as every parser takes them; ParserTfds documents the arguments.

    Raises:
        ConfigError: a value is out of its bounds, or the preprocess cannot work with image_mode.
    """

    preprocess: Preprocess | None = None
    image_mode: str | None = "RGB"
    class_map: Mapping[Any, int] | str | os.PathLike[str] | None = None
    read: ReadOptions = ReadOptions()
    decode: Mapping[str, bool] | None = field(default_factory=dict)
    transform: Any = None

    def __post_init__(self) -> None:
        _check(self, DECODE_BOUNDS)
        check_channels(self.preprocess, self.image_mode)

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The user's functions that examples go through, in turn."""
        return self.transform  # type: ignore[no-any-return] # It was made so.

    @property
    def undecoded(self) -> frozenset[str]:
        """The names of fields that come as bytes, as `decode` has them."""
        return frozenset(name for name, is_decoded in (self.decode or {}).items() if not is_decoded)


def check_channels(preprocess: Preprocess | None, image_mode: str | None) -> None:
    """Raise ConfigError where images of a mode cannot go through a preprocess."""
    if preprocess is None:
        return
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


def check_has_batch_size(preprocess: Preprocess | None, batch_size: int | None) -> None:
    """Raise ConfigError for a preprocess without a batch size."""
    if preprocess is not None and batch_size is None:
        raise ConfigError("A preprocess needs batch_size: images are written into the memory of their batch.")


def check_preprocess(preprocess: Any, image_mode: str | None) -> None:
    """Raise ConfigError for a value that is not a preprocess, or a preprocess that cannot work with an image mode."""
    check_channels(_preprocess("preprocess", preprocess), image_mode)


def check_has_image(fields: Sequence[str], preprocess: Preprocess) -> None:
    """Raise ConfigError where fields that move with the image are asked for without the image."""
    moved = sorted(set(preprocess.moved_fields) & set(fields))
    if moved and "image" not in fields:
        raise ConfigError(
            f"fields={tuple(fields)} has {moved} without 'image', whose crop they go through: add 'image'."
        )


def check_single_examples(dataset_name: str, preprocess: Preprocess | None) -> None:
    """Raise ConfigError for a preprocess that single examples cannot go through."""
    if isinstance(preprocess, Views):
        raise ConfigError(
            f"{dataset_name}: single examples cannot go through {quoted(preprocess)}: views come in whole batches. "
            f"Read them with ImageDataset; or take one of the views: parser.with_preprocess(...)."
        )


def check_names(argument: str, names: object, example: str) -> tuple[str, ...] | None:
    """Return a user's names as a tuple; raise ConfigError where they are not different texts."""
    if names is None:
        return None
    found = () if isinstance(names, str) or not isinstance(names, Sequence) else tuple(names)
    if not found or not all(isinstance(name, str) and name for name in found) or len(set(found)) < len(found):
        raise ConfigError(f"{argument}={quoted(names)} must be a sequence of different texts, {example}.")
    return found
