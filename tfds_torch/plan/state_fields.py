"""The layout of saved states: their version, the fields they must have, of which type and range, and reading them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.plan.epoch import Remainder

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


STATE_VERSION = 2
READ_MODES = ("index", "files", "examples")

STATE_FIELDS = {
    "version": StateField(int, least=1),
    "dataset": StateField(str),
    "split": StateField(str),
    "fingerprint": StateField(str),
    "num_examples": StateField(int),
    "read_mode": StateField(str, choices=READ_MODES),
    "is_training": StateField(bool),
    "shuffle": StateField(bool),
    "seed": StateField(int, most=ANY_SIZE),
    "repeats": StateField(int, least=1),
    "remainder": StateField(str, choices=tuple(member.value for member in Remainder)),
    "block_records": StateField(int, least=1, or_none=True),
    "window_blocks": StateField(int, least=1, or_none=True),
    "global_batch_size": StateField(int, least=1),
    "batch_size": StateField(int, least=1),
    "num_replicas": StateField(int, least=1),
    "num_workers": StateField(int, least=1, or_none=True),
    "epoch": StateField(int),
    "first_example": StateField(int),
    "batches_delivered": StateField(int),
    "checksum": StateField(str),
}

STATE_FIELDS_1 = {name: field for name, field in STATE_FIELDS.items() if name != "first_example"}
"""Those of version 1, of releases up to 0.2.0: an epoch had one global batch size."""

POSITION_FIELDS = {
    "worker": StateField(int),
    "num_workers": StateField(int, least=1),
    "batches": StateField(int),
    "examples": StateField(int),
    "began_at": StateField(dict),
    "checksum": StateField(str),
}


def check_kind(state: Mapping[Any, Any]) -> dict[str, StateField]:
    """Returns the fields that a saved state of its version must have.

    Raises:
        StateMismatchError: it is another kind of state, easily taken for a LoaderState, or of an unknown version.
    """
    if "_snapshot" in state or "_num_yielded" in state:
        raise StateMismatchError(
            "This is the state of a StatefulDataLoader, not of its dataset: give it to the loader's load_state_dict, "
            "or make a state free of its workers with LoaderState.from_stateful(state)."
        )
    if "began_at" in state:
        raise StateMismatchError(
            "This is the position of one worker, not the state of a loader: LoaderState.from_stateful takes the "
            "positions of all workers out of a StatefulDataLoader's state."
        )
    version = state.get("version", STATE_VERSION)
    if type(version) is int and not 1 <= version <= STATE_VERSION:
        age, remedy = ("newer", "Install the release that saved it, or a later one.")
        if version < 1:
            age, remedy = ("older", "No release reads it: begin the epoch anew.")
        raise StateMismatchError(
            f"LoaderState: version={version} is {age} than versions 1 to {STATE_VERSION}, which this release reads. "
            f"{remedy}"
        )
    return STATE_FIELDS_1 if type(version) is int and version == 1 else STATE_FIELDS


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
