"""The suite `cached`: reading images that are stored as pixels.

What is left of reading is memory: 256 images of 32x32 pixels are copied from random places in 75 us, and read in 15.
FFCV's compiled threads add little to that; we add some 100 us to each batch, for the order, the loader and the transfer
to a thread. numpy cuts and mirrors the images.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.protocol import PLAIN, TRAIN
from benchmarks.suites.epochs import TURNS
from benchmarks.tables import Table
from benchmarks.turns import (
    CPU,
    FIRST_BATCH,
    OURS,
    OURS_BY_IT,
    PNG,
    PNGS_FOR_A_PHOTO,
    SPEED,
    TIMM,
    VERY_FIRST_BATCH,
    Peer,
    Run,
    Suite,
    compare,
)
from tfds_torch.runtime import subprocess_call

_SHAPE = (3, 32, 32)
_BATCH_SIZE = 256
_PIXELS_FOR_A_PHOTO = 12
_ROUNDS_FOR_A_REPEAT = 4  # Epochs of some 0.1 s.
_COLUMNS = [
    SPEED,
    OURS_BY_IT,
    replace(CPU, form="{:,.2f}"),
    replace(VERY_FIRST_BATCH, form="{:.3f}"),
    replace(FIRST_BATCH, form="{:.3f}"),
]
_FFCV = Peer("ffcv", "FFCV", "ffcv_beton")
_OURS: dict[str, Any] = {"script": "ours", "changes": {"num_workers": 0}}


def _pixels(name: str, title: str) -> Table:
    return Table(
        name,
        title,
        "uint8 [32, 32, 3] in one `.beton` file in the page cache, in a random order, whole epochs in batches of 256, "
        "nothing dropped; every byte of a batch is read. A warm-up epoch is not counted, except for its first batch, "
        "which contains FFCV's compilation, but no imports.",
        "competitor",
        _COLUMNS,
    )


CACHE = Table(
    "cache",
    "a decoded cache",
    "32x32 PNG images (cifar10 with made-up content), shuffled, in batches of 256 as they are. The cache is built "
    "before the warm-up epoch, which is not counted. timm decodes in its workers.",
    "competitor",
    _COLUMNS,
)


def _measure(run: Run) -> Iterator[Table]:
    with tempfile.TemporaryDirectory() as folder:
        run.show_progress("writing small images")
        number = run.settings.num_photos * _PIXELS_FOR_A_PHOTO
        subprocess_call.call(write_pixels, folder, number)
        fields: dict[str, Any] = {"batch_size": _BATCH_SIZE, "image_shape": _SHAPE, "files": folder}
        for table, work, options in (
            (_pixels("plain", "pixels as they are"), PLAIN, {"has_preprocess": False}),
            (_pixels("train", "pixels, flipped and cut out of a padded image"), TRAIN, {"is_padded": True}),
        ):
            task = run.task("", number, work=work, options={"is_read": True, **options}, **fields)
            ours = Peer(OURS, "tfds_torch", options={"source": "beton"}, **_OURS)
            yield compare(run, table, (ours, _FFCV), task, rounds_for_a_repeat=_ROUNDS_FOR_A_REPEAT)
        number = run.settings.num_photos * PNGS_FOR_A_PHOTO
        task = run.task(run.data_dir("cifar10", number), number, dataset="cifar10", **PNG | {"batch_size": _BATCH_SIZE})
        cached = {"source": "cached", "cache_dir": str(Path(folder) / "cache"), "has_preprocess": False}
        peers = (
            Peer(OURS, "tfds_torch, decoded cache", options=cached, **_OURS),
            Peer(TIMM, "timm create_loader", "timm_reader"),
        )
        yield compare(run, CACHE, peers, task)


def write_pixels(folder: str, num_images: int) -> None:
    """Writes `images.beton` with random pixels, uint8 [32, 32, 3], and labels."""
    from tfds_torch.storage.beton.fields import BetonField, BetonInt
    from tfds_torch.storage.beton.image_field import BetonImage
    from tfds_torch.storage.beton.writer import BetonWriter

    pixels = np.random.default_rng(0).integers(0, 256, (1024, *_SHAPE[1:], _SHAPE[0]), np.uint8)
    fields: dict[str, BetonField] = {"image": BetonImage("raw"), "label": BetonInt()}
    with BetonWriter(Path(folder) / "images.beton", fields, num_images) as writer:
        for number in range(num_images):
            writer.add((pixels[number % len(pixels)], number % 10))


SUITE = Suite(
    "cached",
    "images stored as pixels: a .beton file, and the decoded cache",
    f"This package against FFCV at one and the same file, and its decoded cache against timm's reader. {TURNS}",
    _measure,
)
