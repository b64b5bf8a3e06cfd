"""Take over the beginning of a torchvision or timm Compose: the part that a preprocess does while it decodes.

Transforms are known by the names of their classes and of the packages that these are from; neither package is imported.
Conversions within the beginning, like `ToTensor`, are passed over: they run behind it, where they do the same.
"""

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.images.crops import COVER, INSIDE, KEEP
from tfds_torch.runtime.arguments import check_integer

_logger = logging.getLogger(__name__)

_PIL, _BYTES, _SCALED, _NUMBERS = "PIL", "bytes", "0 to 1", "0 to 255"
"""Kinds of an image between two transforms: a PIL image, or a tensor of bytes or of floats."""

_PRESETS = ("ClassificationPresetTrain", "ClassificationPresetEval")
_ROOTS_OF_PRESETS = ("presets", "references", "torchvision")
"""Packages and modules of torchvision's training scripts, whose presets hold a Compose."""

_NUM_COLOURS = (1, 3)
_OF_JITTER = ("brightness", "contrast", "saturation", "hue")

Values = dict[str, Any]
"""Arguments of a preprocess."""


@dataclass(frozen=True)
class Tail:
    """Transforms that run one after the other, like those of a Compose."""

    transforms: tuple[Any, ...]

    def __call__(self, image: Any) -> Any:
        """Return the result of the last transform; the image itself where there are none."""
        for transform in self.transforms:
            image = transform(image)
        return image


@dataclass(frozen=True)
class Taken:
    """The part of a transform that a preprocess does, and the rest of it.

    Attributes:
        values: arguments of the preprocess; empty: nothing is taken over.
        names: names of the transforms that are taken over, in their order.
        rest: runs behind the preprocess, on a PIL image: then the result is that of the whole transform.
        is_pure: whether the rest only changes the layout, scales bytes to 0 to 1, and normalises.
        gives_tensor: whether a pure rest returns tensors; else it returns the PIL image.
        mean: mean of each channel in a pure rest; None: it leaves bytes, or the rest does more.
        std: standard deviation of each channel, likewise.
        left: why no more was taken over; "": there is no more.
    """

    values: Values
    names: tuple[str, ...]
    rest: Tail
    is_pure: bool = False
    gives_tensor: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    left: str = ""

    def describe(self, others: str = "run as before") -> str:
        """Return which transforms are taken over, and which are not; `others` says what happens to those."""
        behind = ", ".join(map(_name_of, self.rest.transforms)) or "nothing"
        return (
            f"taken over by the decoder: {', '.join(self.names) or 'nothing'}; {others}: {behind}"
            f"{f' ({self.left})' if self.left else ''}"
        )

    @property
    def tail(self) -> Tail | None:
        """The rest where it does more than layout, scale and Normalize; None: it does not."""
        return None if self.is_pure else self.rest


@cache
def log_once(text: str, level: int = logging.INFO) -> None:
    """Log a text the first time that it comes."""
    _logger.log(level, "%s", text)


def take_over(transform: Any, *, is_random: bool, check: Callable[[Values], object]) -> Taken:
    """Return the part of a transform that a preprocess does: the longest beginning after which images have one size.

    A transform that is not known ends the beginning; it is never an error.

    Args:
        transform: a Compose or preset of torchvision or timm, or anything else.
        is_random: whether the preprocess has a random part.
        check: raises ConfigError for arguments that the preprocess does not accept.
    """
    steps = list(_flatten(transform))
    beginning = _Beginning(is_random)
    count, values, names = 0, Values(), tuple[str, ...]()
    passed, left = list[int](), ""
    for number, step in enumerate(steps):
        try:
            is_taken = beginning.add(step)
            if is_taken and beginning.is_complete:
                check(beginning.values)
        except (_LeftError, ConfigError, AttributeError, TypeError, ValueError) as error:
            left = f"{_name_of(step)}: {error}"
            break
        if not is_taken:
            passed.append(number)
        elif beginning.is_complete:
            count, values, names = number + 1, beginning.values, tuple(beginning.names)
    if not values:
        has_crop = any(_class_of(step) in _TAKEN for step in steps)
        return Taken({}, (), Tail((transform,)), left=left if left and has_crop else "there is no crop to one size")
    behind = (*(steps[number] for number in passed if number < count), *steps[count:])
    rest = tuple(step for step in behind if not _does_nothing(step))
    try:
        end = _read_end(rest)
    except (AttributeError, TypeError, ValueError):  # Of another version than those that are known.
        end = None
    if end is None:
        return Taken(values, names, Tail(rest), left=left)
    return Taken(values, names, Tail(rest), True, *end)


class _LeftError(Exception):
    """Why a transform is not taken over."""


@dataclass
class _Beginning:
    """The arguments of a preprocess, as far as transforms have been taken over.

    Attributes:
        is_random: whether it may have a random part.
        taken: the arguments, as far as transforms determine them.
        names: names of the transforms.
        image: the kind of the image behind them.
        is_resized: whether a resize was taken over.
        is_cut: whether a crop was taken over.
    """

    is_random: bool
    taken: Values = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    image: str = _PIL
    is_resized: bool = False
    is_cut: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether all images are of one size."""
        return "size" in self.taken

    @property
    def values(self) -> Values:
        """The arguments; without a flip, nothing is flipped."""
        return ({"hflip": 0.0} if self.is_random else {}) | self.taken

    def add(self, step: Any) -> bool:
        """Take a transform over, or pass over a conversion: False; raise _LeftError where neither can be."""
        converted = _convert(step, self.image)
        if converted is not None:
            self.image = converted
            return False
        take = _TAKEN.get(_class_of(step))
        if take is None:
            raise _LeftError("the decoder does not do it")
        self.taken = self.taken | take(self, step)
        self.names.append(_name_of(step))
        return True

    def begin_crop(self) -> None:
        """Raise _LeftError where there was a crop already."""
        if self.is_cut:
            raise _LeftError("a second crop")
        self.is_cut = True

    def begin_resize(self, step: Any) -> Values:
        """Return the filter of the first resize; raise _LeftError where this is not the first, or does not fit."""
        if self.is_cut or self.is_resized:
            raise _LeftError("a second resize or crop")
        self.is_resized = True
        interpolation = _interpolation_of(step)
        if interpolation == "random" and not self.is_random:
            raise _LeftError("it is random, and EvalPreprocess is not")
        if self.image != _PIL and getattr(step, "antialias", True) is not True:
            raise _LeftError("of a tensor, it resizes without antialiasing")
        if self.image in (_SCALED, _NUMBERS) and interpolation != "bilinear":
            raise _LeftError("of floats, it is not clipped as that of bytes is")
        return {"interpolation": interpolation}

    def begin_random(self) -> None:
        """Raise _LeftError where nothing may be random."""
        if not self.is_random:
            raise _LeftError("it is random, and EvalPreprocess is not")

    def fill_of(self, step: Any) -> Values:
        """Return the grey level of the padding."""
        fill = getattr(step, "fill", 0)
        levels = fill if isinstance(fill, tuple | list) else (fill,)
        if getattr(step, "padding_mode", "constant") != "constant":
            raise _LeftError(f"it pads with padding_mode={step.padding_mode!r}")
        if not all(isinstance(one, int | float) and 0 <= one <= 255 and one == int(one) for one in levels):
            raise _LeftError(f"it pads with fill={fill!r}")
        if self.image in (_SCALED, _NUMBERS) and any(levels):
            raise _LeftError("it pads a tensor of floats")
        if not any(levels):
            return {}
        return {"fill": tuple(map(int, levels)) if len(levels) > 1 else int(levels[0])}


def _take_random_resized_crop(beginning: _Beginning, step: Any) -> Values:
    beginning.begin_random()
    values = beginning.begin_resize(step)
    beginning.begin_crop()
    return values | {"size": _pair(step.size), "scale": tuple(step.scale), "ratio": tuple(step.ratio)}


def _take_resize(beginning: _Beginning, step: Any) -> Values:
    values = beginning.begin_resize(step)
    if step.max_size is not None or step.size is None:
        raise _LeftError(f"it has max_size={step.max_size}")
    if isinstance(step.size, int) or len(step.size) == 1:
        return values | {"resize": _integer(step.size if isinstance(step.size, int) else step.size[0])}
    return values | {"resize": _pair(step.size), "size": _pair(step.size)}


def _take_resize_keep_ratio(beginning: _Beginning, step: Any) -> Values:
    if step.random_scale_prob or step.random_aspect_prob:
        raise _LeftError("it has a random part")
    if step.longest not in (0, 1):
        raise _LeftError(f"longest={step.longest} is neither 0 nor 1")
    return beginning.begin_resize(step) | {"resize": (INSIDE if step.longest else COVER, *_pair(step.size))}


def _take_center_crop(beginning: _Beginning, step: Any) -> Values:
    beginning.begin_crop()
    place = {"place": "center"} if beginning.is_random else {}
    resize = {} if beginning.is_resized else {"resize": KEEP}
    return {"size": _pair(step.size)} | resize | place | beginning.fill_of(step)


def _take_random_crop(beginning: _Beginning, step: Any) -> Values:
    beginning.begin_random()
    beginning.begin_crop()
    padding = step.padding if isinstance(step.padding, tuple | list) else (step.padding or 0,)
    if step.pad_if_needed:
        raise _LeftError("pad_if_needed=True")
    if len(set(padding)) != 1:
        raise _LeftError(f"its padding, {padding}, is not equal on all sides")
    return {"size": _pair(step.size), "crop_padding": _integer(padding[0])} | beginning.fill_of(step)


def _take_flip(name: str) -> Callable[[_Beginning, Any], Values]:
    def take(beginning: _Beginning, step: Any) -> Values:
        beginning.begin_random()
        if name in beginning.taken:
            raise _LeftError("a second flip")
        return {name: float(step.p)}

    return take


_V, _T = "torchvision", "timm"
_TAKEN: Mapping[tuple[str, str], Callable[[_Beginning, Any], Values]] = {
    (_V, "RandomResizedCrop"): _take_random_resized_crop,
    (_T, "RandomResizedCropAndInterpolation"): _take_random_resized_crop,
    (_V, "Resize"): _take_resize,
    (_T, "ResizeKeepRatio"): _take_resize_keep_ratio,
    (_V, "CenterCrop"): _take_center_crop,
    (_T, "CenterCropOrPad"): _take_center_crop,
    (_V, "RandomCrop"): _take_random_crop,
    (_V, "RandomHorizontalFlip"): _take_flip("hflip"),
    (_V, "RandomVerticalFlip"): _take_flip("vflip"),
}
"""Package and class -> how it is taken over."""


def _convert(step: Any, image: str) -> str | None:
    """Return the kind of image that a conversion makes; None: it is not a conversion, or not for such an image."""
    root, name = _class_of(step)
    if _does_nothing(step) or (root, name) in ((_V, "RGB"), (_V, "ToPureTensor")):
        return image
    if (root, name) in ((_V, "ToImage"), (_V, "PILToTensor"), (_T, "MaybePILToTensor")):
        return _BYTES if image == _PIL else image
    if (root, name) in ((_V, "ToTensor"), (_T, "MaybeToTensor")):
        return _SCALED if image == _PIL else image
    if (root, name) == (_T, "ToTensor"):
        return _NUMBERS if image == _PIL and str(step.dtype) == "torch.float32" else None
    if (root, name) in ((_V, "ConvertImageDtype"), (_V, "ToDtype")):
        dtype, scales = str(step.dtype), getattr(step, "scale", True)
        if image == _PIL or (image == _BYTES and dtype == "torch.uint8"):
            return image
        if image == _SCALED and dtype == "torch.uint8" and scales:
            return _BYTES
        if image in (_BYTES, _SCALED) and dtype == "torch.float32":
            return _SCALED if scales or image == _SCALED else _NUMBERS
    return None


def _does_nothing(step: Any) -> bool:
    root, name = _class_of(step)
    if (root, name) == (_V, "ColorJitter"):  # As of timm's --color-jitter 0.
        return all(getattr(step, one) is None for one in _OF_JITTER)
    return name == "Identity" and root in (_V, "torch")


_End = tuple[bool, tuple[float, ...] | None, tuple[float, ...] | None]
"""gives_tensor, mean and std of Taken."""


def _read_end(rest: Sequence[Any]) -> _End | None:
    """Return the values of an end that does only layout, scale and Normalize; None: it does more."""
    image = _PIL
    for number, step in enumerate(rest):
        root, name = _class_of(step)
        if (root, name) == (_V, "Normalize") and image == _SCALED:
            mean, std = (tuple(float(one) for one in values) for values in (step.mean, step.std))
            is_last = all(_class_of(one) == (_V, "ToPureTensor") for one in rest[number + 1 :])
            is_usual = len(mean) == len(std) and len(mean) in _NUM_COLOURS
            is_usual = is_usual and all(0 <= one <= 1 for one in mean) and all(one > 0 for one in std)
            return (True, mean, std) if is_last and is_usual else None
        converted = _convert(step, image)
        if converted is None or name == "RGB":
            return None
        image = converted
    if image == _SCALED:
        return True, (0.0,) * 3, (1.0,) * 3
    return (image == _BYTES, None, None) if image in (_PIL, _BYTES) else None


def _flatten(transform: Any) -> Iterator[Any]:
    """Yield the transforms within nested ones in their order, and other transforms by themselves."""
    root, name = _class_of(transform)
    inner = getattr(transform, "transforms", None)
    if (root, name) == (_V, "Compose") or (name in _PRESETS and root in _ROOTS_OF_PRESETS and inner is not None):
        for one in inner if isinstance(inner, list | tuple) else (inner,):
            yield from _flatten(one)
    elif (root, name) == (_V, "ImageClassification"):
        theirs: Any = sys.modules["torchvision.transforms"]  # Its class is from there.
        resize = {"interpolation": transform.interpolation, "antialias": transform.antialias}
        yield theirs.Resize(transform.resize_size, **resize)
        yield theirs.CenterCrop(transform.crop_size)
        yield theirs.PILToTensor()
        yield theirs.ConvertImageDtype(sys.modules["torch"].float32)
        yield theirs.Normalize(transform.mean, transform.std)
    else:
        yield transform


def _class_of(transform: Any) -> tuple[str, str]:
    """Return the package of a transform's class, and the name of the class."""
    return type(transform).__module__.partition(".")[0], type(transform).__name__


def _name_of(transform: Any) -> str:
    named = transform if callable(transform) and hasattr(transform, "__qualname__") else type(transform)
    return str(named.__qualname__)


def _interpolation_of(step: Any) -> str:
    """Return the name of a resize's filter; raise _LeftError for one that no preprocess has."""
    given = step.interpolation
    names = [_INTERPOLATIONS.get(one) for one in map(_plain, given if isinstance(given, tuple | list) else (given,))]
    if names == ["bilinear", "bicubic"]:
        return "random"
    if len(names) == 1 and names[0] is not None:
        return names[0]
    raise _LeftError(f"its interpolation is {_plain(given)!r}, neither bilinear nor bicubic")


_INTERPOLATIONS = {"bilinear": "bilinear", "bicubic": "bicubic", 2: "bilinear", 3: "bicubic"}
"""Names of filters, and Pillow's numbers of them."""


def _plain(value: Any) -> Any:
    return getattr(value, "value", value)  # Of an enumeration.


def _pair(size: Any) -> tuple[int, int]:
    """Return height and width of a size of one or two numbers."""
    sides = tuple(size) if isinstance(size, tuple | list) else (size,)
    height, width = sides * 2 if len(sides) == 1 else sides
    return _integer(height), _integer(width)


def _integer(value: Any) -> int:
    return check_integer("its size", value, 0)
