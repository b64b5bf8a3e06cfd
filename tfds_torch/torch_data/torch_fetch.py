"""What torch's DataLoader does with a dataset that it iterates, seen from inside: it tells a dataset nothing."""

import sys
import warnings
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.utils.data import default_collate

from tfds_torch.errors import ConfigError


@dataclass(frozen=True)
class Fetch:
    """How a DataLoader takes items.

    Attributes:
        batch_size: of its batches; None: items come as they are.
        is_default_collation: whether torch's own function makes batches of examples.
        dataset: the DataLoader's; another one may stand in it.
    """

    batch_size: int | None
    is_default_collation: bool
    dataset: Any


def find_fetch() -> Fetch | None:
    """Returns how the DataLoader whose `next` is under way takes items; None: there is none, or torch has changed.

    A dataset that is iterated has no other way to know: the caller's frames are looked at.
    """
    fetcher, asked = _find_fetcher()
    if fetcher is None:
        return None
    if not fetcher.auto_collation:
        return Fetch(None, False, fetcher.dataset)
    if not isinstance(asked, list):
        return None
    return Fetch(len(asked), fetcher.collate_fn is default_collate, fetcher.dataset)


def find_iteration() -> object | None:
    """Returns an object that stands for the iteration of the DataLoader whose `next` is under way; None: there is none.

    It is torch's fetcher, which every process that reads makes anew for every iteration.
    """
    iteration: object | None = _find_fetcher()[0]
    return iteration


def _find_fetcher() -> tuple[Any, Any]:
    """Returns torch's fetcher, and what it is asked for; None and None: there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "fetch":
            fetcher = frame.f_locals.get("self")
            if hasattr(fetcher, "auto_collation") and hasattr(fetcher, "collate_fn"):
                return fetcher, frame.f_locals.get("possibly_batched_index")
        frame = frame.f_back
    return None, None


def no_collation(loader: str) -> ConfigError:
    """Returns the error for a loader that would have to make batches of PIL images."""
    return ConfigError(
        f"{loader} cannot make batches of PIL images with torch's default collation: give the dataset a transform that "
        f"ends in tensors (such as torchvision's ToTensor()), the loader a collate_fn, or the parser a preprocess."
    )


def check_fetch(dataset: object, batch_size: int | None, is_batched: bool, has_pil_images: bool) -> None:
    """Says what a plain DataLoader makes of a dataset's items, where that cannot be meant.

    Args:
        dataset: that is iterated. A dataset around it, such as timm's, may make tensors of PIL images.
        batch_size: of the parser.
        is_batched: whether the items are whole batches.
        has_pil_images: whether they are single examples with PIL images.

    Raises:
        ConfigError: torch's default collation would get PIL images.
    """
    fetch = find_fetch()
    if fetch is None:
        return
    if fetch.is_default_collation and has_pil_images and fetch.dataset is dataset:
        raise no_collation("The DataLoader")
    wanted = None if is_batched else batch_size
    if (is_batched or wanted is not None) and fetch.batch_size != wanted:
        items = "whole batches" if is_batched else "single examples"
        warnings.warn(
            f"DataLoader(batch_size={fetch.batch_size}) over an ImageDataset that yields {items}, of a parser with "
            f"batch_size={batch_size}: its batches are not those that the parser plans, and len() and states count "
            f"others. Use DataLoader(dataset, batch_size={wanted}, ...), or create_loader(dataset, ...).",
            UserWarning,
            stacklevel=2,
        )
