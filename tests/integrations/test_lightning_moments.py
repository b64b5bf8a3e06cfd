"""Lightning: whenever a Trainer saves, stops or combines, what it reads next is what it would have read."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NUM_BATCHES = 9
LIVES = "integrations.lightning_moments"

RunRanks = Callable[..., list[Any]]
Run = Callable[..., Any]


@pytest.fixture
def run(run_forked_ranks: RunRanks) -> Run:
    """`run(function, *args)`: runs a function of lightning_moments.py in a process of its own."""
    return lambda function, *args: run_forked_ranks(f"{LIVES}:{function}", 1, *args)[0]


def assert_tails(tails: list[Any]) -> None:
    wrong = [(name, came[:1], expected[:1]) for name, came, expected in tails if came != expected]
    assert tails
    assert wrong == []


# The positions of a checkpoint


@pytest.mark.parametrize(
    ("asks_in", "steps"),
    [
        ("configure_optimizers", [4]),
        pytest.param("setup", [1, 4, 9, 13, 18, 26], marks=pytest.mark.slow),
        pytest.param("configure_optimizers", [1, 9, 13, 18, 26], marks=pytest.mark.slow),
        pytest.param("on_fit_start", [1, 4, 9, 13, 18, 26], marks=pytest.mark.slow),
    ],
)
def test_a_trainer_that_was_asked_for_its_number_of_steps_restores_the_loader(
    run: Run, tmp_path: Path, asks_in: str, steps: list[int]
) -> None:
    assert_tails(run("asked_early", str(tmp_path), asks_in, steps))


# Other options


def test_overfitting_reads_the_same_batches_in_every_epoch(run: Run) -> None:
    for batches, number in zip(run("overfitted"), (2, 4), strict=True):
        assert batches == batches[:number] * 3
        assert len({number for batch in batches for number in batch}) == 4 * number


@pytest.mark.slow
def test_a_search_for_a_learning_rate_leaves_training_as_it_was(run: Run, tmp_path: Path) -> None:
    assert run("found_a_rate", str(tmp_path))[-3 * NUM_BATCHES :] == run("limited", {})


@pytest.mark.slow
def test_a_fast_dev_run_reads_the_first_batches(run: Run) -> None:
    assert run("limited", {"fast_dev_run": 2}) == run("limited", {})[:2]
