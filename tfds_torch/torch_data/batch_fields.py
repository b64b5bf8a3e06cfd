"""What the datasets of this room make of a whole batch's fields: tensors, and lists of what has no fixed shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tfds_torch.engines.batch import Batch


def make_tensors(batch: Batch, fields: Sequence[str]) -> tuple[Any, ...]:
    """Returns the fields of a batch, in the order asked for.

    Args:
        batch: of which the images are a TensorBuffer's.
        fields: which of its fields.

    Returns:
        For each field: `image` uint8 [B, C, H, W] in channels_last memory; `label` and `index` int64 [B]; `valid` bool
        [B]; `id` a list of B texts; another feature as a tensor [B, ...] where all of its values have one shape, and
        images among them as `image`; else a list of B values.
    """
    return tuple(_field(batch, name) for name in fields)


def _field(batch: Batch, name: str) -> Any:
    if name == "image":
        return batch.image
    if name == "id":
        return list(batch.id)
    if name in ("valid", "index") or (name == "label" and batch.label is not None):
        return torch.from_numpy(np.ascontiguousarray(getattr(batch, name)))
    return _feature(batch.features[name])


def _feature(values: Any) -> Any:
    """Returns the values of a feature, [B, ...] or B of them, as a tensor where they are numbers of one shape."""
    if isinstance(values, np.ndarray):
        return torch.from_numpy(np.array(values)) if values.dtype.kind in "biuf" else values.tolist()
    is_alike = all(isinstance(value, np.ndarray) and value.dtype.kind in "biuf" for value in values)
    if not is_alike or len({(value.shape, value.dtype) for value in values}) != 1:
        return values
    stacked = torch.from_numpy(np.stack(values))
    # Images, as the field `image`: channels first, in channels_last memory.
    return stacked.permute(0, 3, 1, 2) if values[0].ndim == 3 and stacked.dtype == torch.uint8 else stacked
