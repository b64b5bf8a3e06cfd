"""Checks of arguments, said the same way everywhere."""

from collections.abc import Iterable
from difflib import get_close_matches
from operator import index

from tfds_torch.errors import ConfigError


def check_integer(name: str, value: object, least: int) -> int:
    """Returns an integer argument as an int; numpy's integers are taken, booleans are not.

    Raises:
        ConfigError: value is no integer, or below least.
    """
    try:
        number = least - 1 if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = least - 1
    if number < least:
        raise ConfigError(f"{name}={value!r} must be an integer >= {least}.")
    return number


def did_you_mean(word: object, names: Iterable[str]) -> str:
    """Returns " Did you mean 'name'?" for the nearest name, or nothing when none is near."""
    near = get_close_matches(str(word), list(names), n=1)
    return f" Did you mean {near[0]!r}?" if near else ""
