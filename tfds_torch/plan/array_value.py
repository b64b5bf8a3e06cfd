"""ArrayValue: an array as a value, for plans that are compared, hashed and pickled."""

import hashlib
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ArrayValue:
    """An array that is a value: equal where all numbers are, in the same order.

    Args:
        values: [n]; it must not be changed afterwards.
    """

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayValue) and type(other) is type(self) and np.array_equal(self.values, other.values)

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        """Hex digest of the numbers and their order."""
        little = self.values.astype(self.values.dtype.newbyteorder("<"))
        return hashlib.blake2b(little.tobytes(), digest_size=16).hexdigest()

    def __getstate__(self) -> dict[str, Any]:
        return {"values": self.values}  # What was derived from them is made anew.
