"""Checks of arguments: what is taken, and what is said of everything else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import check_choice, check_flag, check_integer, check_seconds

of_ends = partial(check_choice, allowed=("stop", "cycle"))
of_transports = partial(check_choice, allowed=("auto", "shared", "zmq"))
at_most_nine = partial(check_integer, least=1, most=9)


@pytest.mark.parametrize(("value", "number"), [(1, 1), (9, 9), (np.int64(3), 3)])
def test_an_integer_within_its_bounds_is_taken(value: Any, number: int) -> None:
    assert at_most_nine("n", value) == number
    assert type(at_most_nine("n", value)) is int


@pytest.mark.parametrize("value", [0.001, 1, 300.0, np.float64(2)])
def test_a_time_limit_above_zero_is_taken(value: float) -> None:
    check_seconds("n", value, can_be_none=False)
    check_seconds("n", None, can_be_none=True)


@pytest.mark.parametrize(
    ("check", "value", "said"),
    [
        (at_most_nine, 0, "n=0 must be an integer in 1..9."),
        (at_most_nine, 10, "n=10 must be an integer in 1..9."),
        (at_most_nine, True, "n=True must be an integer in 1..9."),
        (partial(check_integer, least=2), 1.0, "n=1.0 must be an integer >= 2."),
        (check_flag, 1, "n=1 must be True or False."),
        (check_flag, None, "n=None must be True or False."),
        *(
            (partial(check_seconds, can_be_none=False), value, f"n={value!r} must be a number of seconds > 0.")
            for value in (None, 0, -1.5, float("inf"), float("nan"), "9", True)
        ),
        (partial(check_seconds, can_be_none=True), 0, "n=0 must be a number of seconds > 0, or None (for ever)."),
        (of_ends, "cylce", "n='cylce' must be 'stop' or 'cycle'. Did you mean 'cycle'?"),
        (of_ends, None, "n=None must be 'stop' or 'cycle'."),
        (of_transports, 7, "n=7 must be one of 'auto', 'shared', 'zmq'."),
        (of_transports, ["auto"], "n=['auto'] must be one of 'auto', 'shared', 'zmq'."),
    ],
)
def test_everything_else_is_refused_with_what_is_allowed(check: Callable[..., Any], value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check("n", value)
    assert str(caught.value).partition(" Did you")[0] == said.partition(" Did you")[0]
    assert ("Did you mean" not in said) or str(caught.value) == said
