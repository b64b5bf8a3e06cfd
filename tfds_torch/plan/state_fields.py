"""The layout of saved states: which fields, of which type and range; reading them, and whether they fit a dataset."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.epoch import Remainder
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted

_ANY_SIZE = 2**4096 - 1  # Of a field that no arithmetic of 64 bits uses; Python refuses to print much longer integers.
_SAME_REMAINDERS = {"keep", "pad"}
_MOST_NAMED = 8


@dataclass(frozen=True)
class StateField:
    """What a field of a saved state may hold: plain values only, as JSON gives them back.

    The remedy says what to do where a dataset has another value; without one, the dataset may continue the state.
    """

    kind: type
    least: int = 0
    most: int = 2**63 - 1
    choices: tuple[str, ...] = ()
    or_none: bool = False
    remedy: str = ""

    def allows(self, value: object) -> bool:
        """Tells whether a field may hold a value."""
        if value is None:
            return self.or_none
        if type(value) is not self.kind:
            return False
        if type(value) is int:
            return self.least <= value <= self.most
        return not self.choices or value in self.choices

    def __str__(self) -> str:
        name = {int: f"an integer >= {self.least}", bool: "True or False", str: "a text", dict: "a dict"}[self.kind]
        if self.choices:
            name = "one of " + ", ".join(map(repr, self.choices))
        return name + (" or None" if self.or_none else "")


STATE_VERSION = 3
READ_MODES = ("index", "files", "examples")

STATE_FIELDS = {
    "version": StateField(int, least=1),
    "dataset": StateField(str, remedy="Open the dataset and version of the state."),
    "split": StateField(str, remedy="Pass split={stored}."),
    "fingerprint": StateField(
        str,
        remedy="The files, or a mixture's weights, or a subset's numbers, are not those that the state was saved with: "
        "open the same ones (a dataset of your own with the same version=, a decoded cache with the same "
        "max_resolution).",
    ),
    "num_examples": StateField(int, remedy="Open the dataset with the examples, and the epoch_size, that it had."),
    "read_mode": StateField(str, choices=READ_MODES, remedy="Pass ReadOptions(mode={stored})."),
    "is_training": StateField(bool, remedy="Pass is_training={stored}."),
    "shuffle": StateField(bool, remedy="Pass shuffle={stored}."),
    "seed": StateField(int, most=_ANY_SIZE, remedy="Pass seed={stored}."),
    "repeats": StateField(int, least=1, remedy="Pass repeats={stored}."),
    "remainder": StateField(
        str, choices=tuple(member.value for member in Remainder), remedy="Pass remainder={stored}."
    ),
    "block_records": StateField(int, least=1, or_none=True, remedy="Pass ReadOptions(block_records={stored})."),
    "window_blocks": StateField(
        int,
        least=1,
        or_none=True,
        remedy="A window is shuffle_buffer // block_records blocks: the state had {window_records} examples.",
    ),
    "block_groups": StateField(int, least=2, or_none=True, remedy="Pass ReadOptions(block_groups={groups})."),
    "global_batch_size": StateField(int, least=1),
    "batch_size": StateField(int, least=1),
    "num_replicas": StateField(int, least=1),
    "num_workers": StateField(int, least=1, or_none=True),
    "epoch": StateField(int),
    "first_example": StateField(int),
    "batches_delivered": StateField(int),
    "checksum": StateField(str),
}

POSITION_FIELDS = {
    "worker": StateField(int),
    "num_workers": StateField(int, least=1),
    "batches": StateField(int),
    "examples": StateField(int),
    "began_at": StateField(dict),
    "checksum": StateField(str),
}


def check_kind(state: Mapping[Any, Any]) -> None:
    """Raises StateMismatchError for a state of torchdata's, the position of a worker, or a state of another version."""
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
    if type(version) is int and version != STATE_VERSION:
        age, remedy = "an earlier", "begin the epoch anew, or end it with the release that saved it"
        if version > STATE_VERSION:
            age, remedy = "a later", "install the release that saved it"
        raise StateMismatchError(
            f"LoaderState: version={quoted(version)} was saved by {age} release, and this one reads version "
            f"{STATE_VERSION}: {remedy}."
        )


def read_fields(what: str, state: object, fields: Mapping[str, StateField]) -> dict[str, Any]:
    """Returns the fields of a saved state, each of its type and in its range."""
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"{what}: a saved state is a dict, and this is {quoted(state)}.")
    missing = [name for name in fields if name not in state]
    unknown = [name for name in state if name not in fields]
    if missing or unknown:
        said = f" It lacks {_names(missing)}." if missing else ""
        said += f" It has {_names(unknown)}, which no {what} has." if unknown else ""
        hint = did_you_mean(unknown[0], missing or fields) if len(unknown) == 1 else ""
        raise StateMismatchError(f"This is not a valid {what}.{said}{hint} Load the state as it was saved.")
    for name, field in fields.items():
        value = state[name]
        if not field.allows(value):
            allowed = f"<= {field.most}" if type(value) is int and _ANY_SIZE > value > field.most else field
            raise StateMismatchError(
                f"{what}: {name}={quoted(value)} must be {allowed}. Load the state as it was saved."
            )
    return {name: state[name] for name in fields}


def checksum_of(fields: Mapping[str, Any]) -> str:
    """Returns 8 hexadecimal digits over the names and values of some fields, whatever their order."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=4).hexdigest()


def differences(stored: Mapping[str, Any], here: Mapping[str, Any], *, allow_batch_change: bool) -> list[str]:
    """Returns a sentence and a remedy for every field of a state that keeps a dataset from continuing it."""
    blocks = stored["block_records"], stored["window_blocks"]
    window_records = None if None in blocks else math.prod(blocks)
    found = []
    for name, field in STATE_FIELDS.items():
        is_same = stored[name] == here[name]
        if name == "remainder":
            is_same |= {stored[name], here[name]} == _SAME_REMAINDERS
        if field.remedy and not is_same:
            remedy = field.remedy.format(
                stored=quoted(stored[name]), window_records=window_records, groups=stored["block_groups"] or 1
            )
            found.append(_difference(name, stored, here, remedy))
    if stored["read_mode"] != "index":
        return found + _differences_of_world(stored, here)
    return found if allow_batch_change else found + _difference_of_global_batch(stored, here)


def _difference(name: str, stored: Mapping[str, Any], here: Mapping[str, Any], remedy: str) -> str:
    return f"{name}: {quoted(stored[name])} in the state, {quoted(here[name])} here. {remedy}"


def _difference_of_global_batch(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    size, num_replicas = stored["global_batch_size"], here["num_replicas"]
    if size == here["global_batch_size"]:
        return []
    if size % num_replicas == 0:
        remedy = f"With {num_replicas} ranks, batch_size={size // num_replicas} continues it."
    else:
        # A changed size may be huge: only numbers of ranks near ours are tried.
        possible = [count for count in range(1, 4 * num_replicas + 1) if size % count == 0]
        nearest = sorted(possible, key=lambda count: abs(count - num_replicas))[:_MOST_NAMED]
        remedy = (
            f"{size} does not divide among {num_replicas} ranks; these numbers of ranks continue it: "
            f"{', '.join(map(str, sorted(nearest)))}."
        )
    return [
        f"global_batch_size: {size} in the state ({stored['num_replicas']} ranks x batch_size "
        f"{stored['batch_size']}), {here['global_batch_size']} here ({num_replicas} ranks x batch_size "
        f"{here['batch_size']}). {remedy} Or call load_state_dict(state, allow_batch_change=True), which deals the "
        f"rest of the epoch anew."
    ]


def _differences_of_world(stored: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    names = [name for name in ("num_replicas", "batch_size") if stored[name] != here[name]]
    num_workers = (stored["num_workers"], here["num_workers"])
    if None not in num_workers and num_workers[0] != num_workers[1] and stored["batches_delivered"] > 0:
        names.append("num_workers")
    remedy = f"Read mode {stored['read_mode']!r} goes on in the same world only; 'index' in others too."
    return [_difference(name, stored, here, remedy) for name in names]


def stateful_misfit(reason: str) -> StateMismatchError:
    """Returns the error for a state of torchdata's StatefulDataLoader that cannot be."""
    return StateMismatchError(f"StatefulDataLoader's state: {reason}")


def stateful_entry(state: object, *path: str) -> object:
    """Returns the value at a path within the nested dicts of a StatefulDataLoader's state."""
    for depth, name in enumerate(path):
        if not isinstance(state, Mapping) or name not in state:
            raise StateMismatchError(
                f"StatefulDataLoader's state lacks {'/'.join(path[: depth + 1])!r}. Load the state as it was saved, by "
                f"a loader over a dataset of tfds_torch."
            )
        state = state[name]
    return state


def _names(names: list[Any]) -> str:
    return ", ".join(quoted(name) for name in names[:5]) + (" and others" if len(names) > 5 else "")
