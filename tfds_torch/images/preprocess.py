"""Preprocesses: how images of any size become images of one size, as plain values that can be pickled.

A preprocess has two methods: `crop` decides, from sizes and random numbers, which part of each image is decoded and
resized; `augment` changes finished images in place. Your own preprocess overrides either.
"""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import Kind
from tfds_torch.images.compose import Tail, Taken, log_once, take_over
from tfds_torch.images.crops import (
    NUM_DRAWS,
    CropParameters,
    Crops,
    ExampleRandom,
    PreprocessError,
    Resize,
    central_starts,
    random_resized_crops,
    resize_keeping_ratio,
    resize_shorter_side,
    resize_to,
    scaled_size,
)
from tfds_torch.images.headers import MOST_PIXELS
from tfds_torch.images.preprocess_arguments import (
    LEAST_VISIBLE,
    AlsoFields,
    BoxFields,
    check_interpolation,
    check_probability,
    check_range,
    check_resize,
    check_shared,
    is_number,
    read_timm_config,
)
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.runtime.keyword_hints import explain_keywords

__all__ = [
    "Crops",
    "EvalPreprocess",
    "ExampleRandom",
    "Preprocess",
    "PreprocessError",
    "TrainPreprocess",
]

CROP_MODES = ("center", "squash", "border")
PLACES = ("random", "center")

_FLIP, _FILTER, _VFLIP = NUM_DRAWS, NUM_DRAWS + 1, NUM_DRAWS + 2
"""Numbers of an example's random numbers that do not choose a place."""

_FIRST_OF_AUGMENT = 2**31
"""Number of an example's random numbers with which those of `augment` begin."""

_NUMBERS_OF_VIEW = 2**33
"""Random numbers of an example that belong to each of its views."""

_Result = TypeVar("_Result")


class Preprocess(ABC):
    """Makes images of one size from images of any size.

    To write one, derive a frozen dataclass with a field `size` from this class and define `crop`; or derive one from
    `TrainPreprocess` or `EvalPreprocess` and override `crop` or `augment`. Loaders call these methods in several
    threads and processes, each time for some examples of a batch: treat every example by itself, and keep nothing
    between calls. Then an example has the same pixels in any batch, rank or worker, and after a resume.

    Attributes:
        size: size of the result: pixels of a side, or (height, width).
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: other image features that get the same crop, see `TrainPreprocess`.
        max_pixels: an image of more pixels is an error; it is not decoded.
        boxes: fields of boxes that move with the image, see `TrainPreprocess`.
        min_visible: share of a box's area that must be in the result, see `TrainPreprocess`.
        shrink: whether a large JPEG may be decoded at a fraction of its size, see `TrainPreprocess`.
        of_transform: the transform whose beginning this is, see `TrainPreprocess.from_transform`.

    Raises:
        ConfigError: a value is out of range or has the wrong type.
    """

    size: int | tuple[int, int]
    fill: int | tuple[int, ...] = 0
    also: AlsoFields = ()
    max_pixels: int = MOST_PIXELS
    boxes: BoxFields = None
    min_visible: float = LEAST_VISIBLE
    shrink: bool = True
    of_transform: Taken | None = None

    def __post_init__(self) -> None:
        check_shared(self)

    @property
    def taken(self) -> tuple[str, ...]:
        """Names of the transforms of a Compose that it does, see `TrainPreprocess.from_transform`."""
        return () if self.of_transform is None else self.of_transform.names

    @property
    def tail(self) -> Tail | None:
        """The rest of that Compose, for single images; None: at most the end that `mean` and `std` describe is left."""
        return None if self.of_transform is None else self.of_transform.tail

    @property
    def mean(self) -> tuple[float, ...] | None:
        """Mean of each channel in the Normalize that ends that Compose, for `create_loader`; None: it has none."""
        return None if self.of_transform is None else self.of_transform.mean

    @property
    def std(self) -> tuple[float, ...] | None:
        """Standard deviation of each channel, likewise."""
        return None if self.of_transform is None else self.of_transform.std

    @property
    def left(self) -> str:
        """Why no more of that Compose is done here; "": no more is to be done."""
        return "" if self.of_transform is None else self.of_transform.left

    @classmethod
    def _take_over(cls, transform: Any, changes: dict[str, Any], *, is_random: bool) -> Self:
        taken = take_over(transform, is_random=is_random, check=lambda values: cls(**values | changes))
        if not taken.values:
            raise ConfigError(
                f"{cls.__name__}.from_transform: nothing of the transform can be done while images are decoded: "
                f"{taken.left}. Give it whole to ImageDataset(parser, transform=...), without a preprocess."
            )
        if taken.is_pure:
            log_once(f"{cls.__name__}.from_transform: {taken.describe('left to mean and std of the loader')}")
        else:
            text = taken.describe("left to you, as its tail")
            remedy = "ImageDataset(parser, transform=...) does all of it, for a parser without a preprocess."
            log_once(f"{cls.__name__}.from_transform: {text}. {remedy}", logging.WARNING)
        return cls(**taken.values | {"of_transform": taken} | changes)

    @abstractmethod
    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Return the part of each of n images that becomes the result.

        Args:
            sizes: int64 [n, 2], heights and widths of the images, pixels.
            random: random numbers of the n examples.
        """

    def augment(self, images: NDArray[np.uint8], random: ExampleRandom) -> None:  # noqa: B027 (may be left out)
        """Change n finished images in place; the default changes nothing.

        Args:
            images: uint8 [n, H, W, C], cropped and resized, in the memory of their batch.
            random: random numbers of the n examples, which differ from those that `crop` gets.
        """

    @property
    def box_fields(self) -> Mapping[str, tuple[str, ...] | None] | None:
        """Name -> the fields that have a row for each box, None where it is alone; None: those that a dataset declares.

        A name alone stands for its sequence: all fields of that have a row for each box.
        """
        if self.boxes is None:
            return None
        return dict((entry, None) if isinstance(entry, str) else entry for entry in self.boxes)

    @property
    def also_kinds(self) -> Mapping[str, Kind | None]:
        """Name of each other image feature -> the kind of its images; None: the format of each image decides."""
        return dict((entry, None) if isinstance(entry, str) else entry for entry in self.also)

    @property
    def moved_fields(self) -> tuple[str, ...]:
        """The fields that are named because they move with the image."""
        return *self.also_kinds, *(self.box_fields or ())

    @property
    def num_pixels(self) -> int:
        """Number of pixels that are made of one image."""
        return math.prod(height_and_width(self.size))

    @property
    def augments(self) -> bool:
        """Whether the class has its own `augment`."""
        return type(self).augment is not Preprocess.augment

    @property
    def keeps_positions(self) -> bool:
        """Whether every place of an image stays, relative to its sides: nothing is cut off, padded or flipped."""
        return False

    def crop_parameters(
        self,
        sizes: NDArray[np.int64],
        keys: NDArray[np.int64],
        seed: int,
        shrinkable: NDArray[np.bool_],
        view: int = 0,
    ) -> CropParameters:
        """Return how n images are decoded and resized, as `crop` decides it.

        Args:
            sizes: int64 [n, 2], heights and widths of the images, pixels.
            keys: int64 [n], sample keys of the examples: with `seed` and `view` they choose the random numbers.
            seed: seed of the random numbers, >= 0.
            shrinkable: bool [n], whether decoding can shrink the image by 2, 4 or 8, as it can most JPEGs.
            view: number of the view, >= 0: each view of an example has its own random numbers.

        Returns:
            The windows to decode, and how these become images of `size`.

        Raises:
            PreprocessError: `crop` failed, or returned crops that cannot be cut, or something other than Crops of n
                images (a TypeError is the cause then); `position` is that of the example.
        """

        def crop(some: slice) -> Crops:
            crops = self.crop(sizes[some], ExampleRandom(keys[some], seed, view * _NUMBERS_OF_VIEW))
            if isinstance(crops, Crops) and len(crops) == len(keys[some]):
                return crops
            found = f"{len(crops)} of them" if isinstance(crops, Crops) else f"{crops!r:.100}"
            raise TypeError(f"it must return Crops of {len(keys[some])} images, not {found}")

        crops = self._call("crop", crop, len(keys))
        try:
            return crops.parameters(sizes, height_and_width(self.size), shrinkable & self.shrink)
        except PreprocessError as error:
            raise PreprocessError(error.position, f"{type(self).__name__}.crop failed: {error.reason}") from None

    def augment_all(self, images: NDArray[np.uint8], keys: NDArray[np.int64], seed: int, view: int = 0) -> None:
        """Call `augment` on n finished images, which it changes in place.

        Args:
            images: uint8 [n, H, W, C], cropped and resized.
            keys: int64 [n], sample keys of the examples: with `seed` and `view` they choose the random numbers.
            seed: seed of the random numbers, >= 0.
            view: number of the view, >= 0: each view of an example has its own random numbers.

        Raises:
            PreprocessError: `augment` failed, or returned something (a TypeError is the cause then); `position` is that
                of the example.
        """

        def augment(some: slice) -> None:
            random = ExampleRandom(keys[some], seed, view * _NUMBERS_OF_VIEW + _FIRST_OF_AUGMENT)
            result: object = self.augment(images[some], random)  # type: ignore[func-returns-value]
            if result is not None:
                raise TypeError("it must change the images in place, as in images[:] = ..., and return nothing")

        self._call("augment", augment, len(keys))

    def _call(self, name: str, call: Callable[[slice], _Result], count: int) -> _Result:
        """Return the result of a method for all of `count` examples; where it fails, find the example."""
        try:
            return call(slice(0, count))
        except MemoryError:
            raise
        except Exception as error:  # Of whatever the user's code does.
            failure = error
        position, together = 0, " for it and its neighbours"
        for one in range(count):
            try:
                call(slice(one, one + 1))
            except Exception as error:
                position, together, failure = one, "", error
                break
        raise PreprocessError(
            position, f"{type(self).__name__}.{name} failed{together}: {type(failure).__name__}: {failure}."
        ) from failure


@explain_keywords
@dataclass(frozen=True)
class TrainPreprocess(Preprocess):
    """Random crops for training: torchvision's RandomResizedCrop, windows of resized or padded images; then flips.

    The result is uint8 `[H, W, C]`, resized with antialiasing as Pillow, timm and torchvision do it. Random numbers
    belong to (seed, pass, example), so that the result is the same in every world, after a resume, and in any thread.

    Attributes:
        size: size of the result: pixels of a side, or (height, width).
        scale: least and greatest fraction of the image's area that is cut out, 0 < least <= greatest <= 1.
        ratio: least and greatest ratio of width to height of the box, 0 < least <= greatest.
        hflip: probability of a flip, left to right.
        interpolation: `bilinear`, `bicubic`, or `random`: one of the two for each example.
        crop_padding: None: crops are resized. A number: nothing is resized; the image is padded by this many pixels on
            every side (more, where it would still be smaller than `size`) and a window of `size` is cut out at random.
            Then scale, ratio and interpolation are not used.
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: other image features that get the same crop and flip. Numbers (a palette's indices, one channel, 16
            bits) take the nearest pixel, and keep their values and type. Pictures (colours of 8 bits, as of a second
            camera) are resized bilinearly, as RGB. {"left": "picture", "heat": "numbers"} sets the kind by name.
        max_pixels: an image of more pixels is an error; it is not decoded.
        boxes: fields of boxes that move with the image: TFDS's [ymin, xmin, ymax, xmax], relative to it. None: the
            fields that a TFDS dataset declares as BBox, with the rows of their sequence. Names, for datasets that
            declare none; or name -> the fields that have a row for each of its boxes, like
            `{"bboxes": ("classes",)}`. (): no boxes move.
        min_visible: share of a box's area, 0 to 1, that must be in the result: a box with a smaller share there, or
            with none, is left out, with its row in the other fields of its sequence. A single box becomes [0, 0, 0, 0].
        shrink: whether a JPEG of which five pixels or more become one may be decoded at a half, a quarter or an eighth
            of its size. That takes less than half the time, and photographs differ by less than half a grey level on
            average; halftone, text and other fine patterns of black and white differ by two to five levels. False is
            exact.
        resize: None: as above. Else the whole image is resized, and a window of `size` is cut out of it: pixels of
            the shorter side (torchvision's Resize of a number); (height, width), whatever the ratio; ("cover", height,
            width) or ("inside", height, width), which keep the ratio (timm's ResizeKeepRatio); "keep": nothing is
            resized. crop_padding then counts pixels of the resized image, 0 by default; scale and ratio are not used.
        place: where that window, or the one that crop_padding cuts, lies: `random`, or `center`.
        vflip: probability of a flip, top to bottom.
        of_transform: the transform whose beginning this is: `from_transform` sets it.

    Raises:
        ConfigError: a value is out of range or has the wrong type.
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    hflip: float = 0.5
    interpolation: str = "bilinear"
    crop_padding: int | None = None
    fill: int | tuple[int, ...] = 0
    also: AlsoFields = ()
    max_pixels: int = MOST_PIXELS
    boxes: BoxFields = None
    min_visible: float = LEAST_VISIBLE
    shrink: bool = True
    resize: Resize | None = None
    place: str = "random"
    vflip: float = 0.0
    of_transform: Taken | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interpolation(type(self).__name__, self.interpolation)
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            object.__setattr__(self, name, check_range(f"TrainPreprocess: {name}", getattr(self, name), most))
        for name in ("hflip", "vflip"):
            check_probability(f"TrainPreprocess: {name}", getattr(self, name))
        object.__setattr__(self, "resize", check_resize("TrainPreprocess", self.resize))
        if self.place not in PLACES:
            names, hint = " or ".join(map(repr, PLACES)), did_you_mean(self.place, PLACES)
            raise ConfigError(f"TrainPreprocess: place={self.place!r} must be {names}.{hint}")
        if self.crop_padding is not None:
            padding = check_integer("TrainPreprocess: crop_padding", self.crop_padding, 0)
            object.__setattr__(self, "crop_padding", padding)
            if padding >= min(height_and_width(self.size)):
                raise ConfigError(
                    f"TrainPreprocess: crop_padding={padding} must be less than size={self.size}: there would be "
                    f"results of nothing but padding."
                )

    @classmethod
    def from_timm_config(cls, config: Any, **changes: Any) -> "TrainPreprocess":
        """Return the preprocess that timm's data config asks for.

        Args:
            config: a model's `pretrained_cfg`, what `timm.data.resolve_data_config` returned, or another mapping with
                `input_size` and, where they differ from the defaults, `interpolation`, `scale`, `ratio` and `hflip`.
            **changes: other values of attributes.

        Raises:
            ConfigError: config has no input_size, or a value that an attribute cannot have.
        """
        values = read_timm_config(config, ("interpolation", "scale", "ratio", "hflip"))
        return cls(**values | changes)

    @classmethod
    def from_transform(cls, transform: Any, **changes: Any) -> "TrainPreprocess":
        """Return a preprocess that does the beginning of a torchvision or timm transform: crops, resizes and flips.

        The result's `taken` names the transforms that it does. Its `tail` does the rest, in Python; it is None where
        the rest is only layout, scale and Normalize: pass `mean` and `std` to `create_loader`. Its `left` says why no
        more is taken over. The transform's classes are known by name; a class derived from one of them is left.

        Args:
            transform: a Compose, or a preset.
            **changes: other values of attributes.

        Raises:
            ConfigError: nothing of it can be taken over, or a changed attribute has a value that it cannot have.
        """
        return cls._take_over(transform, changes, is_random=True)

    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Return random boxes, or random places in resized images; see `Preprocess.crop`.

        Args:
            sizes: int64 [n, 2], heights and widths of the images, pixels.
            random: random numbers of the n examples.
        """
        resize = "keep" if self.resize is None else self.resize
        has_boxes = self.resize is None and self.crop_padding is None
        # A random number has one meaning whatever else is drawn: an example looks the same in later versions.
        of_places = range(NUM_DRAWS) if has_boxes else (0, 1)
        others = [_FLIP, *([_FILTER] if has_boxes or resize != "keep" else []), *([_VFLIP] if self.vflip else [])]
        uniforms = random.uniforms([*of_places, *others])
        places, drawn = uniforms[:, : -len(others)], dict(zip(others, uniforms[:, -len(others) :].T, strict=True))
        flips = drawn[_FLIP] < self.hflip
        vflips = drawn[_VFLIP] < self.vflip if self.vflip else None
        bicubic = _choose_bicubic(self.interpolation, drawn[_FILTER]) if _FILTER in drawn else None
        if has_boxes:
            boxes = random_resized_crops(sizes, places, self.scale, self.ratio)
            return Crops(boxes, flips=flips, bicubic=bicubic, vflips=vflips)
        resized = resize_to(sizes, resize)
        starts = self._window_starts(resized, places)
        if resize == "keep":
            return Crops(_windows_at(starts, self.size), flips=flips, vflips=vflips)
        return Crops(resized=resized, starts=starts, flips=flips, bicubic=bicubic, vflips=vflips)

    def _window_starts(self, sizes: NDArray[np.int64], uniforms: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return top and left of a window of `size` in images of some sizes, int64 [n, 2]; negative in the padding."""
        size = np.array(height_and_width(self.size))
        padding = self.crop_padding or 0
        room = sizes + (2 * padding - size)
        if self.place == "center":
            return central_starts(sizes, size)
        starts: NDArray[np.int64] = np.floor(uniforms * (room + 1)).astype(np.int64) - padding
        if room.min(initial=0) < 0:  # An image that is still smaller lies in the middle.
            starts = np.where(room >= 0, starts, -((size - sizes) // 2))
        return starts


@explain_keywords
@dataclass(frozen=True)
class EvalPreprocess(Preprocess):
    """The resize and central crop of evaluation, as timm does it.

    The result is uint8 `[H, W, C]`, resized with antialiasing as Pillow, timm and torchvision do it.

    Attributes:
        size: size of the result: pixels of a side, or (height, width).
        crop_pct: fraction of the resized image that is cut out, 0 < crop_pct <= 1: the image is resized to
            size / crop_pct.
        interpolation: `bilinear` or `bicubic`.
        crop_mode: `center`: the shorter side is resized to size / crop_pct, and the centre is cut out; `squash`: both
            sides are resized to it, whatever the ratio; `border`: the longer side is, and the rest is padded.
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: as in `TrainPreprocess`.
        max_pixels: as in `TrainPreprocess`.
        boxes: as in `TrainPreprocess`.
        min_visible: as in `TrainPreprocess`.
        shrink: as in `TrainPreprocess`.
        resize: None: as above. Else the size to which the whole image is resized before the centre is cut out, as in
            TrainPreprocess; then crop_pct and crop_mode are not used.
        of_transform: the transform whose beginning this is: `from_transform` sets it.

    Raises:
        ConfigError: a value is out of range or has the wrong type.

    Source: timm 1.0.31, `transforms_imagenet_eval`.
    """

    size: int | tuple[int, int]
    crop_pct: float = 0.875
    interpolation: str = "bilinear"
    crop_mode: str = "center"
    fill: int | tuple[int, ...] = 0
    also: AlsoFields = ()
    max_pixels: int = MOST_PIXELS
    boxes: BoxFields = None
    min_visible: float = LEAST_VISIBLE
    shrink: bool = True
    resize: Resize | None = None
    of_transform: Taken | None = field(default=None, repr=False, compare=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "resize", check_resize("EvalPreprocess", self.resize))
        check_interpolation(type(self).__name__, self.interpolation)
        if self.interpolation == "random":
            raise ConfigError("EvalPreprocess: interpolation='random' is for training: choose 'bilinear' or 'bicubic'.")
        if not is_number(self.crop_pct) or not 0 < self.crop_pct <= 1:
            raise ConfigError(f"EvalPreprocess: crop_pct={self.crop_pct!r} must be a fraction, above 0 and at most 1.")
        if self.crop_mode not in CROP_MODES:
            names = ", ".join(map(repr, CROP_MODES))
            hint = did_you_mean(self.crop_mode, CROP_MODES)
            raise ConfigError(f"EvalPreprocess: unknown crop_mode {self.crop_mode!r}: choose one of {names}.{hint}")

    @property
    def keeps_positions(self) -> bool:
        """Whether the whole image is squashed into the result; see `Preprocess`."""
        if self.resize is not None:
            return self.resize == height_and_width(self.size)
        return self.crop_mode == "squash" and self.crop_pct == 1

    @classmethod
    def from_timm_config(cls, config: Any, **changes: Any) -> "EvalPreprocess":
        """Return the preprocess that timm's data config asks for; crop mode `border` pads with the config's mean.

        Args:
            config: as in `TrainPreprocess.from_timm_config`; the keys `input_size`, `interpolation`, `crop_pct`,
                `crop_mode` and `mean` are read.
            **changes: other values of attributes.

        Raises:
            ConfigError: config has no input_size, or a value that an attribute cannot have.
        """
        values = read_timm_config(config, ("interpolation", "crop_pct", "crop_mode", "mean"))
        mean = values.pop("mean", None)
        if values.get("crop_mode") == "border" and mean is not None:
            values["fill"] = tuple(round(255 * level) for level in mean)
        return cls(**values | changes)

    @classmethod
    def from_transform(cls, transform: Any, **changes: Any) -> "EvalPreprocess":
        """Return a preprocess that does the beginning of a transform for evaluation.

        It works like `TrainPreprocess.from_transform`, but takes over no random transforms. Large JPEGs are decoded at
        their whole size, unless `shrink=True`: the pixels are those of the transform, within 0.01 grey levels on
        average.

        Args:
            transform: a Compose, or a preset.
            **changes: other values of attributes.

        Raises:
            ConfigError: nothing of it can be taken over, or a changed attribute has a value that it cannot have.
        """
        return cls._take_over(transform, {"shrink": False} | changes, is_random=False)

    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Return the sizes to which whole images are resized; see `Preprocess.crop`.

        Args:
            sizes: int64 [n, 2], heights and widths of the images, pixels.
            random: random numbers of the n examples.
        """
        size = height_and_width(self.size)
        if self.resize == "keep":
            return Crops(_windows_at(central_starts(sizes, np.array(size)), self.size))
        scaled = scaled_size(size, self.crop_pct)
        if self.resize is not None:
            resized = resize_to(sizes, self.resize)
        elif self.crop_mode == "squash":
            resized = np.broadcast_to(np.array(scaled, np.int64), sizes.shape)
        elif self.crop_mode == "border":
            resized = resize_keeping_ratio(sizes, scaled, inside=True)
        elif scaled[0] == scaled[1]:
            resized = resize_shorter_side(sizes, scaled[0])
        else:
            resized = resize_keeping_ratio(sizes, scaled, inside=False)
        return Crops(resized=resized, bicubic=np.full(len(sizes), self.interpolation == "bicubic"))


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of a size that may be one number for both."""
    return size if isinstance(size, tuple) else (size, size)


def _windows_at(starts: NDArray[np.int64], size: int | tuple[int, int]) -> NDArray[np.int64]:
    """Return boxes of a size, int64 [n, 4], whose tops and lefts are int64 [n, 2]: they are not resized."""
    boxes = np.empty((len(starts), 4), np.int64)
    boxes[:, :2], boxes[:, 2:] = starts, height_and_width(size)
    return boxes


def _choose_bicubic(interpolation: str, uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    return uniforms < 0.5 if interpolation == "random" else np.full(len(uniforms), interpolation == "bicubic")
