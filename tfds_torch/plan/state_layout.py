"""The layout of saved states: their fields, what each may hold, and the version."""

from collections.abc import Mapping
from typing import Any

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.epoch import Remainder
from tfds_torch.plan.state_fields import ANY_SIZE, StateField

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
