"""conformance.py itself: a loader that keeps the promise passes, and every way of breaking it is caught."""

from collections.abc import Iterator
from typing import Any

import pytest
from conformance import Step, check_resumes

NUM_BATCHES, NUM_EPOCHS = 4, 3
NUM_POINTS = 1 + NUM_EPOCHS * (NUM_BATCHES + 1)


class Counting:
    """A loader in its simplest form; the methods that tests break are one line each."""

    def __init__(self) -> None:
        self.epoch, self.start, self.is_begun = 0, 0, False

    def __iter__(self) -> Iterator[Step]:
        if self.is_begun:
            self.epoch, self.start = self.epoch + 1, 0
        self.is_begun = True
        return (self.step(batch) for batch in range(self.first(), NUM_BATCHES))

    def step(self, batch: int) -> Step:
        first = (self.seed() * 7 + batch) * 2
        return Step(self.epoch, batch, (first, first + 1), (True, batch < NUM_BATCHES - 1))

    def seed(self) -> int:
        return self.epoch

    def first(self) -> int:
        return self.start

    def state(self, num_steps: int) -> Any:
        return [self.epoch, self.start + num_steps]

    def load(self, state: Any) -> None:
        (self.epoch, self.start), self.is_begun = state, False

    def close(self) -> None:
        pass


class RepeatsABatch(Counting):
    def first(self) -> int:
        return max(0, self.start - 1)


class SkipsABatch(Counting):
    def load(self, state: Any) -> None:
        super().load([state[0], min(state[1] + 1, NUM_BATCHES) if state[1] else 0])


class ForgetsTheEpoch(Counting):
    def load(self, state: Any) -> None:
        super().load([0, state[1]])


class ForgetsTheEpochAfterTheResumedOne(Counting):
    resumed = False

    def load(self, state: Any) -> None:
        super().load(state)
        self.resumed = True

    def __iter__(self) -> Iterator[Step]:
        if self.resumed and self.is_begun:
            self.epoch = -1
        return super().__iter__()


class RepeatsTheEpochThatHadEnded(Counting):
    def load(self, state: Any) -> None:
        super().load([state[0], state[1] % NUM_BATCHES])


class SkipsTheEpochThatHadEnded(Counting):
    def load(self, state: Any) -> None:
        super().load([state[0] + 1, 0] if state[1] == NUM_BATCHES else state)


class CountsFromTheResumedBatch(Counting):
    def state(self, num_steps: int) -> Any:
        return [self.epoch, num_steps if num_steps else self.start]


class ForgetsAStateThatWasJustLoaded(Counting):
    def state(self, num_steps: int) -> Any:
        return super().state(num_steps) if self.is_begun else [0, 0]


class IsDisturbedBySaving(Counting):
    num_saved = 0

    def state(self, num_steps: int) -> Any:
        self.num_saved += 1
        return super().state(num_steps)

    def seed(self) -> int:
        return self.epoch + (self.num_saved > 3)


class HasAnotherOrderAfterAResume(Counting):
    offset = 0

    def load(self, state: Any) -> None:
        super().load(state)
        self.offset = 5

    def seed(self) -> int:
        return self.epoch + self.offset * (self.epoch > 0)


class LosesThePadding(Counting):
    is_resumed = False

    def load(self, state: Any) -> None:
        super().load(state)
        self.is_resumed = True

    def step(self, batch: int) -> Step:
        step = super().step(batch)
        return Step(step.epoch, step.batch, step.index, (True, True)) if self.is_resumed else step


class EndsAResumedEpochEarly(Counting):
    num_batches = NUM_BATCHES

    def load(self, state: Any) -> None:
        super().load(state)
        self.num_batches = NUM_BATCHES - 1

    def __iter__(self) -> Iterator[Step]:
        return (step for step in super().__iter__() if step.batch < self.num_batches)


class SavesWhatWasProduced(Counting):
    """As a loader whose workers read ahead."""

    def state(self, num_steps: int) -> Any:
        return [self.epoch, min(self.start + num_steps + (num_steps > 0), NUM_BATCHES)]


BROKEN = {
    RepeatsABatch: "saved at step 1 of epoch 0: step 0 of iteration 0 is .*batch=0.*, not .*batch=1",
    SkipsABatch: "saved at step 1 of epoch 0: step 0 of iteration 0 is .*batch=2.*, not .*batch=1",
    ForgetsTheEpoch: r"saved at step 1 of epoch 1: step 0 of iteration 0 is Step\(epoch=0.*, not Step\(epoch=1",
    ForgetsTheEpochAfterTheResumedOne: r"saved at step 0 of epoch 0: step 0 of iteration 1 is Step\(epoch=0",
    RepeatsTheEpochThatHadEnded: "saved at step 4 of epoch 0: iteration 0 has 4 steps, not 0; the difference begins at",
    SkipsTheEpochThatHadEnded: "saved at step 4 of epoch 0: iteration 0 has 4 steps, not 0",
    CountsFromTheResumedBatch: "saved at step 1 of epoch 0, resumed, saved at once, resumed, saved at step 2 of",
    ForgetsAStateThatWasJustLoaded: "saved at step 1 of epoch 0, resumed, saved at once: step 0 of iteration 0 is",
    IsDisturbedBySaving: "while states were taken: step 3 of iteration 0",
    HasAnotherOrderAfterAResume: "saved at step 0 of epoch 0: step 0 of iteration 1",
    LosesThePadding: r"saved at step 0 of epoch 0: step 3 of iteration 0 is .*\(True, True\).*, not .*\(True, False\)",
    EndsAResumedEpochEarly: "saved at step 0 of epoch 0: iteration 0 has 3 steps, not 4; the difference begins at Step",
    SavesWhatWasProduced: "saved at step 1 of epoch 0: step 0 of iteration 0 is .*batch=2.*, not .*batch=1",
}


def test_a_loader_that_resumes_passes_and_every_point_is_counted() -> None:
    assert check_resumes(Counting, num_epochs=NUM_EPOCHS) == 2 * NUM_POINTS


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_loader_that_breaks_the_promise_is_caught(broken: type[Counting]) -> None:
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        check_resumes(broken, num_epochs=NUM_EPOCHS)


@pytest.mark.parametrize("broken", [RepeatsABatch, ForgetsTheEpoch], ids=lambda broken: broken.__name__)
def test_a_loader_that_cannot_resume_what_another_one_saved_is_caught(broken: type[Counting]) -> None:
    with pytest.raises(AssertionError, match=BROKEN[broken]):
        check_resumes(Counting, broken, num_epochs=NUM_EPOCHS)


def test_a_loader_that_begins_the_next_epoch_at_once_passes_only_where_that_is_allowed() -> None:
    assert check_resumes(SkipsTheEpochThatHadEnded, ended_epochs_come_empty=False) == 2 * (1 + 2 * (NUM_BATCHES + 1))
    for broken in (RepeatsTheEpochThatHadEnded, SkipsABatch, ForgetsTheEpoch):
        with pytest.raises(AssertionError, match=r"saved at step \d of epoch \d"):
            check_resumes(broken, num_epochs=NUM_EPOCHS, ended_epochs_come_empty=False)


def test_a_state_that_is_no_plain_value_is_caught() -> None:
    class SavesAnObject(Counting):
        def state(self, num_steps: int) -> Any:
            return object()

    with pytest.raises(TypeError, match="not JSON serializable"):
        check_resumes(SavesAnObject)


def test_an_epoch_without_steps_proves_nothing_and_is_refused() -> None:
    class Empty(Counting):
        def first(self) -> int:
            return NUM_BATCHES

    with pytest.raises(AssertionError, match=r"an uninterrupted epoch is empty: \[0, 0, 0, 0\] steps"):
        check_resumes(Empty)
