"""WindowTransform: a function of one's own makes fields of windows out of others, in numpy, where they are decoded."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfds_torch.engines.fields import FieldDecoder, describe
from tfds_torch.engines.window_fields import WindowImageField, as_one_array
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP
from tfds_torch.storage.source import Columns


@explain_keywords
@dataclass(frozen=True)
class WindowTransform:
    """A function that makes fields of a window out of others, as actions of another space out of actions and states.

    It runs in the workers, for one window at a time, in several threads at once; what it returns may depend on its
    window alone, so that a batch can be made again. It can be pickled where the function can.

    Attributes:
        function: field -> its value in one window, as numpy has it: arrays [T, ...] of a field with offsets, [...] of
            one without, images channels first; texts, bytes. It returns a dictionary of the same kind, and may change
            the arrays of numbers.
        reads: the fields that it gets, as the dataset has them.
        gives: the fields that it returns; one that the dataset has, too, takes that one's place. None: those of
            `reads`.

    Raises:
        ConfigError: an argument that cannot work.
    """

    function: Callable[[dict[str, Any]], Mapping[str, Any]]
    reads: Sequence[str]
    gives: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ConfigError(f"WindowTransform: function={quoted(self.function)} must be a function of a dictionary.")
        object.__setattr__(self, "reads", _names("reads", self.reads))
        object.__setattr__(self, "gives", self.reads if self.gives is None else _names("gives", self.gives))


def _names(argument: str, names: object) -> tuple[str, ...]:
    is_list = isinstance(names, Sequence) and not isinstance(names, str | bytes)
    if not is_list or not names or not all(isinstance(name, str) and name for name in names):  # type: ignore[attr-defined]
        raise ConfigError(
            f"WindowTransform: {argument}={quoted(names)} must be a list of the names of fields, such as ['action']."
        )
    return tuple(dict.fromkeys(names))  # type: ignore[call-overload]


@dataclass(frozen=True)
class TransformedField:
    """One of the fields that a transform gives.

    Attributes:
        name: the field.
        transform: makes it.
        inputs: name -> how a field that the function gets is decoded.
        dataset: name of the dataset, for messages.
    """

    name: str
    transform: WindowTransform
    inputs: Mapping[str, FieldDecoder]
    dataset: str

    @property
    def keys(self) -> tuple[str, ...]:  # noqa: D102
        return tuple(dict.fromkeys([*(key for one in self.inputs.values() for key in one.keys), EPISODE, STEP]))

    def with_jpeg_decoder(self, jpeg_decoder: str) -> "TransformedField":
        """Returns this field, whose function gets images that are decoded in another way."""
        inputs = {
            name: replace(one, jpeg_decoder=jpeg_decoder) if isinstance(one, WindowImageField) else one
            for name, one in self.inputs.items()
        }
        return replace(self, inputs=inputs)

    def decode(self, columns: Columns) -> Any:
        """Returns n values: one array of numbers of one shape, else a list; raises ConfigError where it fails."""
        inputs = {name: one.decode(columns) for name, one in self.inputs.items()}
        values = []
        for row, (episode, step) in enumerate(zip(columns[EPISODE].tolist(), columns[STEP].tolist(), strict=True)):
            window = {name: _own_copy(own[row]) for name, own in inputs.items()}
            try:
                found = self.transform.function(window)
            except (TfdsTorchError, MemoryError):
                raise
            except Exception as error:  # It is the user's.
                raise self._failed(f"It failed at step {step} of episode {episode}. {describe(error)}") from error
            if not isinstance(found, Mapping) or self.name not in found:
                there = list(found) if isinstance(found, Mapping) else type(found).__name__
                raise self._failed(
                    f"It must return a dictionary with {quoted(self.name)}, which gives= names, and it returned "
                    f"{quoted(there)}."
                )
            values.append(_as_numpy(found[self.name]))
        return as_one_array(values)

    def _failed(self, reason: str) -> ConfigError:
        return ConfigError(
            f"{self.dataset}: the transform that gives {quoted(self.name)} cannot be used. {reason} It gets the fields "
            f"{', '.join(self.inputs)}."
        )


def _own_copy(value: Any) -> Any:
    """Returns a value that may be changed: numbers may be another field's, too; images are decoded for this one."""
    is_image = isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim > 2
    return value.copy() if isinstance(value, np.ndarray) and not is_image else value


def _as_numpy(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, int | float | np.generic) else value
