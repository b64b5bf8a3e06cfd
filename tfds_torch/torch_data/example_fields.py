"""What the datasets of this room make of an example's fields: tuples of a PIL image, an int, and plain values."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import Parser
from tfds_torch.runtime.stage_metrics import StageMetrics

Column = tuple[str, Iterable[Any]]
"""A field, and its values, one per example: pixels uint8 [H, W, C], a label, or any other value."""


def check_field_names(parser: Parser, fields: Sequence[str]) -> tuple[str, ...]:
    """Returns the fields that a dataset is asked for.

    Raises:
        ConfigError: a field does not exist, or there are none.
    """
    if isinstance(fields, str) or not fields:
        raise ConfigError(f"fields={fields!r} must be a sequence of field names, such as ('image', 'label').")
    parser.check_fields(fields)
    return tuple(fields)


def make_tuples(
    columns: Iterable[Column], transform: Callable[[Any], Any] | None, target_transform: Callable[[Any], Any] | None
) -> Iterator[tuple[Any, ...]]:
    """Yields examples, one after the other, each converted when its turn comes.

    Args:
        columns: the fields, in the order in which they are wanted.
        transform: called with the PIL image; its result takes the image's place.
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


def _to_pil(pixels: NDArray[np.uint8]) -> Image.Image:
    """Returns an image of pixels uint8 [H, W, C], C in 1, 3, 4."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
