"""Batches and times of a loader: reported by its processes, added up, and read as plain values."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from multiprocessing.context import get_spawning_popen
from typing import Any, TypeVar

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.examples_at_work import ExamplesAtWork

WORKER_STAGES = ("read", "download", "decode", "transform", "fetch", "collate", "hand_over")
"""The stages of a worker's work: `fetch` is all work of a dataset; the four stages before it are parts of `fetch`."""

STAGES = (*WORKER_STAGES, "device_copy")
"""The stages whose times processes report."""

_PID, _NUM_BEGUN, _IS_DONE, _BATCHES, _EXAMPLES, _REPLACED, _STARTED = range(7)
_STAGE_COLUMNS = {stage: number for number, stage in enumerate(STAGES, 7)}
_ROW = 7 + len(STAGES)
_MOST_SHOWN = 8  # Members in a line of text.
_PER_MEMBER = 2  # Examples and seconds of reading, after the stages.
T = TypeVar("T")


@dataclass(frozen=True)
class WorkerStats:
    """Counts and times of one worker process. All times are in seconds.

    Attributes:
        worker: number of the worker.
        pid: id of its process; None where it has not begun.
        batches: number of batches that it has made.
        examples: number of examples of these batches.
        read_s: time to read encoded examples, all threads together.
        decode_s: time to decode them, all threads together.
        transform_s: time in the transforms of its parser, and in transform and target_transform of an ImageDataset.
        fetch_s: time in its dataset, with the wait for its threads.
        collate_s: time to put batches together, and into shared memory.
        hand_over_s: time in which its batches were on their way while the training process waited for them.
        download_s: time to wait for bytes of an object store; `read_s` does not count it.
    """

    worker: int
    pid: int | None
    batches: int
    examples: int
    read_s: float
    decode_s: float
    transform_s: float
    fetch_s: float
    collate_s: float
    hand_over_s: float
    download_s: float = 0.0


@dataclass(frozen=True)
class MemberStats:
    """What a loader has read of one member of a mixture since the loader was made. All times are in seconds.

    Attributes:
        name: name of the member in the mixture.
        examples: number of examples that this rank's processes have read, also ahead.
        passes: number of passes over the member to which these amount.
        read_s: time to read them, all processes together.
    """

    name: str
    examples: int
    passes: float
    read_s: float


@dataclass(frozen=True)
class LoaderStats:
    """Counts and times of a loader since it was made. All times are in seconds.

    The times of stages are sums over all processes that have worked, including workers that have ended.

    Attributes:
        batches: number of batches that the training loop has got.
        examples: number of examples of these batches.
        examples_per_s: examples per second of the time in which the loop waited or worked; 0 before the first batch.
        read_s: time to read encoded examples, sum over all processes.
        decode_s: time to decode them, sum over all processes.
        transform_s: time in the transforms of the parser, and in transform and target_transform of an ImageDataset, sum
            over all processes.
        fetch_s: time in the dataset, with the wait for its threads, sum over all processes.
        collate_s: time to put batches together, and into shared memory, sum over all processes.
        hand_over_s: time in which batches of workers were on their way while the training process waited for them.
        device_copy_s: time to copy batches to the device and to normalise them.
        waiting_s: time in which the training loop waited for a batch.
        consumer_s: time in which the training loop worked: between a batch and its request for the next one.
        replaced: number of damaged examples whose places others took.
        workers: stats of the workers of the latest iteration; empty where the training process reads by itself.
        members: stats of the members of a mixture; empty where there is none.
        jpeg_decoder: name and version of the decoder of JPEG; None: no images of a Parser are read.
        download_s: time to wait for bytes of an object store, sum over all processes; `read_s` does not count it.
        downloaded_bytes: bytes that came from object stores since the loader was made, for all readers of this rank.
    """

    batches: int
    examples: int
    examples_per_s: float
    read_s: float
    decode_s: float
    transform_s: float
    fetch_s: float
    collate_s: float
    hand_over_s: float
    device_copy_s: float
    waiting_s: float
    consumer_s: float
    replaced: int = 0
    workers: tuple[WorkerStats, ...] = ()
    members: tuple[MemberStats, ...] = ()
    jpeg_decoder: str | None = None
    download_s: float = 0.0
    downloaded_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as a dict of plain values."""
        workers, members = [asdict(one) for one in self.workers], [asdict(one) for one in self.members]
        return asdict(self) | {"workers": workers, "members": members}

    def __str__(self) -> str:
        text = (
            f"{self.batches} batches, {self.examples} examples, {self.examples_per_s:.0f} examples/s; seconds: "
            f"waiting {self.waiting_s:.2f}, loop {self.consumer_s:.2f}, fetch {self.fetch_s:.2f} (read "
            f"{self.read_s:.2f}, decode {self.decode_s:.2f}, transform {self.transform_s:.2f}), collate "
            f"{self.collate_s:.2f}, hand-over {self.hand_over_s:.2f}, device copy {self.device_copy_s:.2f}"
        )
        if self.download_s or self.downloaded_bytes:
            text += f", download {self.download_s:.2f} ({self.downloaded_bytes / 1e6:.0f} MB)"
        if self.replaced:
            text += f"; {self.replaced} damaged examples replaced"
        if self.members:
            text += f"; passes: {', '.join(f'{one.name} {one.passes:.2f}' for one in self.members[:_MOST_SHOWN])}"
            text += f" and {len(self.members) - _MOST_SHOWN} more members" * (len(self.members) > _MOST_SHOWN)
        return text + (f"; JPEG by {self.jpeg_decoder}" if self.jpeg_decoder else "")


class StageMetrics:
    """Sums of seconds and counts, in memory that a training process shares with its workers.

    Every process has its own row: workers 0 to num_workers - 1, and the training process after them. Any thread of
    a process may report. They are inherited by forked workers and travel to spawned ones; other copies begin anew.

    Args:
        num_workers: number of workers.
        members: name of each member of a mixture -> number of its examples.

    Attributes:
        at_work: the examples that each process is at, by the same rows.
    """

    def __init__(self, num_workers: int, members: Mapping[str, int] | None = None) -> None:
        self.num_workers, self.members = num_workers, dict(members or {})
        # Of the spawn context: it can be handed to any kind of worker.
        self._numbers: Any = get_context("spawn").RawArray("d", self._width * (num_workers + 1))
        self.at_work = ExamplesAtWork(num_workers + 1)
        self.bind(num_workers)

    @property
    def _width(self) -> int:
        """Numbers of a row."""
        return _ROW + _PER_MEMBER * len(self.members)

    def bind(self, worker: int) -> None:
        """Let this process report as a worker; the number `num_workers` stands for the training process."""
        self._row = worker * self._width
        self._lock = threading.Lock()  # Not the parent's, which may have been held when this process was forked.
        self._numbers[self._row + _PID] = os.getpid()
        self.at_work.bind(worker)

    def add(self, stage: str, seconds: float) -> None:
        """Add the time that a stage took."""
        column = _STAGE_COLUMNS.get(stage)
        if column is None:
            raise ConfigError(f"There is no stage {stage!r}: the stages are {', '.join(STAGES)}.")
        self._add(self._row + column, seconds)

    def add_hand_over(self, worker: int, began_at: float, ended_at: float) -> None:
        """Add the time for which a worker's batch was on its way; only the training process reports it."""
        if ended_at > began_at:  # Else it came while another one was waited for.
            self._add(worker * self._width + _STAGE_COLUMNS["hand_over"], ended_at - began_at)

    def add_member(self, member: int, num_examples: int, seconds: float) -> None:
        """Count examples of a member of a mixture, by its number, and add the time that reading them took."""
        first = self._row + _ROW + _PER_MEMBER * member
        with self._lock:
            self._numbers[first] += num_examples
            self._numbers[first + 1] += seconds

    def add_batch(self, num_examples: int) -> None:
        """Count a batch that this process has made."""
        self._add(self._row + _BATCHES, 1)
        self._add(self._row + _EXAMPLES, num_examples)
        self.note_started()

    def note_reading(self, index: int) -> None:
        """Note the one example that this process is at from now on."""
        self.at_work.note(index)

    def note_started(self) -> None:
        """Note that this process has made its first batch, or will not make any."""
        self._numbers[self._row + _STARTED] = 1

    def has_started(self, worker: int) -> bool:
        """Return whether a worker has made its first batch, or will not make any."""
        return bool(self._numbers[worker * self._width + _STARTED])

    def note_replaced(self) -> None:
        """Count a damaged example whose place another one took."""
        self._add(self._row + _REPLACED, 1)

    def note_begun(self) -> None:
        """Note that an iteration has begun in this process."""
        self._numbers[self._row + _IS_DONE] = 0
        self.at_work.forget()
        self._add(self._row + _NUM_BEGUN, 1)

    def note_done(self) -> None:
        """Note that this process has read all of its part of an iteration."""
        self._numbers[self._row + _IS_DONE] = 1

    def is_done(self, worker: int) -> bool:
        """Return whether a worker has read all of its part of the iteration."""
        return bool(self._numbers[worker * self._width + _IS_DONE])

    def pid(self, worker: int) -> int | None:
        """Return the process id of a worker; None before it has reported."""
        return int(self._numbers[worker * self._width + _PID]) or None

    def num_begun(self, worker: int) -> int:
        """Return how many iterations a worker has begun."""
        return int(self._numbers[worker * self._width + _NUM_BEGUN])

    def reading(self, worker: int | None = None) -> int | None:
        """Return the index of the example that a worker is at, or was at last; of a chunk, that of its first example.

        Without a number of a worker, it is the example of this process.
        """
        work = self.at_work.of(self._row // self._width if worker is None else worker)
        chunks = [chunk.numbers[0] for chunk in work.chunks]
        return next((number for number in (work.example, *chunks, work.passed) if number is not None), None)

    def counts(self, worker: int) -> tuple[int, int]:
        """Return how many batches and examples a worker has made."""
        row = worker * self._width
        return int(self._numbers[row + _BATCHES]), int(self._numbers[row + _EXAMPLES])

    def seconds(self, worker: int) -> dict[str, float]:
        """Return stage -> seconds of a worker; the number `num_workers` stands for the training process."""
        return {stage: float(self._numbers[worker * self._width + column]) for stage, column in _STAGE_COLUMNS.items()}

    def totals(self) -> dict[str, float]:
        """Return stage -> seconds of all processes, and `replaced` -> damaged examples whose places others took."""
        columns = _STAGE_COLUMNS | {"replaced": _REPLACED}
        return {name: sum(self._numbers[column :: self._width]) for name, column in columns.items()}

    def member_totals(self) -> dict[str, tuple[int, float]]:
        """Return member -> the examples of it that all processes have read, and the seconds that this took."""
        first = range(_ROW, self._width, _PER_MEMBER)
        sums = [[sum(self._numbers[column :: self._width]) for column in (one, one + 1)] for one in first]
        return {name: (int(count), float(read_s)) for name, (count, read_s) in zip(self.members, sums, strict=True)}

    def _add(self, place: int, amount: float) -> None:
        with self._lock:
            self._numbers[place] += amount

    def __getstate__(self) -> dict[str, Any]:
        state = {"num_workers": self.num_workers, "members": self.members}
        if get_spawning_popen() is not None:
            state |= {"_numbers": self._numbers, "at_work": self.at_work}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_numbers" not in state:
            self.__init__(state["num_workers"], state["members"])  # type: ignore[misc]
            return
        self.__dict__.update(state)
        self._row, self._lock = self.num_workers * self._width, threading.Lock()  # Until it is bound.


class LoaderMetrics:
    """Counts batches and examples of a loader, and adds up the stages of its processes; each pool has its own sums."""

    def __init__(self) -> None:
        self.num_batches = self.num_examples = 0
        self._stages: StageMetrics | None = None
        self._ended: Counter[str] = Counter()  # Totals of the pools before.
        self._of_members: dict[str, tuple[int, float]] = {}  # Likewise, as `member_totals`.
        self._waiting_s = self._consumer_s = 0.0
        self._left_at: float | None = None

    def use(self, stages: StageMetrics) -> None:
        """Continue with the stages of another pool of processes."""
        if self._stages is not None and self._stages is not stages:
            self._ended.update(self._stages.totals())
            self._of_members = self._member_totals(self._stages)
        self._stages = stages

    def add(self, stage: str, seconds: float) -> None:
        """Add the time of a stage of the training process."""
        if self._stages is not None:
            self._stages.add(stage, seconds)

    def note_iteration(self) -> None:
        """Note that the training loop begins, or ends, an iteration: the time since the last batch is not its work."""
        self._left_at = None

    def enter(self) -> float:
        """Return the time at which the training loop asks for a batch."""
        now = time.monotonic()
        if self._left_at is not None:
            self._consumer_s += now - self._left_at
        return now

    def leave(self, asked_at: float, num_examples: int) -> None:
        """Count a batch that the training loop gets now."""
        self._left_at = time.monotonic()
        self._waiting_s += self._left_at - asked_at
        self.num_batches += 1
        self.num_examples += num_examples

    def add_waiting(self, asked_at: float) -> None:
        """Add the time in which the training loop waited and no batch came."""
        self._left_at = None
        self._waiting_s += time.monotonic() - asked_at

    def stats(self) -> LoaderStats:
        """Return the stats so far."""
        totals, metrics, workers = Counter(self._ended), self._stages, []
        if metrics is not None:
            totals.update(metrics.totals())
            workers = [_stats_of(metrics, worker) for worker in range(metrics.num_workers)]
        busy_s = self._waiting_s + self._consumer_s
        return LoaderStats(
            batches=self.num_batches,
            examples=self.num_examples,
            examples_per_s=self.num_examples / busy_s if busy_s else 0.0,
            **{f"{stage}_s": totals[stage] for stage in STAGES},  # type: ignore[arg-type]
            waiting_s=self._waiting_s,
            consumer_s=self._consumer_s,
            replaced=int(totals["replaced"]),
            workers=tuple(workers),
            members=() if metrics is None else self._member_stats(metrics),
        )

    def _member_totals(self, metrics: StageMetrics) -> dict[str, tuple[int, float]]:
        """Return the examples that all pools have read of each member, and the seconds that this took."""
        totals = metrics.member_totals()
        for name, (count, read_s) in self._of_members.items():
            totals[name] = totals[name][0] + count, totals[name][1] + read_s
        return totals

    def _member_stats(self, metrics: StageMetrics) -> tuple[MemberStats, ...]:
        totals = self._member_totals(metrics).items()
        return tuple(
            MemberStats(name, count, count / metrics.members[name], read_s) for name, (count, read_s) in totals
        )


def _stats_of(metrics: StageMetrics, worker: int) -> WorkerStats:
    (batches, examples), seconds = metrics.counts(worker), metrics.seconds(worker)
    return WorkerStats(
        worker, metrics.pid(worker), batches, examples, **{f"{stage}_s": seconds[stage] for stage in WORKER_STAGES}
    )


@dataclass(frozen=True)
class EpochTimes:
    """Seconds of one epoch of a loader: to its first batch, after its last batch, and of the whole epoch."""

    first_batch_s: float
    tail_s: float
    whole_s: float
    num_batches: int


class EpochTimer:
    """Keeps the times of the epochs that were iterated through it.

    It does not keep an epoch that is broken off or ends in an error. It is for one thread.
    """

    def __init__(self) -> None:
        self.epochs: list[EpochTimes] = []

    def time(self, loader: Iterable[T]) -> Iterator[T]:
        """Yield the batches of a loader in one epoch, and append the epoch's times to `epochs` at its end."""
        started = asked = time.perf_counter()
        first_batch_s = None
        num_batches = 0
        for batch in loader:
            if first_batch_s is None:
                first_batch_s = time.perf_counter() - started
            num_batches += 1
            yield batch
            del batch  # A batch that is still held would outlive the iteration that it belongs to.
            asked = time.perf_counter()
        ended = time.perf_counter()
        whole_s = ended - started
        self.epochs.append(
            EpochTimes(whole_s if first_batch_s is None else first_batch_s, ended - asked, whole_s, num_batches)
        )
