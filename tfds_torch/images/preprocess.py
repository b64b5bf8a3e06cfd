"""Preprocesses: how images of any size become images of one size, as plain values that can be pickled.

A preprocess has two methods: `crop` decides, from sizes and random numbers, which part of each image is decoded and
resized; `augment` changes finished images in place. One of your own overrides either.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.images.beside import Kind
from tfds_torch.images.crops import (
    NUM_DRAWS,
    CropParameters,
    Crops,
    ExampleRandom,
    PreprocessError,
    random_resized_crops,
    resize_keeping_ratio,
    resize_shorter_side,
    scaled_size,
)
from tfds_torch.images.headers import MOST_PIXELS
from tfds_torch.images.preprocess_arguments import (
    LEAST_VISIBLE,
    AlsoFields,
    BoxFields,
    check_interpolation,
    check_range,
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

_FIRST_OF_AUGMENT = 2**31
"""Number of an example's random numbers with which those of `augment` begin."""

_NUMBERS_OF_VIEW = 2**33
"""Random numbers of an example that belong to each of its views."""

_Result = TypeVar("_Result")


class Preprocess(ABC):
    """How images of any size become images of one size.

    To write one, derive a frozen dataclass with a field `size` from this class and define `crop`; or derive one from
    `TrainPreprocess` or `EvalPreprocess` and override `crop` or `augment`. Loaders call these methods in several
    threads and processes, each time for some examples of a batch: treat every example by itself, and keep nothing
    between calls. Then an example has the same pixels in whatever batch, rank or worker, and after a resume.

    Attributes:
        size: of the result: pixels of a side, or (height, width).
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: other image features that go through the same crop, see `TrainPreprocess`.
        max_pixels: an image of more pixels is an error; it is not decoded.
        boxes: fields of boxes that move with the image, see `TrainPreprocess`.
        min_visible: share of a box's area that must be in the result, see `TrainPreprocess`.
        shrink: whether a large JPEG may be decoded at a fraction of its size, see `TrainPreprocess`.

    Raises:
        ConfigError: a value out of range or of the wrong type.
    """

    size: int | tuple[int, int]
    fill: int | tuple[int, ...] = 0
    also: AlsoFields = ()
    max_pixels: int = MOST_PIXELS
    boxes: BoxFields = None
    min_visible: float = LEAST_VISIBLE
    shrink: bool = True

    def __post_init__(self) -> None:
        check_shared(self)

    @abstractmethod
    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Returns which part of each of n images becomes the result.

        Args:
            sizes: int64 [n, 2], heights and widths.
            random: the random numbers of the n examples.
        """

    def augment(self, images: NDArray[np.uint8], random: ExampleRandom) -> None:  # noqa: B027 (may be left out)
        """Changes n finished images in place; by default not at all.

        Args:
            images: uint8 [n, H, W, C], in the memory of their batch.
            random: the random numbers of the n examples; others than those of `crop`.
        """

    @property
    def box_fields(self) -> Mapping[str, tuple[str, ...]] | None:
        """Name -> the fields that have a row for each box; None: those that a dataset declares."""
        if self.boxes is None:
            return None
        return dict((entry, ()) if isinstance(entry, str) else entry for entry in self.boxes)

    @property
    def also_kinds(self) -> Mapping[str, Kind | None]:
        """Name of each other image feature -> what its images are; None: each is what it is."""
        return dict((entry, None) if isinstance(entry, str) else entry for entry in self.also)

    @property
    def moved_fields(self) -> tuple[str, ...]:
        """The fields that are named because they move with the image."""
        return *self.also_kinds, *(self.box_fields or ())

    @property
    def num_pixels(self) -> int:
        """Pixels of what becomes of one image."""
        return math.prod(height_and_width(self.size))

    @property
    def augments(self) -> bool:
        """Whether the class has an `augment` of its own."""
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
        """Returns how n images of sizes int64 [n, 2] are decoded and resized.

        The sample keys, int64 [n], and the seed choose the random numbers; shrinkable, bool [n]: whether decoding can
        shrink it; each view of an example has random numbers of its own. A PreprocessError: `crop` failed, or returned
        impossible crops.
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
        """Lets `augment` change n finished images, uint8 [n, H, W, C], whose sample keys are int64 [n].

        Raises:
            PreprocessError: it failed, or returned something.
        """

        def augment(some: slice) -> None:
            random = ExampleRandom(keys[some], seed, view * _NUMBERS_OF_VIEW + _FIRST_OF_AUGMENT)
            result: object = self.augment(images[some], random)  # type: ignore[func-returns-value]
            if result is not None:
                raise TypeError("it must change the images in place, as in images[:] = ..., and return nothing")

        self._call("augment", augment, len(keys))

    def _call(self, name: str, call: Callable[[slice], _Result], count: int) -> _Result:
        """Returns the result of a method for all of `count` examples; where it fails, finds the example."""
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
    """Random crops for training: torchvision's RandomResizedCrop, or pad-and-crop for small images; then a flip.

    The result is uint8 `[H, W, C]`, resized with antialiasing as Pillow, timm and torchvision do it. Random numbers
    belong to (seed, pass, example), so that the result is the same in every world, after a resume, and in any thread.

    Attributes:
        size: of the result: pixels of a side, or (height, width).
        scale: least and greatest fraction of the image's area that is cut out, 0 < least <= greatest <= 1.
        ratio: least and greatest ratio of width to height of the box, 0 < least <= greatest.
        hflip: probability of a flip, left to right.
        interpolation: `bilinear`, `bicubic`, or `random`: one of the two for each example.
        crop_padding: None: crops are resized. A number: nothing is resized; the image is padded by so many pixels on
            every side (more, where it would still be smaller than `size`) and a window of `size` is cut out at random.
            scale, ratio and interpolation are not used then.
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: other image features that go through the same crop and flip. Numbers (a palette's indices, one channel, 16
            bits) take the nearest pixel, and keep their values and type. Pictures (colours of 8 bits, as of a second
            camera) are resized bilinearly, as RGB. {"left": "picture", "heat": "numbers"} says otherwise.
        max_pixels: an image of more pixels is an error; it is not decoded.
        boxes: fields of boxes that move with the image: TFDS's, [ymin, xmin, ymax, xmax], relative to it. None: those
            that a TFDS dataset declares as BBox, and with them the rows of their sequence. Names, for datasets that
            declare none; or name -> the fields that have a row for each of its boxes, such as
            `{"bboxes": ("classes",)}`. (): no boxes move.
        min_visible: share of a box's area, 0 to 1, that must be in the result: a box of which less is there, or nothing
            at all, is left out, with its row in the other fields of its sequence. A single box becomes [0, 0, 0, 0].
        shrink: whether a JPEG of which five pixels or more become one may be decoded at a half, a quarter or an eighth
            of its size: in less than half the time, and within half a grey level on average for photographs. For
            halftone, text and other fine patterns of black and white it is two to five levels: False is exact.

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
    also: AlsoFields = ()
    max_pixels: int = MOST_PIXELS
    boxes: BoxFields = None
    min_visible: float = LEAST_VISIBLE
    shrink: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_interpolation(type(self).__name__, self.interpolation)
        for name, most in (("scale", 1.0), ("ratio", math.inf)):
            object.__setattr__(self, name, check_range(f"TrainPreprocess: {name}", getattr(self, name), most))
        if not is_number(self.hflip) or not 0 <= self.hflip <= 1:
            raise ConfigError(f"TrainPreprocess: hflip={self.hflip!r} must be a probability, 0 to 1.")
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
        """Returns what timm's data config asks for.

        Args:
            config: a model's `pretrained_cfg`, what `timm.data.resolve_data_config` returned, or another mapping with
                `input_size` and, where they differ from the defaults, `interpolation`, `scale`, `ratio` and `hflip`.
            **changes: attributes that are to have other values.

        Raises:
            ConfigError: config has no input_size, or a value that cannot be.
        """
        values = read_timm_config(config, ("interpolation", "scale", "ratio", "hflip"))
        return cls(**values | changes)

    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Returns random boxes; see `Preprocess`."""
        if self.crop_padding is None:
            uniforms = random.uniforms(NUM_DRAWS + 2)
            boxes = random_resized_crops(sizes, uniforms[:, :NUM_DRAWS], self.scale, self.ratio)
            flips = uniforms[:, NUM_DRAWS] < self.hflip
            return Crops(boxes, flips=flips, bicubic=_choose_bicubic(self.interpolation, uniforms[:, NUM_DRAWS + 1]))
        size = np.array(height_and_width(self.size))
        uniforms = random.uniforms((0, 1, NUM_DRAWS))  # The same flips as without padding.
        room = sizes + (2 * self.crop_padding - size)
        boxes = np.empty((len(sizes), 4), np.int64)
        boxes[:, :2] = np.floor(uniforms[:, :2] * (room + 1))
        boxes[:, :2] -= self.crop_padding
        boxes[:, 2:] = size
        if room.min(initial=0) < 0:  # An image that is still smaller lies in the middle.
            boxes[:, :2] = np.where(room >= 0, boxes[:, :2], -((size - sizes) // 2))
        return Crops(boxes, flips=uniforms[:, 2] < self.hflip)


@explain_keywords
@dataclass(frozen=True)
class EvalPreprocess(Preprocess):
    """The resize and central crop of evaluation, as timm does it.

    The result is uint8 `[H, W, C]`, resized with antialiasing as Pillow, timm and torchvision do it.

    Attributes:
        size: of the result: pixels of a side, or (height, width).
        crop_pct: fraction of the resized image that the result is, 0 < crop_pct <= 1: size / crop_pct is what the image
            is resized to.
        interpolation: `bilinear` or `bicubic`.
        crop_mode: `center`: the shorter side is resized to size / crop_pct, and the centre cut out; `squash`: both
            sides are, whatever the ratio; `border`: the longer side is, and the rest is padded.
        fill: grey level of the padding, or one for each channel, 0 to 255.
        also: as in TrainPreprocess.
        max_pixels: as in TrainPreprocess.
        boxes: as in TrainPreprocess.
        min_visible: as in TrainPreprocess.
        shrink: as in TrainPreprocess.

    Raises:
        ConfigError: a value out of range or of the wrong type.

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

    def __post_init__(self) -> None:
        super().__post_init__()
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
        values = read_timm_config(config, ("interpolation", "crop_pct", "crop_mode", "mean"))
        mean = values.pop("mean", None)
        if values.get("crop_mode") == "border" and mean is not None:
            values["fill"] = tuple(round(255 * level) for level in mean)
        return cls(**values | changes)

    def crop(self, sizes: NDArray[np.int64], random: ExampleRandom) -> Crops:
        """Returns the sizes that whole images are resized to; see `Preprocess`."""
        scaled = scaled_size(height_and_width(self.size), self.crop_pct)
        if self.crop_mode == "squash":
            resized = np.broadcast_to(np.array(scaled, np.int64), sizes.shape)
        elif self.crop_mode == "border":
            resized = resize_keeping_ratio(sizes, scaled, inside=True)
        elif scaled[0] == scaled[1]:
            resized = resize_shorter_side(sizes, scaled[0])
        else:
            resized = resize_keeping_ratio(sizes, scaled, inside=False)
        return Crops(resized=resized, bicubic=np.full(len(sizes), self.interpolation == "bicubic"))


def height_and_width(size: int | tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width) of a size that may be one number for both."""
    return size if isinstance(size, tuple) else (size, size)


def _choose_bicubic(interpolation: str, uniforms: NDArray[np.float64]) -> NDArray[np.bool_]:
    return uniforms < 0.5 if interpolation == "random" else np.full(len(uniforms), interpolation == "bicubic")
