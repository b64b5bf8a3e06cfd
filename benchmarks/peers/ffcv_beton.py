"""FFCV: a `.beton` file of the same images, through its `Loader`.

Configured as its ImageNet example does it: `OrderOption.RANDOM`, `os_cache=True`, a decoder that cuts and resizes,
then `RandomHorizontalFlip`, `ToTensor` and `ToTorchImage`; labels too. It has no processes but threads, as many as the
others have workers (one where they have none). An evaluation has `OrderOption.SEQUENTIAL`, and its
`CenterCropRGBImageDecoder`, which cuts the middle square before it resizes. All else is a default. pip builds FFCV from
its source: `apt install libopencv-dev libturbojpeg0-dev pkg-config` comes before `pip install ffcv`.

Not as with the others, and all but the last in its favour:
- it resizes by OpenCV's INTER_AREA: antialiased by a box filter where an image shrinks, and bilinear where it grows;
- its writer takes pixels: photographs are encoded again, at its default quality of 90, which makes them smaller than
  the originals; small images are stored as pixels (`write_mode="raw"`), so that nothing is left to decode;
- a batch lies in a buffer that a later batch will overwrite;
- its code is compiled when its process begins.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.task import IMAGE_SHAPE, PLAIN, TRAIN, Task
from benchmarks.transform import CROP_PCT


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    from ffcv.fields.decoders import (
        CenterCropRGBImageDecoder,
        IntDecoder,
        RandomResizedCropRGBImageDecoder,
        SimpleRGBImageDecoder,
    )
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, Squeeze, ToTensor, ToTorchImage

    size = (task.image_shape or IMAGE_SHAPE)[1:]
    if task.work == PLAIN:
        images = [SimpleRGBImageDecoder()]
    elif task.work == TRAIN:
        images = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    else:
        images = [CenterCropRGBImageDecoder(size, ratio=CROP_PCT)]
    (beton,) = Path(str(task.converted_dir)).glob("*.beton")
    loader = Loader(
        str(beton),
        batch_size=task.batch_size,
        num_workers=max(1, task.num_workers),
        order=OrderOption.RANDOM if task.is_training else OrderOption.SEQUENTIAL,
        os_cache=True,
        pipelines={"image": [*images, ToTensor(), ToTorchImage()], "label": [IntDecoder(), ToTensor(), Squeeze()]},
    )
    return lambda epoch: (images for images, _ in loader)
