"""Some of the examples of `numbered`, chosen in every way that a parser offers. Importable by every child."""

from collections.abc import Callable
from typing import Any

import numpy as np

SUBSET = list(range(40, 10, -1))

CHOICES: dict[str, Callable[[Any], Any]] = {
    "subset": lambda parser: parser.subset(SUBSET),
    "subset of a subset": lambda parser: parser.subset(np.arange(41) % 3 > 0).subset(np.arange(27) < 20),
    "balanced": lambda parser: parser.subset(range(20)).balanced(epoch_size=33),
    "weighted": lambda parser: parser.weighted(np.arange(41.0), epoch_size=33),
}


def choose(parser: Any, how: str) -> Any:
    """Returns a parser of some examples; `all`: of all of them."""
    return parser if how == "all" else CHOICES[how](parser)
