"""Writers of the suite `export`: this package's, FFCV's and WebDataset's, and `cp`. Each runs in a fresh process.

This package's export reads the TFRecord files, checks each record's checksum, writes tar files with a checksum of
their own, and waits until the disk has them. WebDataset's `ShardWriter` is used as its documentation does it, with
its defaults, in one process; it gets the same members, from memory. `cp` copies the TFRecord files in one process and
leaves them to the page cache; it is measured a second time with an fsync of each file. For a `.beton` file, ours
reads the TFRecord files; FFCV's reads tar files of the same JPEG files, which Pillow decodes, because its writer
takes no encoded images. Both write with all cores, `image` and `label`, in pages of the default size.
"""

import os
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from benchmarks import conversion
from tfds_torch.runtime.process_tree import process_tree

_LOOK_EVERY_S = 0.02

MODES = ("passthrough", "raw")
"""Of a `.beton` file. As JPEG: we keep the bytes, FFCV encodes again; and as pixels."""

Cost = tuple[float, float]
"""Seconds, and seconds of processor time of all processes."""


def export(data_dir: str, target: str, num_workers: int, num_shards: int) -> Cost:
    """Writes all photographs of a data dir with this package."""
    from tfds_torch import ParserTfds, export_dataset

    parser = ParserTfds(data_dir, "photos")
    parser.source.check()  # The index is there.
    return _time(
        lambda: export_dataset(parser, target, format="webdataset", num_workers=num_workers, num_shards=num_shards)
    )


def export_beton(source: str, target: str, mode: str, num_examples: int) -> Cost:
    """Writes the first photographs of a data dir as a `.beton` file with this package."""
    from tfds_torch import ParserTfds, export_dataset

    parser = ParserTfds(source, "photos", f"train[:{num_examples}]")
    fields = {"image": mode, "file_name": None}
    return _time(lambda: export_dataset(parser, target, format="beton", fields=fields, overwrite=True))


def write_with_ffcv(source: str, target: str, mode: str, num_examples: int) -> Cost:
    """Writes the first photographs of a folder of tar files as a `.beton` file with FFCV.

    Raises:
        ConfigError: FFCV is not installed, or cannot be loaded.
    """
    conversion.load_ffcv()
    images = conversion.DecodedImages(source)
    encoding = "raw" if mode == "raw" else "jpg"
    return _time(lambda: conversion.write_with_ffcv(images, Path(target), encoding, num_examples))


def copy(data_dir: str, target: str, is_synced: bool) -> Cost:
    """Copies the TFRecord files of the photographs."""
    files = tfrecord_files(Path(data_dir))
    folder = Path(target)
    folder.mkdir()

    def run() -> None:
        subprocess.run(["cp", *map(str, files), str(folder)], check=True)  # noqa: S603, S607 (the system's own cp)
        for path in (*(folder / file.name for file in files), folder) if is_synced else ():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return _time(run)


def write_with_webdataset(tars: str, target: str) -> Cost:
    """Writes the samples of a folder of tar files with WebDataset, as many into each shard."""
    import webdataset as wds

    shards = [_read_samples(path) for path in sorted(Path(tars).glob("*.tar"))]
    Path(target).mkdir()

    def run() -> None:
        with wds.ShardWriter(f"{target}/photos-%05d.tar", maxcount=max(map(len, shards)), verbose=0) as writer:
            for samples in shards:
                for sample in samples:
                    writer.write(sample)

    return _time(run)


def export_memory(data_dir: str, dataset: str, split: str, target: str, num_workers: int) -> list[int]:
    """Exports with this package, and looks at the memory of all processes meanwhile.

    Returns:
        Resident memory without files at its greatest, bytes: of this process, and of that worker which has most.
    """
    from tfds_torch import ParserTfds, export_dataset

    parser = ParserTfds(data_dir, dataset, split)
    parser.source.check()
    own, done, greatest = os.getpid(), threading.Event(), [0, 0]

    def look() -> None:
        while not done.wait(_LOOK_EVERY_S):
            for one in process_tree():
                with suppress(psutil.NoSuchProcess):
                    memory = one.memory_info()
                    greatest[one.pid != own] = max(greatest[one.pid != own], memory.rss - memory.shared)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        export_dataset(parser, target, format="webdataset", num_workers=num_workers, num_shards=num_workers)
    finally:
        done.set()
        watching.join()
    return greatest


def tfrecord_files(data_dir: Path) -> list[Path]:
    """Returns the shards of the photographs' split `train`."""
    return sorted((data_dir / "photos").glob("*/photos-train.tfrecord-*"))


def _read_samples(path: Path) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    with tarfile.open(path) as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            file = tar.extractfile(member)
            found.setdefault(key, {"__key__": key})[extension] = b"" if file is None else file.read()
    return list(found.values())


def _time(work: Callable[[], object]) -> Cost:
    began_s, used_s = time.perf_counter(), _cpu_s()
    work()
    return time.perf_counter() - began_s, _cpu_s() - used_s


def _cpu_s() -> float:
    return sum(os.times()[:4])
