"""epoch_times: what counts to which duration, with a clock that the test sets."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from tfds_torch.runtime import epoch_times
from tfds_torch.runtime.epoch_times import EpochTimer, EpochTimes


class Clock:
    """Moves only when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(epoch_times, "time", clock)
    return clock


class Loader:
    """Takes 1 s to begin, a second more for every further batch, and 16 s to end."""

    def __init__(self, clock: Clock, num_batches: int) -> None:
        self.clock = clock
        self.num_batches = num_batches

    def __iter__(self) -> Iterator[int]:
        self.clock.now += 1
        for number in range(self.num_batches):
            self.clock.now += number
            yield number
        self.clock.now += 16


def test_an_epoch_s_times_with_the_consumer_s_own_in_the_whole_only(clock: Clock) -> None:
    timer = EpochTimer()
    for _ in timer.time(Loader(clock, 3)):
        clock.now += 100
    assert timer.epochs == [EpochTimes(first_batch_s=1, tail_s=16, whole_s=1 + 1 + 2 + 300 + 16, num_batches=3)]


def test_an_epoch_without_batches_is_all_first_batch_and_tail(clock: Clock) -> None:
    timer = EpochTimer()
    assert list(timer.time(Loader(clock, 0))) == []
    assert timer.epochs == [EpochTimes(first_batch_s=17, tail_s=17, whole_s=17, num_batches=0)]


def test_epochs_are_kept_in_order(clock: Clock) -> None:
    timer = EpochTimer()
    for num_batches in (1, 2):
        assert list(timer.time(Loader(clock, num_batches))) == list(range(num_batches))
    assert [times.num_batches for times in timer.epochs] == [1, 2]


def test_releasing_the_iterator_counts_to_the_tail(clock: Clock) -> None:
    class Slow:
        def __init__(self) -> None:
            self.left = 1

        def __iter__(self) -> "Slow":
            return self

        def __next__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

        def __del__(self) -> None:
            clock.now += 5

    class SlowLoader:
        def __iter__(self) -> Slow:
            return Slow()

    timer = EpochTimer()
    assert list(timer.time(SlowLoader())) == [0]
    assert timer.epochs[0].tail_s == 5


@pytest.mark.parametrize("error", [None, ValueError("lost")])
def test_an_epoch_that_is_broken_off_or_fails_is_not_kept(clock: Clock, error: Exception | None) -> None:
    def batches() -> Iterator[int]:
        yield 0
        if error:
            raise error
        yield 1

    timer = EpochTimer()
    epoch = timer.time(batches())
    assert next(epoch) == 0
    if error:
        with pytest.raises(ValueError, match="lost"):
            next(epoch)
    else:
        epoch.close()  # type: ignore[attr-defined]
    assert timer.epochs == []


def test_no_batch_is_held_while_the_next_one_is_made(clock: Clock) -> None:
    class Batch:
        pass

    held = []

    def batches() -> Iterator[Batch]:
        references: list[weakref.ref[Batch]] = []
        for _ in range(3):
            gc.collect()
            held.append(sum(reference() is not None for reference in references))
            batch = Batch()
            references.append(weakref.ref(batch))
            yield batch
            del batch

    for batch in EpochTimer().time(batches()):
        del batch
    assert held == [0, 0, 0]
