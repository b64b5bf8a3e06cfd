"""Normalises the images of whole batches on their device, in one pass, without a copy between."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.torch_data.nested import replace_value, tensors, tensors_and_arrays, with_tensors

_DTYPES = {
    str(dtype).partition(".")[2]: dtype for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}


_KEYS = ("image", "pixel_values", "images")
"""Of images in a dictionary whose maker is unknown: the first that has images."""


@dataclass(frozen=True)
class Normalization:
    """Normalises the images of a batch: a tensor that is uint8 with four dimensions, [B, C, H, W].

    Several tensors of a batch may be such ones, as masks are. The one in the place `image` comes first; then, where the
    batch is a dictionary, that of the key "image", "pixel_values" or "images"; then the first one with a channel for
    every value of mean and std; then the first one. Where that tensor is in a list of such tensors within the batch, as
    views of images are, all of these are images.

    With mean and std the result is `(image / 255 - mean) / std`, computed as one expression `image * scale + bias` in
    float32 at least. The images may then also lie as [B, H, W, C], which their number of channels tells, and be a
    numpy array; and, where nothing is uint8, floats from 0 to 1, which are not divided by 255. With a dtype alone the
    numbers stay 0 to 255; without mean, std and dtype, they stay uint8.

    Attributes:
        mean: of each channel, where images go from 0 to 1; None with a std: 0.
        std: of each channel, likewise; None with a mean: 1.
        dtype: of the result; None: float32 with mean or std, else uint8.
        channels_last: whether the result lies in channels_last memory; else it is contiguous.
        image: the place of the images in a batch that is a tuple or a list, or their key in a dictionary; None: it is
            unknown. A batch that has no images there is searched as if it were None.

    Raises:
        ConfigError: mean and std differ in length or hold impossible numbers; dtype is not a float type.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dtype: torch.dtype | None = None
    channels_last: bool = True
    image: int | str | None = None

    @classmethod
    def of(
        cls,
        mean: Any = None,
        std: Any = None,
        dtype: Any = None,
        channels_last: bool = True,
        image: int | str | None = None,
    ) -> "Normalization":
        """Build a Normalization from a user's sequences, arrays or tensors, and a dtype or its name."""
        return cls(_numbers("mean", mean), _numbers("std", std), _find_dtype(dtype), channels_last, image)

    def __post_init__(self) -> None:
        for value in self.mean or ():
            if not 0 <= value <= 1:
                raise ConfigError(
                    f"mean={self.mean} must lie between 0 and 1, as images are scaled to that. Divide a mean of 0 to "
                    f"255 by 255, and its std too."
                )
        for value in self.std or ():
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"std={self.std} must be above 0 in every channel: images are divided by it.")
        if self.mean is not None and self.std is not None and len(self.mean) != len(self.std):
            raise ConfigError(
                f"mean={self.mean} has {len(self.mean)} values and std={self.std} has {len(self.std)}: both need one "
                f"per channel."
            )

    @property
    def is_scaling(self) -> bool:
        """Whether numbers change, rather than their type and place only."""
        return self.mean is not None or self.std is not None

    def arrange(self, batch: Any) -> Any:
        """Return a batch whose images are a tensor [B, C, H, W], where mean and std are to be applied.

        A batch without images stays as it is, for `find_image`. ConfigError: an array has other channels, or could be
        read in both ways; floats do not go from 0 to 1.
        """
        if not self.is_scaling:
            return batch
        image = self._choose(batch, tensors_and_arrays)
        if image is None:
            return batch
        if _is_float(image):
            self._check_range(image)
        if not isinstance(image, Tensor):
            return replace_value(batch, image, self._channels_first(image))
        # As create_loader's workers and iterables have made it of an array.
        is_last = image.shape[1] != self._num_channels == image.shape[3]
        return replace_value(batch, image, image.permute(0, 3, 1, 2)) if is_last else batch

    def find_image(self, batch: Any) -> Tensor | None:
        """Return the tensor of an arranged batch that holds its images, or None.

        ConfigError: mean and std are to be applied, and there is none, or one of other channels; or a dtype, and the
        images are several tensors.
        """
        image: Tensor | None = self._choose(batch, tensors)
        if image is None:
            self._check_may_have_none(batch)
            return None
        if not self.is_scaling:
            return image if _is_of_bytes(image) else None
        if image.shape[1] != self._num_channels:
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: {self._num_channels} values for images of {image.shape[1]} "
                f"channels, {list(image.shape)} as [B, C, H, W]: give one for every channel."
            )
        return image

    def find_images(self, batch: Any) -> list[Tensor]:
        """Return the tensors of an arranged batch that hold its images: one, or the list of views that it is in.

        Errors are those of `find_image`.
        """
        image = self.find_image(batch)
        if image is None:
            return []
        return next((views for views in _lists_of_images(batch) if any(one is image for one in views)), [image])

    @property
    def _num_channels(self) -> int:
        return len(self.mean or self.std or ())

    def _choose(self, batch: Any, leaves: Callable[[Any], Iterable[Any]]) -> Any:
        """Return the leaf of a batch that holds its images, or the first of its views; None: there is none.

        Images by name that are several tensors are none, so that nothing beside them is taken for images.
        """
        for values in self._by_name(batch):
            if images := _images(leaves(values)):
                return images[0]
            if next(_separate_images(values), None) is not None:
                return None
        images = _images(leaves(batch))
        return next(filter(self._fits, images), images[0] if images else None)

    def _by_name(self, batch: Any) -> Iterator[list[Any]]:
        """Yield a list of the value in the place `image` of a batch, and one of the values of the usual keys."""
        if isinstance(batch, Mapping):
            yield [batch[self.image]] if self.image in batch else []
            yield [batch[key] for key in _KEYS if key in batch]
        elif isinstance(batch, list | tuple) and isinstance(self.image, int):
            yield list(batch[self.image : self.image + 1])

    def _fits(self, image: Any) -> bool:
        """Return whether images [B, C, H, W] or [B, H, W, C] have as many channels as there are values."""
        return self._num_channels in (image.shape[1], image.shape[3])

    def _check_may_have_none(self, batch: Any) -> None:
        """Raise ConfigError where mean and std need images and there are none; for a dtype: where they are separate."""
        if not self.is_scaling and self.dtype is None:
            return
        separate = next(chain.from_iterable(map(_separate_images, (*self._by_name(batch), batch))), None)
        if self.is_scaling:
            asked, names = f"mean={self.mean}, std={self.std}", "mean and std"
            purpose = "to apply them to, nor one of floats, nor an array [B, H, W, C]"
        elif separate is not None:
            asked, names, purpose = f"dtype={_name_of(self.dtype)}", "dtype", "to convert"
        else:
            return
        if isinstance(separate, list | tuple):
            raise ConfigError(
                f"{asked}: the images of the batch are a list of {len(separate)}, the first one uint8 "
                f"{list(separate[0].shape)}, and not one uint8 tensor [B, C, H, W]. Leave {names} out, or give the "
                f"images one size, by a preprocess of the parser or a collate_fn that stacks them."
            )
        shapes = ", ".join(f"{_name_of(tensor.dtype)} {_shape_of(tensor)}" for tensor in tensors(batch))
        raise ConfigError(
            f"{asked}: the batch has no uint8 tensor [B, C, H, W] {purpose}; it holds {shapes or 'no tensors'}. Leave "
            f"{names} out, or give batches of uint8 images."
        )

    def _channels_first(self, array: NDArray[Any]) -> Any:
        """Return an array of images as a tensor [B, C, H, W], in its memory where that may be written to."""
        number, shape = self._num_channels, list(array.shape)
        is_first, is_last = shape[1] == number, shape[3] == number
        if is_first and is_last:
            reason = (
                "which may be [B, H, W, C] or [B, C, H, W]. Give a torch tensor [B, C, H, W], as in "
                "torch.from_numpy(images).permute(0, 3, 1, 2)"
            )
        else:
            reason = f"which is neither [B, H, W, {number}] nor [B, {number}, H, W]: give a value for every channel"
        if is_first == is_last:
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: {number} values for an array of images of shape {shape}, {reason}."
            )
        tensor = with_tensors(array)
        return tensor.permute(0, 3, 1, 2) if is_last and isinstance(tensor, Tensor) else tensor

    def _check_range(self, image: Any) -> None:
        """Raise ConfigError for floats on the CPU that do not go from 0 to 1."""
        is_elsewhere = isinstance(image, Tensor) and image.device.type != "cpu"  # We would have to wait.
        if is_elsewhere or not math.prod(image.shape):
            return
        least, most = float(image.min()), float(image.max())
        if not (least >= 0 and most <= 1):
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: images of {str(image.dtype).removeprefix('torch.')} must go from 0 "
                f"to 1, and these go from {least:g} to {most:g}. Divide images of 0 to 255 by 255, or give them as "
                f"uint8; leave mean and std out where images are normalised already."
            )

    def on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Return the function that normalises images [B, C, H, W] of a device, on that device."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        if not self.is_scaling:
            return lambda image: image.to(dtype=self.dtype or image.dtype, memory_format=layout)
        dtype = self.dtype or torch.float32
        exact = torch.float64 if dtype == torch.float64 else torch.float32
        of_bytes, of_floats = (self._scale_and_bias(exact, most).to(device) for most in (255, 1))

        def normalize(image: Tensor) -> Tensor:
            scale, bias = of_floats if image.is_floating_point() else of_bytes
            result = torch.empty_like(image, dtype=dtype, memory_format=layout)
            # One kernel on a GPU: it widens 8 bits as it reads them, and rounds to the result's type as it writes.
            return torch.addcmul(bias, image, scale, out=result)

        return normalize

    def _scale_and_bias(self, dtype: torch.dtype, most: int) -> Tensor:
        """Return factor and summand for images of 0 to `most`, [2, 1, C, 1, 1]."""
        num_channels = self._num_channels
        mean, std = self.mean or (0.0,) * num_channels, self.std or (1.0,) * num_channels
        pair = [[1 / (most * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]]
        return torch.tensor(pair, dtype=dtype, device="cpu").view(2, 1, num_channels, 1, 1)


def _images(found: Iterable[Any]) -> list[Any]:
    """Return the tensors or arrays that are uint8 with four dimensions; where there are none, those of floats."""
    candidates = [one for one in found if one.ndim == 4 and not _is_nested(one)]
    return list(filter(_is_of_bytes, candidates)) or list(filter(_is_float, candidates))


def _separate_images(batch: Any) -> Iterator[Any]:
    """Yield the images within a batch that are not one tensor: lists of uint8 [C, H, W], and nested tensors.

    The batch itself is a list of fields.
    """
    fields = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else (batch,)
    for field in fields:
        if isinstance(field, Tensor):
            if _is_nested(field) and _has_bytes(field, 4):
                yield field
        elif isinstance(field, list | tuple) and field and all(_has_bytes(one, 3) for one in field):
            yield field
        elif isinstance(field, Mapping | list | tuple):
            yield from _separate_images(field)


def _lists_of_images(batch: Any) -> Iterator[list[Tensor]]:
    """Yield the lists within a batch that hold nothing but images of bytes, of as many channels.

    The batch itself is a list of fields.
    """
    fields = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for field in fields:
        is_list = isinstance(field, list) and all(isinstance(one, Tensor) and _is_of_bytes(one) for one in field)
        if is_list and len({one.shape[1] for one in field}) == 1:
            yield field
        elif isinstance(field, Mapping | list | tuple):
            yield from _lists_of_images(field)


def _is_of_bytes(image: Any) -> bool:
    return _has_bytes(image, 4) and not _is_nested(image)


def _has_bytes(value: Any, num_dimensions: int) -> bool:
    if not isinstance(value, Tensor | np.ndarray) or value.ndim != num_dimensions:
        return False
    return bool(value.dtype == (torch.uint8 if isinstance(value, Tensor) else np.uint8))


def _is_nested(image: Any) -> bool:
    return isinstance(image, Tensor) and image.is_nested


def _is_float(image: Any) -> bool:
    return bool(image.is_floating_point() if isinstance(image, Tensor) else image.dtype.kind == "f")


def _name_of(dtype: torch.dtype | None) -> str:
    return str(dtype).partition(".")[2]


def _shape_of(tensor: Tensor) -> str:
    return "of several sizes" if _is_nested(tensor) else str(list(tensor.shape))


def _numbers(name: str, values: Any) -> tuple[float, ...] | None:
    """Return numbers, one per channel, as a tuple; a number alone is that of the only channel."""
    if values is None:
        return None
    is_one = isinstance(values, int | float) or getattr(values, "ndim", None) == 0
    try:
        numbers = () if isinstance(values, str | bool) else tuple(map(float, [values] if is_one else values))
    except (TypeError, ValueError):
        numbers = ()
    if not numbers:
        raise ConfigError(
            f"{name}={values!r} must hold a number per channel, for example (0.5, 0.5, 0.5), or 0.5 for one channel, "
            f"or be None."
        )
    return numbers


def _find_dtype(dtype: Any) -> torch.dtype | None:
    """Return a dtype that was given, or named."""
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES or not isinstance(dtype, str | torch.dtype):
        raise ConfigError(
            f"dtype={dtype!r} is not one of {', '.join(_DTYPES)}.{did_you_mean(name, _DTYPES)} None: float32 with mean "
            f"or std, else uint8."
        )
    return _DTYPES[name]
