"""Checks of arguments, with the same messages everywhere."""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from operator import index

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import quoted


def check_integer(name: str, value: object, least: int, most: int | None = None) -> int:
    """Return an integer argument as an int; numpy's integers are accepted, booleans are not."""
    try:
        number = least - 1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        allowed = f">= {least}" if most is None else f"in {least}..{most}"
        raise ConfigError(f"{name}={quoted(value)} must be an integer {allowed}.")
    return number


def check_flag(name: str, value: object) -> None:
    """Check an argument that is True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={quoted(value)} must be True or False.")


def check_seconds(name: str, value: object, *, can_be_none: bool) -> None:
    """Check a time limit in seconds: a finite number above 0, or None (for ever) where that is allowed."""
    if value is None and can_be_none:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        or_none = ", or None (for ever)" if can_be_none else ""
        raise ConfigError(f"{name}={quoted(value)} must be a number of seconds > 0{or_none}.")


def check_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Check an argument that is one of a few words."""
    if not isinstance(value, str) or value not in allowed:
        shown = [repr(one) for one in allowed]
        words = " or ".join(shown) if len(shown) == 2 else f"one of {', '.join(shown)}"
        raise ConfigError(f"{name}={quoted(value)} must be {words}.{did_you_mean(value, allowed)}")


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """Return " Did you mean 'name'?" for the nearest name, or nothing when none is near."""
    near = get_close_matches(str(word), list(names), n=1)
    return f" Did you mean {quoted(near[0])}?" if near else ""
