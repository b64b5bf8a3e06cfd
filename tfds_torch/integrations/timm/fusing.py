"""timm's loader over our examples: its transform begins in the decoder, and a batch of ours is not copied once more."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tfds_torch.integrations.timm.reader import TfdsReader
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.wrapped_datasets import unwrap


class DoneByReader:
    """Stands in timm's dataset for a transform that its reader has done: returns what it gets. Picklable."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        """Return the image, which is what the transform returned."""
        return image

    def __repr__(self) -> str:
        return repr(self.transform)


def fuse_reader(dataset: Any, reader: TfdsReader) -> None:
    """Let a reader do the transform of timm's dataset around it, where the decoder takes over how that begins."""
    owner = next((layer for layer in unwrap(dataset) if vars(layer).get("reader") is reader), None)
    transform = getattr(owner, "transform", None)
    if owner is None or transform is None or isinstance(transform, DoneByReader):
        return
    reader.dataset.transform = transform
    if reader.dataset.find_fused() is None:
        reader.dataset.transform = None
        return
    owner.transform = DoneByReader(transform)
    reader.done_for = owner


class CollateRows:
    """Collates as timm does, but for rows of one batch of ours: that batch is handed on. Picklable.

    Args:
        collate: timm's function.
    """

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        self.collate = collate

    def __call__(self, examples: list[Any]) -> Any:
        """Return the images, in one tensor, and the targets."""
        images = None
        if all(isinstance(example, tuple) and len(example) == 2 for example in examples):
            images = find_batch([example[0] for example in examples])
        if images is None:
            return self.collate(examples)
        nothing = torch.empty(0, dtype=torch.uint8)
        _, targets = self.collate([(nothing, target) for _, target in examples])
        return images, targets


def find_batch(rows: list[Any]) -> Tensor | None:
    """Return the tensor uint8 [n, ...] whose rows, in their order, some tensors are; None: they are not."""
    first = rows[0]
    if not isinstance(first, Tensor) or type(first) is not Tensor or first.dtype != torch.uint8 or len(rows) < 2:
        return None
    shape, strides, num_bytes = first.shape, first.stride(), first.numel()
    start, memory = first.data_ptr(), first.untyped_storage().data_ptr()
    for number, row in enumerate(rows):
        if type(row) is not Tensor or row.data_ptr() != start + number * num_bytes or row.dtype != torch.uint8:
            return None
        if row.shape != shape or row.stride() != strides or row.untyped_storage().data_ptr() != memory:
            return None
    if first.permute(1, 2, 0).is_contiguous() if first.ndim == 3 else first.is_contiguous():
        return first.as_strided((len(rows), *shape), (num_bytes, *strides))
    return None


def hand_on_batches(source: TfdsReader | ImageDataset) -> None:
    """Let workers decode into memory that processes share: collation hands it on."""
    images = source.dataset if isinstance(source, TfdsReader) else source
    images.hands_on_batches = True
