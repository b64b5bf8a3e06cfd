"""Cursor: which epoch an iteration is, which iterations are begun again, and where training is."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.cursor import Cursor, Position, Start

Duplicate = Callable[[Cursor], Cursor]


class Loader:
    """Begins one iteration after the other, as a loader does."""

    def __init__(self, cursor: Cursor | None = None) -> None:
        self.cursor = cursor or Cursor()
        self.position: Position | None = None

    def begin(self) -> Start:
        self.position = self.cursor.begin(2, self.position)
        return self.position.start

    def take(self, number: int = 1) -> Start:
        start = self.begin()
        assert self.position is not None
        self.position.delivered = number
        return start

    @property
    def now(self) -> Start:
        return self.cursor.position(self.position).now


def test_every_iteration_is_an_epoch() -> None:
    loader = Loader()
    assert [loader.take() for _ in range(3)] == [Start(0), Start(1), Start(2)]


def test_an_iteration_is_begun_again_only_while_nothing_was_taken_of_it() -> None:
    loader = Loader()
    assert [loader.begin(), loader.begin(), loader.take()] == [Start(0)] * 3
    assert [loader.begin(), loader.begin()] == [Start(1), Start(1)]
    assert loader.position is not None
    loader.position.has_ended = True  # It was empty.
    assert loader.begin() == Start(2)


def test_an_iteration_is_not_begun_again_where_another_loader_has_begun_a_later_one() -> None:
    """Loaders over one dataset share the count of its epochs."""
    loader = Loader()
    other = Loader(loader.cursor)
    assert [loader.begin(), other.begin(), loader.begin()] == [Start(0), Start(1), Start(2)]


def test_the_place_counts_from_where_the_iteration_began() -> None:
    loader = Loader()
    assert loader.now == Start(0)
    loader.cursor.load(Start(4, 3, 100))
    assert loader.now == Start(4, 3, 100)
    assert loader.take(2) == Start(4, 3, 100)
    assert loader.now == Start(4, 5, 100)
    assert loader.begin() == Start(5), "later epochs are whole ones"
    assert loader.now == Start(5)


def test_of_iterations_side_by_side_the_place_is_that_of_the_one_that_began_last() -> None:
    cursor = Cursor()
    first, second = cursor.begin(2), cursor.begin(2)
    for number in (1, 2, 3):
        first.delivered = number
    second.delivered = 1
    assert cursor.position().now == Start(1, 1)
    assert cursor.position(first).now == Start(0, 3), "of the loader that asks"


@pytest.mark.parametrize("how", ["set", "loaded"])
def test_nothing_of_an_iteration_is_left_once_an_epoch_is_set_or_a_state_is_loaded(how: str) -> None:
    loader = Loader()
    loader.begin()
    if how == "set":
        loader.cursor.set_epoch(0)
    else:
        loader.cursor.load(Start(0, 7))
    assert not loader.cursor.has_begun
    expected = Start(0, 0 if how == "set" else 7)
    assert loader.now == expected
    assert loader.begin() == expected
    assert loader.cursor.has_begun


def test_an_epoch_that_is_set_comes_until_another_one_is_set() -> None:
    loader = Loader()
    loader.cursor.set_epoch(7)
    assert [loader.take(), loader.take(), loader.begin()] == [Start(7)] * 3
    loader.cursor.set_epoch(2**62)
    assert loader.begin() == Start(2**62)


@pytest.mark.parametrize("epoch", [-1, 1.0, "1", None, True])
def test_what_is_no_epoch_is_refused_and_changes_nothing(epoch: Any) -> None:
    loader = Loader()
    with pytest.raises(ConfigError, match=r"^set_epoch: epoch=.* must be an integer >= 0\.$"):
        loader.cursor.set_epoch(epoch)
    with pytest.raises(ConfigError, match=rf"^set_epoch: epoch={2**62 + 1} must be in 0\.\.{2**62}\.$"):
        loader.cursor.set_epoch(2**62 + 1)
    assert loader.begin() == Start(0)


def test_a_loaded_state_is_gone_on_from_once_and_the_count_goes_on_there() -> None:
    loader = Loader()
    loader.take()
    loader.cursor.load(Start(5, 17, 32))
    assert [loader.take() for _ in range(3)] == [Start(5, 17, 32), Start(6), Start(7)]


@pytest.mark.parametrize(("epoch", "expected"), [(5, Start(5, 17, 32)), (6, Start(6))])
def test_a_loaded_state_is_gone_on_from_in_its_own_epoch_only(epoch: int, expected: Start) -> None:
    loader = Loader()
    loader.cursor.load(Start(5, 17, 32))
    loader.cursor.set_epoch(epoch)
    assert [loader.now, loader.take(0), loader.take(1)] == [expected] * 3
    loader.cursor.set_epoch(5)  # An iteration has begun since the state was loaded.
    assert loader.take() == Start(5)


def test_the_state_of_a_stream_goes_on_with_as_many_workers_only_and_a_refusal_changes_nothing() -> None:
    cursor = Cursor()
    before = cursor.begin(3)
    before.delivered = 3
    cursor.load(Start(5, 17), 2, must_keep_workers=True)
    for num_workers, here in ((3, "3"), (0, "none, which counts as 1,")):
        with pytest.raises(StateMismatchError, match=rf"^num_workers: 2 in the state, {here} here\. .*num_workers=2\."):
            cursor.begin(num_workers)
    assert cursor.position() == Position(Start(5, 17), 2)
    assert cursor.begin(2).start == Start(5, 17)
    cursor.load(Start(5, 17), 1, must_keep_workers=True)
    assert cursor.begin(0).start == Start(5, 17), "one that reads by itself counts as one worker"
    cursor.load(Start(5, 17), None, must_keep_workers=True)
    assert cursor.begin(4).start == Start(5, 17), "unknown"
    cursor.load(Start(5, 17), 2, must_keep_workers=True)
    cursor.set_epoch(6)
    assert cursor.begin(4).start == Start(6), "another epoch begins at its first batch"


def test_the_workers_of_a_position_are_the_loaders_or_those_of_the_loaded_state() -> None:
    cursor = Cursor(4)
    assert cursor.position() == Position(Start(0), 4)
    cursor.load(Start(1), 3)
    assert cursor.position() == Position(Start(1), 3)
    assert cursor.begin(2) == cursor.position() == Position(Start(1), 2)


def test_what_else_has_read_an_epoch_is_counted_and_has_gone_on_from_the_loaded_state() -> None:
    loader = Loader()
    loader.cursor.load(Start(3, 2))
    loader.cursor.count_from(3)
    assert [loader.take(), loader.take()] == [Start(4), Start(5)]


@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, lambda cursor: pickle.loads(pickle.dumps(cursor))],
    ids=["copy", "deepcopy", "pickle"],
)
def test_a_copy_counts_on_from_the_same_epoch_and_has_no_iteration_yet(duplicate: Duplicate) -> None:
    loader = Loader()
    loader.take()
    twin = duplicate(loader.cursor)
    assert not twin.has_begun
    assert [twin.begin(2).start, loader.begin()] == [Start(1), Start(1)]
    loader.cursor.load(Start(5, 17, 3))
    twin = duplicate(loader.cursor)
    assert [twin.begin(2).start, loader.begin()] == [Start(5, 17, 3)] * 2


def test_a_copy_of_a_loader_that_has_gone_on_begins_that_epoch_at_its_first_batch() -> None:
    loader = Loader()
    loader.cursor.load(Start(4, 2))
    assert loader.begin() == Start(4, 2)
    copied = copy.deepcopy(loader.cursor)
    copied.set_epoch(4)
    assert Loader(copied).begin() == Start(4)
