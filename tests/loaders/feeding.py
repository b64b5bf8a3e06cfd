"""Sources for the tests of Feeders, and what they have to look at."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from tfds_torch import Feeder
from tfds_torch.loaders.feed_batches import FeedBatches

PATIENCE_S = 30.0


def chunks_of(sizes: list[int], start: int = 0) -> list[list[np.ndarray]]:
    """Returns chunks of these sizes, `[x [n], y [n, 2]]`, whose rows are numbered one after the other."""
    chunks = []
    for size in sizes:
        rows = np.arange(start, start + size)
        chunks.append([rows, np.stack([rows, -rows], axis=1)])
        start += size
    return chunks


def rows_of(batches: Any) -> list[int]:
    """Returns the numbers of all rows, in order, having compared the arrays with each other."""
    rows: list[int] = []
    for batch in batches:
        assert np.array_equal(batch["y"], np.stack([batch["x"], -batch["x"]], axis=1))
        rows += batch["x"].tolist()
    return rows


def fetching(sizes: list[int]) -> Callable[[int, int], Any]:
    """Returns a fetch function that hands out chunks of these sizes to whoever asks, until there are none."""
    chunks, lock = iter(chunks_of(sizes)), threading.Lock()

    def fetch(worker: int, batch_size: int) -> Any:
        with lock:
            return next(chunks)

    return fetch


def begin(
    feeder: Feeder, fetch: Any, batch_size: int, names: Sequence[str] = ("x", "y"), **options: Any
) -> FeedBatches:
    """Adds a source `train`, starts the feeder, and returns the source's batches."""
    feeder.add_source("train", fetch, names, batch_size, **options)
    feeder.start()
    return feeder.batches("train")


class Gate:
    """A fetch function that returns chunks as they are let through, and tells when it waits."""

    def __init__(self) -> None:
        self.is_waiting = threading.Event()
        self._chunks: list[Any] = []
        self._is_there = threading.Condition()

    def __call__(self, worker: int, batch_size: int) -> Any:
        with self._is_there:
            self.is_waiting.set()
            assert self._is_there.wait_for(lambda: self._chunks, PATIENCE_S)
            chunk = self._chunks.pop(0)
        if isinstance(chunk, BaseException):
            raise chunk
        return chunk

    def let(self, *chunks: Any) -> None:
        """Lets chunks through; an exception is raised in its turn."""
        with self._is_there:
            self._chunks += chunks
            self._is_there.notify_all()


def feeder_threads() -> list[str]:
    """Returns the names of the threads of all Feeders."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("feeder ")]


def none_left() -> bool:
    """Waits until no thread of a Feeder is there; returns whether that is so."""
    for thread in threading.enumerate():
        if thread.name.startswith("feeder "):
            thread.join(PATIENCE_S)
    return not feeder_threads()


def in_thread(work: Callable[[], Any]) -> "Finished":
    """Begins work in a thread."""
    return Finished(work)


class Finished:
    """What a thread returns or raises."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._found: list[Any] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._found.append(work())
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        """Waits for it."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._found[0]


def endless() -> Iterator[list[np.ndarray]]:
    """Yields chunks of three rows without an end."""
    start = 0
    while True:
        yield chunks_of([3], start)[0]
        start += 3
