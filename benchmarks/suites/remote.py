"""The suite `remote`: photographs from a server with a slow link, through a cache folder on this machine."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from benchmarks.file_server import Limits
from benchmarks.formats import tars_of
from benchmarks.machine import large_folder
from benchmarks.peer_process import Epoch, PeerProcess
from benchmarks.protocol import ENCODED, Task
from benchmarks.remote_bucket import BUCKET, DATASET, Served, fetcher_usages, served_photos
from benchmarks.served_folder import Ledger
from benchmarks.suites.epochs import LIMIT
from benchmarks.tables import Column, Ratio, Table
from benchmarks.turns import NUM_EXAMPLES, OURS, Peer, Run, Suite, last_line, turned
from tfds_torch.errors import TfdsTorchError, WorkerError

LIMITS = Limits(latency_s=0.04, connection_bytes_per_s=15e6, link_bytes_per_s=100e6)
LOCAL, NEW, RANKS, RESUMED, RESUMED_ALONE = "local", "new", "ranks", "resumed", "resumed_alone"
"""Rows: local files; this package where no index is known; with several ranks; in mid-epoch; likewise,
where nobody reads ahead for workers."""

NUM_RANKS = 4
_NUM_WARM = 3  # Epochs: one takes 4 s, give or take a tenth.
_STARTS = 3  # In each turn: they take 3 s, give or take half a second, and are compared by tenths.
_DATA = (".tfrecord", ".mds", ".bin", ".tar")

OURS_PEER = Peer(OURS, "tfds_torch", "ours_remote")
_WEBDATASET = Peer("webdataset", "WebDataset over HTTP", "webdataset_tar", files="tars")
_PEERS = (
    OURS_PEER,
    replace(OURS_PEER, name=LOCAL, title="tfds_torch, local files"),
    Peer("streaming", "MosaicML Streaming", "streaming_mds", files="own"),
    Peer("litdata", "litData", "litdata_chunks", files="own"),
    _WEBDATASET,
    replace(_WEBDATASET, name="webdataset_cached", title="WebDataset, with a cache"),
    LIMIT,
)
_LINK = "40 ms to the first byte of an answer, {connection_mb:,.0f} MB/s a connection, {link_mb:,.0f} MB/s together"
_FETCHED = Column("fetched", "bytes fetched, x the split", "{:.4f}", has_spread=False)

PIXELS = Table(
    "pixels",
    "photographs a second, from a server",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, with the work of the suite `jpeg`; batches of {batch_size}, in "
    f"{{num_workers}} workers. The link: {_LINK}. In turn, each is started anew with an empty cache folder: its first "
    "epoch is the cold one, which also fetches what it needs to know of the files; the warm ones follow in the same "
    "process. Streaming and litData read files that were converted before; the conversion is not counted.",
    "competitor",
    [
        Column("cold_per_s", "cold, examples/s"),
        Column("cold_ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("cold_per_s", of=OURS)),
        Column("start_s", "process start to first batch, cold, s", "{:.2f}"),
        Column("start_by_ours", "x tfds_torch", "{:.2f}", ratio=Ratio("start_s", by=OURS)),
        Column("warm_per_s", "warm, examples/s"),
        Column("warm_ours_by_it", "tfds_torch by it", "{:.2f}", ratio=Ratio("warm_per_s", of=OURS)),
        _FETCHED,
        Column("warm_fetched", "in a warm epoch, x the split", "{:.4f}", has_spread=False),
        replace(NUM_EXAMPLES, heading="examples an epoch"),
    ],
)
BYTES = Table(
    "bytes",
    "encoded images, nothing decoded",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, shuffled, "
    f"without workers, over the first table's link. Each is started anew with an empty cache folder; {NUM_RANKS} "
    "ranks share one. Memory of the fetcher: the most that "
    "was resident; its processor time is that of the cold epoch.",
    "reader",
    [
        Column("mb_per_s", "cold, MB/s"),
        Column("by_link", "x the link", "{:.3f}"),
        _FETCHED,
        Column("lost", "examples lost or twice", has_spread=False),
        Column("warm_requests", "requests for data in the next epoch", has_spread=False),
        Column("warm_mb_per_s", "next epoch, MB/s"),
        Column("fetcher_mb", "fetcher, MB"),
        Column("fetcher_cpu", "fetcher, processor s/GB", "{:.2f}"),
    ],
)
FIRST = Table(
    "first",
    "how training begins",
    "{num_examples:,} photographs, {megabytes:,.0f} MB, in {num_workers} workers, over the same link; each in a fresh "
    "process with an empty cache folder, metadata included. With an index: an earlier epoch has left it on this "
    "machine. Resumed: by a state in the middle of an epoch, with an index. Without one, the first window draws from "
    "all files, so that the time of the link for the whole split is the bound. Bytes are counted when the batch has "
    "come to the training loop: with workers, they are those of all batches that are read at the same time.",
    "beginning",
    [
        Column("start_s", "process start to first batch, s", "{:.2f}"),
        Column("beyond_s", "beyond local files, s", "{:.2f}"),
        Column("by_window", "beyond, x the link's time for the first window", "{:.2f}"),
        Column("before", "bytes sent before it, x those of a batch", "{:.2f}"),
    ],
)
Figures = dict[str, list[float | None]]


@dataclass(frozen=True)
class GroupEpoch:
    """An epoch of one or several ranks.

    Attributes:
        ranks: figures of each.
        ledger: what the server did meanwhile.
        fetchers: most memory, bytes, and processor seconds so far, of each fetcher that lives.
    """

    ranks: Sequence[Epoch]
    ledger: Ledger
    fetchers: Sequence[tuple[int, float]] = ()

    @property
    def whole_s(self) -> float:
        """From the first rank's beginning to the last one's end."""
        reports = [rank.report for rank in self.ranks]
        if not all("ended_at" in report for report in reports):
            return max(rank.whole_s for rank in self.ranks)
        return float(max(report["ended_at"] for report in reports) - min(report["began_at"] for report in reports))

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

    def lost_or_twice(self, num_examples: int) -> float:
        """Returns how many examples all ranks lack, and how many came again."""
        numbers = [number for batch in self.global_batches() for number in batch]
        return float(num_examples - len(set(numbers)) + len(numbers) - len(set(numbers)))


def is_data(path: str) -> bool:
    """Whether a path of the server is of a file with examples."""
    name = path.rpartition("/")[2]
    return any(suffix in name for suffix in _DATA) and not name.endswith((".json", ".index"))


@dataclass
class Rows:
    """The rows of a table, which are measured one after the other; one that fails takes no further turn.

    Args:
        run: how much is measured.
        served: the server.
        table: without rows.
        titles: row -> title.
    """

    run: Run
    served: Served
    table: Table
    titles: Mapping[str, str]
    samples: dict[str, Figures] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def measure(self, number: int, figures_of: Callable[[str, Path], Mapping[str, Sequence[float | None]]]) -> None:
        """Measures each row in a turn; `figures_of` gets its name and an empty cache folder, which is removed."""
        for name in turned(self.titles, number):
            if name in self.missing:
                continue
            self.run.show_progress(f"{self.table.title}, turn {number + 1}: {self.titles[name]}")
            cache = self.served.new_folder("cache")
            try:
                for key, values in figures_of(name, cache).items():
                    self.samples.setdefault(name, {}).setdefault(key, []).extend(values)
            except TfdsTorchError as error:
                self.missing[name], self.samples[name] = last_line(error), {}
            finally:
                shutil.rmtree(cache)

    def fill(self) -> Table:
        """Returns the table."""
        samples = {name: self.samples.get(name, {}) for name in self.titles}
        limits = self.served.limits
        facts = vars(self.run.settings) | {
            "num_examples": self.served.num_examples,
            "megabytes": self.served.split_bytes / 1e6,
            "link_mb": (limits.link_bytes_per_s or 0.0) / 1e6,
            "connection_mb": (limits.connection_bytes_per_s or 0.0) / 1e6,
        }
        return self.table.fill(samples, self.titles, self.missing, **facts)


def task_of(run: Run, served: Served, cache: Path, work: str = "train", **options: Any) -> Task:
    """Returns the work of an epoch over what is served, by one process; encoded images are read without workers."""
    fields: dict[str, Any] = {"image_shape": None, "num_workers": 0} if work == ENCODED else {}
    options = {"cache_dir": str(cache), **options}
    return run.task(served.data_dir, served.num_examples, dataset=DATASET, work=work, options=options, **fields)


def local(task: Task, data_dir: Path) -> Task:
    """Returns the same work with local files."""
    options = {key: value for key, value in task.options.items() if key != "cache_dir"}
    return replace(task, data_dir=str(data_dir), dataset=DATASET.partition(":")[0], options=options)


def of_ranks(task: Task, num_ranks: int, served: Served) -> list[Task]:
    """Returns the work of each rank of an epoch that several share; they begin together."""
    meeting = str(served.new_folder("meeting"))
    more = [{"rank": rank, "num_ranks": num_ranks, "meeting_dir": meeting} for rank in range(num_ranks)]
    return [replace(task, options={**task.options, **one}) for one in more]


def run_epochs(
    run: Run,
    served: Served,
    peer: Peer,
    tasks: Sequence[Task],
    num_epochs: int = 1,
    home: Path | None = None,
) -> list[GroupEpoch]:
    """Runs epochs in fresh processes, one for each task, and ends them; where their cache folder is empty, one is cold.

    `home` has caches of indices; None: nothing is known yet.

    Raises:
        WorkerError: a process failed.
        StallError: an epoch took too long.
    """
    interpreter = run.interpreter_of(peer, XDG_CACHE_HOME=str(home or served.new_folder("home")))
    processes = [PeerProcess(peer.module, task, run.settings.timeout_s, interpreter) for task in tasks]
    has_failed = Event()

    def look() -> None:
        if has_failed.is_set():
            raise WorkerError("another rank of its epoch failed")

    def run_epoch() -> GroupEpoch:
        served.server.forget()
        with ThreadPoolExecutor(len(processes)) as pool:
            running = [pool.submit(process.run_epoch, look) for process in processes]
            try:
                for one in wait(running, return_when=FIRST_EXCEPTION).done:
                    one.result()
            except BaseException:  # The others may wait for it; each is ended by the thread that runs it.
                has_failed.set()
                raise
        fetchers = [usage for process in processes for usage in fetcher_usages(process.processes())]
        ranks = [one.result() for one in running]
        for rank in ranks:
            run.versions.update(rank.versions)
        return GroupEpoch(ranks, served.server.ledger(), fetchers)

    try:
        return [run_epoch() for _ in range(num_epochs)]
    finally:
        for process in processes:
            process.end()


def with_index(run: Run, served: Served) -> Path:
    """Returns a folder of caches, where an epoch that was read has left indices.

    Raises:
        TfdsTorchError: it could not be read.
    """
    home, cache = served.new_folder("home"), served.new_folder("cache")
    run_epochs(run, served, OURS_PEER, [task_of(run, served, cache, ENCODED)], home=home)
    shutil.rmtree(cache)
    return home


def measure_pixels(rows: Rows, ready: Mapping[str, Task], data_dir: Path) -> Table:
    """Starts each peer with an empty cache, in turns; `ready` has the files of those that have their own."""
    run, served = rows.run, rows.served
    peers = {peer.name: peer for peer in _PEERS}

    def figures_of(name: str, cache: Path) -> Figures:
        peer = peers[name]
        bucket = f"{served.server.url}/{BUCKET}"
        task = replace(
            task_of(run, served, cache, endpoint=served.server.url, bucket=BUCKET),
            **peer.changes,
            tars=ready[name].tars,
        )
        if name in (LOCAL, LIMIT.name):
            task = local(task, data_dir)
        elif peer.script == "webdataset_tar":
            cached = {"cache_dir": str(cache)} if name == "webdataset_cached" else {}
            task = replace(task, options={"url": f"{bucket}/tars", **cached})
        cold, *warm = run_epochs(run, served, peer, [task], 1 + _NUM_WARM)
        figures: Figures = {
            "warm_per_s": [epoch.ranks[0].examples_per_s for epoch in warm],
            "num_examples": [float(epoch.ranks[0].num_examples) for epoch in (cold, *warm)],
            "start_s": [cold.ranks[0].start_s],
        }
        if name not in (LOCAL, LIMIT.name):
            figures |= {
                "cold_per_s": [cold.ranks[0].examples_per_s],
                "fetched": [cold.data_bytes / served.split_bytes],
                "warm_fetched": [epoch.data_bytes / served.split_bytes for epoch in warm],
            }
        return figures

    for number in range(run.settings.num_repeats):
        rows.measure(number, figures_of)
    return rows.fill()


def measure_first(rows: Rows, data_dir: Path, home: Path) -> Table:
    """Starts training with and without an index, and in mid-epoch."""
    run, served = rows.run, rows.served
    local_s: dict[int, float] = {}
    middle = run.settings.num_photos // run.settings.batch_size // 2

    def figures_of(number: int, name: str, cache: Path) -> Figures:
        first_batch = middle if name in (RESUMED, RESUMED_ALONE) else 0
        options = {"most_batches": 1, "first_batch": first_batch, "ledger": served.server.ledger_url}
        task = task_of(run, served, cache, ENCODED if name == RESUMED_ALONE else "train", **options)
        if name == LOCAL:
            task = local(task, data_dir)
        own = None if name in (LOCAL, NEW) else home
        (epoch,) = run_epochs(run, served, OURS_PEER, [task], home=own)
        (rank,) = epoch.ranks
        start_s = rank.start_s or 0.0
        if name == LOCAL:
            local_s[number] = start_s
            return {"start_s": [start_s]}
        batch_bytes = served.split_bytes / served.num_examples * rank.num_examples
        figures: Figures = {"before": [rank.report["bytes_before"] / batch_bytes]}
        if name == RESUMED_ALONE:
            return figures
        figures["start_s"] = [start_s]
        if LOCAL not in rows.missing:
            # Rows of a turn are compared with local files of the same or the last turn.
            beyond_s = start_s - local_s[max(local_s)]
            window_s = served.split_bytes / (served.limits.link_bytes_per_s or float("inf"))
            figures |= {"beyond_s": [beyond_s], "by_window": [beyond_s / window_s]}
        return figures

    for number in range(_STARTS * run.settings.num_repeats):
        rows.measure(2 * number, partial(figures_of, number))  # Local files come first in every turn.
    return rows.fill()


def measure_bytes(rows: Rows, data_dir: Path) -> Table:
    """Reads encoded images, by one rank and by several."""
    run, served = rows.run, rows.served

    def figures_of(home: Path, name: str, cache: Path) -> Figures:
        task = task_of(run, served, cache, ENCODED)
        tasks = of_ranks(task, NUM_RANKS, served) if name == RANKS else [task]
        if name == LOCAL:
            tasks = [local(task, data_dir)]
        cold, warm = run_epochs(run, served, OURS_PEER, tasks, 2, home)
        speed, warm_speed = (served.split_bytes / epoch.whole_s for epoch in (cold, warm))
        if name == LOCAL:
            return {"warm_mb_per_s": [warm_speed / 1e6]}
        figures: Figures = {
            "mb_per_s": [speed / 1e6],
            "by_link": [speed / (served.limits.link_bytes_per_s or float("inf"))],
            "fetched": [cold.data_bytes / served.split_bytes],
        }
        memory, cpu_s = (sum(parts) for parts in zip(*cold.fetchers, strict=True)) if cold.fetchers else (None, None)
        return figures | {
            "lost": [cold.lost_or_twice(served.num_examples) + warm.lost_or_twice(served.num_examples)],
            "warm_requests": [warm.data_requests],
            "warm_mb_per_s": [warm_speed / 1e6],
            "fetcher_mb": [None if memory is None else memory / 1e6 / len(cold.fetchers)],
            "fetcher_cpu": [None if cpu_s is None else cpu_s / (cold.ledger.num_bytes / 1e9)],
        }

    for _ in range(run.settings.num_repeats):
        home = served.new_folder("home")  # What the row without an index leaves there, the next ones have.
        rows.measure(0, partial(figures_of, home))
    return rows.fill()


def _measure(run: Run) -> Iterator[Table]:
    data_dir = run.data_dir()
    task = run.task(data_dir, run.settings.num_photos)
    tars = tars_of(data_dir, "photos", run.settings.num_shards)
    ready: dict[str, Task] = {}
    missing: dict[str, str] = {}
    for peer in _PEERS:
        try:
            ready[peer.name] = run.task_of(peer, task)
        except TfdsTorchError as error:
            missing[peer.name] = last_line(error)
    others = {Path(one.files).name: Path(one.files) for one in ready.values() if one.files} | {"tars": tars}
    with large_folder() as folder, served_photos(folder, data_dir, run.settings.num_photos, LIMITS, others) as served:
        titles = {peer.name: peer.title for peer in _PEERS}
        yield measure_pixels(Rows(run, served, PIXELS, titles, missing=missing), ready, data_dir)
        titles = {
            LOCAL: "local files",
            NEW: "no index",
            OURS: "with an index",
            RESUMED: "resumed in mid-epoch",
            RESUMED_ALONE: "resumed, encoded images, no workers",
        }
        yield measure_first(Rows(run, served, FIRST, titles), data_dir, with_index(run, served))
        titles = {
            NEW: "tfds_torch, no index",
            OURS: "tfds_torch",
            RANKS: f"tfds_torch, {NUM_RANKS} ranks",
            LOCAL: "tfds_torch, local files",
        }
        yield measure_bytes(Rows(run, served, BYTES, titles), data_dir)


SUITE = Suite(
    "remote",
    "photographs from a server, through a cache on this machine",
    """A server on this machine delays each answer, and limits each connection and all of them together; its ledger says
    what was asked for and sent. This package reads TFRecord files from it as they are, over http; its competitors read
    the same encoded images in formats of their own. Every cold epoch begins with an empty cache folder in a fresh
    process, and an index is known only where a table says so. One peer runs at a time.""",
    _measure,
    own_venvs=("streaming", "litdata"),
)
