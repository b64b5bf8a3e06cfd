"""Tensors of torch, without importing torch (the maker of a tensor has done so); and arrays as torch has them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_OF_OTHERS = 256  # Among numpy's numbers of types: those that packages add, like float8 of ml_dtypes.


def is_tensor(kind: type) -> bool:
    """Return whether a type is torch.Tensor, or derived from it."""
    return any(base.__name__ == "Tensor" and base.__module__ == "torch" for base in kind.__mro__)


def array_of_tensor(tensor: Any) -> Any:
    """Return the values of a tensor as a numpy array, in its memory where that is possible; None: no array is equal.

    It is None for dtypes that numpy does not have, for sparse, nested and quantized tensors, and on other devices.
    """
    is_plain = not (tensor.is_nested or tensor.is_quantized) and str(tensor.layout) == "torch.strided"
    if not is_plain or tensor.device.type != "cpu":
        return None
    try:
        return tensor.detach().resolve_conj().resolve_neg().numpy()
    except TypeError:  # Like bfloat16.
        return None


def native(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array in this machine's byte order, which is the only one that torch has; the same one where it is."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether an array of a dtype can become a tensor: bool, integers, floats, bfloat16 (ml_dtypes), complex."""
    is_of_numpy = dtype.num < _FIRST_OF_OTHERS
    return (is_of_numpy and dtype.kind in "biufc") or dtype.name == "bfloat16"
