"""Distinct values of an array, without numpy's own function for it.

`numpy.unique` imports `numpy.ma` when it is first called, which takes a forked worker up to 0.3 s of its first batch.
"""

from typing import NamedTuple

import numpy as np

from tfds_torch.plan.order import Int64Array


class Distinct(NamedTuple):
    """The distinct ones of n values, as `numpy.unique` gives them.

    Attributes:
        values: int64 [m], ascending.
        first: int64 [m], the position at which each of them stands first.
        inverse: int64 [n], for each of the n values its position among the distinct ones.
    """

    values: Int64Array
    first: Int64Array
    inverse: Int64Array


def find_distinct(values: Int64Array) -> Distinct:
    """Returns the distinct ones of int64 [n]."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    is_new = np.ones(len(values), np.bool_)
    is_new[1:] = ascending[1:] != ascending[:-1]
    inverse = np.empty(len(values), np.int64)
    inverse[order] = np.cumsum(is_new) - 1
    return Distinct(ascending[is_new], order[is_new], inverse)
