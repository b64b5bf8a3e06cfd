"""Rows of bytes as tensorflow takes them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def bytes_array(values: Sequence[bytes]) -> NDArray[np.object_]:
    """Returns an array object [n] of n values; numpy's own conversion would cut zeros from their ends."""
    array = np.empty(len(values), object)
    array[:] = values
    return array
