"""Images of whole batches, from 8-bit numbers to what a model takes, where they lie: one pass, no copy between."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.torch_data.nested import tensors

_DTYPES = {
    str(dtype).partition(".")[2]: dtype for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
}


@dataclass(frozen=True)
class Normalization:
    """What is done to the images of a batch: its first tensor that is uint8 with four dimensions, [B, C, H, W].

    With mean and std the result is `(image / 255 - mean) / std`, computed as one expression `image * scale + bias` in
    float32 at least. With a dtype alone the numbers stay 0 to 255; without any, they stay uint8.

    Attributes:
        mean: of each channel, where images go from 0 to 1; None with a std: 0.
        std: of each channel, likewise; None with a mean: 1.
        dtype: of the result; None: float32 with mean or std, else uint8.
        channels_last: whether the result lies in channels_last memory; else it is contiguous.

    Raises:
        ConfigError: mean and std differ in length or hold what cannot be meant; dtype is not one of a float.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dtype: torch.dtype | None = None
    channels_last: bool = True

    @classmethod
    def of(cls, mean: Any = None, std: Any = None, dtype: Any = None, channels_last: bool = True) -> "Normalization":
        """Builds one from what a user gives: sequences, arrays or tensors; a dtype or its name."""
        return cls(_numbers("mean", mean), _numbers("std", std), _find_dtype(dtype), channels_last)

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

    def find_image(self, batch: Any) -> Tensor | None:
        """Returns the tensor of a batch that holds its images, or None.

        Raises:
            ConfigError: there is none, or one of other channels, where mean and std are to be applied.
        """
        found = list(tensors(batch))
        image = next((tensor for tensor in found if tensor.dtype == torch.uint8 and tensor.ndim == 4), None)
        if not self.is_scaling:
            return image
        if image is None:
            shapes = ", ".join(f"{str(tensor.dtype).partition('.')[2]} {list(tensor.shape)}" for tensor in found)
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: the batch has no uint8 tensor [B, C, H, W] to apply them to; it "
                f"holds {shapes or 'no tensors'}. Leave mean and std out, or give batches of uint8 images."
            )
        num_channels = len(self.mean or self.std or ())
        if image.shape[1] != num_channels:
            raise ConfigError(
                f"mean={self.mean}, std={self.std}: {num_channels} values for images of {image.shape[1]} channels, "
                f"{list(image.shape)} as [B, C, H, W]: give one for every channel."
            )
        return image

    def on(self, device: torch.device) -> Callable[[Tensor], Tensor]:
        """Returns the function that normalises images [B, C, H, W] of a device, on that device."""
        layout = torch.channels_last if self.channels_last else torch.contiguous_format
        if not self.is_scaling:
            return lambda image: image.to(dtype=self.dtype or image.dtype, memory_format=layout)
        dtype = self.dtype or torch.float32
        scale, bias = self._scale_and_bias(torch.float64 if dtype == torch.float64 else torch.float32).to(device)

        def normalize(image: Tensor) -> Tensor:
            result = torch.empty_like(image, dtype=dtype, memory_format=layout)
            # One kernel on a GPU: it widens 8 bits as it reads them, and rounds to the result's type as it writes.
            return torch.addcmul(bias, image, scale, out=result)

        return normalize

    def _scale_and_bias(self, dtype: torch.dtype) -> Tensor:
        """Returns what images are multiplied by, and what is added then: [2, 1, C, 1, 1]."""
        num_channels = len(self.mean or self.std or ())
        mean, std = self.mean or (0.0,) * num_channels, self.std or (1.0,) * num_channels
        pair = [[1 / (255 * s) for s in std], [-m / s for m, s in zip(mean, std, strict=True)]]
        return torch.tensor(pair, dtype=dtype).view(2, 1, num_channels, 1, 1)


def _numbers(name: str, values: Any) -> tuple[float, ...] | None:
    """Returns numbers, one per channel, as a tuple.

    Raises:
        ConfigError: values is no sequence of numbers.
    """
    if values is None:
        return None
    try:
        numbers = () if isinstance(values, str) else tuple(float(value) for value in values)
    except (TypeError, ValueError):
        numbers = ()
    if not numbers:
        raise ConfigError(f"{name}={values!r} must hold a number per channel, for example (0.5, 0.5, 0.5), or be None.")
    return numbers


def _find_dtype(dtype: Any) -> torch.dtype | None:
    """Returns a dtype that was given, or named.

    Raises:
        ConfigError: it is not one that images can have.
    """
    if dtype is None:
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES or not isinstance(dtype, str | torch.dtype):
        raise ConfigError(
            f"dtype={dtype!r} is not one of {', '.join(_DTYPES)}.{did_you_mean(name, _DTYPES)} None: float32 with mean "
            f"or std, else uint8."
        )
    return _DTYPES[name]
