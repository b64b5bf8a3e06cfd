"""What is chosen of a grid leaves no pair out."""

from itertools import product

from covering import covering, tuples_of
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4), st.integers(2, 3), st.randoms(use_true_random=False))
def test_all_that_can_come_together_does(sizes: list[int], strength: int, random: object) -> None:
    strength = min(strength, len(sizes))
    every = [values for values in product(*map(range, sizes)) if random.random() < 0.8]  # type: ignore[attr-defined]
    chosen = covering(every, tuple, strength)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= set(every)
    wanted, found = (set().union(*(tuples_of(one, strength) for one in part)) for part in (every, chosen))
    assert found == wanted


def test_few_are_chosen_and_cheap_ones_first() -> None:
    every = list(product(range(4), range(4), "abc", (False, True)))
    assert 16 <= len(covering(every, tuple)) <= 20
    dear = [one for one in covering(every, tuple, cost=lambda one: 9.0 if one[3] else 1.0) if one[3]]
    assert len(dear) <= 12
