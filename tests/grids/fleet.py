"""Rank processes that carry out many tasks one after the other, as torchrun would start them."""

import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil
from zygote import tensorflow_zygote

from grids.rank_process import Request, be_a_rank

MAX_RANKS = 4
_GRACE_S = 15.0  # For a process to end.
_STACKS_S = 5.0  # For a process to write down its stacks.

TORCHRUN = {
    "RANK": "{rank}",
    "WORLD_SIZE": "{num_replicas}",
    "LOCAL_RANK": "{rank}",
    "LOCAL_WORLD_SIZE": "{num_replicas}",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "{port}",
}
"""What torchrun sets."""


@dataclass(frozen=True)
class Place:
    """Where a function runs: given to it as first argument."""

    rank: int
    num_replicas: int
    port: int


@dataclass(frozen=True)
class Task:
    """`function(place, *args)`, called in every one of R rank processes.

    Attributes:
        function: a function of an importable module; what it returns is pickled.
        args: further arguments.
        num_replicas: R.
        reads: whether tensorflow runs in the ranks themselves: such processes are kept apart, as one that has run
            tensorflow is no parent for forked workers.
        environment: variables of every rank; `{rank}`, `{num_replicas}` and `{port}` are filled in.
        deadline_s: after which the ranks and their workers write down their stacks and are ended.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    num_replicas: int = 1
    reads: bool = False
    environment: Mapping[str, str] = field(default_factory=lambda: TORCHRUN)
    deadline_s: float = 60.0


@dataclass(frozen=True)
class Failure:
    """A task that some rank did not carry out; `text` tells each rank's end, with what it wrote."""

    text: str


@dataclass(eq=False)
class _Rank:
    pid: int
    link: Connection
    log: Path
    log_start: int = 0

    def new_log(self) -> str:
        return self.log.read_text(errors="replace")[self.log_start :]


@dataclass(eq=False)
class _Run:
    number: int
    task: Task
    ranks: list[_Rank]
    ends_at: float
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)


class Fleet:
    """Up to four ranks without tensorflow, and up to four that read by themselves. One thread, one process.

    Args:
        folder: for what the ranks write to standard error.
        max_ranks: how many ranks of a kind may be at work at the same time.
    """

    def __init__(self, folder: Path, max_ranks: int = MAX_RANKS) -> None:
        self.folder = folder
        self.max_ranks = max_ranks
        self._idle: dict[bool, list[_Rank]] = {False: [], True: []}
        self._num_busy = {False: 0, True: 0}
        self._ports = _free_ports()
        self._numbers = count()
        self._clean_logs: set[Path] = set()
        self._zygote = tensorflow_zygote()

    def close(self) -> None:
        """Ends every process."""
        for rank in [*self._idle[False], *self._idle[True]]:
            with suppress(BrokenPipeError):
                rank.link.send(None)  # Processes forked from ours may hold the link open.
            rank.link.close()
            self._exit_code(rank)
        self._idle = {False: [], True: []}

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, function: Callable[..., Any], *args: Any, **task: Any) -> list[Any]:
        """Returns what one task's ranks return; raises what went wrong as an AssertionError."""
        ((_, result),) = self.run([Task(function, args, **task)])
        assert not isinstance(result, Failure), result.text
        return result

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[int, list[Any] | Failure]]:
        """Yields (number of the task, its ranks' results), as they are completed.

        Tasks run at the same time as far as there are ranks. A failed task's ranks are replaced.
        """
        pending, running = list(enumerate(tasks)), []
        try:
            while pending or running:
                for item in list(pending):
                    number, task = item
                    if self._num_busy[task.reads] + task.num_replicas <= self.max_ranks:
                        pending.remove(item)
                        running.append(self._start(number, task))
                _receive_some(running)
                now = time.monotonic()
                for run in list(running):
                    is_done = len(run.results) == run.task.num_replicas
                    if is_done or run.errors or now >= run.ends_at:
                        running.remove(run)
                        yield run.number, self._finish(run, is_done)
        finally:  # The caller may have lost interest, or been interrupted.
            for run in running:
                self._finish(run, is_done=False)

    def complaints(self) -> list[str]:
        """Returns lines that no rank should ever have written; those of failed tasks have been told with their end."""
        words = ("Traceback", "Exception ignored", "leaked", "ResourceWarning")
        lines = [line for log in sorted(self._clean_logs) for line in log.read_text().splitlines()]
        return [line for line in lines if any(word in line for word in words)]

    def _start(self, number: int, task: Task) -> _Run:
        ranks = [self._take_rank(task.reads) for _ in range(task.num_replicas)]
        port = next(self._ports)
        for at, rank in enumerate(ranks):
            values = {"rank": at, "num_replicas": task.num_replicas, "port": port}
            environment = {name: text.format(**values) for name, text in task.environment.items()}
            rank.log_start = rank.log.stat().st_size
            rank.link.send(
                Request(task.function, (Place(**values), *task.args), environment, ceil(task.deadline_s + 3 * _GRACE_S))
            )
        return _Run(number, task, ranks, time.monotonic() + task.deadline_s)

    def _take_rank(self, reads: bool) -> _Rank:
        self._num_busy[reads] += 1
        # The first ones: what they have started (a fork server) serves again.
        idle = sorted(self._idle[reads], key=lambda rank: rank.log)
        if not idle:
            return self._fork_rank()
        self._idle[reads].remove(idle[0])
        return idle[0]

    def _fork_rank(self) -> _Rank:
        log = self.folder / f"rank-{next(self._numbers):03}.log"
        log.touch()
        self._clean_logs.add(log)
        pid, link = self._zygote.fork(be_a_rank, str(log))
        return _Rank(pid, link, log)

    def _finish(self, run: _Run, is_done: bool) -> list[Any] | Failure:
        self._num_busy[run.task.reads] -= run.task.num_replicas
        if is_done:
            self._idle[run.task.reads] += run.ranks
            return [run.results[place] for place in range(run.task.num_replicas)]
        return Failure("\n".join(self._describe_end(run, place, rank) for place, rank in enumerate(run.ranks)))

    def _describe_end(self, run: _Run, place: int, rank: _Rank) -> str:
        """Ends a rank of a failed task and tells what it did."""
        if place in run.results:
            how = "completed"
        else:
            how = run.errors.get(place) or ("was still at work" if run.errors else "did not end in time")
        _end_with_stacks(rank, with_stacks=place not in run.results | run.errors)
        rank.link.close()
        self._clean_logs.discard(rank.log)
        exit_code = self._exit_code(rank)
        how = f"ended with exit code {exit_code}" if how == _GONE else how
        return f"rank {place} (pid {rank.pid}): {how}\n{rank.new_log()}"

    def _exit_code(self, rank: _Rank) -> int:
        return self._zygote.wait(rank.pid)


_GONE = "gone"


def _end_with_stacks(rank: _Rank, *, with_stacks: bool) -> None:
    """Ends a rank and its workers, after they have written down what they are doing."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(rank.pid)
        tree = [process, *process.children(recursive=True)]
        for one in tree if with_stacks else ():
            size = len(rank.new_log())
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGUSR1)  # What has no handler for it (multiprocessing's trackers) ends.
                give_up_at = time.monotonic() + _STACKS_S
                before = -1
                while _is_running(one) and time.monotonic() < give_up_at:
                    now = len(rank.new_log())
                    if size < now == before:  # All of it is there.
                        break
                    before = now
                    time.sleep(0.05)
        for one in tree:
            with suppress(psutil.NoSuchProcess):
                one.kill()


def _is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def _receive_some(running: Sequence[_Run]) -> None:
    """Waits for the next results, or for the next deadline."""
    links = {rank.link: (run, place) for run in running for place, rank in enumerate(run.ranks)}
    open_links = [link for link, (run, place) in links.items() if place not in run.results | run.errors]
    for link in wait(open_links, max(0.0, min(run.ends_at for run in running) - time.monotonic())):
        assert isinstance(link, Connection)
        run, place = links[link]
        try:
            is_result, value = link.recv()
        except (EOFError, ConnectionResetError):
            is_result, value = False, _GONE
        (run.results if is_result else run.errors)[place] = value


def _free_ports() -> Iterator[int]:
    """Yields ports of the loopback that nobody listens on, outside of the range that the kernel gives away."""
    first = 12_000 + os.getpid() * 37 % 18_000
    for offset in count():
        port = 12_000 + (first - 12_000 + offset) % 18_000
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        yield port
