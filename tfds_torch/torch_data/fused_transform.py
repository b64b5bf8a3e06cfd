"""Transforms of single images: the decoder does the beginning, and the rest runs on rows of the decoded batch."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tfds_torch.errors import ConfigError
from tfds_torch.images.compose import Tail, Taken, log_once, take_over
from tfds_torch.images.decoding import CHANNELS
from tfds_torch.images.preprocess import EvalPreprocess, TrainPreprocess
from tfds_torch.parsers.protocol import Parser, dataset_of, has_windows, is_undecoded
from tfds_torch.runtime.printable import quoted

AUTO = "auto"
SWITCH = "TFDS_TORCH_FUSE"
"""Environment variable: 0 turns fuse="auto" off."""

_MODES = {CHANNELS[mode]: mode for mode in ("L", "RGB", "RGBA")}


def check_fuse(fuse: Any) -> bool | str:
    """Return the argument `fuse` of a dataset; raise ConfigError for any other value."""
    if isinstance(fuse, bool) or (isinstance(fuse, str) and fuse == AUTO):
        return fuse
    raise ConfigError(f"fuse={quoted(fuse)} must be 'auto', True, or False: transforms run as they are.")


@dataclass(frozen=True)
class Rest:
    """Makes the same of a row of decoded images as the rest of a transform makes of its PIL image. Picklable.

    Where the rest ends in a tensor of bytes, the result is the row itself: collation need not copy it.
    """

    transforms: tuple[Any, ...]

    def __call__(self, row: Tensor) -> Any:
        """Return the result of the last transform.

        Args:
            row: uint8 [C, H, W], whose channels come last in memory.
        """
        convert = _CONVERSIONS.get(_class_of(self.transforms[0])) if self.transforms else None
        if convert is not None:
            return Tail(self.transforms[1:])(convert(row))
        if not self.gives_bytes:
            return Tail(self.transforms)(_to_pil(row))
        image = Tail(self.transforms[:-1])(_to_pil(row))
        return row if _copy_pixels(image, row) else self.transforms[-1](image)

    @property
    def gives_bytes(self) -> bool:
        """Whether the rest ends in a conversion to a tensor of bytes."""
        return bool(self.transforms) and _CONVERSIONS.get(_class_of(self.transforms[-1])) is _keep


@dataclass(frozen=True)
class Fused:
    """A parser that does the beginning of a transform, and the rest of the transform.

    Attributes:
        base: the parser of the dataset.
        parser: the same with a preprocess.
        taken: the steps of the transform that the preprocess does.
        rest: the other steps.
    """

    base: Parser
    parser: Parser
    taken: Taken
    rest: Rest

    @property
    def scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Return mean and std of each channel, of a pure end; None: it leaves bytes."""
        mean, std = self.taken.mean, self.taken.std
        if mean is None or std is None:
            return None
        num_channels = self._num_channels
        return (mean, std) if len(mean) == num_channels else (mean[:1] * num_channels, std[:1] * num_channels)

    def leaves_batches(self, fields: Sequence[str]) -> bool:
        """Return whether collation of examples of some fields makes whole batches, perhaps normalised, and no more."""
        mean = self.taken.mean
        fits = mean is None or len(mean) == self._num_channels or len(set(mean)) == len(set(self.taken.std or ())) == 1
        has_others = not set(fields) <= {"image", "label", "valid", "index", "id"}
        return self.taken.is_pure and self.taken.gives_tensor and fits and not has_others

    @property
    def _num_channels(self) -> int:
        dataset = dataset_of(self.parser)
        return 0 if dataset is None else CHANNELS[dataset.image_mode]


def fuse_transform(
    parser: Parser, transform: Any, fields: Sequence[str], fuse: bool | str, now: Fused | None = None
) -> Fused | None:
    """Return a parser that does the beginning of a transform; None where the transform runs whole.

    The outcome and its reason are logged once.

    Args:
        parser: of a dataset of single examples.
        transform: of its images.
        fields: of an example.
        fuse: as of ImageDataset.
        now: an earlier result, which is returned where nothing has changed.
    """
    if transform is None or fuse is False or (fuse == AUTO and os.environ.get(SWITCH) == "0"):
        return None
    kind, taken = _take_over(transform)
    reason = _find_obstacle(parser, fields) if taken.values else taken.left
    if reason is None:
        # Boxes are not the transform's to move. Evaluations have the transform's very pixels.
        preprocess = kind(**taken.values, boxes=(), shrink=kind is TrainPreprocess)
        if now is not None and now.base is parser and now.taken == taken and now.parser.preprocess == preprocess:
            return now
        try:
            fused = Fused(parser, parser.with_preprocess(preprocess), taken, Rest(taken.rest.transforms))  # type: ignore[attr-defined]
        except ConfigError as error:
            reason = str(error)
        else:
            log_once(f"{parser.dataset_name}, split {parser.split!r}: {taken.describe()}")
            return fused
    log_once(f"{parser.dataset_name}, split {parser.split!r}: the transform runs as it is ({reason})")
    return None


def _take_over(transform: Any) -> tuple[type[TrainPreprocess] | type[EvalPreprocess], Taken]:
    """Return the steps of a transform that are taken over, and the preprocess: of evaluation where that suffices."""
    of_training = take_over(transform, is_random=True, check=lambda values: TrainPreprocess(**values))
    of_evaluation = take_over(transform, is_random=False, check=lambda values: EvalPreprocess(**values))
    if of_evaluation.names == of_training.names:
        return EvalPreprocess, of_evaluation
    return TrainPreprocess, of_training


def _find_obstacle(parser: Parser, fields: Sequence[str]) -> str | None:
    """Return why a parser's decoder cannot do any step of a transform of its images; None: it can."""
    dataset = dataset_of(parser)
    if dataset is None or not callable(getattr(parser, "with_preprocess", None)):
        return f"{type(parser).__name__} has no preprocess"
    if "image" not in fields or has_windows(parser):
        return "there is no field 'image' of single images"
    if dataset.preprocess is not None:
        return "the parser has a preprocess"
    if is_undecoded(parser, "image") or dataset.has_image_numbers:
        return "images are not decoded to bytes of pixels"
    for one in (dataset, *getattr(dataset, "members", {}).values()):
        if any(
            "image" in transform.reads_of(("image",)) or transform.may_give("image") for transform in one.transforms
        ):
            return "a Transform of the parser reads or gives the image"
    if parser.batch_size is None:
        return "the parser has no batch_size"
    return None


def _class_of(transform: Any) -> tuple[str, str]:
    return type(transform).__module__.partition(".")[0], type(transform).__name__


def _to_pil(row: Tensor) -> Image.Image:
    pixels = row.permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def _copy_pixels(image: Any, row: Tensor) -> bool:
    """Copy a PIL image into a row, if it is of its size; return whether it is."""
    num_channels, height, width = row.shape
    if not isinstance(image, Image.Image) or image.size != (width, height) or image.mode != _MODES.get(num_channels):
        return False
    pixels = row.permute(1, 2, 0).numpy()
    pixels[...] = np.asarray(image).reshape(pixels.shape)
    return True


def _to_floats(row: Tensor) -> Tensor:
    """Return the floats that torchvision's `to_tensor` returns."""
    return row.contiguous().to(dtype=torch.get_default_dtype()).div(255)


def _to_image(row: Tensor) -> Any:
    """Return a tv_tensor of torchvision, which its transform has loaded."""
    theirs: Any = sys.modules["torchvision.tv_tensors"]
    return theirs.Image(row)


def _keep(row: Tensor) -> Tensor:
    return row


_CONVERSIONS: Mapping[tuple[str, str], Callable[[Tensor], Any]] = {
    ("torchvision", "PILToTensor"): _keep,
    ("timm", "MaybePILToTensor"): _keep,
    ("torchvision", "ToTensor"): _to_floats,
    ("timm", "MaybeToTensor"): _to_floats,
    ("torchvision", "ToImage"): _to_image,
}
"""Package and class of a conversion of PIL images -> how the same is made of a row, without a PIL image."""
