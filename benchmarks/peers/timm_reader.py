"""timm's `create_loader` over its `ReaderTfds`, in whole batches with timm's own transforms, or with the shared one.

Configured: `is_training`, batch size, workers and the device `cpu`; `set_epoch` before every epoch, as timm's train.py
does. `color_jitter=0`, because no other competitor changes colors: timm's default would cost it more. An evaluation has
`crop_pct=0.875`; images that are delivered as they are have `no_aug=True`. All else is timm's default: bilinear
(antialiased), a shuffle buffer of 8,192 and a prefetch of 2,048 decoded images, divided among the workers (and limited
by the number of images); persistent workers; `fast_collate`. With the option `is_single`, the shared transform takes
the place of the loader's own, ending in a torch tensor as timm's own does.

The batches are uint8, taken from the DataLoader inside of `PrefetchLoader`, because that one would also turn them to
float32 and normalise them, which no other competitor does.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.protocol import PLAIN, Epochs, Task, serve
from benchmarks.transform import CROP_PCT, RandomResizedCropFlip

_OPERATORS = (
    "nms",
    "qnms",
    *("roi_align", "qroi_align", "ps_roi_align", "roi_pool", "ps_roi_pool", "deform_conv2d"),
    *("_roi_align_backward", "_ps_roi_align_backward", "_roi_pool_backward", "_ps_roi_pool_backward"),
    "_deform_conv2d_backward",
)
_declarations: list[Any] = []


class TensorTransform:
    """The shared transform, with a torch tensor as its result. Picklable."""

    def __init__(self) -> None:
        self.transform = RandomResizedCropFlip()

    def __call__(self, image: Any) -> Any:
        """Returns torch uint8 [3, 224, 224] of an RGB image."""
        import torch

        return torch.from_numpy(self.transform(image))


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    if task.options.get("is_single"):
        return _epochs(task, TensorTransform())
    return _epochs(task, no_aug=task.work == PLAIN, color_jitter=0.0, crop_pct=CROP_PCT)


def _epochs(task: Task, transform: Any = None, **options: Any) -> Epochs:
    import torch

    _declarations.append(declare_torchvision_operators())
    from timm.data import create_dataset, create_loader  # type: ignore[attr-defined, unused-ignore]

    dataset = create_dataset(
        f"tfds/{task.dataset}",
        root=task.data_dir,
        split="train",
        is_training=task.is_training,
        batch_size=task.batch_size,
    )
    loader = create_loader(
        dataset,
        input_size=task.image_shape,
        batch_size=task.batch_size,
        is_training=task.is_training,
        num_workers=task.num_workers,
        device=torch.device("cpu"),
        **options,
    )
    if transform is not None:
        dataset.transform = transform  # The loader has just set its own.

    def epoch_of(epoch: int) -> Iterable[Any]:
        dataset.set_epoch(epoch)
        return (images for images, _ in loader.loader)

    return epoch_of


def declare_torchvision_operators() -> Any:
    """Lets torchvision be imported where its binary operators cannot be loaded, as long as the result is held.

    A torchvision built for CUDA has no operators for a torch without it, and then fails to import because it cannot
    find them. timm imports it for its transforms, which use none of them: a declaration is enough.
    """
    import importlib.util
    import sys

    import torch

    if "torchvision" in sys.modules:
        return None
    found = importlib.util.find_spec("torchvision")
    library: Any = None
    for binary in Path(found.origin).parent.glob("_C*.so") if found and found.origin else ():
        try:
            torch.ops.load_library(str(binary))  # type: ignore[no-untyped-call]
        except OSError:
            library = library or torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for operator in _OPERATORS:
                library.define(f"{operator}(Tensor x) -> Tensor")
    return library


if __name__ == "__main__":
    serve(load, ("timm", "torchvision", "torch", "tensorflow-datasets"))
