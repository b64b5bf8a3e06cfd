"""What tests of preprocessing read, in processes that may load tensorflow and torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfds_torch.errors import TfdsTorchError
from tfds_torch.parsers.parser_tfds import ParserTfds
from tfds_torch.pipeline.canvas import ArrayCanvas
from tfds_torch.plan.world import World


@dataclass(frozen=True)
class Painted:
    """An example that came.

    Attributes:
        index: of it.
        image: uint8 [H, W, C].
        features: the others asked for.
    """

    index: int
    image: np.ndarray
    features: dict[str, Any]


def read_painted(
    arguments: dict[str, Any],
    epochs: Sequence[int] = (0,),
    fields: Sequence[str] = ("image", "label"),
    canvas: str = "array",
    world: World = World(),
) -> list[list[Painted]]:
    """Returns the examples of some epochs of a pipeline. Loads tensorflow, and torch for its canvas."""
    parser = ParserTfds(**arguments)
    return [
        [
            Painted(index, image, {name: values[row] for name, values in batch.features.items()})
            for batch in parser.batches(world, epoch, fields=fields, make_canvas=find_canvas(canvas))
            for row, (index, image) in enumerate(zip(batch.index.tolist(), to_arrays(batch.image), strict=True))
        ]
        for epoch in epochs
    ]


def find_canvas(name: str) -> Any:
    if name == "array":
        return ArrayCanvas
    from tfds_torch.torch_data.tensor_canvas import TensorCanvases

    return TensorCanvases()


def to_arrays(images: Any) -> np.ndarray:
    """Returns uint8 [B, H, W, C] of a canvas's images, with memory of their own."""
    return np.array(images if isinstance(images, np.ndarray) else images.permute(0, 2, 3, 1).numpy())


def error_of(arguments: dict[str, Any], fields: Sequence[str] = ("image", "label")) -> tuple[str, str]:
    """Returns type and text of what reading raises. Loads tensorflow."""
    try:
        for _ in ParserTfds(**arguments).batches(fields=fields):
            pass
    except TfdsTorchError as error:
        return type(error).__name__, str(error)
    return "", ""
