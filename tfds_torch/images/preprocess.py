"""What is done to images while they are decoded: plain values, built without tensorflow.

`TrainPreprocess` and `EvalPreprocess` say how an image of any size becomes one of a fixed size. Both work on sizes and
random numbers alone (`crop_parameters`): what is decoded and resized, and where it comes to lie, is known before a
pixel is decoded.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.images.crop_boxes import NUM_DRAWS, random_resized_crops
from tfds_torch.images.crop_parameters import (
    CropParameters,
    crop_and_resize,
    cut_windows,
    resize_and_center,
    resize_keeping_ratio,
    resize_shorter_side,
    scaled_size,
)
from tfds_torch.plan.arguments import check_integer, did_you_mean
from tfds_torch.plan.random import draw_uniforms

INTERPOLATIONS = ("bilinear", "bicubic", "random")
CROP_MODES = ("center", "squash", "border")
MOST_PIXELS = 178_956_970
"""Of an image, unless told otherwise: where Pillow refuses an image as a decompression bomb."""

MapFunction = str | Callable[..., Any]


class Preprocess(Protocol):
    """How images of any size become images of one size."""

    @property
    def size(self) -> Any:
        """Height and width of the results."""

    @property
    def also(self) -> tuple[str, ...]:
        """Other image features that go through the same crop."""

    @property
    def map_fn(self) -> MapFunction | None:
        """A tensorflow function that is applied to the results."""

    @property
    def fill(self) -> Any:
        """The grey level, or one for each channel, of what is padded."""

    @property
    def max_pixels(self) -> int:
        """Pixels above which an image is refused."""

    @property
    def keeps_positions(self) -> bool:
        """Whether every place of an image stays, relative to its sides: nothing is cut off, padded or flipped."""

    def crop_parameters(
        self,
        sizes: NDArray[np.int64],
        keys: NDArray[np.int64],
        seed: int,
        shrinkable: NDArray[np.bool_],
    ) -> CropParameters:
        """Returns what is done to each of n images.

        Args:
            sizes: int64 [n, 2], heights and widths.
            keys: int64 [n], which random numbers are theirs, see `plan.random`.
            seed: of the random numbers.
            shrinkable: bool [n], whether decoding can shrink it.
        """


@dataclass(frozen=True)
class TrainPreprocess:
    """Random crops for training: torchvision's RandomResizedCrop, or pad-and-crop for small images; then a flip.

    The result is uint8 `[H, W, C]`, resized with antialiasing as Pillow, timm and torchvision do it. Random numbers
    belong to (seed, pass, example), so that the result is the same in every world, after a resume, and in any thread.

    Attributes:
        size: of the result: pixels of a side, or (height, width).
        scale: least and greatest fraction of the image's area that is cut out, 0 < least <= greatest <= 1.
        ratio: least and greatest ratio of width to height of what is cut out, 0 < least <= greatest.
        hflip: probability of a flip, left to right.
        interpolation: `bilinear`, `bicubic`, or `random`: one of the two for each example.
        crop_padding: None: crops are resized. A number: nothing is resized; the image is padded by so many pixels on
            every side (more, where it would still be smaller than `size`) and a window of `size` is cut out at random.
            scale, ratio and interpolation are not used then.
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: other image features, such as a segmentation mask, that go through the same crop and flip, by the
            nearest pixel.
        map_fn: your own tensorflow function for further augmentation, in the worker: `"module:function"`, or a function
            that can be pickled and imports tensorflow inside. Called as `map_fn(image, seed)` with image uint8
            [H, W, C] and seed int64 [2], for `tf.random.stateless_*`; returns uint8 of the same shape.
        max_pixels: an image of more pixels is an error; it is not decoded.

    Raises:
        ConfigError: a value out of range or of the wrong type.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float = 0.5
    interpolation: str = "bilinear"
    crop_padding: int | None = None
    fill: int | tuple[int, ...] = 0
    also: tuple[str, ...] = ()
    map_fn: MapFunction | None = None
    max_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        _check_shared(self)
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            object.__setattr__(self, name, _check_range(f"TrainPreprocess: {name}", getattr(self, name), most))
        if not _is_number(self.hflip) or not 0 <= self.hflip <= 1:
            raise ConfigError(f"TrainPreprocess: hflip={self.hflip!r} must be a probability, 0 to 1.")
        if self.crop_padding is not None:
            padding = check_integer("TrainPreprocess: crop_padding", self.crop_padding, 0)
            object.__setattr__(self, "crop_padding", padding)
            if padding >= min(height_and_width(self.size)):
                raise ConfigError(
                    f"TrainPreprocess: crop_padding={padding} must be less than size={self.size}: there would be "
                    f"results of nothing but padding."
                )

    @property
    def keeps_positions(self) -> bool:
        """False: crops are random; see `Preprocess`."""
        return False

    @classmethod
    def from_timm_config(cls, config: Any, **changes: Any) -> "TrainPreprocess":
        """Returns what timm's data config asks for.

        Args:
            config: a model's `pretrained_cfg`, what `timm.data.resolve_data_config` returned, or another mapping with
                `input_size` and, where they differ from the defaults, `interpolation`, `scale`, `ratio` and `hflip`.
            **changes: attributes that are to have other values.

        Raises:
            ConfigError: config has no input_size, or a value that cannot be.
        """
        values = _read_timm_config(config, ("interpolation", "scale", "ratio", "hflip"))
        return cls(**values | changes)

    def crop_parameters(
        self,
        sizes: NDArray[np.int64],
        keys: NDArray[np.int64],
        seed: int,
        shrinkable: NDArray[np.bool_],
    ) -> CropParameters:
        """Returns what is done to each of n images; see `Preprocess`."""
        height, width = height_and_width(self.size)
        if self.crop_padding is not None:
            uniforms = draw_uniforms(keys, seed, (0, 1, NUM_DRAWS))
            flips = uniforms[:, 2] < self.hflip
            room = sizes + 2 * self.crop_padding - np.array([height, width])
            starts = np.floor(uniforms[:, :2] * (room + 1)).astype(np.int64) - self.crop_padding
            centered = -((np.array([height, width]) - sizes) // 2)
            return cut_windows(sizes, np.where(room >= 0, starts, centered), (height, width), flips)
        uniforms = draw_uniforms(keys, seed, NUM_DRAWS + 2)
        flips = uniforms[:, NUM_DRAWS] < self.hflip
        boxes = random_resized_crops(sizes, uniforms[:, :NUM_DRAWS], self.scale, self.ratio)
        bicubic = _choose_bicubic(self.interpolation, uniforms[:, NUM_DRAWS + 1])
        return crop_and_resize(boxes, (height, width), shrinkable, flips, bicubic)


@dataclass(frozen=True)
class EvalPreprocess:
    """The resize and central crop of evaluation, as timm does it.

    The result is uint8 `[H, W, C]`, resized with antialiasing as Pillow, timm and torchvision do it.

    Attributes:
        size: of the result: pixels of a side, or (height, width).
        crop_pct: fraction of the resized image that the result is, 0 < crop_pct <= 1: size / crop_pct is what the image
            is resized to.
        interpolation: `bilinear` or `bicubic`.
        crop_mode: `center`: the shorter side is resized to size / crop_pct, and the centre cut out; `squash`: both
            sides are, whatever the ratio; `border`: the longer side is, and what is missing is padded.
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: as in TrainPreprocess.
        map_fn: as in TrainPreprocess.
        max_pixels: as in TrainPreprocess.

    Raises:
        ConfigError: a value out of range or of the wrong type.

    Source: timm 1.0.31, `transforms_imagenet_eval`.
    """

    size: int | tuple[int, int]
    crop_pct: float = 0.875
    interpolation: str = "bilinear"
    crop_mode: str = "center"
    fill: int | tuple[int, ...] = 0
    also: tuple[str, ...] = ()
    map_fn: MapFunction | None = None
    max_pixels: int = MOST_PIXELS

    def __post_init__(self) -> None:
        _check_shared(self)
        if self.interpolation == "random":
            raise ConfigError("EvalPreprocess: interpolation='random' is for training: choose 'bilinear' or 'bicubic'.")
        if not _is_number(self.crop_pct) or not 0 < self.crop_pct <= 1:
            raise ConfigError(f"EvalPreprocess: crop_pct={self.crop_pct!r} must be a fraction, above 0 and at most 1.")
        if self.crop_mode not in CROP_MODES:
            names = ", ".join(map(repr, CROP_MODES))
            hint = did_you_mean(self.crop_mode, CROP_MODES)
            raise ConfigError(f"EvalPreprocess: unknown crop_mode {self.crop_mode!r}: choose one of {names}.{hint}")

    @property
    def keeps_positions(self) -> bool:
        """Whether the whole image is squashed into the result; see `Preprocess`."""
        return self.crop_mode == "squash" and self.crop_pct == 1

    @classmethod
    def from_timm_config(cls, config: Any, **changes: Any) -> "EvalPreprocess":
        """Returns what timm's data config asks for; the padding of crop mode `border` has the config's mean.

        Args:
            config: as in `TrainPreprocess.from_timm_config`; read are `input_size`, `interpolation`, `crop_pct`,
                `crop_mode` and `mean`.
            **changes: attributes that are to have other values.

        Raises:
            ConfigError: config has no input_size, or a value that cannot be.
        """
        values = _read_timm_config(config, ("interpolation", "crop_pct", "crop_mode"))
        mean = _get(config, "mean")
        if values.get("crop_mode") == "border" and mean is not None:
            values["fill"] = tuple(round(255 * level) for level in mean)
        return cls(**values | changes)

    def crop_parameters(
        self,
        sizes: NDArray[np.int64],
        keys: NDArray[np.int64],
        seed: int,
        shrinkable: NDArray[np.bool_],
    ) -> CropParameters:
        """Returns what is done to each of n images; see `Preprocess`."""
        size = height_and_width(self.size)
        scaled = scaled_size(size, self.crop_pct)
        if self.crop_mode == "squash":
            resized = np.broadcast_to(np.array(scaled, np.int64), sizes.shape)
        elif self.crop_mode == "border":
            resized = resize_keeping_ratio(sizes, scaled, inside=True)
        elif scaled[0] == scaled[1]:
            resized = resize_shorter_side(sizes, scaled[0])
        else:
            resized = resize_keeping_ratio(sizes, scaled, inside=False)
        bicubic = np.full(len(sizes), self.interpolation == "bicubic")
        return resize_and_center(sizes, resized, size, shrinkable, bicubic)


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) of a size that may be one number for both."""
    return size if isinstance(size, tuple) else (size, size)


def _check_shared(value: Any) -> None:
    """Checks what both have in common, and turns lists into tuples."""
    kind = type(value).__name__
    sides = value.size if isinstance(value.size, tuple | list) else (value.size,)
    if len(sides) not in (1, 2):
        raise ConfigError(f"{kind}: size={value.size!r} must be the pixels of a side, or (height, width).")
    checked = tuple(check_integer(f"{kind}: size", side, 1) for side in sides)
    object.__setattr__(
        value, "size", checked if isinstance(value.size, tuple | list) and len(checked) == 2 else checked[0]
    )
    if value.interpolation not in INTERPOLATIONS:
        names = ", ".join(map(repr, INTERPOLATIONS))
        hint = did_you_mean(value.interpolation, INTERPOLATIONS)
        raise ConfigError(f"{kind}: unknown interpolation {value.interpolation!r}: choose one of {names}.{hint}")
    levels = value.fill if isinstance(value.fill, tuple | list) else (value.fill,)
    if not levels or any(check_integer(f"{kind}: fill", level, 0) > 255 for level in levels):
        raise ConfigError(f"{kind}: fill={value.fill!r} must be a grey level, 0 to 255, or one for each channel.")
    object.__setattr__(value, "fill", tuple(levels) if isinstance(value.fill, tuple | list) else levels[0])
    if not isinstance(value.also, tuple | list) or not all(isinstance(name, str) for name in value.also):
        raise ConfigError(f"{kind}: also={value.also!r} must be names of image features, such as ('mask',).")
    object.__setattr__(value, "also", tuple(value.also))
    object.__setattr__(value, "max_pixels", check_integer(f"{kind}: max_pixels", value.max_pixels, 1))
    is_named = isinstance(value.map_fn, str) and all(part.strip() for part in f"{value.map_fn}:".split(":", 1))
    if isinstance(value.map_fn, str) and (not is_named or value.map_fn.count(":") != 1 or value.map_fn.endswith(":")):
        raise ConfigError(f"{kind}: map_fn={value.map_fn!r} must have the form 'module:function'.")
    if value.map_fn is not None and not isinstance(value.map_fn, str) and not callable(value.map_fn):
        raise ConfigError(f"{kind}: map_fn={value.map_fn!r} must be a function, or its name as 'module:function'.")


def _check_range(name: str, value: Any, most: float) -> tuple[float, float]:
    pair = tuple(value) if isinstance(value, tuple | list) else ()
    if len(pair) != 2 or not all(map(_is_number, pair)) or not 0 < pair[0] <= pair[1] <= most:
        limit = f" <= {most:g}" if math.isfinite(most) else ""
        raise ConfigError(f"{name}={value!r} must be two numbers with 0 < least <= greatest{limit}.")
    return float(pair[0]), float(pair[1])


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float | np.integer | np.floating)
        and not isinstance(value, bool)
        and math.isfinite(value)
    )


def _choose_bicubic(interpolation: str, uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    return uniforms < 0.5 if interpolation == "random" else np.full(len(uniforms), interpolation == "bicubic")


def _read_timm_config(config: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns size and the named values of a timm config, as far as it has them."""
    input_size = _get(config, "input_size")
    if not isinstance(input_size, tuple | list) or len(input_size) != 3:
        raise ConfigError(
            f"from_timm_config: input_size={input_size!r} must be (channels, height, width). Pass a model's "
            f"pretrained_cfg, or what timm.data.resolve_data_config returned."
        )
    found = {name: _get(config, name) for name in names}
    return {"size": tuple(input_size[1:])} | {name: value for name, value in found.items() if value is not None}


def _get(config: Any, name: str) -> Any:
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
