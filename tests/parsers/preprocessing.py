"""What tests of preprocessing read, in processes that may load tensorflow and torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfds_torch.engines.request import ReadContext
from tfds_torch.errors import TfdsTorchError
from tfds_torch.images.batch_buffer import ArrayBuffer
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World


@dataclass(frozen=True)
class Transformed:
    """An example that came.

    Attributes:
        index: of it.
        image: uint8 [H, W, C].
        features: the others asked for.
    """

    index: int
    image: np.ndarray
    features: dict[str, Any]


def read_transformed(
    arguments: dict[str, Any],
    epochs: Sequence[int] = (0,),
    fields: Sequence[str] = ("image", "label"),
    buffer: str = "array",
    world: World = World(),
) -> list[list[Transformed]]:
    """Returns the examples of some epochs of a pipeline. Loads torch for its buffer."""
    parser = ParserTfds(**arguments)
    context = ReadContext(make_buffer=find_make_buffer(buffer))
    return [
        [
            Transformed(index, image, {name: values[row] for name, values in batch.features.items()})
            for batch in parser.batches(world, epoch, fields=fields, context=context)
            for row, (index, image) in enumerate(zip(batch.index.tolist(), to_arrays(batch.image), strict=True))
        ]
        for epoch in epochs
    ]


def find_make_buffer(name: str) -> Any:
    if name == "array":
        return ArrayBuffer
    from tfds_torch.torch_data.tensor_buffer import TensorBuffers

    return TensorBuffers()


def to_arrays(images: Any) -> np.ndarray:
    """Returns uint8 [B, H, W, C] of a buffer's images, with memory of their own."""
    return np.array(images if isinstance(images, np.ndarray) else images.permute(0, 2, 3, 1).numpy())


def error_of(arguments: dict[str, Any], fields: Sequence[str] = ("image", "label")) -> tuple[str, str]:
    """Returns type and text of what reading raises; tensorflow is loaded for a stream."""
    try:
        for _ in ParserTfds(**arguments).batches(fields=fields):
            pass
    except TfdsTorchError as error:
        return type(error).__name__, str(error)
    return "", ""
