"""The bucket of the suite `remote`: photographs behind a slow link, and what processes that read from it take."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.file_server import Limits
from benchmarks.served_folder import ServedFolder

BUCKET = "bench"
DATASET = "photos:1.0.0"
"""Its version is named, because a plain web server is not asked for what it has."""

_TFDS = "tfds"
_FETCHER = "tfds_torch.storage.remote.fetcher"


@dataclass(frozen=True)
class Served:
    """A running server, and the dataset that it has.

    Attributes:
        server: it.
        split_bytes: of the split's files.
        num_examples: of the split.
        limits: of the link.
        workplace: for caches; on the disk that holds the data.
    """

    server: ServedFolder
    split_bytes: int
    num_examples: int
    limits: Limits
    workplace: Path

    @property
    def data_dir(self) -> str:
        """The URL to give to `ParserTfds`."""
        return f"{self.server.url}/{BUCKET}/{_TFDS}"

    def new_folder(self, name: str) -> Path:
        """Returns a new empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.workplace))


@contextmanager
def served_photos(
    folder: Path, data_dir: Path, num_examples: int, limits: Limits, others: Mapping[str, Path]
) -> Iterator[Served]:
    """Serves the photographs until the end.

    Args:
        folder: where the bucket and caches lie.
        data_dir: of the dataset `photos`.
        num_examples: of it.
        limits: of the link.
        others: folder of the bucket -> files of another format.

    Raises:
        ServerError: the server does not start.
    """
    root = folder / "served" / BUCKET
    for name, source in {f"{_TFDS}/photos": data_dir / "photos", **others}.items():
        shutil.copytree(source, root / name, copy_function=_link)
    size = sum(path.stat().st_size for path in root.rglob("*-train.tfrecord-*"))
    workplace = folder / "caches"
    workplace.mkdir()
    with ServedFolder(folder / "served", limits) as server:
        yield Served(server, size, num_examples, limits, workplace)


def _link(source: str | Path, target: str | Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # They are on different disks, or this one has no links.
        shutil.copyfile(source, target)


def fetcher_usages(processes: Sequence[psutil.Process]) -> list[tuple[int, float]]:
    """Returns the most memory so far, bytes, and the processor seconds of each fetcher of this package among them."""
    found = []
    for process in processes:
        with suppress(psutil.Error, OSError, StopIteration):
            if any(_FETCHER in part for part in process.cmdline()):
                times, status = process.cpu_times(), Path(f"/proc/{process.pid}/status").read_text()
                kilobytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
                found.append((1024 * kilobytes, times.user + times.system))
    return found
