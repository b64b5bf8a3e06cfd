"""The suite `export`: a dataset written as `.beton` and tar files, tar files read by number, and their index.

FFCV's writer takes pixels: it decodes photographs and encodes them again, where we keep their bytes. As pixels, both
decode, and write 0.6 MB for each. An export to tar files is compared with a copy, because both read and write about the
same bytes. An export to a disk waits for the disk, and `cp` does not: `cp` with an fsync of each file is the fair
comparison there, and plain `cp` stands beside it without a target. WebDataset's writer takes its samples from memory,
and waits for no disk.
"""

import os
import shutil
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from benchmarks.comparison import Comparison, compare
from benchmarks.conversion import converted
from benchmarks.figures import CPU, FIRST_BATCH, OURS_BY_IT, SPEED
from benchmarks.machine import large_folder
from benchmarks.peers import writers
from benchmarks.tables import Column, Ratio, Table, collect
from benchmarks.task import FFCV, OURS, WEBDATASET, Peer, Run
from tfds_torch import demo
from tfds_torch.errors import TfdsTorchError
from tfds_torch.runtime import subprocess_call
from tfds_torch.runtime.limits import num_cores
from tfds_torch.storage.webdataset.source import WebDatasetSource
from tfds_torch.storage.webdataset.writer import BLOCK_BYTES, RECORD_BYTES, member_header

IN_MEMORY = Path("/dev/shm")  # noqa: S108 (a folder of random name is made in it)
ONE, CP, CP_SYNCED, SHARD_WRITER, TFRECORD = "ours_1", "cp", "cp_synced", "shard_writer", "tfrecord"

_TURNS_FOR_A_REPEAT, _EPOCHS_FOR_A_REPEAT, _MOST_OPENINGS = 4, 2, 5
_FEW_FOR_A_PHOTO, _MANY_FOR_A_PHOTO = 2.5, 10
_MOST_BETON_PHOTOS = 512
_FULL_PHOTOS, _MEMBERS = 4096, 100_000
_IMAGE_BYTES = {"small": 2_000, "large": 100_000}
_LABEL_BYTES = 1
_PEERS = "benchmarks.peers"


_BY_IT = Column("ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("per_s", of=OURS))


def _beton(mode: str) -> Table:
    return Table(
        mode,
        f"photographs into a .beton file, {mode}",
        "The first photographs, {num_photos:,} of them (JPEG, about 500x375), image and label, with all cores; we wait "
        "until the disk has them, FFCV does not. Writers take turns, each in a fresh process, whose imports are not "
        "counted.",
        "writer",
        [Column("per_s", "photographs/s"), _BY_IT],
    )


def _tars(name: str, where: str, note: str) -> Table:
    return Table(
        name,
        f"photographs as tar files {where}",
        "The TFRecord files of {num_photos:,} photographs ({megabytes:,.0f} MB, {num_shards} shards, in the page "
        f"cache), as many tar files; MB of these TFRecord files a second. {note} Writers take turns, each in a fresh "
        "process, whose imports are not counted, after a turn of each that is not counted; before each turn, the files "
        "of the turn before are removed, and the disk is idle.",
        "writer",
        [Column("per_s", "MB/s"), _BY_IT, Column("cpu_s", "processor time, s", "{:.2f}")],
    )


BETON = {mode: _beton(mode) for mode in writers.MODES}
TARS = {
    "in_memory": _tars("in_memory", "in memory", "The target is a file system in memory (/dev/shm)."),
    "on_disk": _tars(
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
        Peer(OURS, "tfds_torch, tar files", f"{_PEERS}.ours:load_tars"),
        Peer(TFRECORD, "tfds_torch, TFRecord", f"{_PEERS}.ours:load"),
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


def measure_export(run: Run) -> Iterator[Table]:
    """Yields the tables of the suite."""
    yield from measure_beton(run)
    with large_folder() as folder:
        tars = folder / "tars"
        run.show_progress("exporting")
        subprocess_call.call(writers.export, str(run.data_dir), str(tars), num_cores(), run.settings.num_shards)
        if os.access(IN_MEMORY, os.W_OK):
            with tempfile.TemporaryDirectory(dir=IN_MEMORY) as memory:
                yield measure_tars(TARS["in_memory"], run, tars, Path(memory))
        yield measure_tars(TARS["on_disk"], run, tars, folder)
        yield measure_memory(run, folder)
        yield compare(READING, run, tars)
        yield measure_indexing(run, folder)


def measure_beton(run: Run) -> Iterator[Table]:
    """Yields a table for each mode of a `.beton` file."""
    num_photos, source = min(run.settings.num_photos, _MOST_BETON_PHOTOS), str(run.data_dir)
    tars = str(converted(run.data_dir, "tar"))
    for mode, table in BETON.items():
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "images.beton"
            ours = partial(writers.export_beton, source, str(target), mode, num_photos)
            theirs = partial(writers.write_with_ffcv, tars, str(target), mode, num_photos)
            titled = {OURS: ("tfds_torch", ours), FFCV: (f"FFCV, {'raw' if mode == 'raw' else 'jpg'}", theirs)}
            yield _write_in_turns(
                table, run, titled, num_photos, target, run.settings.num_repeats, num_photos=num_photos
            )


def measure_tars(table: Table, run: Run, tars: Path, folder: Path) -> Table:
    """Lets all writers of tar files write into a folder, in turn; the files are removed.

    Args:
        table: without rows.
        run: how much is measured.
        tars: holds the tar files that this package's export wrote.
        folder: the writers' target.
    """
    settings, source, cores = run.settings, str(run.data_dir), num_cores()
    files = writers.tfrecord_files(run.data_dir)
    for path in files:  # Into the page cache.
        path.read_bytes()
    megabytes, target = sum(path.stat().st_size for path in files) / 1e6, folder / "written"
    place, num_shards = str(target), settings.num_shards
    titled = {
        OURS: (f"tfds_torch, {cores} workers", partial(writers.export, source, place, cores, num_shards)),
        ONE: ("tfds_torch, 1 worker", partial(writers.export, source, place, 1, num_shards)),
        CP: ("cp", partial(writers.copy, source, place, False)),
        CP_SYNCED: ("cp, fsync of each file", partial(writers.copy, source, place, True)),
        SHARD_WRITER: ("WebDataset's ShardWriter", partial(writers.write_with_webdataset, str(tars), place)),
    }
    return _write_in_turns(
        table,
        run,
        titled,
        megabytes,
        target,
        settings.num_repeats * _TURNS_FOR_A_REPEAT,
        num_warm_ups=1,
        num_photos=settings.num_photos,
        megabytes=megabytes,
        num_shards=num_shards,
    )


def _write_in_turns(
    table: Table,
    run: Run,
    titled: Mapping[str, tuple[str, "partial[writers.Cost]"]],
    amount: float,
    target: Path,
    num_turns: int,
    num_warm_ups: int = 0,
    **in_note: float,
) -> Table:
    """Lets each writer write an amount of something, turn by turn; one that fails takes no further turn."""
    samples: dict[str, dict[str, list[float]]] = {name: {"per_s": [], "cpu_s": []} for name in titled}
    missing: dict[str, str] = {}
    for turn in range(1 - num_warm_ups, 1 + num_turns):
        run.show_progress(f"{table.title}, {f'turn {turn} of {num_turns}' if turn > 0 else 'warm-up'}")
        for name in [one for one in titled if one not in missing]:
            write = titled[name][1]
            try:
                took_s, cpu_s = subprocess_call.call(write.func, *write.args)
            except TfdsTorchError as error:
                missing[name], samples[name] = str(error).strip().splitlines()[-1], {}
                continue
            finally:
                shutil.rmtree(target, ignore_errors=True)
                os.sync()
            if turn > 0:
                samples[name]["per_s"].append(amount / took_s)
                samples[name]["cpu_s"].append(cpu_s)
    return table.fill(samples, {name: title for name, (title, _) in titled.items()}, missing, **in_note)


def measure_memory(run: Run, folder: Path) -> Table:
    """Exports few and many small images, and looks at the processes."""
    settings, cores = run.settings, num_cores()
    few, many = (int(settings.num_photos * share) for share in (_FEW_FOR_A_PHOTO, _MANY_FOR_A_PHOTO))
    run.show_progress("making small images")
    data_dir = demo.prepare_fake("cifar10", num_examples=many, num_shards=settings.num_shards, progress=False)
    samples = []
    for number in range(settings.num_repeats):
        run.show_progress(f"memory, {number + 1} of {settings.num_repeats}")
        for name, num_examples in (("few", few), ("many", many)):
            target = folder / f"{name}-{number}"
            parent, worker = subprocess_call.call(
                writers.export_memory, str(data_dir), "cifar10", f"train[:{num_examples}]", str(target), cores
            )
            shutil.rmtree(target)
            samples.append((name, {"worker_mb": worker / 1e6 or None, "parent_mb": parent / 1e6 or None}))
    return MEMORY.fill(collect(samples), {"few": f"{few:,}", "many": f"{many:,}"})


def measure_indexing(run: Run, folder: Path) -> Table:
    """Times this package and tarfile: all members of a tar file, and opening it again."""
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
            run.show_progress(f"the index of {num_members:,} members")
            cache = str(folder / f"cache-{size}-{number}")
            index_s, open_s = (subprocess_call.call(open_tar, str(path), cache) for _ in range(2))
            samples.append((f"{OURS}_{size}", {"index_s": index_s, "open_ms": open_s * 1e3}))
            visit_s = subprocess_call.call(visit_members, str(path))
            samples.append((f"tarfile_{size}", {"index_s": visit_s, "open_ms": None}))
        path.unlink()
    return INDEXING.fill(collect(samples), titles, num_members=num_members)


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
