"""The suites `export` and `cached`: writing photographs as a `.beton` file, and reading images stored as pixels.

`export`: FFCV's writer takes pixels, so that photographs are decoded and encoded again; we keep their bytes. As pixels,
both decode, and what is written are 0.6 MB for each. `cached`: what is left of reading is memory: 256 images of 32x32
pixels are copied from random places in 75 us, and read in 15. FFCV's compiled threads add little to that; we add some
100 us for every batch, of the order, the loader and handing over to a thread. Cutting and mirroring is numpy's.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.comparison import Comparison, compare
from benchmarks.conversion import converted
from benchmarks.figures import CPU, FIRST_BATCH, OURS_BY_IT, SPEED, VERY_FIRST_BATCH
from benchmarks.peers import exports
from benchmarks.suite import Run
from benchmarks.system import resident_bytes
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import FFCV, OURS, PLAIN, TIMM, TRAIN, Peer
from tfds_torch.errors import TfdsTorchError
from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.beton.fields import BetonBytes, BetonField, BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.source import BetonSource
from tfds_torch.storage.beton.writer import BetonWriter

_MOST_PHOTOS = 512
_SHAPE = (3, 32, 32)
_PIXELS_FOR_A_PHOTO, _PNGS_FOR_A_PHOTO, _SAMPLES_FOR_A_PHOTO = 12, 5, 256
_TURNS_FOR_A_REPEAT = 4  # Epochs of some 0.1 s.
_PEERS = "benchmarks.peers"
_COLUMNS = [SPEED, OURS_BY_IT, replace(CPU, form="{:,.2f}"), VERY_FIRST_BATCH, FIRST_BATCH]
_MILLISECONDS = [replace(column, form="{:.3f}") if column.key.endswith("_s") else column for column in _COLUMNS[3:]]


def _writing(mode: str) -> Table:
    return Table(
        mode,
        f"photographs into a .beton file, {mode}",
        "The first photographs, {num_photos:,} of them (JPEG, about 500x375), image and label, with all cores; we wait "
        "until the disk has them, FFCV does not. Writers take turns, each in a fresh process, whose imports are not "
        "counted.",
        "writer",
        [
            Column("photos_per_s", "photographs/s"),
            Column("ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("photos_per_s", of=OURS)),
        ],
    )


WRITING = {mode: _writing(mode) for mode in exports.MODES}


def _pixels(work: str, title: str) -> Comparison:
    table = Table(
        work,
        title,
        "uint8 [32, 32, 3] in one `.beton` file in the page cache, in a random order, whole epochs in batches of 256, "
        "nothing dropped; every byte of a batch is read. A warm-up epoch is not counted, but its first batch is told: "
        "what FFCV compiles is in it, and what is imported before is not.",
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
        Peer(OURS, "tfds_torch, decoded cache", f"{_PEERS}.decoded_cache:load"),
        Peer(TIMM, "timm create_loader", f"{_PEERS}.timm_loader:load"),
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


def measure_beton(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `export` that are of `.beton` files."""
    num_photos = min(run.settings.num_photos, _MOST_PHOTOS)
    for mode, table in WRITING.items():
        took_s: dict[str, list[float]] = {OURS: [], FFCV: []}
        missing: dict[str, str] = {}
        for number in range(run.settings.num_repeats):
            run.say(f"writing photographs, {mode}, {number + 1} of {run.settings.num_repeats}")
            for name in [one for one in took_s if one not in missing]:
                try:
                    took_s[name].append(_write(name, run.data_dir, mode, num_photos))
                except TfdsTorchError as error:
                    missing[name] = str(error).strip().splitlines()[-1]
        samples = {
            name: {} if name in missing else {"photos_per_s": [num_photos / one for one in own]}
            for name, own in took_s.items()
        }
        titles = {OURS: "tfds_torch", FFCV: f"FFCV, {'raw' if mode == 'raw' else 'jpg'}"}
        filled = table.fill(samples, titles, missing)
        yield replace(filled, note=table.note.format(num_photos=num_photos))


def _write(name: str, data_dir: Path, mode: str, num_photos: int) -> float:
    """Lets a writer have its turn, in a fresh process, and returns how long it took, seconds."""
    write: Callable[[str, str, str, int], float] = exports.export if name == OURS else exports.write_with_ffcv
    source = data_dir if name == OURS else converted(data_dir, "tar")
    with tempfile.TemporaryDirectory() as folder:
        return subprocess_call.call(write, str(source), str(Path(folder) / "images.beton"), mode, num_photos)


def measure_cached(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `cached`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run.say("writing small images")
        subprocess_call.call(write_pixels, name, run.settings.num_photos * _PIXELS_FOR_A_PHOTO)
        for comparison in PIXELS:
            yield compare(comparison, run, folder)
        yield compare(CACHE, run, folder / "cache")
        run.say("opening a file of many samples")
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


def measure_opening(folder: Path, num_samples: int) -> dict[str, float | None]:
    """Writes a file of so many samples where there is none yet, opens it in a fresh process, and returns the columns.

    Raises:
        TfdsTorchError: it cannot be written.
    """
    path = folder / f"{num_samples}.beton"
    if not path.exists():
        subprocess_call.call(_write_samples, str(path), num_samples)
    open_s, kept_bytes = subprocess_call.call(_open, str(path))
    return {
        "open_s": open_s,
        "kept_mb": kept_bytes and kept_bytes / 1e6,
        "kept_bytes": kept_bytes and kept_bytes / num_samples,
    }


def _write_samples(path: str, num_samples: int) -> None:
    with BetonWriter(path, {"text": BetonBytes(), "label": BetonInt()}, num_samples) as writer:
        for number in range(num_samples):
            writer.add((b"%d" % number, number), id=f"train/{number:08d}")


def _open(path: str) -> tuple[float, int | None]:
    """Returns seconds, with all pointers checked, and the resident memory that is kept, bytes."""
    before, began_s = resident_bytes(), time.perf_counter()
    source = BetonSource(path)
    source.check()
    took_s, after = time.perf_counter() - began_s, resident_bytes()
    source.close()
    return took_s, None if before is None or after is None else after[0] - before[0]
