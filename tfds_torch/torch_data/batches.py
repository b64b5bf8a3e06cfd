"""What datasets make of fields: tensors of a whole batch; a PIL image, an int and plain values of an example."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import METADATA_FIELDS, Parser
from tfds_torch.runtime.metrics import StageMetrics

Column = tuple[str, Iterable[Any]]
"""A field, and its values, one per example: pixels uint8 [H, W, C], a tensor of them, a label, or any other value."""


def check_field_names(parser: Parser, fields: Sequence[str]) -> tuple[str, ...]:
    """Returns the fields that a dataset is asked for.

    Raises:
        ConfigError: a field does not exist, or there are none.
    """
    if isinstance(fields, str) or not fields:
        raise ConfigError(f"fields={fields!r} must be a sequence of field names, such as ('image', 'label').")
    parser.check_fields(fields)
    return tuple(fields)


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


def make_examples(
    batch: Batch,
    fields: Sequence[str],
    transform: Callable[[Any], Any] | None,
    target_transform: Callable[[Any], Any] | None,
) -> Iterator[tuple[Any, ...]]:
    """Yields the examples of a batch, or of a piece of one; as `make_tuples`."""
    return make_tuples([(name, _values(batch, name)) for name in fields], transform, target_transform)


def make_tuples(
    columns: Iterable[Column], transform: Callable[[Any], Any] | None, target_transform: Callable[[Any], Any] | None
) -> Iterator[tuple[Any, ...]]:
    """Yields examples, one after the other, each converted when its turn comes.

    Args:
        columns: the fields, in the order in which they are wanted.
        transform: called with the PIL image, or the tensor; its result takes the image's place.
        target_transform: called with the label.
    """
    return zip(*(_convert(name, values, transform, target_transform) for name, values in columns), strict=True)


def timed(function: Callable[[Any], Any] | None, metrics: StageMetrics | None) -> Callable[[Any], Any] | None:
    """Returns a transform that reports its time; the very one where there is nothing to report, or to report to."""
    if function is None or metrics is None:
        return function

    def call(value: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return function(value)
        finally:
            metrics.add("transform", time.perf_counter() - began_s)

    return call


def _convert(
    name: str,
    values: Iterable[Any],
    transform: Callable[[Any], Any] | None,
    target_transform: Callable[[Any], Any] | None,
) -> Iterator[Any]:
    if name == "image":
        images = map(_to_pil, values)
        return map(transform, images) if transform else images
    if name == "label" and target_transform:
        return map(target_transform, values)
    return iter(values)


def _to_pil(pixels: NDArray[np.uint8] | Tensor) -> Image.Image | Tensor:
    """Returns an image of pixels uint8 [H, W, C], C in 1, 3, 4; a tensor as it is."""
    if isinstance(pixels, Tensor):
        return pixels
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


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


def _values(batch: Batch, field: str) -> Any:
    """Returns a field's values, one per example."""
    if field == "label":
        return batch.features["label"] if batch.label is None else batch.label.tolist()
    if field in METADATA_FIELDS:
        values = getattr(batch, field)
        return values if field == "id" else values.tolist()
    return batch.image if field == "image" else batch.features[field]
