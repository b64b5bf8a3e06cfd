"""What an engine yields: whole batches in numpy, and single examples."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MOST_SHOWN = 4  # Entries of a list.


@dataclass(frozen=True)
class Batch:
    """The examples of one batch of one rank, in numpy.

    Attributes:
        image: uint8 [B, H, W, C] where there is a preprocess (what the batch buffer hands over, where one was given);
            else a list of B arrays uint8 [H, W, C] of their own sizes; None when not asked for.
        label: int64 [B], -100 where padded; None when not asked for or when the target is not a scalar integer.
        valid: bool [B]; False marks padding, which only fills the batch.
        index: int64 [B], positions of the examples in the split.
        id: B strings as TFDS gives them, `<shard file>__<record>`; each is computed when it is looked at.
        features: the other features asked for: name -> array [B, ...] or list of B values.
        epoch: the epoch the batch belongs to.
        batch: its number among the rank's batches of the epoch.
    """

    image: Any
    label: NDArray[np.int64] | None
    valid: NDArray[np.bool_]
    index: NDArray[np.int64]
    id: Sequence[str]
    features: dict[str, Any] = field(default_factory=dict)
    epoch: int = 0
    batch: int = 0

    def __len__(self) -> int:
        return len(self.index)


@dataclass(frozen=True, eq=False)
class Example:
    """One example, in numpy.

    Attributes:
        image: uint8 [H, W, C]; None when not asked for.
        label: None when not asked for, or when the target is not a scalar integer: it is among the features then.
        index: position in the split.
        id: as TFDS gives it, `<shard file>__<record>`; of an image folder, the path below its root.
        features: the other features asked for: name -> value.
    """

    image: Any
    label: int | None
    index: int
    id: str
    features: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in ("image", "label", "index", "id", "features")}
        return f"Example({', '.join(f'{name}={_summary(value)}' for name, value in values.items())})"


def _summary(value: Any) -> str:
    """Returns a value in short: of an array its shape and dtype."""
    if isinstance(value, np.ndarray):
        return f"<{value.dtype} {list(value.shape)}>"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name!r}: {_summary(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        shown = [_summary(one) for one in value[:_MOST_SHOWN]]
        return f"[{', '.join(shown + ['...'] * (len(value) > _MOST_SHOWN))}]"
    return repr(value)
