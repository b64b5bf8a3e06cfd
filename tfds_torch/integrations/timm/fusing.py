"""timm's loader over our examples: its transform begins in the decoder, and our batches are not copied again."""

from collections.abc import Callable
from typing import Any

from tfds_torch.integrations.timm.reader import TfdsReader
from tfds_torch.torch_data.batch_rows import collate_around
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.wrapped_datasets import unwrap


class DoneByReader:
    """Stands in timm's dataset for a transform that its reader has done: returns its argument. Picklable."""

    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        """Return the image, which is the transform's result."""
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
        return collate_around(examples, self.collate)


def hand_on_batches(source: TfdsReader | ImageDataset) -> None:
    """Let workers decode into memory that processes share: collation hands it on."""
    images = source.dataset if isinstance(source, TfdsReader) else source
    images.hands_on_batches = True
