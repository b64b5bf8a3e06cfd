"""Transform: a function of the user's over whole examples; and how functions and Grain's objects become one."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import check_flag
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.pickling import check_functions
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import FieldSpec

Function = Callable[..., Any]

_ADAPTERS = {
    "albumentations": "tfds_torch.integrations.albumentations.transform(compose)",
    "torchvision": "tfds_torch.integrations.torchvision.transform(transform)",
}
"""Package of a transform of images -> the function that makes a transform of whole examples of it."""

_OTHERS_OF_GRAIN = {
    "filter": "Which examples there are is the parser's: parser.subset(mask), by parser.targets() or columns()",
    "map_with_index": "Give Transform(function, reads=['index', ...]) a function of one dictionary",
    "random_map_with_index": "Give Transform(function, reads=['index', ...]) a function of a dictionary and rng",
    "flat_map": "An example stays one example: make several of it before, by export_dataset of a dataset of your own",
}
"""Method of Grain's transforms that are not maps -> what to do instead."""


@explain_keywords
@dataclass(frozen=True)
class Transform:
    """A function over whole examples, before these become a batch: boxes and masks follow the image.

    Every parser takes it: `ParserTfds(..., transform=Transform(function, reads=["image", "objects/bbox"]))`. A parser
    also takes the bare function, an object with `map(element)` or `random_map(element, rng)` like Grain's, or a list of
    these, which are called in turn::

        def flip(example, rng):
            if rng.random() < 0.5:
                example["image"] = example["image"][:, ::-1]
                example["objects/bbox"][:, [1, 3]] = 1 - example["objects/bbox"][:, [3, 1]]
            return example

    It runs in the thread that takes the batches (in a loader's worker, its main thread), after decoding, the preprocess
    and the decoded cache. Before each call, `random`, `np.random` and torch's default generator are seeded from (seed,
    pass, example, number of the function): an example is the same in any world and after any resume.

    Examples:
        >>> from tfds_torch import EvalPreprocess, ImageDataset, ParserTfds, Transform, demo
        >>> root, preprocess = demo.prepare("digits"), EvalPreprocess(size=8, crop_pct=1)
        >>> invert = Transform(lambda example: {"image": 255 - example["image"]}, reads=["image"], gives=["image"])
        >>> parser = ParserTfds(root, "digits", batch_size=64, preprocess=preprocess, transform=invert)
        >>> images, labels = next(iter(ImageDataset(parser)))
        >>> images.shape
        torch.Size([64, 3, 8, 8])

    Attributes:
        function: `function(example)` or `function(example, rng)`. `example` is a dictionary of copies, by flat names:
            images uint8 [H, W, C], channels last also of windows ([T, H, W, C]); boxes and masks as the dataset has
            them; `index` and `id` where asked for. `rng` is the example's own `np.random.Generator`; it is reset for
            every call, and must not be kept. The dictionary that the function returns overwrites fields, and adds new
            ones; other fields stay. Images keep their axes.
        reads: the fields that the function gets; None: those that are asked for. "objects/*" stands for all fields that
            are asked for and begin with "objects/". Fields that nobody reads are not decoded.
        gives: the fields that the function returns: names as in `reads`, or name -> (shape, dtype), with None for a
            side that varies; other fields that it returns are ignored. Without it, shape and dtype of each field are
            learnt from the first example.
        threads: whether the function draws from `rng` alone, and may run in several threads at once. It runs in the
            threads that decode where all transforms of the parser may.
        version: tells two functions of the same name apart: ranks, and a state that is loaded, compare it.

    Raises:
        ConfigError: an argument cannot work.
    """

    function: Any
    reads: Sequence[str] | None = None
    gives: Sequence[str] | Mapping[str, Any] | None = None
    threads: bool = False
    version: str | None = None
    takes_rng: bool = field(init=False, repr=False, compare=False)
    """Whether the function takes a generator."""
    named: Mapping[str, FieldSpec | None] = field(init=False, repr=False, compare=False)
    """Those of `gives` that are fields by name -> how they are declared."""
    _call: Function = field(init=False, repr=False, compare=False)
    _patterns: tuple[str, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        call = _callable_of(self.function)
        takes_rng, call = _with_rng(call, self.function)
        check_flag("Transform: threads", self.threads)
        if not isinstance(self.version, str | None):
            raise ConfigError(f"Transform: version={quoted(self.version)} must be a text, or None.")
        gives = None if self.gives is None else _specs(self.gives)
        values: dict[str, Any] = {"takes_rng": takes_rng, "_call": call, "gives": gives}
        values["reads"] = None if self.reads is None else _names("reads", self.reads)
        values["named"] = {name: spec for name, spec in (gives or {}).items() if not _is_pattern(name)}
        values["_patterns"] = tuple(filter(_is_pattern, gives or ()))
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __call__(self, example: dict[str, Any], rng: np.random.Generator | None) -> Any:
        """Call the function with an example; a generator is needed only where the function takes one."""
        return self._call(example, rng) if self.takes_rng else self._call(example)

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return _name_of(self.function)[1]

    def may_give(self, name: str) -> bool:
        """Return whether the function may return a field.

        Args:
            name: flat name of the field.

        Returns:
            True where `gives` has the name or a pattern that matches it, and where `gives` is None.
        """
        return self.gives is None or name in self.named or any(_matches(one, name) for one in self._patterns)

    def reads_of(self, asked: Sequence[str]) -> tuple[str, ...]:
        """Return the flat names of the fields that the function gets.

        Args:
            asked: flat names of the fields that are wanted behind the function; patterns in `reads` choose among them.

        Returns:
            The names, each once; `asked` where `reads` is None.
        """
        if self.reads is None:
            return tuple(asked)
        every = ([name for name in asked if _matches(one, name)] if _is_pattern(one) else [one] for one in self.reads)
        return tuple(dict.fromkeys(name for some in every for name in some))

    @property
    def identity(self) -> str:
        """The text that ranks and states compare: `module:name`, and reads, gives and version where they are set."""
        said = [f"reads={list(self.reads)}"] if self.reads is not None else []
        said += [f"gives={list(self.gives)}"] if self.gives is not None else []
        said += [f"version={self.version}"] if self.version is not None else []
        return " ".join([":".join(_name_of(self.function)), *said])

    def __getstate__(self) -> dict[str, Any]:
        check_functions({"transform: function": self.function})
        return self.__dict__

    def __hash__(self) -> int:
        return hash((self.identity, self.threads))


def read_transforms(value: Any) -> tuple[Transform, ...]:
    """Return the argument `transform` of a parser as Transforms, in the order of their calls.

    Args:
        value: a Transform, a function, an object of Grain's, a sequence of these, or None.

    Raises:
        ConfigError: it is none of these.
    """
    if value is None:
        return ()
    parts = value if isinstance(value, list | tuple) else [value]
    return tuple(one if isinstance(one, Transform) else Transform(one) for one in parts)


def _callable_of(function: Any) -> Function:
    """Return the function to call with an example; raise ConfigError where there is none."""
    maps = [name for name in ("random_map", "map") if callable(getattr(function, name, None))]
    if inspect.isclass(function) and any(
        callable(getattr(function, name, None)) for name in (*maps, *_OTHERS_OF_GRAIN)
    ):
        raise ConfigError(f"transform={quoted(function)} is a class: give an object of it, {function.__name__}(...).")
    if function is Transform:
        raise ConfigError("transform=Transform is the class: give Transform(function, reads=[...], gives=[...]).")
    package = _adapted_package(function)
    if package is not None:
        raise ConfigError(
            f"transform={quoted(type(function).__qualname__)} of {package} works on images, and a parser's transform "
            f"gets a dictionary of fields: give {_ADAPTERS[package]}, with which boxes and masks follow. A transform "
            f"of the image alone is ImageDataset(parser, transform=...)."
        )
    if callable(function) and "random_map" not in maps:
        return function  # type: ignore[no-any-return]
    if maps:
        return getattr(function, maps[0])  # type: ignore[no-any-return]
    other = next((name for name in _OTHERS_OF_GRAIN if callable(getattr(function, name, None))), None)
    if other is not None:
        raise ConfigError(
            f"transform={quoted(function)} has {other}(), which maps no example. {_OTHERS_OF_GRAIN[other]}."
        )
    raise ConfigError(
        f"transform={quoted(function)} must be a function of a dictionary that returns one, a Transform, an object "
        f"with map(element) or random_map(element, rng), or a list of these."
    )


def _adapted_package(function: Any) -> str | None:
    """Return the package of a transform of images, or of one in a torch Sequential; None: it is not one."""
    packages = [base.__module__.partition(".")[0] for base in type(function).__mro__]
    found = next((package for package in packages if package in _ADAPTERS), None)
    if found is None and type(function).__name__ == "Sequential" and "torch" in packages:
        return next(filter(None, map(_adapted_package, function)), None)
    return found


def _with_rng(call: Function, given: Any) -> tuple[bool, Function]:
    """Return whether a function takes a generator, and the function that takes it in second place."""
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):  # Of some that are written in C.
        return False, call
    by_place = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    has_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    named = next((one for one in parameters[1:] if one.name == "rng"), None)
    required = [one for one in by_place if one.default is one.empty]
    others = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if (not by_place and not has_any) or len(required) > 2 or set(others) - {"rng"}:
        raise ConfigError(
            f"transform={quoted(given)} takes the arguments {inspect.signature(call)}: it must be function(example) or "
            f"function(example, rng). functools.partial sets others."
        )
    if named is not None and named not in by_place[1:2]:
        return True, partial(_by_name, call)
    return named is not None or len(required) == 2, call


def _by_name(call: Function, example: dict[str, Any], rng: np.random.Generator) -> Any:
    return call(example, rng=rng)


def _is_pattern(name: str) -> bool:
    return name.endswith("/*")


def _matches(one: str, name: str) -> bool:
    """Return whether a field has a name, or matches a pattern."""
    return name == one or (_is_pattern(one) and name.startswith(one.removesuffix("*")))


def _names(argument: str, names: Any) -> tuple[str, ...]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not is_list or not names or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(
            f"Transform: {argument}={quoted(names)} must be a list of the names of fields, such as ['image']."
        )
    return tuple(dict.fromkeys(names))


def _specs(gives: Any) -> dict[str, FieldSpec | None]:
    """Return field -> how it is declared, of names or of name -> (shape, dtype)."""
    if not isinstance(gives, Mapping):
        return dict.fromkeys(_names("gives", gives))
    _names("gives", list(gives))
    return {name: _spec(name, value) for name, value in gives.items()}


def _spec(name: str, value: Any) -> FieldSpec | None:
    if value is None or isinstance(value, FieldSpec):
        return value
    try:
        shape, dtype = value
        sides = tuple(None if side is None else int(side) for side in shape)
        return FieldSpec(sides, np.dtype(object if dtype in (str, bytes, "str", "bytes") else dtype))
    except (TypeError, ValueError):
        raise ConfigError(
            f"Transform: gives={{{quoted(name)}: {quoted(value)}}} must be shape and dtype of one value, such as "
            f"((None, 4), 'float32'), or None where they are not known."
        ) from None


def _name_of(function: Any) -> tuple[str, str]:
    """Return the module and the name of a function, or of the class of an object."""
    if isinstance(function, partial):
        return _name_of(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    module = "__main__" if named.__module__ == "__mp_main__" else named.__module__  # As a spawned worker has it.
    return str(module), str(named.__qualname__)
