"""WorkerPosition: how far one worker of a loader has got; and what torchdata's StatefulDataLoader saves of them.

torchdata itself is not needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.state_fields import POSITION_FIELDS, checksum_of, read_fields
from tfds_torch.runtime.printable import quoted

State = TypeVar("State", bound="StartState")


class StartState(Protocol):
    """What a position needs of the state at which its iteration began; `plan.state.LoaderState` is one."""

    @property
    def plan(self) -> EpochPlan:
        """The plan of its epoch, for rank 0 with one worker."""

    @property
    def batch_size(self) -> int:
        """B, per rank."""

    @property
    def num_batches(self) -> int:
        """Batches that each rank has in an epoch."""

    @property
    def batches_delivered(self) -> int:
        """Batches that each rank has delivered of this epoch."""

    def at(self: State, batches_delivered: int) -> State:
        """Returns the same state after another number of batches of its epoch."""

    def with_workers(self: State, num_workers: int | None) -> State:
        """Returns the same state with another number of workers."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict of plain values."""

    @classmethod
    def from_dict(cls: type[State], state: object) -> State:
        """Returns the state that `to_dict` wrote."""

    @classmethod
    def load(cls: type[State], state: object, here: State) -> State:
        """Returns a saved state that fits the dataset which is to continue it."""


@dataclass(frozen=True)
class WorkerPosition(Generic[State]):
    """How far one worker has got in an iteration of a loader.

    Attributes:
        worker: this worker, 0 <= worker < num_workers.
        num_workers: W, the workers of the rank; 1 when the rank reads by itself.
        batches: whole batches of its own that it has handed over.
        examples: examples of its next batch that it has handed over, fewer than that batch has.
        began_at: where the iteration began; its batches_delivered is the iteration's first batch.
    """

    worker: int
    num_workers: int
    batches: int
    examples: int
    began_at: State

    @property
    def start_batch(self) -> int:
        """The batch from which this worker, as the same one of W, begins with its own next batch.

        Batch b belongs to worker (b - start) % W, so beginning a whole number of rounds later deals it the same ones.
        """
        return min(self.began_at.batches_delivered + self.batches * self.num_workers, self.began_at.num_batches)

    @property
    def next_batch(self) -> int:
        """The number of its own next batch; the epoch's number of batches or more when it has ended."""
        return self.began_at.batches_delivered + self.batches * self.num_workers + self.worker

    @property
    def is_underway(self) -> bool:
        """Whether the loader is within an epoch, as far as this worker can tell: neither at its beginning nor end."""
        has_begun = bool(self.batches or self.examples or self.began_at.batches_delivered)
        return has_begun and self.next_batch < self.began_at.num_batches

    def to_dict(self) -> dict[str, Any]:
        """Returns the position as a dict of plain values, with a checksum over them."""
        fields = {name: getattr(self, name) for name in ("worker", "num_workers", "batches", "examples")}
        fields["began_at"] = self.began_at.to_dict()
        return {**fields, "checksum": checksum_of(fields)}

    @classmethod
    def from_dict(cls, state: object, kind: type[State]) -> "WorkerPosition[State]":
        """Returns the position that `to_dict` wrote, with a `began_at` of a type."""
        fields = read_fields("WorkerPosition", state, POSITION_FIELDS)
        return cls._of_fields(fields, kind.from_dict(fields["began_at"]))

    @classmethod
    def load(cls, state: object, here: State, *, worker: int, num_workers: int) -> "WorkerPosition[State]":
        """Returns a saved position from which a worker of `num_workers` can go on; `here` as in `LoaderState.load`."""
        fields = read_fields("WorkerPosition", state, POSITION_FIELDS)
        position = cls._of_fields(fields, type(here).load(fields["began_at"], here))
        if position.num_workers != num_workers:
            raise StateMismatchError(
                f"num_workers: {position.num_workers} in the state, {num_workers} here. The positions of workers go on "
                f"in as many workers: pass num_workers={position.num_workers}, or load "
                f"LoaderState.from_stateful(state) into the dataset, which read mode 'index' continues in any number."
            )
        if position.worker != worker:
            raise StateMismatchError(
                f"worker: {position.worker} in the state, {worker} here. Give every worker its own position."
            )
        return position

    @classmethod
    def _of_fields(cls, fields: dict[str, Any], began_at: State) -> "WorkerPosition[State]":
        checksum = fields.pop("checksum")
        position = cls(**{**fields, "began_at": began_at})
        position._check_ranges()
        if checksum != checksum_of(fields):
            raise StateMismatchError(
                f"WorkerPosition: checksum={quoted(checksum)} does not fit its fields, which give "
                f"{checksum_of(fields)!r}. One of worker={position.worker}, num_workers={position.num_workers}, "
                f"batches={position.batches}, examples={position.examples}, began_at or the checksum was changed after "
                f"saving. Load the state as it was saved."
            )
        return position

    def _check_ranges(self) -> None:
        if self.worker >= self.num_workers:
            raise StateMismatchError(
                f"WorkerPosition: worker={self.worker} must be below num_workers={self.num_workers}."
            )
        plan = self.began_at.plan
        plan = replace(plan, world=plan.world.at_worker(self.worker, self.num_workers))
        most = len(plan.worker_batches(self.began_at.batches_delivered))
        if self.batches > most:
            raise StateMismatchError(
                f"WorkerPosition: batches={self.batches} must be in 0..{most}, the batches of worker={self.worker} "
                f"of num_workers={self.num_workers} from batch {self.began_at.batches_delivered} on."
            )
        limit = plan.batch_size if self.batches < most else 1
        if self.examples >= limit:
            raise StateMismatchError(
                f"WorkerPosition: examples={self.examples} must be in 0..{limit - 1} after batches={self.batches} of "
                f"the {most} of worker={self.worker} of num_workers={self.num_workers}."
            )


def read_stateful(state: object, kind: type[State]) -> State:
    """Returns the point at which torchdata's `StatefulDataLoader` saved a state, free of its workers."""
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"A StatefulDataLoader's state_dict() is a dict with '_snapshot' or 'dataset_state', and this is "
            f"{quoted(state)}."
        )
    if "_snapshot" not in state:
        own = _entry(state, "dataset_state")
        if not (isinstance(own, Mapping) and "began_at" in own):
            return kind.from_dict(own)
        position = WorkerPosition.from_dict(own, kind)
        _check_together([position])
        return position.began_at.with_workers(1).at(position.next_batch)
    positions = _positions(_entry(state, "_snapshot", "_worker_snapshots"), kind)
    num_steps = _entry(state, "_steps_since_snapshot")
    if type(num_steps) is not int or num_steps < 0:
        raise _misfit(f"_steps_since_snapshot={quoted(num_steps)} must be an integer >= 0.")
    num_own, step = sum(position.batches for position in positions), _entry(state, "_snapshot", "_snapshot_step")
    if num_steps and step != num_own:
        raise _misfit(
            f"at its snapshot the loader had given {quoted(step)} batches, and the dataset {num_own}: their batches "
            f"differ, so what came since cannot be counted. Give the parser the loader's batch_size, or the loader "
            f"snapshot_every_n_steps=1."
        )
    began_at, first_missing = positions[0].began_at, min(position.next_batch for position in positions)
    if first_missing + num_steps > began_at.num_batches:
        raise _misfit(
            f"_steps_since_snapshot={num_steps} after batch {first_missing} passes the epoch's end at batch "
            f"{began_at.num_batches}."
        )
    return began_at.with_workers(len(positions)).at(first_missing + num_steps)


def _positions(snapshots: object, kind: type[State]) -> list[WorkerPosition[State]]:
    if not isinstance(snapshots, Mapping) or not snapshots:
        raise _misfit(f"_worker_snapshots must hold a state of every worker, and is {quoted(snapshots)}.")
    names = [f"worker_{number}" for number in range(len(snapshots))]
    positions = [WorkerPosition.from_dict(_entry(snapshots, name, "dataset_state"), kind) for name in names]
    _check_together(positions)
    return positions


def _check_together(positions: list[WorkerPosition[State]]) -> None:
    """Checks that the positions are those of all workers of one iteration, between two batches."""
    num_workers = len(positions)
    for number, position in enumerate(positions):
        if (position.worker, position.num_workers) != (number, num_workers):
            raise _misfit(
                f"the position of worker {number} of {num_workers} says worker={position.worker}, "
                f"num_workers={position.num_workers}."
            )
        if position.began_at != positions[0].began_at:
            raise _misfit(f"began_at differs between worker 0 and worker {number}: they are not of one iteration.")
        if position.examples:
            raise _misfit(
                f"worker {number} is in the middle of a batch (examples={position.examples} of batch "
                f"{position.next_batch}). Give the loader the batch_size of the dataset, "
                f"{position.began_at.batch_size}."
            )
    following = sorted(position.next_batch for position in positions)
    if following != list(range(following[0], following[0] + num_workers)):
        batches = ", ".join(str(position.batches) for position in positions)
        raise _misfit(
            f"its workers have delivered {batches} batches, which is no round-robin from worker 0 on. Keep "
            f"in_order=True, and load the state as it was saved."
        )


def _misfit(reason: str) -> StateMismatchError:
    return StateMismatchError(f"StatefulDataLoader's state: {reason}")


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
