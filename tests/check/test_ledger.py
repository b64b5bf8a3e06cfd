"""The ledger forgets what it has judged: what it holds does not grow with the epochs, nor with the dataset."""

import gc
import tracemalloc
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfds_torch.check.expected import Expectation, ExpectedIds, IdRun, Share
from tfds_torch.check.ledger import CappedList, EpochEnd, LabelCount, Labels, Ledger, Received
from tfds_torch.check.promises import judge
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.order import epoch_order
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World

BATCH_SIZE = 50


def expectation(num_examples: int, num_epochs: int, num_replicas: int) -> Expectation:
    plan = EpochPlan(Passes(num_examples, 3), World(0, num_replicas), BATCH_SIZE, Remainder.WRAP, is_training=True)

    def share(rank: int, epoch: int) -> Share:
        index = epoch_order(num_examples, 3, epoch)[rank::num_replicas]
        return Share(index, np.ones(len(index), np.bool_))

    return Expectation(plan, "index", ExpectedIds([IdRun("x", 0, num_examples)]), num_epochs, share)


def read_epoch(ledger: Ledger, rank: int, epoch: int) -> None:
    """Hands over an epoch as a loader does, each batch with pixels and labels of its own."""
    ids, index = ledger.expected.ids, ledger.expected.share(rank, epoch).index
    for first in range(0, len(index), BATCH_SIZE):
        part = index[first : first + BATCH_SIZE].copy()
        pixels = {int(part[0]): np.zeros((8, 8, 3), np.uint8)} if int(part[0]) < 5 else {}
        names = [ids[i] for i in part.tolist()]
        ledger.add(rank, epoch, Received(names, part, np.ones(len(part), np.bool_), part % 7, pixels))
    ledger.end(rank, epoch, EpochEnd(len(index) // BATCH_SIZE))


def held_bytes(do: Callable[[], object]) -> int:
    """Returns the memory that is held more after doing something than before."""
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        do()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return after - before


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_an_epoch_that_was_judged_takes_no_more_memory_than_its_figures(num_replicas: int) -> None:
    """One rank after the other, as the command reads: the epochs of the first wait for those of the last."""
    num_examples, num_epochs = 4000, 4
    ledger = Ledger(expectation(num_examples, num_epochs, num_replicas))
    read_epoch(ledger, 0, 0)
    grown = held_bytes(lambda: [read_epoch(ledger, 0, epoch) for epoch in range(1, num_epochs)])
    assert grown < (num_epochs - 1) * 4000, grown  # A byte an example would be more.
    for epoch in range(num_epochs if num_replicas == 2 else 0):
        read_epoch(ledger, 1, epoch)
    assert [promise for promise in judge(ledger) if not promise.kept] == []


def test_what_is_held_of_an_epoch_is_the_same_for_a_dataset_ten_times_as_large() -> None:
    held = []
    for num_examples in (1000, 10_000):
        ledger = Ledger(expectation(num_examples, 2, 1))
        read_epoch(ledger, 0, 0)
        held.append(held_bytes(lambda ledger=ledger: read_epoch(ledger, 0, 1)))  # type: ignore[misc]
    assert held[1] < held[0] + 2000, held


def test_many_texts_are_counted_and_a_hundred_kept() -> None:
    some = CappedList(str(number) for number in range(500))
    some.add("again", 600)
    both = CappedList(["first"])
    both.extend(some)
    assert (some.number, len(some.first), both.number, len(both.first)) == (1100, 100, 1101, 100)
    assert str(both) == "first, 0, 1, 2, 3 and 1096 more"
    assert (bool(CappedList()), str(CappedList())) == (False, "")


def test_of_an_interrupted_reading_what_ended_is_judged() -> None:
    expected = expectation(1000, 3, 2)
    ledger = Ledger(expected)
    assert judge(ledger, is_whole=False) == []
    read_epoch(ledger, 0, 0)
    first = judge(ledger, is_whole=False)
    assert all(promise.kept for promise in first)
    assert not any("once" in promise.name for promise in first)  # Of one rank alone nobody knows.
    read_epoch(ledger, 1, 0)
    ledger.add(0, 1, Received(["x__1"], np.array([1]), np.array([True])))
    whole = judge(ledger, is_whole=False)
    assert all(promise.kept for promise in whole)
    assert "every example exactly once" in [promise.name for promise in whole]
    assert not all(promise.kept for promise in judge(ledger))
    bad = Ledger(expected)
    bad.add(0, 0, Received(["x__1"], np.array([1]), np.array([True])))
    bad.end(0, 0, EpochEnd(10))
    assert not all(promise.kept for promise in judge(bad, is_whole=False))


# Labels.


def count(labels: list[int], names: list[str] | None) -> list[LabelCount]:
    """Returns the counts of examples 0, 1, 2, ... with these labels."""
    counter = Labels(len(labels), names)
    counter.add(np.arange(len(labels)), np.array(labels, np.int64))
    return counter.counts()


def test_each_example_is_counted_once_whenever_it_comes() -> None:
    counter = Labels(3, None)
    for index, labels in (([2, 0, 2], [5, 6, 5]), ([0, 1], [6, 5]), ([], [])):
        counter.add(np.array(index, np.int64), np.array(labels, np.int64))
    assert [(count.label, count.num_examples) for count in counter.counts()] == [(5, 2), (6, 1)]
    counter = Labels(2, ["cat"])
    counter.add(np.arange(2), None)
    assert counter.counts() == []


@given(st.lists(st.integers(-3, 12)), st.none() | st.integers(1, 9))
def test_every_example_is_counted_under_its_label_and_every_class_is_there(
    labels: list[int], num_names: int | None
) -> None:
    names = None if num_names is None else ["crane"] * num_names  # Classes of one name stay apart.
    counts = count(labels, names)
    assert {count.label: count.num_examples for count in counts if count.num_examples} == Counter(labels)
    assert len({count.label for count in counts}) == len(counts)
    others = [count.label for count in counts[num_names or 0 :]]
    assert others == sorted(set(labels) - set(range(num_names or 0))) or not labels
    for one in counts:
        assert one.name == ("crane" if num_names is not None and 0 <= one.label < num_names else str(one.label))


def test_a_target_that_is_a_quantity_is_not_counted_and_takes_no_memory() -> None:
    thousand = [number * 3 for number in range(1000)]
    assert len(count([*thousand, 0], None)) == 1000
    assert count([*thousand, 1], None) == []
    assert len(count([*thousand, 1], [str(number) for number in range(5000)])) == 5000
    counter = Labels(100_000, None)

    def add_all() -> None:
        for first in range(0, 100_000, 1000):
            counter.add(np.arange(first, first + 1000), np.arange(first, first + 1000))

    assert held_bytes(add_all) < 100_000
