"""Windows of episodes: the steps around each step of a sequence, numbered through a split. It is pure arithmetic."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.arguments import check_choice, check_flag, check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted

MOST_STEPS = 2**31
"""An upper bound of the steps of an episode, and of strides and offsets."""


@explain_keywords
@dataclass(frozen=True)
class Windows:
    """Windows of episodes as examples: a window begins at a step, and has other steps around it.

    Attributes:
        sequence: feature that holds the steps of an episode: `steps` in datasets of RLDS.
        offsets: field -> the steps that a window has of it, counted from its own step: `{"action": range(16)}` are the
            step and the 15 after it, `{"observation/image": [-1, 0]}` the one before it and itself. Such a field gets
            an axis of time: [B, T, ...]. Fields that are not named have the value of the window's own step: [B, ...],
            also where another name of the same feature has offsets.
        stride: number of steps from one window to the next in an episode, >= 1; the first window begins at step 0.
        pad: the value where an offset leaves the episode: `edge`, its first or last step; `zero`, zeros, and empty
            texts. The field `<name>_pad`, bool [B, T], says where that is.
        whole: whether windows that reach outside of their episode are left out.
        texts: fields of bytes that come as str; other fields of bytes come as they are stored.

    Raises:
        ConfigError: an argument cannot work.
    """

    sequence: str = "steps"
    offsets: Mapping[str, Sequence[int]] = field(default_factory=dict)
    stride: int = 1
    pad: Literal["edge", "zero"] = "edge"
    whole: bool = False
    texts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.sequence, str) or not self.sequence:
            raise ConfigError(f"Windows: sequence={quoted(self.sequence)} must be the name of a feature, as 'steps'.")
        if not isinstance(self.offsets, Mapping):
            raise ConfigError(
                f"Windows: offsets={quoted(self.offsets)} must be a dictionary of fields and the steps that a window "
                f"has of them, such as {{'action': range(16)}}."
            )
        offsets = {name: _check_offsets(name, own) for name, own in self.offsets.items()}
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "stride", check_integer("Windows: stride", self.stride, 1, MOST_STEPS))
        check_choice("Windows: pad", self.pad, ("edge", "zero"))
        check_flag("Windows: whole", self.whole)
        if isinstance(self.texts, str) or not all(isinstance(name, str) for name in self.texts):
            raise ConfigError(f"Windows: texts={quoted(self.texts)} must be a list of the names of fields.")
        object.__setattr__(self, "texts", tuple(self.texts))


def _check_offsets(name: object, offsets: object) -> tuple[int, ...]:
    if not isinstance(name, str):
        raise ConfigError(f"Windows: offsets has {quoted(name)}, which is not the name of a field.")
    if isinstance(offsets, str | bytes) or not isinstance(offsets, Iterable):
        raise ConfigError(
            f"Windows: the offsets of {quoted(name)}, {quoted(offsets)}, must be a list of integers: steps, counted "
            f"from the window's own."
        )
    own = tuple(check_integer(f"Windows: an offset of {name!r}", one, 1 - MOST_STEPS, MOST_STEPS) for one in offsets)
    if not own:
        raise ConfigError(f"Windows: the offsets of {quoted(name)} are empty: give one step at least, such as [0].")
    return own


class WindowTable:
    """The windows of episodes, numbered: the windows of the first episode by their steps, then those of the second one.

    Args:
        num_steps: int64 [number of episodes], >= 0; an episode without steps has no windows.
        stride: number of steps from one window to the next.
        before: number of steps that the episode must have before the window's own; 0 where windows may reach outside.
        after: the same number after its own step.
    """

    def __init__(self, num_steps: Int64Array, stride: int = 1, before: int = 0, after: int = 0) -> None:
        self._stride = stride
        self._first_step = -(-before // stride) * stride  # The same in every episode.
        self._last_step = num_steps - 1 - after
        counts = np.maximum(0, (self._last_step - self._first_step) // stride + 1)
        self._stops = np.cumsum(counts, dtype=np.int64)
        self._counts = counts

    def __len__(self) -> int:
        """Return the number of windows."""
        return int(self._stops[-1]) if len(self._stops) else 0

    @property
    def counts(self) -> Int64Array:
        """Windows of each episode, int64 [number of episodes]."""
        return self._counts

    def locate(self, index: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the episodes of windows 0..len-1, int64 [n], and the steps at which they begin."""
        episode = np.searchsorted(self._stops, index, side="right").astype(np.int64)
        step = self._first_step + (index - (self._stops[episode] - self._counts[episode])) * self._stride
        return episode, step

    def find(self, episode: int, step: int) -> int | None:
        """Return the number of the window of an episode that begins at a step; None: there is none."""
        place, rest = divmod(step - self._first_step, self._stride)
        if rest or not 0 <= place < self._counts[episode]:
            return None
        return int(self._stops[episode] - self._counts[episode]) + place


def window_rows(
    step: Int64Array, num_steps: Int64Array, offsets: tuple[int, ...]
) -> tuple[Int64Array, NDArray[np.bool_]]:
    """Return the steps of a field that windows have.

    Args:
        step: int64 [n], the step at which each window begins.
        num_steps: int64 [n], the number of steps of its episode, >= 1.
        offsets: T offsets, in steps, counted from the window's own step.

    Returns:
        int64 [n, T]: the steps, those outside of the episode replaced by its first or last one; bool [n, T]: which ones
        were outside.
    """
    asked = step[:, None] + np.array(offsets, np.int64)
    rows = np.clip(asked, 0, num_steps[:, None] - 1)
    return rows, rows != asked
