"""Of the suite `export`: a dataset written as tar files, tar files read by number, and the index that this takes.

A copy of files is what an export can be held against, because both read and write about the same bytes. Where these go
to a disk, we wait for the disk, and `cp` does not: `cp` with an fsync of each file is the fair comparison there, and
plain `cp` stands beside it without a target. WebDataset's writer takes what lies ready in memory, and waits
for no disk.
"""

import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import platformdirs

from benchmarks.comparison import Comparison, compare
from benchmarks.figures import CPU, FIRST_BATCH, OURS_BY_IT, SPEED
from benchmarks.peers import tar_exports
from benchmarks.suite import Run
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import OURS, WEBDATASET, Peer
from tfds_torch import demo
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.limits import num_cores
from tfds_torch.storage.webdataset.source import WebDatasetSource
from tfds_torch.storage.webdataset.writer import BLOCK_BYTES, RECORD_BYTES, member_header

IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of random name is made in it)
ONE, CP, CP_SYNCED, SHARD_WRITER, TFRECORD = "ours_1", "cp", "cp_synced", "shard_writer", "tfrecord"

_TURNS_FOR_A_REPEAT, _EPOCHS_FOR_A_REPEAT, _MOST_OPENINGS = 4, 2, 5
_FEW_FOR_A_PHOTO, _MANY_FOR_A_PHOTO = 2.5, 10
_FULL_PHOTOS, _MEMBERS = 4096, 100_000
_IMAGE_BYTES = {"small": 2_000, "large": 100_000}
_LABEL_BYTES = 1
_PEERS = "benchmarks.peers"


def _writing(name: str, where: str, note: str) -> Table:
    return Table(
        name,
        f"photographs as tar files {where}",
        "The TFRecord files of {num_photos:,} photographs ({megabytes:,.0f} MB, {num_shards} shards, in the page "
        f"cache), as many tar files; MB of these TFRecord files a second. {note} Writers take turns, each in a fresh "
        "process, whose imports are not counted, after a turn of each that is not counted; before every turn, what was "
        "written before is gone, and nothing waits for the disk.",
        "writer",
        [
            Column("mb_per_s", "MB/s"),
            Column("ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("mb_per_s", of=OURS)),
            Column("cpu_s", "processor time, s", "{:.2f}"),
        ],
    )


WRITING = {
    "in_memory": _writing("in_memory", "in memory", "The target is a file system in memory (/dev/shm)."),
    "on_disk": _writing(
        "on_disk",
        "on a disk",
        "The target is the disk that has the user's cache folder. tfds_torch and `cp` with fsync wait until the disk "
        "has all files; `cp` and ShardWriter do not.",
    ),
}
MEMORY = Table(
    "memory",
    "memory of an export",
    "32x32 PNG images (cifar10 with made-up content) as tar files, with all cores; resident memory without mapped "
    "files, at its greatest; what a fork shares counts in full.",
    "examples",
    [
        Column("worker_mb", "a worker, MB", "{:,.1f}"),
        Column("parent_mb", "the process that exports, MB", "{:,.1f}"),
        Column("worker_growth", "a worker, x that with few", "{:.2f}", ratio=Ratio("worker_mb", by="few")),
        Column("parent_growth", "that process, x that with few", "{:.2f}", ratio=Ratio("parent_mb", by="few")),
    ],
)
READING = Comparison(
    Table(
        "reading",
        "tar files read by number",
        "The work of the suite `jpeg`. Both rows of tfds_torch are whole batches, shuffled among all photographs; "
        "WebDataset reads the same tar files, with its own shuffle and Pillow, as in that suite.",
        "competitor",
        [SPEED, OURS_BY_IT, CPU, FIRST_BATCH],
    ),
    (
        Peer(OURS, "tfds_torch, tar files", f"{_PEERS}.ours_fused:load_tars"),
        Peer(TFRECORD, "tfds_torch, TFRecord", f"{_PEERS}.ours_fused:load"),
        Peer(WEBDATASET, "WebDataset, tar files", f"{_PEERS}.webdataset_tar:load"),
    ),
    turns_for_a_repeat=_EPOCHS_FOR_A_REPEAT,
)
INDEXING = Table(
    "indexing",
    "the index of a tar file",
    "One tar file of {num_members:,} members, an image and a label in turn, in the page cache; in fresh processes, "
    "whose imports are not counted. tarfile is Python's, which visits all members and keeps none.",
    "reader and images",
    [Column("index_s", "all members, s", "{:.2f}"), Column("open_ms", "once indexed, ms", "{:.1f}")],
)


def measure_tars(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite `export` that are of tar files."""
    with _workplace() as folder:
        tars = folder / "tars"
        run.say("exporting")
        subprocess_call.call(tar_exports.export, str(run.data_dir), str(tars), num_cores(), run.settings.num_shards)
        if os.access(IN_MEMORY, os.W_OK):
            with tempfile.TemporaryDirectory(dir=IN_MEMORY) as memory:
                yield measure_writing(WRITING["in_memory"], run, tars, Path(memory))
        yield measure_writing(WRITING["on_disk"], run, tars, folder)
        yield measure_memory(run, folder)
        yield compare(READING, run, tars)
        yield measure_indexing(run, folder)


def measure_writing(table: Table, run: Run, tars: Path, folder: Path) -> Table:
    """Lets all writers write into a folder, in turn.

    Args:
        table: without rows.
        run: how much.
        tars: what this package's export wrote.
        folder: where the others and it write now; nothing of that stays.
    """
    settings, source = run.settings, str(run.data_dir)
    files = tar_exports.tfrecord_files(run.data_dir)
    for path in files:  # Into the page cache.
        path.read_bytes()
    megabytes, target = sum(path.stat().st_size for path in files) / 1e6, folder / "written"
    place, num_shards = str(target), settings.num_shards
    cores = num_cores()
    writers: dict[str, tuple[str, Callable[..., tar_exports.Cost], tuple[object, ...]]] = {
        OURS: (f"tfds_torch, {cores} workers", tar_exports.export, (source, place, cores, num_shards)),
        ONE: ("tfds_torch, 1 worker", tar_exports.export, (source, place, 1, num_shards)),
        CP: ("cp", tar_exports.copy, (source, place, False)),
        CP_SYNCED: ("cp, fsync of each file", tar_exports.copy, (source, place, True)),
        SHARD_WRITER: ("WebDataset's ShardWriter", tar_exports.write_with_webdataset, (str(tars), place)),
    }
    samples: dict[str, dict[str, list[float]]] = {name: {"mb_per_s": [], "cpu_s": []} for name in writers}
    missing: dict[str, str] = {}
    num_turns = settings.num_repeats * _TURNS_FOR_A_REPEAT
    for turn in range(1 + num_turns):
        run.say(f"{table.title}, {f'turn {turn} of {num_turns}' if turn else 'warm-up'}")
        for name in [one for one in writers if one not in missing]:
            _, write, arguments = writers[name]
            try:
                took_s, cpu_s = subprocess_call.call(write, *arguments)
            except TfdsTorchError as error:
                missing[name], samples[name] = str(error).strip().splitlines()[-1], {}
                continue
            finally:
                shutil.rmtree(target, ignore_errors=True)
                os.sync()
            if turn:
                samples[name]["mb_per_s"].append(megabytes / took_s)
                samples[name]["cpu_s"].append(cpu_s)
    note = table.note.format(num_photos=settings.num_photos, megabytes=megabytes, num_shards=num_shards)
    return replace(table.fill(samples, {name: one[0] for name, one in writers.items()}, missing), note=note)


def measure_memory(run: Run, folder: Path) -> Table:
    """Exports few and many small images, and looks at the processes."""
    settings, cores = run.settings, num_cores()
    few, many = (int(settings.num_photos * share) for share in (_FEW_FOR_A_PHOTO, _MANY_FOR_A_PHOTO))
    run.say("making small images")
    data_dir = demo.prepare_fake("cifar10", num_examples=many, num_shards=settings.num_shards, progress=False)
    samples = []
    for number in range(settings.num_repeats):
        run.say(f"memory, {number + 1} of {settings.num_repeats}")
        for name, num_examples in (("few", few), ("many", many)):
            target = folder / f"{name}-{number}"
            parent, worker = subprocess_call.call(
                tar_exports.export_memory, str(data_dir), "cifar10", f"train[:{num_examples}]", str(target), cores
            )
            shutil.rmtree(target)
            samples.append((name, {"worker_mb": worker / 1e6 or None, "parent_mb": parent / 1e6 or None}))
    return MEMORY.fill(collect(samples), {"few": f"{few:,}", "many": f"{many:,}"})


def measure_indexing(run: Run, folder: Path) -> Table:
    """Times this package and tarfile at all members of a tar file, and opening it again."""
    num_members = max(2, _MEMBERS * run.settings.num_photos // _FULL_PHOTOS // 2 * 2)
    samples: list[tuple[str, dict[str, float | None]]] = []
    titles: dict[str, str] = {}
    for size, image_bytes in _IMAGE_BYTES.items():
        path = folder / f"{size}.tar"
        write_empty(path, num_members // 2, image_bytes)
        titles |= {
            f"{reader}_{size}": f"{title}, {image_bytes / 1e3:.0f} KB"
            for reader, title in ((OURS, "tfds_torch"), ("tarfile", "tarfile"))
        }
        for number in range(min(_MOST_OPENINGS, run.settings.num_repeats)):
            run.say(f"the index of {num_members:,} members")
            cache = str(folder / f"cache-{size}-{number}")
            index_s, open_s = (subprocess_call.call(open_tar, str(path), cache) for _ in range(2))
            samples.append((f"{OURS}_{size}", {"index_s": index_s, "open_ms": open_s * 1e3}))
            visit_s = subprocess_call.call(visit_members, str(path))
            samples.append((f"tarfile_{size}", {"index_s": visit_s, "open_ms": None}))
        path.unlink()
    return replace(INDEXING.fill(collect(samples), titles), note=INDEXING.note.format(num_members=num_members))


def write_empty(path: Path, num_samples: int, image_bytes: int) -> None:
    """Writes a tar file whose images and labels are zeros, which take no room where the file system can do that."""
    with path.open("wb") as file:
        for number in range(num_samples):
            for extension, size in (("jpg", image_bytes), ("cls", _LABEL_BYTES)):
                file.write(member_header(f"{number:09d}.{extension}", size))
                file.seek(size + -size % BLOCK_BYTES, os.SEEK_CUR)
        file.write(bytes(RECORD_BYTES))


def open_tar(path: str, cache_dir: str) -> float:
    """Opens a tar file by its index, which is built where there is none, and returns how long it took, seconds."""
    os.environ["XDG_CACHE_HOME"] = cache_dir
    began_s = time.perf_counter()
    WebDatasetSource(path, {"image": "jpg", "label": "cls"})
    return time.perf_counter() - began_s


def visit_members(path: str) -> float:
    """Visits all members of a tar file with tarfile, and returns how long it took, seconds."""
    began_s = time.perf_counter()
    with tarfile.open(path, "r:") as tar:
        for _ in tar:
            tar.members = []  # type: ignore[attr-defined]  # As WebDataset does it; typeshed does not know it.
    return time.perf_counter() - began_s


@contextmanager
def _workplace() -> Iterator[Path]:
    """A folder for large files, on the disk that also holds datasets, and removed at the end."""
    parent = platformdirs.user_cache_path("tfds_torch") / "bench"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix="tars-") as folder:
            yield Path(folder)
    except OSError as error:
        raise ConfigError(f"The tar files cannot be written to {parent}: {error}.") from error
