"""What the state of torchdata's StatefulDataLoader says of our datasets; torchdata itself is not needed."""

from collections.abc import Mapping

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.state_fields import describe
from tfds_torch.plan.worker_position import State, WorkerPosition


def read_stateful(state: object, kind: type[State]) -> State:
    """Returns what a state of torchdata's `StatefulDataLoader` says, free of its workers.

    Args:
        state: what `StatefulDataLoader.state_dict()` returned.
        kind: the type of the state that is returned; it reads its own fields.

    Raises:
        StateMismatchError: it is not such a state, or it does not lie between two batches.
    """
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"A StatefulDataLoader's state_dict() is a dict with '_snapshot' or 'dataset_state', and this is "
            f"{describe(state)}."
        )
    if "_snapshot" not in state:
        return _read_without_workers(_entry(state, "dataset_state"), kind)
    positions = _positions(_entry(state, "_snapshot", "_worker_snapshots"), kind)
    num_steps = _entry(state, "_steps_since_snapshot")
    if type(num_steps) is not int or num_steps < 0:
        raise StateMismatchError(
            f"StatefulDataLoader's state: _steps_since_snapshot={describe(num_steps)} must be an integer >= 0."
        )
    num_own, step = sum(position.batches for position in positions), _entry(state, "_snapshot", "_snapshot_step")
    if num_steps and step != num_own:
        raise StateMismatchError(
            f"StatefulDataLoader's state: at its snapshot the loader had given {describe(step)} batches, and the "
            f"dataset {num_own}: their batches differ, so what came since cannot be counted. Give the parser the "
            f"loader's batch_size, or the loader snapshot_every_n_steps=1."
        )
    began_at, first_missing = positions[0].began_at, min(position.next_batch for position in positions)
    if first_missing + num_steps > began_at.num_batches:
        raise StateMismatchError(
            f"StatefulDataLoader's state: _steps_since_snapshot={num_steps} after batch {first_missing} passes the "
            f"epoch's end at batch {began_at.num_batches}."
        )
    return began_at.with_workers(len(positions)).at(first_missing + num_steps)


def _read_without_workers(state: object, kind: type[State]) -> State:
    if not (isinstance(state, Mapping) and "began_at" in state):
        return kind.from_dict(state)
    position = WorkerPosition.from_dict(state, kind)
    _check_together([position])
    return position.began_at.with_workers(1).at(position.next_batch)


def _positions(snapshots: object, kind: type[State]) -> list[WorkerPosition[State]]:
    if not isinstance(snapshots, Mapping) or not snapshots:
        raise StateMismatchError(
            f"StatefulDataLoader's state: _worker_snapshots must hold a state of every worker, and is "
            f"{describe(snapshots)}."
        )
    names = [f"worker_{number}" for number in range(len(snapshots))]
    positions = [WorkerPosition.from_dict(_entry(snapshots, name, "dataset_state"), kind) for name in names]
    _check_together(positions)
    return positions


def _check_together(positions: list[WorkerPosition[State]]) -> None:
    """Checks that the positions are those of all workers of one iteration, between two batches."""
    num_workers = len(positions)
    for number, position in enumerate(positions):
        if (position.worker, position.num_workers) != (number, num_workers):
            raise StateMismatchError(
                f"StatefulDataLoader's state: the position of worker {number} of {num_workers} says worker="
                f"{position.worker}, num_workers={position.num_workers}."
            )
        if position.began_at != positions[0].began_at:
            raise StateMismatchError(
                f"StatefulDataLoader's state: began_at differs between worker 0 and worker {number}: they are not of "
                f"one iteration."
            )
        if position.examples:
            raise StateMismatchError(
                f"StatefulDataLoader's state: worker {number} is in the middle of a batch (examples="
                f"{position.examples} of batch {position.next_batch}). Give the loader the batch_size of the dataset, "
                f"{position.began_at.batch_size}."
            )
    following = sorted(position.next_batch for position in positions)
    if following != list(range(following[0], following[0] + num_workers)):
        batches = ", ".join(str(position.batches) for position in positions)
        raise StateMismatchError(
            f"StatefulDataLoader's state: its workers have delivered {batches} batches, which is no round-robin from "
            f"worker 0 on. Keep in_order=True, and load the state as it was saved."
        )


def _entry(state: object, *path: str) -> object:
    """Returns what lies at a path of nested dicts."""
    for depth, name in enumerate(path):
        if not isinstance(state, Mapping) or name not in state:
            raise StateMismatchError(
                f"StatefulDataLoader's state lacks {'/'.join(path[: depth + 1])!r}. Load the state as it was saved, by "
                f"a loader over a dataset of tfds_torch."
            )
        state = state[name]
    return state
