"""Reading a saved state: which fields it must have, of which type and range, and what is said when it has others."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.arguments import did_you_mean

_MOST_BITS = 4096  # Of an integer: Python refuses to print much longer ones.
ANY_SIZE = 2**_MOST_BITS - 1
"""The largest integer of a field that no arithmetic of 64 bits uses."""


@dataclass(frozen=True)
class StateField:
    """What a field of a saved state may hold: plain values only, as JSON gives them back.

    Attributes:
        kind: its type; a bool is no int here.
        least: of an int.
        most: of an int.
        choices: of a str, when only these are known.
        or_none: whether it may be None.
    """

    kind: type
    least: int = 0
    most: int = 2**63 - 1
    choices: tuple[str, ...] = ()
    or_none: bool = False

    def allows(self, value: object) -> bool:
        """Tells whether a field may hold a value."""
        if value is None:
            return self.or_none
        if type(value) is not self.kind:
            return False
        if isinstance(value, int) and self.kind is int:
            return self.least <= value <= self.most
        return not self.choices or value in self.choices

    def __str__(self) -> str:
        name = {int: f"an integer >= {self.least}", bool: "True or False", str: "a text", dict: "a dict"}[self.kind]
        if self.choices:
            name = "one of " + ", ".join(map(repr, self.choices))
        return name + (" or None" if self.or_none else "")


def read_fields(what: str, state: object, fields: Mapping[str, StateField]) -> dict[str, Any]:
    """Returns the fields of a saved state, each of its type and in its range.

    Raises:
        StateMismatchError: state is no dict, lacks a field, has an unknown one, or a value that cannot be.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"{what}: a saved state is a dict, and this is {describe(state)}.")
    missing = [name for name in fields if name not in state]
    unknown = [name for name in state if name not in fields]
    if missing or unknown:
        said = f" It lacks {_names(missing)}." if missing else ""
        said += f" It has {_names(unknown)}, which no {what} has." if unknown else ""
        hint = did_you_mean(unknown[0], missing or fields) if len(unknown) == 1 else ""
        raise StateMismatchError(f"This is no whole {what}.{said}{hint} Load the state as it was saved.")
    for name, field in fields.items():
        value = state[name]
        if not field.allows(value):
            allowed = f"<= {field.most}" if type(value) is int and ANY_SIZE > value > field.most else field
            raise StateMismatchError(
                f"{what}: {name}={describe(value)} must be {allowed}. Load the state as it was saved."
            )
    return {name: state[name] for name in fields}


def checksum_of(fields: Mapping[str, Any]) -> str:
    """Returns 8 hexadecimal digits over the names and values of some fields, whatever their order."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def describe(value: object) -> str:
    """Returns a value's text, cut when it is long."""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"an integer of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:100]}... ({type(value).__name__})"


def _names(names: list[Any]) -> str:
    return ", ".join(describe(name) for name in names[:5]) + (" and others" if len(names) > 5 else "")
