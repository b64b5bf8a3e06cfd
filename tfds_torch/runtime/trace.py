"""Trace: where the time of a loader's threads went, in a file that Perfetto and chrome://tracing open."""

import json
import logging
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.atomic_file import AtomicFile, write_atomically
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.spans import DECODE, LANES, MAIN, MOST_OF_LOADER, MOST_OF_PROCESS, OTHER, NotedSpans, Span

_LARGEST_SHARE = 0.02  # Of the time between two writings at the end of an epoch, for the second one.
_APART_NS = 10
_NOTED = {"waiting": "batch", "consumer": "batch", "hand_over": "worker"}  # What the number of a span is.

_logger = logging.getLogger(__name__)


class Trace:
    """The trace of one loader: keeps the latest spans of its processes, and writes them to a file, whole or not at all.

    The file is in Chrome's trace event format: a row for each thread, `ts` in microseconds of the machine's monotonic
    clock, which the processes of a machine share. `MOST_OF_LOADER` spans are kept, and `MOST_OF_PROCESS` of each
    process: some 25 MB. Where older ones were dropped, the file begins when the spans of all processes are there.

    Only the process that made it writes. For one thread.

    Args:
        path: the file; its folder exists.
        about: name -> what the file says about the loader.

    Raises:
        ConfigError: the file cannot be written, or another open loader of this process writes to it.
    """

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any]) -> None:
        self.path = _check_path(path)
        self.about = dict(about)
        self._owner, self._is_closed = os.getpid(), False
        self._metrics: StageMetrics | None = None
        self._ended: list[_Process] = []
        self._complete_from = 0.0  # Spans that ended before were dropped.
        self._num_lost = 0
        self._written_at, self._took_s, self._num_written = float("-inf"), 0.0, -1
        self._place = self.path
        _claim(self)

    def name_rank(self, rank: int, num_replicas: int) -> None:
        """Lets each of several ranks write to a file of its own: `trace-rank1.json` in place of `trace.json`."""
        self.about |= {"rank": rank, "num_replicas": num_replicas}
        if num_replicas > 1:
            self.path = self._place.with_name(f"{self._place.stem}-rank{rank}{self._place.suffix}")

    def use(self, metrics: StageMetrics) -> None:
        """Goes on with another pool of processes; the spans of the one before are kept."""
        if self._metrics is not None and self._metrics is not metrics:
            self._ended += _processes_of(self._metrics)
            self._drop_oldest()
        self._metrics = metrics

    def note_epoch_end(self) -> None:
        """Writes the file at the end of an epoch, unless that would take a large share of the time since the latest."""
        if time.monotonic() - self._written_at >= self._took_s / _LARGEST_SHARE:
            self.write()

    def write(self) -> None:
        """Writes the file, if there is something new; that it cannot be written is logged, for training goes on."""
        if self._is_closed or os.getpid() != self._owner:
            return
        began_at = time.monotonic()
        processes = [*self._ended, *([] if self._metrics is None else _processes_of(self._metrics))]
        num_noted = self._num_lost + sum(len(one.noted) + one.noted.num_lost for one in processes)
        if num_noted in (0, self._num_written):
            return
        try:
            write_atomically(self.path, self._content(processes, num_noted))
            self._num_written = num_noted
        except OSError as error:
            _logger.warning("The trace %s could not be written: %s.", self.path, error)
        self._written_at = time.monotonic()
        self._took_s = self._written_at - began_at

    def close(self) -> None:
        """Writes the file for the last time; does nothing a second time."""
        self.write()
        self._is_closed, self._metrics = True, None
        self._ended.clear()

    @property
    def is_open(self) -> bool:
        """Whether this process may still write the file."""
        return not self._is_closed and os.getpid() == self._owner

    def _drop_oldest(self) -> None:
        """Drops processes that ended long ago, where there are more spans than are kept."""
        while len(self._ended) > 1 and sum(len(one.noted) for one in self._ended) > MOST_OF_LOADER:
            dropped = self._ended.pop(0).noted
            self._num_lost += len(dropped) + dropped.num_lost
            self._complete_from = max([self._complete_from, *(one.began_at + one.seconds for one in dropped.spans())])

    def _content(self, processes: "list[_Process]", num_noted: int) -> bytes:
        since = max([self._complete_from, *(one.noted.complete_from for one in processes)])
        kept = [(one, span) for one in processes for span in one.noted.spans() if span.began_at >= since]
        kept.sort(key=lambda one: one[1].began_at)
        del kept[:-MOST_OF_LOADER]
        about = self.about | {
            "num_spans": len(kept),
            "num_dropped": num_noted - len(kept),
            "most_spans": MOST_OF_LOADER,
            "most_spans_of_a_process": MOST_OF_PROCESS,
            "clock": "monotonic clock of this machine, microseconds",
        }
        events = ",\n".join(_events(kept))
        return f'{{"traceEvents":[\n{events}\n],"displayTimeUnit":"ms","otherData":{json.dumps(about)}}}\n'.encode()


class _Process(NamedTuple):
    """What a process of a loader did; worker -1 is the training process."""

    worker: int
    pid: int
    noted: NotedSpans


def _processes_of(metrics: StageMetrics) -> list[_Process]:
    """Returns the processes of a pool that have noted spans."""
    if metrics.spans is None:
        return []
    rows = [-1 if row == metrics.num_workers else row for row in range(metrics.num_workers + 1)]
    noted = [metrics.spans.read(row) for row in range(metrics.num_workers + 1)]
    pids = [metrics.pid(row) or 0 for row in range(metrics.num_workers + 1)]
    return [_Process(*one) for one in zip(rows, pids, noted, strict=True) if len(one[2])]


def _events(kept: list[tuple[_Process, Span]]) -> Iterator[str]:
    """Yields the events of a file, as JSON: the names of its rows, each with its spans."""
    pids = sorted({(one.worker, one.pid) for one, _ in kept})
    for place, (worker, pid) in enumerate(pids):
        name = "training process" if worker < 0 else f"worker {worker}"
        yield _metadata("process_name", pid, 0, {"name": f"{name} (pid {pid})"})
        yield _metadata("process_sort_index", pid, 0, {"sort_index": place})
    rows: dict[tuple[int, int, int, int], list[Span]] = {}
    for one, span in kept:
        rows.setdefault((one.worker, one.pid, span.kind, span.lane), []).append(span)
    other = max((pid for _, pid in pids), default=0)  # No thread has the number of a process but its main thread.
    for place, ((worker, pid, kind, lane), spans) in enumerate(sorted(rows.items())):
        tid = pid if kind == MAIN else other + 1 + place
        name = f"{LANES[kind]} {lane}" if kind in (DECODE, OTHER) else LANES[kind]
        name = "training loop" if worker < 0 and kind == MAIN else name
        yield _metadata("thread_name", pid, tid, {"name": name})
        yield _metadata("thread_sort_index", pid, tid, {"sort_index": place})
        for span, start_ns, stop_ns in _apart(spans):
            has_number = span.number >= 0 and span.name in _NOTED
            noted = f',"args":{{"{_NOTED[span.name]}":{span.number}}}' if has_number else ""
            yield (
                f'{{"name":"{span.name}","cat":"tfds_torch","ph":"X","ts":{_to_us(start_ns)},'
                f'"dur":{_to_us(stop_ns - start_ns)},"pid":{pid},"tid":{tid}{noted}}}'
            )


def _apart(spans: list[Span]) -> Iterator[tuple[Span, int, int]]:
    """Yields the spans of a row with their beginnings and ends, nanoseconds, which follow each other or are nested.

    Where one ends as another one begins, rounding could let them overlap, and Perfetto drops a span that is partly in
    another one: a few nanoseconds lie between them.
    """
    timed = [(round(one.began_at * 1e9), round((one.began_at + one.seconds) * 1e9), one) for one in spans]
    timed.sort(key=lambda one: (one[0], -one[1]))
    around: list[tuple[int, int]] = []  # The spans that the next one may lie in, the innermost last.
    for start_ns, stop_ns, span in timed:
        while around and around[-1][1] <= start_ns + _APART_NS:
            start_ns = max(start_ns, around.pop()[1] + _APART_NS)
        if around:
            start_ns = max(start_ns, around[-1][0] + _APART_NS)
            stop_ns = min(stop_ns, around[-1][1] - _APART_NS)
        stop_ns = max(start_ns, stop_ns)
        around.append((start_ns, stop_ns))
        yield span, start_ns, stop_ns


def _to_us(ns: int) -> str:
    """Returns nanoseconds as microseconds, exactly."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _metadata(name: str, pid: int, tid: int, args: Mapping[str, Any]) -> str:
    return json.dumps({"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args})


_open: "weakref.WeakValueDictionary[Path, Trace]" = weakref.WeakValueDictionary()


def _claim(trace: Trace) -> None:
    other = _open.get(trace.path)
    if other is not None and other.is_open:
        raise ConfigError(
            f"create_loader: trace={str(trace.path)!r} is written by another loader of this process that is still "
            f"open. Close that one first, or give each loader a file of its own."
        )
    _open[trace.path] = trace


def _check_path(path: str | os.PathLike[str]) -> Path:
    """Returns the path of a file that can be written, as an absolute one; ConfigError where it cannot."""
    place, asked = Path(os.path.abspath(os.path.expanduser(os.fspath(path)))), f"create_loader: trace={str(path)!r}"
    if not place.parent.is_dir():
        raise ConfigError(f"{asked}: there is no folder {str(place.parent)!r}. Make it, or name a file in another one.")
    if place.is_dir():
        raise ConfigError(f"{asked} is a folder, and a trace is a file, such as {str(place / 'trace.json')!r}.")
    try:
        AtomicFile(place).discard()
    except OSError as error:
        raise ConfigError(
            f"{asked} cannot be written ({error.strerror or error}): name a file in a folder that this user may write "
            f"to."
        ) from error
    return place
