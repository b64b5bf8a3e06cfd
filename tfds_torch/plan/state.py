"""LoaderState and WorkerPosition: how far a loader, or one worker of it, has got, as plain values to save and to load.

What torchdata's StatefulDataLoader saves of workers becomes a LoaderState here; torchdata itself is not needed.
"""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.epoch import EpochPlan, Remainder, count_batches
from tfds_torch.runtime.arguments import check_choice, check_integer, did_you_mean
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.printable import quoted

STATE_VERSION = 3
READ_MODES = ("index", "files", "examples")

_TRANSFORMS = "transforms"  # A value of `agrees`: where it differs, there is a warning, and the state continues.
_LONGEST_VALUE = 400  # Characters of JSON: a state has digests of longer values.
_OF_FINGERPRINT = ("dataset", "split", "kind", "subset", "weights", "members")

_REMEDIES = {
    "dataset": "Open the dataset and version of the state.",
    "split": "Pass split={stored}.",
    "fingerprint": "The files are not those that it was saved with: open the same ones (a dataset of your own with the "
    "same version=, a decoded cache with the same max_resolution).",
    "kind": "Choose examples as before: with the same subset(), balanced(), weighted(), with_order() or mixture.",
    "num_examples": "Open the dataset with the examples that it had.",
    "num_slots": "Open the dataset with the examples, and the epoch_size, that it had.",
    "subset": "Choose the same examples, in the same order.",
    "weights": "Give the weights that it was saved with.",
    "members": "Give the members that it was saved with, under the same names and in the same order.",
    "block_records": "Pass ReadOptions(block_records={stored}).",
    "window_blocks": "A window is shuffle_buffer // block_records blocks: choose them as before.",
    "block_groups": "Pass ReadOptions(block_groups={stored}).",
    **{name: f"Pass {name}={{stored}}." for name in ("shuffle", "seed", "is_training", "remainder", "repeats")},
}


@dataclass(frozen=True)
class LoaderState:
    """How far every rank has got in an epoch, and which values must agree where it continues.

    It holds plain values only (no path, no time), is the same on every rank, and fits in a few hundred bytes of JSON.
    Build it with `of`, or read it with `load`.

    Attributes:
        version: the version of this layout.
        epoch: number of the epoch, >= 0.
        examples: examples of this epoch that all ranks together have delivered; those that fill its last batch count.
        batches: batches that each rank has delivered since the global batch was last changed within the epoch, or since
            its beginning; all of them when the epoch is over.
        global_batch: G = num_replicas * batch_size.
        num_workers: W per rank, >= 1, of a stream; None where it is not known, or does not matter.
        read_mode: "index", "files" or "examples".
        agrees: values that must be equal where the state continues, by name: the dataset, its split and fingerprint,
            the order's identity, repeats, is_training and remainder; of a stream, num_replicas and batch_size, too.
        checksum: 8 hexadecimal digits over all other fields.
    """

    version: int
    epoch: int
    examples: int
    batches: int
    global_batch: int
    num_workers: int | None
    read_mode: str
    agrees: Mapping[str, Any]
    checksum: str = ""

    @classmethod
    def of(
        cls,
        plan: EpochPlan,
        *,
        dataset: str,
        split: str,
        fingerprint: str,
        read_mode: str,
        num_workers: int | None,
        epoch: int,
        batches: int,
        transforms: Sequence[str] = (),
    ) -> "LoaderState":
        """Return the state of a loader; 0 workers count as 1, because the rank then reads by itself.

        Args:
            plan: the plan of the epoch, or of the rest of it where it has a `first_example`.
            dataset: "name/config:version".
            split: the split expression.
            fingerprint: the fingerprint of the examples.
            read_mode: "index", "files" or "examples".
            num_workers: number of the loader's workers; None: unknown.
            epoch: number of the epoch, >= 0.
            batches: number of batches of the plan that each rank has delivered.
            transforms: names of the user's functions that examples go through, in turn.
        """
        check_choice("read_mode", read_mode, READ_MODES)
        agrees: dict[str, Any] = {
            "dataset": dataset,
            "split": split,
            "fingerprint": fingerprint,
            "order": {name: _shorten(value) for name, value in plan.order.identity().items()},
            "repeats": plan.num_passes,
            "is_training": plan.is_training,
            "remainder": plan.remainder.value,
        }
        if transforms:
            agrees[_TRANSFORMS] = _shorten(list(transforms))
        if read_mode != "index":
            agrees |= {"num_replicas": plan.world.num_replicas, "batch_size": plan.batch_size}
        epoch, first = check_integer("epoch", epoch, 0), plan.first_example
        state = cls(STATE_VERSION, epoch, first, 0, plan.global_batch_size, None, read_mode, agrees)
        return state.with_workers(None if num_workers is None else max(1, num_workers)).at(batches)

    def at(self, batches: int) -> "LoaderState":
        """Return the same state after another number of `batches` of its epoch.

        Raises:
            ConfigError: the epoch has fewer batches.
        """
        number = check_integer("batches_delivered", batches, 0)
        if number > self.num_batches:
            raise ConfigError(
                f"batches_delivered={number} must be in 0..{self.num_batches}: each rank has {self.num_batches} "
                f"batches in an epoch."
            )
        return replace(self, batches=number, examples=self.first_example + number * self.global_batch)._sealed()

    def with_workers(self, num_workers: int | None) -> "LoaderState":
        """Return the same state with another `num_workers`, >= 1 or None, where their number matters."""
        return replace(self, num_workers=None if self.read_mode == "index" else num_workers)._sealed()

    @property
    def first_example(self) -> int:
        """Examples of the epoch that were delivered under another global batch: batches are dealt from there on."""
        return self.examples - self.batches * self.global_batch

    @property
    def num_own_slots(self) -> int:
        """Examples of the whole epoch, without those that fill its last batch."""
        found: int = self.agrees["order"]["num_slots"] * self.agrees["repeats"]
        return found

    @property
    def num_batches(self) -> int:
        """Batches that each rank has in the epoch, from `first_example` on."""
        remainder = Remainder(self.agrees["remainder"])
        return count_batches(self.num_own_slots - self.first_example, self.global_batch, remainder)

    @property
    def start(self) -> Start:
        """Where an iteration begins that continues from this state."""
        return Start(self.epoch, self.batches, self.first_example)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict of plain values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: object) -> "LoaderState":
        """Return the state that `to_dict` wrote, without a check whether it fits a dataset; `load` checks that.

        Args:
            state: what `to_dict` returned.

        Raises:
            StateMismatchError: a field is missing or unknown; a value was changed after saving; or another version
                wrote them.
        """
        if isinstance(state, Mapping):
            _check_kind(state)
        return cls(**_read_fields("LoaderState", state, [field.name for field in fields(cls)]))

    @classmethod
    def load(
        cls, state: object, here: "LoaderState", *, allow_batch_change: bool = False, num_replicas: int = 1
    ) -> "LoaderState":
        """Return a saved state that fits the dataset which is to continue it.

        In read mode "index" the numbers of ranks and workers may differ, as long as the global batch is the same, or
        may change; the other modes continue in the same world only. The remainders "keep" and "pad" count as equal:
        they are the usual ones of evaluation on one rank and on several.

        Args:
            state: what `to_dict` returned.
            here: a state of the receiving dataset; its epoch and batches do not matter.
            allow_batch_change: whether a state of another global batch becomes one of the global batch here, at the
                same example, in read mode `index`.
            num_replicas: number of ranks here, for the remedy in the message.

        Raises:
            StateMismatchError: as in `from_dict`, or it does not fit. Every value that differs from `here` is named,
                with the value stored, the value found and the remedy.
        """
        read = cls.from_dict(state)
        found = [*_differences(read, here), *_differences_of_world(read, here, allow_batch_change, num_replicas)]
        if found:
            raise StateMismatchError(f"The state does not fit this dataset. {' '.join(found)}")
        old, new = (one.agrees.get(_TRANSFORMS, []) for one in (read, here))
        if old != new:
            warnings.warn(
                f"The state was saved with the transforms {quoted(old)}, and here they are {quoted(new)}: the rest of "
                f"the epoch goes through other functions than its beginning. Give the parser the same ones, in the "
                f"same order.",
                UserWarning,
                stacklevel=3,
            )
        if read.global_batch != here.global_batch:  # The rest of the epoch is dealt anew.
            is_over = read.batches >= read.num_batches
            examples = read.num_own_slots if is_over else read.examples
            read = replace(read, global_batch=here.global_batch, examples=examples, batches=0)
        return replace(read, agrees=here.agrees)._sealed()

    @classmethod
    def from_stateful(cls, state: Mapping[str, Any]) -> "LoaderState":
        """Return the state that a state of torchdata's `StatefulDataLoader` holds, without its workers.

        Args:
            state: what `StatefulDataLoader.state_dict()` returned, over a dataset of this package.

        Raises:
            StateMismatchError: it is not such a state, or it does not lie between two batches.
        """
        return _read_stateful(state)

    def _sealed(self) -> "LoaderState":
        return replace(self, checksum=_checksum_of(asdict(self)))


@dataclass(frozen=True)
class WorkerPosition:
    """How far one worker has got in an iteration of a loader.

    Attributes:
        worker: this worker, 0 <= worker < num_workers.
        num_workers: W, the workers of the rank; 1 when the rank reads by itself.
        batches: number of its own whole batches that it has delivered.
        examples: number of examples of its next batch that it has delivered, fewer than that batch has.
        began_at: where the iteration began; its `batches` is the iteration's first batch.
    """

    worker: int
    num_workers: int
    batches: int
    examples: int
    began_at: LoaderState

    @property
    def start_batch(self) -> int:
        """The batch from which this worker, with the same number of W, begins with its own next batch.

        Batch b belongs to worker (b - start) % W, so beginning a whole number of rounds later deals it the same ones.
        """
        return min(self.began_at.batches + self.batches * self.num_workers, self.began_at.num_batches)

    @property
    def next_batch(self) -> int:
        """The number of its own next batch; the epoch's number of batches or more when it has ended."""
        return self.began_at.batches + self.batches * self.num_workers + self.worker

    @property
    def is_underway(self) -> bool:
        """Whether the loader is within an epoch, neither at its beginning nor at its end, for this worker."""
        has_begun = bool(self.batches or self.examples or self.began_at.batches)
        return has_begun and self.next_batch < self.began_at.num_batches

    def to_dict(self) -> dict[str, Any]:
        """Return the position as a dict of plain values, with a checksum over them."""
        values = asdict(self)
        return {**values, "checksum": _checksum_of(values)}

    @classmethod
    def from_dict(cls, state: object) -> "WorkerPosition":
        """Return the position that `to_dict` wrote as `state`; raise StateMismatchError for any other value."""
        values = _read_fields("WorkerPosition", state, [*(field.name for field in fields(cls)), "checksum"])
        del values["checksum"]
        return cls(**{**values, "began_at": LoaderState.from_dict(values["began_at"])})

    @classmethod
    def load(cls, state: object, here: LoaderState, *, worker: int, num_workers: int) -> "WorkerPosition":
        """Return a saved position from which one of `num_workers` workers can continue; see `LoaderState.load`.

        Args:
            state: what `to_dict` returned.
            here: a state of the receiving dataset, as in `LoaderState.load`.
            worker: number of the worker here, 0 <= worker < num_workers.
            num_workers: number of the rank's workers here, >= 1.

        Raises:
            StateMismatchError: `state` is not a saved position, does not fit the dataset, or is of another worker or
                another number of workers.
        """
        position = cls.from_dict(state)
        position = replace(position, began_at=LoaderState.load(position.began_at.to_dict(), here))
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


# Reading


def _check_kind(state: Mapping[Any, Any]) -> None:
    """Raise StateMismatchError for a state of torchdata's, the position of a worker, or a state of another version."""
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
    if type(version) is int and (version != STATE_VERSION or "batches_delivered" in state):
        age, remedy = "an earlier", "begin the epoch anew, or end it with the release that saved it"
        if version > STATE_VERSION:
            age, remedy = "a later", "install the release that saved it"
        raise StateMismatchError(
            f"LoaderState: version={quoted(version)} was saved by {age} release, and this one reads version "
            f"{STATE_VERSION}: {remedy}."
        )


def _read_fields(what: str, state: object, names: list[str]) -> dict[str, Any]:
    """Return the fields of a saved state after a check that it is whole and as it was saved."""
    if not isinstance(state, Mapping):
        raise StateMismatchError(f"{what}: a saved state is a dict, and this is {quoted(state)}.")
    missing = [name for name in names if name not in state]
    unknown = [name for name in state if name not in names]
    if missing or unknown:
        said = f" It lacks {_join(missing)}." if missing else ""
        said += f" It has {_join(unknown)}, which no {what} has." if unknown else ""
        hint = did_you_mean(unknown[0], missing or names) if len(unknown) == 1 else ""
        raise StateMismatchError(f"This is not a valid {what}.{said}{hint} Load the state as it was saved.")
    found = {name: state[name] for name in names}
    expected = _checksum_of(found)
    if not expected or found["checksum"] != expected:
        raise StateMismatchError(
            f"{what}: checksum={quoted(found['checksum'])} does not fit its other fields, "
            f"{'which give ' + quoted(expected) if expected else 'which are not plain values'}: one of them, or the "
            f"checksum, was changed after saving. Load the state as it was saved."
        )
    return found


def _checksum_of(values: Mapping[str, Any]) -> str:
    """Return 8 hexadecimal digits over all fields but the checksum; an empty text where they are not plain values."""
    try:
        return digest_of({name: value for name, value in values.items() if name != "checksum"})[:8]
    except (TypeError, ValueError, RecursionError):
        return ""


def _shorten(value: Any) -> Any:
    """Return a plain value, or a digest of a long one."""
    value = json.loads(json.dumps(value))  # As JSON returns it: tuples become lists.
    return f"digest {digest_of(value)}" if len(json.dumps(value)) > _LONGEST_VALUE else value


def _join(names: list[Any]) -> str:
    return ", ".join(quoted(name) for name in names[:5]) + (" and others" if len(names) > 5 else "")


# Whether a state fits


def _differences(stored: LoaderState, here: LoaderState) -> Iterator[str]:
    """Yield a sentence and a remedy for every value that does not agree."""
    if stored.read_mode != here.read_mode:
        yield _difference("read_mode", stored.read_mode, here.read_mode, "Pass ReadOptions(mode={stored}).")
        return
    old, new = ({**one.agrees, **one.agrees["order"]} for one in (stored, here))
    exact = {Remainder.KEEP.value, Remainder.PAD.value}
    for name in new:
        if name in ("order", _TRANSFORMS) or name not in old or old[name] == new[name]:
            continue
        if name == "remainder" and {old[name], new[name]} == exact:
            continue
        if name == "fingerprint" and any(old.get(other) != new[other] for other in _OF_FINGERPRINT if other in new):
            continue
        of_stream = f"Read mode {here.read_mode!r} goes on in the same world only; 'index' in others too."
        yield _difference(name, old[name], new[name], _REMEDIES.get(name, of_stream))
    lacking = (old.keys() ^ new.keys()) - {_TRANSFORMS}
    if lacking and old["kind"] == new["kind"]:
        yield f"Its order has {_join(sorted(lacking))} in one of them only."


def _difference(name: str, stored: object, here: object, remedy: str) -> str:
    return f"{name}: {quoted(stored)} in the state, {quoted(here)} here. {remedy.format(stored=quoted(stored))}"


def _differences_of_world(
    stored: LoaderState, here: LoaderState, allow_batch_change: bool, num_replicas: int
) -> Iterator[str]:
    """Yield the reasons why the world here cannot continue a state."""
    if here.read_mode != "index":
        workers = stored.num_workers, here.num_workers
        if None not in workers and workers[0] != workers[1] and stored.batches > 0:
            remedy = f"Read mode {here.read_mode!r} goes on in the same world only; 'index' in others too."
            yield _difference("num_workers", *workers, remedy)
        return
    if stored.global_batch == here.global_batch or allow_batch_change:
        return
    size = stored.global_batch
    remedy = f"With {num_replicas} ranks, batch_size={size // num_replicas} continues it."
    if size % num_replicas:
        remedy = f"{size} does not divide among {num_replicas} ranks: choose ranks x batch_size = {size}."
    yield (
        f"global_batch: {size} in the state, {here.global_batch} here. {remedy} Or call "
        f"load_state_dict(state, allow_batch_change=True), which deals the rest of the epoch anew."
    )


# torchdata's states


def _read_stateful(state: object) -> LoaderState:
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"A StatefulDataLoader's state_dict() is a dict with '_snapshot' or 'dataset_state', and this is "
            f"{quoted(state)}."
        )
    if "_snapshot" not in state:
        own = _entry(state, "dataset_state")
        if not (isinstance(own, Mapping) and "began_at" in own):
            return LoaderState.from_dict(own)
        position = WorkerPosition.from_dict(own)
        _check_together([position])
        return position.began_at.with_workers(1).at(position.next_batch)
    snapshots = _entry(state, "_snapshot", "_worker_snapshots")
    if not isinstance(snapshots, Mapping) or not snapshots:
        raise _misfit(f"_worker_snapshots must hold a state of every worker, and is {quoted(snapshots)}.")
    names = [f"worker_{number}" for number in range(len(snapshots))]
    positions = [WorkerPosition.from_dict(_entry(snapshots, name, "dataset_state")) for name in names]
    _check_together(positions)
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


def _check_together(positions: list[WorkerPosition]) -> None:
    """Check that the positions are those of all workers of one iteration, between two batches."""
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
                f"{position.next_batch}). Give the loader the batch_size of the dataset."
            )
    following = sorted(position.next_batch for position in positions)
    if following != list(range(following[0], following[0] + num_workers)):
        batches = ", ".join(str(position.batches) for position in positions)
        raise _misfit(
            f"its workers have delivered {batches} batches, which is not a round-robin from worker 0 on. Keep "
            f"in_order=True, and load the state as it was saved."
        )


def _misfit(reason: str) -> StateMismatchError:
    return StateMismatchError(f"StatefulDataLoader's state: {reason}")


def _entry(state: object, *path: str) -> object:
    """Return the value at a path within the nested dicts of a StatefulDataLoader's state."""
    for depth, name in enumerate(path):
        if not isinstance(state, Mapping) or name not in state:
            raise StateMismatchError(
                f"StatefulDataLoader's state lacks {'/'.join(path[: depth + 1])!r}. Load the state as it was saved, by "
                f"a loader over a dataset of tfds_torch."
            )
        state = state[name]
    return state
