"""The suite `export`: a dataset written as `.beton` and tar files, and tar files read by number.

FFCV's writer takes pixels: it decodes photographs and encodes them again, where we keep their bytes. As pixels, both
decode, and write 0.6 MB for each. An export to tar files is compared with a copy, because both read and write about the
same bytes. It reads the TFRecord files, checks each record's checksum, and waits until the disk has the tar files; `cp`
waits for no disk, so that `cp` with an fsync of each file is the fair comparison there. WebDataset's `ShardWriter` has
its defaults, takes its samples from memory, in one process, and waits for no disk.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.formats import tars_of
from benchmarks.machine import large_folder
from benchmarks.suites.epochs import TURNS, WEBDATASET
from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import (
    CPU,
    FIRST_BATCH,
    OURS,
    OURS_BY_IT,
    SPEED,
    Peer,
    Run,
    Suite,
    compare,
    seconds_of,
    write_in_turns,
)
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.limits import num_cores

IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of random name is made in it)
MODES = ("passthrough", "raw")
"""Of a `.beton` file. As JPEG: we keep the bytes, FFCV encodes again; and as pixels."""

_ROUNDS_FOR_A_REPEAT, _EPOCHS_FOR_A_REPEAT = 2, 2
_MOST_BETON_PHOTOS = 512
_BY_IT = Column("ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("per_s", of=OURS))
_TURNS = "Writers take turns, each in a fresh process, whose imports are not counted"

BETON = {
    mode: Table(
        mode,
        f"photographs into a .beton file, {mode}",
        "The first photographs, {num_photos:,} of them (JPEG, about 500x375), image and label, with all cores; we wait "
        f"until the disk has them, FFCV does not. {_TURNS}.",
        "writer",
        [Column("per_s", "photographs/s"), _BY_IT],
    )
    for mode in MODES
}


def _tars(name: str, where: str, note: str) -> Table:
    return Table(
        name,
        f"photographs as tar files {where}",
        "The TFRecord files of {num_photos:,} photographs ({megabytes:,.0f} MB, {num_shards} shards, in the page "
        f"cache), as many tar files; MB of these TFRecord files a second. {note} {_TURNS}, after a turn of each that "
        "is not counted; before each turn, the files of the turn before are removed, and the disk is idle.",
        "writer",
        [Column("per_s", "MB/s"), _BY_IT, Column("cpu_s", "processor time, s", "{:.2f}")],
    )


TARS_IN_MEMORY = _tars("in_memory", "in memory", "The target is a file system in memory (/dev/shm).")
TARS_ON_DISK = _tars(
    "on_disk",
    "on a disk",
    "The target is the disk that has the user's cache folder. tfds_torch and `cp` with fsync wait until the disk has "
    "all files; `cp` and ShardWriter do not.",
)
READING = Table(
    "reading",
    "tar files read by number",
    "The work of the suite `jpeg`. Both rows of tfds_torch are whole batches, shuffled among all photographs; "
    "WebDataset reads the same tar files, with its own shuffle and Pillow, as in that suite.",
    "competitor",
    [SPEED, OURS_BY_IT, CPU, FIRST_BATCH],
)
_READERS = (
    Peer(OURS, "tfds_torch, tar files", "ours", options={"source": "tars"}, files="tars"),
    Peer("tfrecord", "tfds_torch, TFRecord", "ours"),
    WEBDATASET,
)

Cost = tuple[float, float]
"""Seconds, and seconds of processor time of all processes."""


def _measure(run: Run) -> Iterator[Table]:
    data_dir, settings = run.data_dir(), run.settings
    tars = tars_of(data_dir, "photos", settings.num_shards)
    for mode in MODES:
        yield _measure_beton(run, mode, data_dir, tars)
    if os.access(IN_MEMORY, os.W_OK):
        with tempfile.TemporaryDirectory(dir=IN_MEMORY) as memory:
            yield _measure_tars(run, TARS_IN_MEMORY, data_dir, tars, Path(memory) / "written")
    with large_folder() as folder:
        yield _measure_tars(run, TARS_ON_DISK, data_dir, tars, folder / "written")
    task = run.task(data_dir, settings.num_photos)
    yield compare(run, READING, _READERS, task, rounds_for_a_repeat=_EPOCHS_FOR_A_REPEAT)


def _measure_beton(run: Run, mode: str, data_dir: Path, tars: Path) -> Table:
    number = min(run.settings.num_photos, _MOST_BETON_PHOTOS)
    encoding = "raw" if mode == "raw" else "jpg"
    with tempfile.TemporaryDirectory() as folder:
        target = f"{folder}/images.beton"
        writers = {
            OURS: ("tfds_torch", partial(_write, number, export_beton, str(data_dir), target, mode, number)),
            "ffcv": (
                f"FFCV, {encoding}",
                partial(_write, number, write_with_ffcv, str(tars), target, encoding, number),
            ),
        }
        return write_in_turns(run, BETON[mode], writers, run.settings.num_repeats, num_photos=number)


def _measure_tars(run: Run, table: Table, data_dir: Path, tars: Path, target: Path) -> Table:
    files, place, num_shards, cores = tfrecord_files(data_dir), str(target), run.settings.num_shards, num_cores()
    for path in files:  # Into the page cache.
        path.read_bytes()
    megabytes = sum(path.stat().st_size for path in files) / 1e6

    def writer(function: Callable[..., Cost], *arguments: object) -> Callable[[], Mapping[str, float]]:
        return partial(_write, megabytes, function, *arguments)

    def clear() -> None:
        shutil.rmtree(target, ignore_errors=True)
        os.sync()

    writers = {
        OURS: (f"tfds_torch, {cores} workers", writer(export_tars, str(data_dir), place, cores, num_shards)),
        "ours_1": ("tfds_torch, 1 worker", writer(export_tars, str(data_dir), place, 1, num_shards)),
        "cp": ("cp", writer(copy, str(data_dir), place, False)),
        "cp_synced": ("cp, fsync of each file", writer(copy, str(data_dir), place, True)),
        "shard_writer": ("WebDataset's ShardWriter", writer(write_with_webdataset, str(tars), place, num_shards)),
    }
    return write_in_turns(
        run,
        table,
        writers,
        run.settings.num_repeats * _ROUNDS_FOR_A_REPEAT,
        num_warm_ups=1,
        after=clear,
        **{**vars(run.settings), "num_shards": num_shards, "megabytes": megabytes},
    )


def _write(amount: float, function: Callable[..., Cost], *arguments: object) -> dict[str, float]:
    took_s, cpu_s = subprocess_call.call(function, *arguments)
    return {"per_s": amount / took_s, "cpu_s": cpu_s}


# The writers: each runs in a fresh process


def export_tars(data_dir: str, target: str, num_workers: int, num_shards: int) -> Cost:
    """Writes all photographs of a data dir as tar files with this package."""
    from tfds_torch import ParserTfds, export_dataset

    parser = ParserTfds(data_dir, "photos")
    parser.source.check()  # The index is there.
    return _cost(
        lambda: export_dataset(parser, target, format="webdataset", num_workers=num_workers, num_shards=num_shards)
    )


def export_beton(data_dir: str, target: str, mode: str, num_examples: int) -> Cost:
    """Writes the first photographs of a data dir as a `.beton` file with this package."""
    from tfds_torch import ParserTfds, export_dataset

    parser = ParserTfds(data_dir, "photos", f"train[:{num_examples}]")
    fields = {"image": mode, "file_name": None}
    return _cost(lambda: export_dataset(parser, target, format="beton", fields=fields, overwrite=True))


def write_with_ffcv(tars: str, target: str, mode: str, num_examples: int) -> Cost:
    """Writes the first photographs of a folder of tar files as a `.beton` file with FFCV.

    Raises:
        ConfigError: FFCV is not installed, or cannot be loaded.
    """
    from benchmarks.peers import ffcv_beton
    from tfds_torch.errors import ConfigError

    try:
        ffcv_beton.check()
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error} ({ffcv_beton.INSTALL})") from None
    images = ffcv_beton.DecodedImages(tars)
    return _cost(lambda: ffcv_beton.write(images, target, mode, num_examples))


def copy(data_dir: str, target: str, is_synced: bool) -> Cost:
    """Copies the TFRecord files of the photographs."""
    files, folder = tfrecord_files(Path(data_dir)), Path(target)
    folder.mkdir()

    def run() -> None:
        subprocess.run(["cp", *map(str, files), str(folder)], check=True)  # noqa: S603, S607 (the system's own cp)
        for path in (*(folder / file.name for file in files), folder) if is_synced else ():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return _cost(run)


def write_with_webdataset(tars: str, target: str, num_shards: int) -> Cost:
    """Writes the samples of a folder of tar files with WebDataset, about as many into each shard."""
    import webdataset as wds

    from benchmarks.transform import read_tars

    samples = [
        {"__key__": f"{number:09d}", "jpg": image, "cls": str(label).encode()}
        for number, (image, label) in enumerate(read_tars(tars))
    ]
    Path(target).mkdir()

    def run() -> None:
        most = -(-len(samples) // num_shards)
        with wds.ShardWriter(f"{target}/photos-%05d.tar", maxcount=most, verbose=0) as writer:
            for sample in samples:
                writer.write(sample)

    return _cost(run)


def tfrecord_files(data_dir: Path) -> list[Path]:
    """Returns the shards of the photographs' split `train`."""
    return sorted((data_dir / "photos").glob("*/photos-train.tfrecord-*"))


def _cost(work: Callable[[], object]) -> Cost:
    used_s = sum(os.times()[:4])
    return seconds_of(work), sum(os.times()[:4]) - used_s


SUITE = Suite(
    "export",
    "datasets in other formats",
    f"""This package's `export_dataset` against FFCV's `DatasetWriter`, copying the same files and WebDataset's
    `ShardWriter`; its ParserWebDataset against its ParserTfds and WebDataset; median (least to greatest). {TURNS}""",
    _measure,
)
