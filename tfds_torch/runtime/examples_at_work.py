"""ExamplesAtWork: the examples that each process's threads are at, in shared memory, for messages about its end."""

from collections.abc import Callable, Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.context import get_spawning_popen
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_NUM_THREADS = 32  # That decode at once and are noted.
_MOST_NUMBERS = 32  # Of the examples of one chunk.
_EXAMPLE = 0  # Twice the number of the one example and 2, and 1 more while the process is at it; 0: of none.
_FIRST_SLOT = 1
_SIZE, _IS_RANGE, _NUMBERS = 0, 1, 2  # Of a slot.
_SLOT = _NUMBERS + _MOST_NUMBERS
_ROW = _FIRST_SLOT + _SLOT * (1 + _NUM_THREADS)


@dataclass(frozen=True)
class Chunk:
    """Some examples that one thread is at.

    Attributes:
        size: number of examples.
        numbers: indices of the examples, sorted, or of some of them.
    """

    size: int
    numbers: Sequence[int]


@dataclass(frozen=True)
class Work:
    """The examples that a process is at, or was at when it ended.

    Attributes:
        example: index of the one example that it reads, or for which it calls a user's function; None: it has none.
        passed: index of the last example that it has finished, where it is not at one; None: it has finished none.
        chunks: examples that are read together, and those that each thread decodes.
    """

    example: int | None = None
    passed: int | None = None
    chunks: Sequence[Chunk] = ()


class Notes(NamedTuple):
    """How each of n examples is noted: `cells[0] = values[place]`."""

    values: Sequence[int]
    cells: MutableSequence[int] | memoryview


class ExamplesAtWork:
    """The examples that processes are at: of each, one example, the chunk that is read, and those that are decoded.

    A process notes whole chunks, and single examples only where a function of the user is called for each. Its own row
    is that of `bind`; any thread may decode, and one reads. Inherited by forked workers, and it travels to spawned
    ones; other copies begin anew.

    Args:
        num_rows: number of processes.
    """

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows
        # Of the spawn context: it can be handed to any kind of worker.
        self._memory: Any = get_context("spawn").RawArray("q", _ROW * num_rows)
        self.bind(num_rows - 1)

    def bind(self, row: int) -> None:
        """Let this process note its own examples in a row, which is emptied."""
        self._own = memoryview(self._memory).cast("B").cast("q")[row * _ROW : (row + 1) * _ROW]
        self._array = np.frombuffer(self._own, np.int64)
        self._array[:] = 0
        self._free = list(range(_FIRST_SLOT + _SLOT, _ROW, _SLOT))  # Slots of threads; a list's pop is atomic.

    def note(self, example: int) -> None:
        """Note the one example that this process is at from now on."""
        self._own[_EXAMPLE] = 2 * example + 3

    def notes(self, examples: NDArray[np.int64]) -> Notes:
        """Return how each of n examples is noted without a call, where a call costs too much."""
        return Notes((2 * examples + 3).tolist(), self._own)

    def note_passed(self) -> None:
        """Note that this process is no longer at the one example."""
        self._own[_EXAMPLE] &= ~1

    def note_last(self, example: int) -> None:
        """Note the last example that this process has finished."""
        self._own[_EXAMPLE] = 2 * example + 2

    def forget(self) -> None:
        """Note that this process is at no example, as an iteration begins: the one before may have been interrupted."""
        self._array[_FIRST_SLOT::_SLOT] = 0
        self.note_passed()

    @contextmanager
    def reading(self, examples: NDArray[np.int64]) -> Iterator[None]:
        """Note examples, int64 [n], while this process reads them."""
        self._fill(_FIRST_SLOT, examples)
        try:
            yield
        except Exception:
            self._end_reading()
            raise
        # An interrupt of this thread, which is not an Exception, is described by these notes.
        self._end_reading()

    @contextmanager
    def decoding(self, examples: NDArray[np.int64]) -> Iterator[None]:
        """Note examples, int64 [n], while this thread decodes them."""
        try:
            slot = self._free.pop()
        except IndexError:  # More threads than are noted.
            yield
            return
        self._fill(slot, examples)
        try:
            yield
            self._own[slot] = 0
        except Exception:
            self._own[slot] = 0
            raise
        finally:
            self._free.append(slot)

    def of(self, row: int) -> Work:
        """Return the examples that the process of a row is at."""
        cells: list[int] = self._memory[row * _ROW : (row + 1) * _ROW]
        number, is_at_it = divmod(cells[_EXAMPLE] - 2, 2)
        chunks = tuple(_chunk(cells[slot : slot + _SLOT]) for slot in range(_FIRST_SLOT, _ROW, _SLOT) if cells[slot])
        if is_at_it:
            return Work(number, chunks=chunks[1:] if cells[_FIRST_SLOT] else chunks)
        return Work(passed=number if number >= 0 else None, chunks=chunks)

    def _end_reading(self) -> None:
        self._own[_FIRST_SLOT] = 0
        self.note_passed()

    def _fill(self, slot: int, examples: NDArray[np.int64]) -> None:
        size = len(examples)
        if size > _MOST_NUMBERS:
            may_be = int(examples[-1]) - int(examples[0]) == size - 1
            self._own[slot + _IS_RANGE] = may_be and bool((np.diff(examples) == 1).all())
        some = examples[:_MOST_NUMBERS]
        self._array[slot + _NUMBERS : slot + _NUMBERS + len(some)] = some
        self._own[slot + _SIZE] = size

    def __getstate__(self) -> dict[str, Any]:
        memory = {} if get_spawning_popen() is None else {"memory": self._memory}
        return {"num_rows": self._num_rows, **memory}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "memory" not in state:
            self.__init__(state["num_rows"])  # type: ignore[misc]
            return
        self._num_rows, self._memory = state["num_rows"], state["memory"]


def _chunk(slot: list[int]) -> Chunk:
    size, first = slot[_SIZE], slot[_NUMBERS]
    if size > _MOST_NUMBERS and slot[_IS_RANGE]:
        return Chunk(size, range(first, first + size))
    return Chunk(size, sorted(slot[_NUMBERS : _NUMBERS + min(size, _MOST_NUMBERS)]))


def describe_work(work: Work, describe: Callable[[int], str]) -> str:
    """Return the examples that a process is at, as the rest of a sentence; empty where none is known.

    Args:
        work: the examples that it is at.
        describe: returns the text that names one example.
    """
    if work.example is not None:
        beside = f"; meanwhile its threads decoded {_list(work.chunks)}" if work.chunks else ""
        return f", {describe(work.example)}{beside}"
    if not work.chunks:
        return "" if work.passed is None else f", after {describe(work.passed)}"
    if sum(chunk.size for chunk in work.chunks) == 1:
        return f", {describe(work.chunks[0].numbers[0])}"
    return f", among {_list(work.chunks)}"


def _list(chunks: Sequence[Chunk]) -> str:
    """Return the numbers of examples as a text: "examples 16 to 31, 40 and 7 more"."""
    runs: list[list[int]] = []
    numbers = sorted({number for chunk in chunks for number in chunk.numbers})
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = runs[:_MOST_NUMBERS]
    hidden = len(numbers) - sum(last - first + 1 for first, last in shown)
    hidden += sum(chunk.size - len(chunk.numbers) for chunk in chunks)
    said = ", ".join(f"{first} to {last}" if first < last else str(first) for first, last in shown)
    noun = "example" if len(numbers) + hidden == 1 else "examples"
    return f"{noun} {said}" + (f" and {hidden} more" if hidden else "")
