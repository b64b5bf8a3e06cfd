"""Feeder.mix: batches of several sources, drawn by weight and repeatable."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loaders.feeding import chunks_of, none_left, rows_of
from tfds_torch import Feeder
from tfds_torch.errors import ConfigError, WorkerError

NUM_BATCHES = {"a": 40, "b": 60, "c": 20}


@pytest.fixture
def feeder() -> Iterator[Feeder]:
    with Feeder() as feeder:
        for number, (name, num_batches) in enumerate(NUM_BATCHES.items()):
            feeder.add_source(name, chunks_of([2] * num_batches, 1000 * number), ["x", "y"], 2)
        feeder.start()
        yield feeder
    assert none_left()


def sources_of(batches: Any) -> str:
    """Returns the names of the sources that batches are of."""
    return "".join("abc"[int(batch["x"][0]) // 1000] for batch in batches)


def test_every_source_keeps_its_own_order_and_batches_are_of_one_source(feeder: Feeder) -> None:
    batches = list(feeder.mix([1, 2, 1], seed=3, stop="last"))
    assert sorted(rows_of(batches)) == [1000 * n + row for n, size in enumerate((80, 120, 40)) for row in range(size)]
    for number in range(3):
        rows = [row for row in rows_of(batches) if row // 1000 == number]
        assert rows == sorted(rows)
    assert all(len(set(batch["x"] // 1000)) == 1 for batch in batches)


@pytest.mark.parametrize("stop", ["first", "last"])
def test_the_same_seed_draws_the_same_sources_and_another_seed_others(feeder: Feeder, stop: str) -> None:
    found = []
    for seed in (5, 5, 6):
        found.append(sources_of(feeder.mix([1, 1, 1], seed, stop)))
        feeder.stop()
        feeder.start()
    assert found[0] == found[1] != found[2]


def test_the_draws_follow_the_weights() -> None:
    with Feeder() as feeder:
        for number, name in enumerate("abc"):
            feeder.add_source(name, chunks_of([1], 1000 * number), ["x", "y"], 1, at_end="cycle")
        feeder.start()
        batches = iter(feeder.mix({"c": 1, "a": 3}, seed=0))
        drawn = sources_of(next(batches) for _ in range(4000))
        batches.close()
    assert set(drawn) == {"a", "c"}
    assert abs(drawn.count("a") / 4000 - 0.75) < 0.03  # More than four standard deviations.


def test_first_ends_where_a_source_is_drawn_that_has_ended(feeder: Feeder) -> None:
    drawn = sources_of(feeder.mix([1, 1, 1], seed=1, stop="first"))
    assert max(drawn.count(name) / number for name, number in NUM_BATCHES.items()) == 1
    assert len(drawn) < sum(NUM_BATCHES.values())


def test_last_goes_on_until_all_have_ended(feeder: Feeder) -> None:
    first = sources_of(feeder.mix([1, 1, 1], seed=1, stop="first"))
    feeder.stop()
    feeder.start()
    drawn = sources_of(feeder.mix([1, 1, 1], seed=1, stop="last"))
    assert {name: drawn.count(name) for name in "abc"} == NUM_BATCHES
    assert drawn.startswith(first)


def test_a_source_of_weight_zero_is_not_read(feeder: Feeder) -> None:
    assert set(sources_of(feeder.mix([1, 0, 1], seed=1, stop="last"))) == {"a", "c"}
    assert len(rows_of(feeder.batches("b"))) == 120


def test_a_mixture_that_is_broken_off_leaves_its_batches_to_the_sources(feeder: Feeder) -> None:
    rows = []
    for _ in range(3):
        for number, batch in enumerate(feeder.mix([1, 1, 1], seed=1)):
            rows += batch["x"].tolist()
            if number == 5:
                break
    for name in "abc":
        rows += rows_of(feeder.batches(name))
    assert sorted(rows) == [1000 * n + row for n, size in enumerate((80, 120, 40)) for row in range(size)]


def test_an_error_of_a_source_is_one_of_the_mixture(feeder: Feeder) -> None:
    feeder.add_source("d", [[np.zeros(1), None]], ["x", "y"], 2)
    feeder.start()
    with pytest.raises(WorkerError, match=r"^Source 'd', worker"):
        list(feeder.mix({"a": 1, "d": 1}, seed=1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], 0), r"weights=\[1, 1\] are 2, and there are 3 sources \('a', 'b', 'c'\)"),
        (([1, -1, 1], 0), "the weight -1 of source 'b' must be a number >= 0"),
        (([1, float("nan"), 1], 0), "the weight nan of source 'b'"),
        (([1, float("inf"), 1], 0), "the weight inf of source 'b'"),
        (([1, "2", 1], 0), "the weight '2' of source 'b'"),
        (([1, True, 1], 0), "the weight True of source 'b'"),
        (([0, 0, 0.0], 0), r"weights=\[0, 0, 0.0\] sum to zero"),
        (({}, 0), "sum to zero"),
        (({"a": 1, "bb": 1}, 0), r"weights has 'bb', and the sources are 'a', 'b', 'c'. Did you mean 'b'\?"),
        (("abc", 0), "weights='abc' must be a list"),
        ((3, 0), "weights=3 must be a list"),
        (([1, 1, 1], -1), "seed=-1 must be an integer >= 0"),
        (([1, 1, 1], 0.5), "seed=0.5 must be an integer >= 0"),
        (([1, 1, 1], 0, "frist"), r"stop='frist' must be 'first' or 'last'. Did you mean 'first'\?"),
    ],
)
def test_arguments_that_cannot_be_meant_are_errors(feeder: Feeder, arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^mix: .*{message}"):
        feeder.mix(*arguments)


def test_sources_with_different_names_cannot_be_mixed(feeder: Feeder) -> None:
    feeder.add_source("d", [], ["x", "z"], 2)
    with pytest.raises(ConfigError, match=r"different names: 'a' has \['x', 'y'\], 'd' has \['x', 'z'\]"):
        feeder.mix([1, 1, 1, 1], 0)
    feeder.mix([1, 1, 1, 0], 0)
    assert repr(feeder.mix({"a": 2}, 0)) == "MixedBatches({'a': 2.0}, seed=0, stop='first')"
