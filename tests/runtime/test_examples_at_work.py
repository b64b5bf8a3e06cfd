"""Which examples a process is at: what is noted arrives elsewhere, and how it is said."""

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tfds_torch.runtime.examples_at_work import Chunk, ExamplesAtWork, Work, describe_work
from tfds_torch.runtime.metrics import StageMetrics


def numbers(*some: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array(some, np.int64)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (Work(), ""),
        (Work(example=7), ", <7>"),
        (Work(passed=7), ", after <7>"),
        (Work(passed=7, chunks=(Chunk(1, [9]),)), ", <9>"),
        (Work(chunks=(Chunk(16, range(16, 32)),)), ", among examples 16 to 31"),
        (Work(chunks=(Chunk(3, [1, 2, 9]),)), ", among examples 1 to 2, 9"),
        (
            Work(
                chunks=(
                    Chunk(2, [4, 5]),
                    Chunk(2, [2, 3]),
                )
            ),
            ", among examples 2 to 5",
        ),
        (Work(chunks=(Chunk(90, [1, 5]),)), ", among examples 1, 5 and 88 more"),
        (Work(7, chunks=(Chunk(1, [9]),)), ", <7>; meanwhile its threads decoded example 9"),
        (Work(7, chunks=(Chunk(2, [8, 9]),)), ", <7>; meanwhile its threads decoded examples 8 to 9"),
    ],
)
def test_a_process_is_at_one_example_or_among_several(work: Work, said: str) -> None:
    assert describe_work(work, "<{}>".format) == said


def test_many_numbers_are_said_in_part() -> None:
    said = describe_work(Work(chunks=(Chunk(40, range(0, 80, 2)),)), str)
    assert said.startswith(", among examples 0, 2, 4, ")
    assert said.endswith(", 60, 62 and 8 more")


def test_one_example_goes_before_the_chunk_that_it_is_read_with() -> None:
    at_work = ExamplesAtWork(1)
    with at_work.reading(numbers(3, 1, 2)):
        assert at_work.of(0) == Work(chunks=(Chunk(3, [1, 2, 3]),))
        at_work.note(1)
        with at_work.decoding(numbers(*range(100, 300))):
            assert at_work.of(0) == Work(1, chunks=(Chunk(200, range(100, 300)),))
        assert at_work.of(0) == Work(1)
    assert at_work.of(0) == Work(passed=1)
    at_work.note_last(9)
    assert at_work.of(0) == Work(passed=9)
    with at_work.decoding(numbers(*range(0, 200, 2))):
        assert at_work.of(0).chunks == (Chunk(100, list(range(0, 64, 2))),)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_is_interrupted_stays_noted_until_the_next_iteration(error: type[BaseException]) -> None:
    metrics = StageMetrics(0)
    at_work = metrics.at_work
    with pytest.raises(error), at_work.reading(numbers(4)), at_work.decoding(numbers(5)):
        raise error
    stays = error is KeyboardInterrupt
    assert len(at_work.of(0).chunks) == 2 * stays
    metrics.note_begun()
    assert at_work.of(0) == Work()


def test_more_threads_than_are_noted_do_their_work() -> None:
    at_work, all_here = ExamplesAtWork(1), threading.Barrier(41)

    def decode(number: int) -> None:
        with at_work.decoding(numbers(number)):
            all_here.wait(60)
            all_here.wait(60)

    threads = [threading.Thread(target=decode, args=(number,)) for number in range(40)]
    for thread in threads:
        thread.start()
    all_here.wait(60)
    assert len({chunk.numbers[0] for chunk in at_work.of(0).chunks}) == 32
    all_here.wait(60)
    for thread in threads:
        thread.join()
    assert at_work.of(0) == Work()


def end_at_work(at_work: ExamplesAtWork) -> None:
    at_work.bind(1)
    at_work.note(12)
    with at_work.decoding(numbers(13, 14)):
        os._exit(0)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_what_a_process_was_at_outlives_it(method: str) -> None:
    at_work = ExamplesAtWork(3)
    target: Callable[[ExamplesAtWork], None] = end_at_work
    process = multiprocessing.get_context(method).Process(target=target, args=(at_work,))
    process.start()
    process.join()
    assert [at_work.of(row) for row in range(3)] == [Work(), Work(12, chunks=(Chunk(2, [13, 14]),)), Work()]
    assert pickle.loads(pickle.dumps(at_work)).of(1) == Work()
