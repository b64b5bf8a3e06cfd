"""What the suite `remote` runs: a bucket behind a slow link, and competitors that read from it with empty caches."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event

import psutil
from filelock import FileLock

from benchmarks import bucket, machine
from benchmarks.competitor_process import CompetitorProcess
from benchmarks.environments import Environment, this_environment
from benchmarks.figures import EpochFigures
from benchmarks.file_server import Limits
from benchmarks.served_folder import Ledger, ServedFolder
from benchmarks.task import Peer, Task
from tfds_torch.errors import WorkerError

DATASET = "photos:1.0.0"
"""Its version is named, because a plain web server is not asked for what it has."""

_FETCHER = "tfds_torch.storage.remote.fetcher"
_DATA = (".tfrecord", ".mds", ".bin", ".tar")
_WRITE_S = 1800


@dataclass(frozen=True)
class Served:
    """A running server, and the dataset that it has.

    Attributes:
        server: it.
        dataset_dir: the dataset's folder, as the server sees it.
        split_bytes: of the split's files.
        num_examples: of the split.
        num_copies: how often each shard is in it.
        link_bytes_per_s: of the link.
        workplace: for caches; on the disk that holds the data.
    """

    server: ServedFolder
    dataset_dir: Path
    split_bytes: int
    num_examples: int
    num_copies: int
    link_bytes_per_s: float
    workplace: Path

    @property
    def data_dir(self) -> str:
        """The URL to give to `ParserTfds`."""
        return f"{self.server.url}/{bucket.BUCKET}/{bucket.TFDS}"

    def new_folder(self, name: str) -> Path:
        """Returns a new empty folder."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.workplace))


@contextmanager
def serve(
    data_dir: Path, num_examples: int, limits: Limits, num_copies: int = 1, others: Mapping[str, Path] | None = None
) -> Iterator[Served]:
    """Serves the photographs until the end.

    Args:
        data_dir: of the dataset `photos`.
        num_examples: of it.
        limits: of the link.
        num_copies: how often each shard is in the bucket.
        others: folder of the bucket -> files of another format.

    Raises:
        ConfigError: the bucket cannot be written.
        ServerError: the server does not start.
    """
    with machine.large_folder() as folder, ExitStack() as stack:
        root = folder / "served" / bucket.BUCKET
        dataset_dir = root / bucket.TFDS / "photos" / "1.0.0"
        size = bucket.link_dataset(data_dir / "photos" / "1.0.0", dataset_dir, num_copies)
        for name, source in (others or {}).items():
            bucket.link_files(source, root / name)
        server = stack.enter_context(ServedFolder(folder / "served", limits))
        workplace = folder / "caches"
        workplace.mkdir()
        link = limits.link_bytes_per_s or float("inf")
        yield Served(server, dataset_dir, size, num_examples * num_copies, num_copies, link, workplace)


@dataclass(frozen=True)
class Epoch:
    """An epoch of one or several ranks.

    Attributes:
        ranks: figures of each.
        ledger: what the server did meanwhile.
        fetchers: most memory, bytes, and processor seconds so far, of each fetcher that lives.
        most_cached: bytes in the cache folder, when they were most; 0: nobody looked.
    """

    ranks: Sequence[EpochFigures]
    ledger: Ledger
    fetchers: Sequence[tuple[int, float]] = ()
    most_cached: int = 0

    @property
    def whole_s(self) -> float:
        """From the first rank's beginning to the last one's end."""
        reports = [rank.report for rank in self.ranks]
        if not all("ended_at" in report for report in reports):
            return max(rank.times.whole_s for rank in self.ranks)
        return float(max(report["ended_at"] for report in reports) - min(report["began_at"] for report in reports))

    @property
    def num_examples(self) -> int:
        """All examples that came."""
        return sum(rank.num_examples for rank in self.ranks)

    @property
    def data_bytes(self) -> int:
        """Bytes that the server sent of files with examples."""
        return sum(size for path, size in self.ledger.bytes_by_path.items() if is_data(path))

    @property
    def data_requests(self) -> int:
        """Requests for files with examples."""
        return sum(number for path, number in self.ledger.requests_by_path.items() if is_data(path))

    def global_batches(self) -> list[list[int]]:
        """Returns the numbers of the examples of each batch of all ranks together, sorted."""
        by_rank = [rank.report["numbers"] for rank in self.ranks]
        return [sorted(number for part in parts for number in part) for parts in zip(*by_rank, strict=True)]


def is_data(path: str) -> bool:
    """Whether a path of the server is of a file with examples."""
    name = path.rpartition("/")[2]
    return any(suffix in name for suffix in _DATA) and not name.endswith((".json", ".index"))


@dataclass
class Readers:
    """Processes that read one epoch together, each with its task; one for each rank.

    Args:
        peer: the competitor.
        tasks: one for each rank.
        timeout_s: of an epoch.
        server: whose ledger is read.
        environment: where they run.
        watched: a cache folder whose size is looked at meanwhile.
    """

    peer: Peer
    tasks: Sequence[Task]
    timeout_s: float
    server: ServedFolder
    environment: Environment = field(default_factory=this_environment)
    watched: Path | None = None

    def __post_init__(self) -> None:
        self._processes = [CompetitorProcess(self.peer, task, self.timeout_s, self.environment) for task in self.tasks]
        self._most_cached = 0
        self._has_failed = Event()

    def run_epoch(self) -> Epoch:
        """Runs an epoch in all of them.

        Raises:
            WorkerError: one failed.
            StallError: it took too long.
        """
        self.server.forget()
        self._most_cached = 0
        with ThreadPoolExecutor(len(self._processes)) as pool:
            running = [pool.submit(process.run_epoch, self._look) for process in self._processes]
            try:
                done, _ = wait(running, return_when=FIRST_EXCEPTION)
                for one in done:
                    one.result()
            except BaseException:  # The others may wait for it; each is ended by the thread that runs it.
                self._has_failed.set()
                raise
        ranks = [one.result() for one in running]
        self._look()
        fetchers = [usage for process in self._processes for usage in fetcher_usages(process.processes())]
        return Epoch(ranks, self.server.ledger(), fetchers, self._most_cached)

    def end(self) -> None:
        """Ends all of them."""
        for process in self._processes:
            process.end()

    def _look(self) -> None:
        if self._has_failed.is_set():
            raise WorkerError("another rank of its epoch failed")
        if self.watched is not None:
            self._most_cached = max(self._most_cached, disk_bytes(self.watched))


def run_epochs(readers: Readers, num_epochs: int) -> list[Epoch]:
    """Runs epochs in fresh processes and ends them; the first one is cold where their cache folder is empty.

    Raises:
        WorkerError: a process failed.
        StallError: an epoch took too long.
    """
    try:
        return [readers.run_epoch() for _ in range(num_epochs)]
    finally:
        readers.end()


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


def disk_bytes(folder: Path) -> int:
    """Returns what the files of a folder take on their disk; those that vanish meanwhile do not count."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(parent, name)).st_blocks * 512
    return size


def with_home(environment: Environment, home: Path) -> Environment:
    """Returns an environment whose caches of indices and the like are in a folder."""
    return replace(environment, environ={**environment.environ, "XDG_CACHE_HOME": str(home)})


def stream_format(file_format: str, tars: Path, environment: Environment) -> Path:
    """Returns the photographs in a format of `peers.stream_writers`; writes it first where need be.

    Args:
        file_format: `mds` or `litdata`.
        tars: the folder of our tar files, which is made anew when the photographs change.
        environment: has the format's package.

    Raises:
        WorkerError: the writer failed.
    """
    target = tars.with_name(f"{file_format}-{(tars / 'source.json').stat().st_mtime_ns:x}")
    with FileLock(target.with_name(f".{file_format}.lock")):
        if target.exists():
            return target
        for older in target.parent.glob(f"{file_format}-*"):
            shutil.rmtree(older)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as workplace:
            made = Path(workplace) / "made"
            made.mkdir()
            _write(file_format, tars, made, environment)
            made.rename(target)
    return target


def _write(file_format: str, tars: Path, target: Path, environment: Environment) -> None:
    command = [environment.executable, "-m", "benchmarks.peers.stream_writers", file_format, str(tars), str(target)]
    path = {"PYTHONPATH": os.pathsep.join(environment.path)}
    try:
        # A list, no shell: this package's own script.
        done = subprocess.run(  # noqa: S603
            command,
            env={**os.environ, **environment.environ, **path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_WRITE_S,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"{file_format} was not written within {_WRITE_S} s.") from None
    if done.returncode or not (target / "index.json").exists():
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise WorkerError(f"{file_format} could not be written: {' '.join(last)}")
