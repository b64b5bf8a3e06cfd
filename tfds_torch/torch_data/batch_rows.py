"""Examples whose images are the rows of one batch: collation hands that on, without a copy."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor


def collate_around(examples: list[Any], collate: Callable[[list[Any]], Any]) -> Any:
    """Return a batch of examples: one field is the tensor whose rows its values are, the others are collated.

    Args:
        examples: tuples, or dictionaries. Where no field is such a tensor, they are collated as they are.
        collate: makes a batch of a list of examples, a sequence or dictionary of the same fields.
    """
    first = examples[0]
    keys: Iterable[Any] = first if isinstance(first, Mapping) else range(len(first)) if isinstance(first, tuple) else ()
    for key in keys:
        if isinstance(first[key], Tensor) and (batch := find_batch([example[key] for example in examples])) is not None:
            break
    else:
        return collate(examples)
    nothing = torch.empty(0, dtype=torch.uint8)
    if isinstance(first, Mapping):
        return collate([{**example, key: nothing} for example in examples]) | {key: batch}
    made = collate([(*example[:key], nothing, *example[key + 1 :]) for example in examples])
    return type(made)((*made[:key], batch, *made[key + 1 :]))


def find_batch(rows: list[Any]) -> Tensor | None:
    """Return the tensor uint8 [n, ...] whose rows, in order, are these images [C, H, W]; None: there is none."""
    first = rows[0]
    if type(first) is not Tensor or first.dtype != torch.uint8 or first.ndim != 3 or len(rows) < 2:
        return None
    if not first.permute(1, 2, 0).is_contiguous():
        return None
    shape, strides, num_bytes = first.shape, first.stride(), first.numel()
    start, memory = first.data_ptr(), first.untyped_storage().data_ptr()
    for number, row in enumerate(rows):
        if type(row) is not Tensor or row.dtype != torch.uint8 or row.data_ptr() != start + number * num_bytes:
            return None
        if row.shape != shape or row.stride() != strides or row.untyped_storage().data_ptr() != memory:
            return None
    return first.as_strided((len(rows), *shape), (num_bytes, *strides))
