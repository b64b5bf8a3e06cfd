"""DeliveredBatches: which iterations are begun again, and where training is."""

import pytest
from plan.saved_states import PLAN, state_of

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.delivered import DeliveredBatches
from tfds_torch.plan.shared_progress import SharedProgress
from tfds_torch.plan.state import LoaderState


class Epochs:
    """Counts epochs as a loader does."""

    def __init__(self) -> None:
        self.progress, self.delivered = SharedProgress(), DeliveredBatches()

    def begin(self) -> tuple[int, int]:
        began = self.delivered.begin(self.progress.current(), self._next)
        return began.epoch, began.batches_delivered

    def _next(self) -> LoaderState:
        epoch, start_batch = self.progress.begin(None, 2, is_counted_elsewhere=True)
        return state_of(PLAN, start_batch, epoch)

    @property
    def place(self) -> tuple[int, int] | None:
        state = self.delivered.state(self.progress.current())
        return None if state is None else (state.epoch, state.batches_delivered)


def test_an_iteration_is_begun_again_only_while_nothing_was_taken_of_it() -> None:
    epochs = Epochs()
    assert [epochs.begin(), epochs.begin()] == [(0, 0), (0, 0)]
    epochs.delivered.number = 1
    assert [epochs.begin(), epochs.begin()] == [(1, 0), (1, 0)]
    epochs.delivered.has_ended = True  # It was empty.
    assert epochs.begin() == (2, 0)


def test_an_iteration_is_not_begun_again_where_another_loader_has_begun_a_later_one() -> None:
    """Loaders over one dataset share the count of its epochs."""
    epochs, other = Epochs(), Epochs()
    other.progress = epochs.progress
    assert epochs.begin() == (0, 0)
    assert other.begin() == (1, 0)
    assert epochs.begin() == (2, 0)


def test_the_place_counts_from_where_the_iteration_began() -> None:
    epochs = Epochs()
    assert epochs.place is None
    epochs.progress.resume(4, 3)
    assert epochs.begin() == (4, 3)
    epochs.delivered.number = 2
    assert epochs.place == (4, 5)
    assert epochs.begin() == (5, 0)
    assert epochs.place == (5, 0)


@pytest.mark.parametrize("how", ["set", "loaded"])
def test_nothing_of_an_iteration_is_left_once_an_epoch_is_set_or_a_state_is_loaded(how: str) -> None:
    epochs = Epochs()
    epochs.begin()
    if how == "set":
        epochs.progress.set_epoch(0)
    else:
        epochs.progress.resume(0, 7)
    assert epochs.place is None
    assert epochs.begin() == (0, 0 if how == "set" else 7)


def test_a_refusal_changes_nothing() -> None:
    epochs = Epochs()
    epochs.begin()
    epochs.delivered.number = 3

    def refuse() -> LoaderState:
        raise StateMismatchError("other workers")

    with pytest.raises(StateMismatchError):
        epochs.delivered.begin(epochs.progress.current(), refuse)
    assert epochs.place == (0, 3)
