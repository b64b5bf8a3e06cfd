"""The suite `cached`: reading images that are stored as pixels.

What is left of reading is memory: 256 images of 32x32 pixels are copied from random places in 75 us, and read in 15.
FFCV's compiled threads add little to that; we add some 100 us to each batch, for the order, the loader and the transfer
to a thread. numpy cuts and mirrors the images.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.comparison import Comparison, compare
from benchmarks.figures import CPU, FIRST_BATCH, OURS_BY_IT, SPEED, VERY_FIRST_BATCH
from benchmarks.machine import own_memory_bytes
from benchmarks.tables import Column, Table, collect
from benchmarks.task import FFCV, OURS, PLAIN, TIMM, TRAIN, Peer, Run
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.beton.fields import BetonBytes, BetonField, BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter

_SHAPE = (3, 32, 32)
_PIXELS_FOR_A_PHOTO, _PNGS_FOR_A_PHOTO, _SAMPLES_FOR_A_PHOTO = 12, 5, 256
_TURNS_FOR_A_REPEAT = 4  # Epochs of some 0.1 s.
_PEERS = "benchmarks.peers"
_COLUMNS = [SPEED, OURS_BY_IT, replace(CPU, form="{:,.2f}"), VERY_FIRST_BATCH, FIRST_BATCH]
_MILLISECONDS = [replace(column, form="{:.3f}") if column.key.endswith("_s") else column for column in _COLUMNS[3:]]


def _pixels(work: str, title: str) -> Comparison:
    table = Table(
        work,
        title,
        "uint8 [32, 32, 3] in one `.beton` file in the page cache, in a random order, whole epochs in batches of 256, "
        "nothing dropped; every byte of a batch is read. A warm-up epoch is not counted, except for its first batch, "
        "which contains FFCV's compilation, but no imports.",
        "competitor",
        [*_COLUMNS[:3], *_MILLISECONDS],
    )
    peers = (
        Peer(OURS, "tfds_torch", f"{_PEERS}.small_pixels:load"),
        Peer(FFCV, "FFCV", f"{_PEERS}.small_pixels:load_ffcv"),
    )
    task = {"batch_size": 256, "image_shape": _SHAPE, "work": work}
    return Comparison(
        table, peers, num_for_a_photo=_PIXELS_FOR_A_PHOTO, task=task, turns_for_a_repeat=_TURNS_FOR_A_REPEAT
    )


PIXELS = (_pixels(PLAIN, "pixels as they are"), _pixels(TRAIN, "pixels, flipped and cut out of a padded image"))
CACHE = Comparison(
    Table(
        "cache",
        "a decoded cache",
        "32x32 PNG images (cifar10 with made-up content), shuffled, in batches of 256 as they are. The cache is built "
        "before the warm-up epoch, which is not counted. timm decodes in its workers.",
        "competitor",
        [*_COLUMNS[:3], *_MILLISECONDS],
    ),
    (
        Peer(OURS, "tfds_torch, decoded cache", f"{_PEERS}.ours:load_cached"),
        Peer(TIMM, "timm create_loader", f"{_PEERS}.timm_reader:load"),
    ),
    dataset="cifar10",
    num_for_a_photo=_PNGS_FOR_A_PHOTO,
    task={"batch_size": 256, "image_shape": _SHAPE, "work": PLAIN},
)
OPENING = Table(
    "opening",
    "opening a file of many samples",
    "Each a few bytes and a number, with ids; in a fresh process, from the page cache, all pointers and the checksums "
    "of metadata and table checked.",
    "samples",
    [
        Column("open_s", "opening, s", "{:.3f}"),
        Column("kept_mb", "resident memory kept, MB", "{:.1f}"),
        Column("kept_bytes", "of a sample, bytes", "{:.1f}"),
    ],
)


def measure_cached(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `cached`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run.show_progress("writing small images")
        subprocess_call.call(write_pixels, name, run.settings.num_photos * _PIXELS_FOR_A_PHOTO)
        for comparison in PIXELS:
            yield compare(comparison, run, folder)
        yield compare(CACHE, run, folder / "cache")
        run.show_progress("opening a file of many samples")
        many = run.settings.num_photos * _SAMPLES_FOR_A_PHOTO
        openings = [measure_opening(folder, many) for _ in range(run.settings.num_repeats)]
        yield OPENING.fill(collect(("many", opening) for opening in openings), {"many": f"{many:,}"})


def write_pixels(folder: str, num_images: int) -> None:
    """Writes `images.beton` with random pixels, uint8 [32, 32, 3], and labels."""
    pixels = np.random.default_rng(0).integers(0, 256, (1024, *_SHAPE[1:], _SHAPE[0]), np.uint8)
    fields: dict[str, BetonField] = {"image": BetonImage("raw"), "label": BetonInt()}
    with BetonWriter(Path(folder) / "images.beton", fields, num_images) as writer:
        for number in range(num_images):
            writer.add((pixels[number % len(pixels)], number % 10))


def measure_opening(folder: Path, num_samples: int) -> dict[str, float]:
    """Opens a file of so many samples, which is written first, in a fresh process, and returns the columns."""
    path = folder / f"{num_samples}.beton"
    if not path.exists():
        subprocess_call.call(_write_samples, str(path), num_samples)
    open_s, kept_bytes = subprocess_call.call(_open, str(path))
    return {"open_s": open_s, "kept_mb": kept_bytes / 1e6, "kept_bytes": kept_bytes / num_samples}


def _write_samples(path: str, num_samples: int) -> None:
    with BetonWriter(path, {"text": BetonBytes(), "label": BetonInt()}, num_samples) as writer:
        for number in range(num_samples):
            writer.add((b"%d" % number, number), id=f"train/{number:08d}")


def _open(path: str) -> tuple[float, int]:
    """Returns seconds, with all pointers checked, and the resident memory that is kept, bytes."""
    (before, _), began_s = own_memory_bytes(), time.perf_counter()
    source = BetonSource(path)
    source.check()
    took_s, (after, _) = time.perf_counter() - began_s, own_memory_bytes()
    source.close()
    return took_s, after - before
