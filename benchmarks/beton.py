"""Images in FFCV's own format, written by FFCV's own writer."""

import functools
import io
import os
import signal
import tarfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tfds_torch.errors import ConfigError

INSTALL = "apt install libopencv-dev libturbojpeg0-dev pkg-config, then, in a clone, pip install -e '.[ffcv]'"
"""How to get FFCV, which pip builds from its source."""

_SMALL = 64


class DecodedImages:
    """The images of tar files that `conversion` wrote, decoded one at a time, as FFCV's writer asks for them.

    The writer calls it in processes that it forks, and waits for ever for one that fails; so whoever fails ends the
    process that waits.

    Args:
        folder: where the tar files are.
    """

    def __init__(self, folder: str) -> None:
        shards = sorted(Path(folder).glob("*.tar"))
        self._examples = [example for shard in shards for example in _read_tar(shard)]
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


def write(source: str, target: str) -> None:
    """Writes `images.beton` with the fields `image` and `label`.

    Photographs are encoded again as JPEG, by FFCV's default quality: its writer takes no encoded images.

    Args:
        source: folder of tar files.
        target: folder of the result.

    Raises:
        ConfigError: FFCV is not there, or cannot be loaded.
    """
    load_writer()  # Where it is missing, nothing is read.
    images = DecodedImages(source)
    write_images(images, Path(target) / "images.beton", "raw" if images.are_small else "jpg", len(images))


def write_images(images: DecodedImages, path: Path, mode: str, num_images: int) -> None:
    """Writes the first images as FFCV's writer does it in one of its modes, `raw` or `jpg`; see `write`."""
    writer, image_field, int_field = load_writer()
    fields: dict[str, Any] = {"image": image_field(mode), "label": int_field()}
    writer(str(path), fields).from_indexed_dataset(images, indices=list(range(num_images)))


def load_writer() -> tuple[Any, Any, Any]:
    """Returns FFCV's writer, and its fields of images and integers.

    Raises:
        ConfigError: FFCV is not there, or cannot be loaded.
    """
    try:
        import ffcv.writer
        from ffcv.fields import IntField, RGBImageField
    except (ImportError, OSError) as error:
        raise ConfigError(f"{error} ({INSTALL})") from None

    ffcv.writer.tqdm = functools.partial(ffcv.writer.tqdm, disable=True)
    return ffcv.writer.DatasetWriter, RGBImageField, IntField


def _read_tar(shard: Path) -> Iterator[tuple[bytes, int]]:
    with tarfile.open(shard) as archive:
        members = archive.getmembers()
        for image, label in zip(members[::2], members[1::2], strict=True):
            yield _content(archive, image), int(_content(archive, label))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    return b"" if file is None else file.read()
