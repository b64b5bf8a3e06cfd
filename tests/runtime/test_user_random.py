"""borrowed_generators: what a training process drew, and draws next, does not depend on what is drawn between."""

import random
from contextlib import suppress

import numpy as np
import pytest
import torch

from tfds_torch.runtime.user_random import borrowed_generators, seed_generators


def draw() -> list[float]:
    """Draws from each generator; the second normal number of a pair is kept by numpy beside its generator."""
    return [random.random(), random.gauss(0, 1), np.random.randn(), np.random.rand(), float(torch.randn(1))]


def seed_all(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@pytest.mark.parametrize("num_before", [0, 1, 2])
def test_generators_are_given_back_as_they_were(num_before: int) -> None:
    seed_all(3)
    for _ in range(num_before):
        np.random.randn()
    state = np.random.get_state()
    alone = [draw() for _ in range(2)]
    seed_all(3)
    np.random.set_state(state)
    with borrowed_generators():
        seed_generators(8)
        np.random.randn()
    found = [draw()]
    with suppress(RuntimeError), borrowed_generators():
        seed_generators(9)
        raise RuntimeError
    assert [*found, draw()] == alone


def test_what_is_drawn_within_another_call_leaves_that_one_as_it_was() -> None:
    with borrowed_generators():
        seed_generators(8)
        alone = [draw(), draw()]
    with borrowed_generators():
        seed_generators(8)
        first = draw()
        with borrowed_generators():
            seed_generators(9)
            assert draw() not in alone
        assert [first, draw()] == alone
