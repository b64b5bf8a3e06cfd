"""What the datasets of this room make of a whole batch's fields: tensors, and lists of what has no fixed shape."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import Batch
from tfds_torch.torch_data.tensor_canvas import TensorCanvases


def make_tensors(batch: Batch, fields: Sequence[str], make_canvas: TensorCanvases) -> tuple[Any, ...]:
    """Returns the fields of a batch, in the order asked for.

    Args:
        batch: of which images are a canvas's, or arrays uint8 [H, W, C] of one size.
        fields: which of its fields.
        make_canvas: makes the memory of images that lie in none yet.

    Returns:
        For each field: `image` uint8 [B, C, H, W] in channels_last memory; `label` and `index` int64 [B]; `valid` bool
        [B]; `id` a list of B texts; another feature as a tensor [B, ...] where all of its values have one shape, and
        images among them as `image`; else a list of B values.

    Raises:
        ConfigError: the images are of different sizes.
    """
    return tuple(_field(batch, name, make_canvas) for name in fields)


def _field(batch: Batch, name: str, make_canvas: TensorCanvases) -> Any:
    if name == "image":
        return batch.image if isinstance(batch.image, Tensor) else _stack_images(batch, make_canvas)
    if name == "id":
        return batch.id
    if name in ("valid", "index") or (name == "label" and batch.label is not None):
        return torch.from_numpy(np.ascontiguousarray(getattr(batch, name)))
    return _feature(batch.features[name])


def _stack_images(batch: Batch, make_canvas: TensorCanvases) -> Tensor:
    shapes = [image.shape for image in batch.image]
    other = next((i for i, shape in enumerate(shapes) if shape != shapes[0]), None)
    if other is not None:
        raise ConfigError(
            f"Whole batches need images of one size: {batch.id[0]} has [H, W, C] = {list(shapes[0])}, and "
            f"{batch.id[other]} {list(shapes[other])}. Give the parser a preprocess, such as "
            f"TrainPreprocess(size=224), or leave out batched=True."
        )
    canvas = make_canvas((len(shapes), *shapes[0]))
    for row, image in enumerate(batch.image):
        canvas.pixels[row] = image
    return canvas.images


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
