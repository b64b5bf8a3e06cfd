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

Small images of the suite `cached` are pixels, whose every byte is read (the option `is_read`), flipped and translated
by up to 4 pixels where they are augmented (`is_padded`), as its CIFAR example does it; nothing is dropped.
"""

import functools
import io
import os
import signal
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.protocol import PLAIN, TRAIN, Epochs, Task, serve
from benchmarks.transform import CROP_PCT, read_tars

INSTALL = "apt install libopencv-dev libturbojpeg0-dev pkg-config, then, in a clone, pip install -e '.[ffcv]'"
_SMALL = 64  # Pixels: the images are icons.
_PADDING = 4


class DecodedImages:
    """The images of tar files, decoded one at a time for FFCV's writer.

    The writer asks for them in forked processes, and waits for ever for one that fails: an error ends the writer.
    """

    def __init__(self, tars: str) -> None:
        self._examples = list(read_tars(tars))
        self._writer = os.getpid()

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, number: int) -> tuple[NDArray[np.uint8], int]:
        """Returns uint8 [H, W, 3] and the label."""
        image, label = self._examples[number]
        try:
            return np.array(Image.open(io.BytesIO(image)).convert("RGB")), label
        except BaseException:
            traceback.print_exc()
            os.kill(self._writer, signal.SIGTERM)
            raise

    @property
    def are_small(self) -> bool:
        """Whether they are of the size of an icon, and better stored as pixels."""
        return max(Image.open(io.BytesIO(self._examples[0][0])).size) <= _SMALL


def prepare(task: Task) -> None:
    """Writes the images of `task.tars`."""
    check()
    images = DecodedImages(task.tars)
    write(images, f"{task.files}/images.beton", "raw" if images.are_small else "jpg", len(images))


def check() -> None:
    """Raises a ModuleNotFoundError where FFCV is not installed, or cannot be loaded."""
    try:
        import ffcv.writer  # noqa: F401
    except (ImportError, OSError) as error:
        raise ModuleNotFoundError(str(error)) from None


def write(images: DecodedImages, path: str, mode: str, num_images: int) -> None:
    """Writes the first images in a mode of FFCV's writer, `raw` or `jpg`, which encodes photographs again."""
    import ffcv.writer
    from ffcv.fields import IntField, RGBImageField

    ffcv.writer.tqdm = functools.partial(ffcv.writer.tqdm, disable=True)
    writer = ffcv.writer.DatasetWriter(path, {"image": RGBImageField(mode), "label": IntField()})
    writer.from_indexed_dataset(images, indices=list(range(num_images)))


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    check()
    from ffcv.fields.decoders import IntDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import Squeeze, ToTensor, ToTorchImage

    (beton,) = Path(task.files).glob("*.beton")
    loader = Loader(
        str(beton),
        batch_size=task.batch_size,
        num_workers=max(1, task.num_workers),
        order=OrderOption.RANDOM if task.is_training else OrderOption.SEQUENTIAL,
        os_cache=True,
        **({"drop_last": False} if task.options.get("is_read") else {}),
        pipelines={
            "image": [*_decoders(task), ToTensor(), ToTorchImage()],
            "label": [IntDecoder(), ToTensor(), Squeeze()],
        },
    )
    if task.options.get("is_read"):
        from benchmarks.peers.ours import read_all

        return lambda epoch: (read_all(batch) for batch in loader)
    return lambda epoch: (images for images, _ in loader)


def _decoders(task: Task) -> list[Any]:
    from ffcv.fields.decoders import (
        CenterCropRGBImageDecoder,
        RandomResizedCropRGBImageDecoder,
        SimpleRGBImageDecoder,
    )
    from ffcv.transforms import RandomHorizontalFlip, RandomTranslate

    size = (task.size, task.size)
    if task.work == PLAIN:
        return [SimpleRGBImageDecoder()]
    if task.options.get("is_padded"):
        return [SimpleRGBImageDecoder(), RandomHorizontalFlip(), RandomTranslate(_PADDING)]
    if task.work == TRAIN:
        return [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()]
    return [CenterCropRGBImageDecoder(size, ratio=CROP_PCT)]


if __name__ == "__main__":
    serve(load, ("ffcv", "numba", "opencv-python", "torch"), prepare=prepare, install=INSTALL)
