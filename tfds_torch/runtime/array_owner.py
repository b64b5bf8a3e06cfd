"""Which object keeps the memory of an array alive."""

from typing import Any

import numpy as np


def owner_of(array: "np.ndarray[Any, Any]") -> Any:
    """Returns the object that every view of an array keeps alive."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array
