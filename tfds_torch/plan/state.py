"""LoaderState and WorkerPosition: how far a loader, or one worker of it, has got, as plain values to save and to load.

What torchdata's StatefulDataLoader saves of workers becomes a LoaderState here; torchdata itself is not needed.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.passes import BlockShuffle
from tfds_torch.plan.state_fields import (
    POSITION_FIELDS,
    READ_MODES,
    STATE_FIELDS,
    STATE_VERSION,
    check_kind,
    checksum_of,
    differences,
    read_fields,
    stateful_entry,
    stateful_misfit,
)
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_choice, check_integer
from tfds_torch.runtime.cached_property import cached_property
from tfds_torch.runtime.printable import quoted

_COMPARED = ("remainder", "global_batch_size", "batch_size", "num_replicas")  # May differ and fit all the same.


@dataclass(frozen=True)
class LoaderState:
    """How far every rank has got in an epoch, and of which dataset, order and world.

    It holds plain values only (no path, no time), is the same on every rank, and fits in a few hundred bytes of JSON.
    Build it with `of`, or read it with `load`.

    Attributes:
        version: the version of this layout.
        dataset: "name/config:version".
        split: the split expression.
        fingerprint: hash of the dataset's name, version, split and shard lengths.
        num_examples: N, of one pass; of a mixture, its epoch_size.
        read_mode: "index", "files" or "examples".
        is_training, shuffle, seed, remainder: as in `EpochPlan`.
        repeats: passes in one epoch, >= 1.
        block_records, window_blocks: of a block shuffle, both None without one.
        block_groups: groups of blocks, >= 2; None without them.
        global_batch_size: G = num_replicas * batch_size.
        batch_size: B, per rank.
        num_replicas: R.
        num_workers: W per rank, >= 1; None where it is not known or does not matter.
        epoch: which epoch, >= 0.
        first_example: examples of this epoch that all ranks together had delivered before the global batch size was
            changed to this one; 0 where it was not. Batches are counted from there on.
        batches_delivered: batches that each rank has delivered since; all of them when the epoch is over.
        checksum: 8 hexadecimal digits over all other fields.
    """

    version: int
    dataset: str
    split: str
    fingerprint: str
    num_examples: int
    read_mode: str
    is_training: bool
    shuffle: bool
    seed: int
    repeats: int
    remainder: str
    block_records: int | None
    window_blocks: int | None
    block_groups: int | None
    global_batch_size: int
    batch_size: int
    num_replicas: int
    num_workers: int | None
    epoch: int
    first_example: int
    batches_delivered: int
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
        batches_delivered: int,
    ) -> "LoaderState":
        """Returns the state of a loader; 0 workers count as 1, the rank that reads by itself.

        The plan says of which rest of the epoch, where it has a `first_example`; all else is as the attributes.
        """
        check_choice("read_mode", read_mode, READ_MODES)
        blocks = plan.blocks if plan.shuffle else None
        state = cls(
            version=STATE_VERSION,
            dataset=dataset,
            split=split,
            fingerprint=fingerprint,
            num_examples=plan.pass_size,
            read_mode=read_mode,
            is_training=bool(plan.is_training),
            shuffle=bool(plan.shuffle),
            seed=plan.seed,
            repeats=plan.num_passes,
            remainder=plan.remainder.value,
            block_records=blocks.block_records if blocks else None,
            window_blocks=blocks.window_blocks if blocks else None,
            block_groups=plan.num_groups if plan.num_groups > 1 else None,
            global_batch_size=plan.global_batch_size,
            batch_size=plan.batch_size,
            num_replicas=plan.world.num_replicas,
            num_workers=None if num_workers is None else max(1, check_integer("num_workers", num_workers, 0)),
            epoch=check_integer("epoch", epoch, 0),
            first_example=plan.first_example,
            batches_delivered=0,
        )
        return state.at(batches_delivered)

    def at(self, batches_delivered: int) -> "LoaderState":
        """Returns the same state after another number of batches of its epoch.

        Raises:
            ConfigError: the epoch has fewer batches.
        """
        number = check_integer("batches_delivered", batches_delivered, 0)
        if number > self.num_batches:
            raise ConfigError(
                f"batches_delivered={number} must be in 0..{self.num_batches}: each rank has {self.num_batches} "
                f"batches in an epoch."
            )
        return replace(self, batches_delivered=number)._sealed()

    def with_workers(self, num_workers: int | None) -> "LoaderState":
        """Returns the same state with another number of workers, >= 1 or None.

        Raises:
            ConfigError: num_workers is neither.
        """
        number = None if num_workers is None else check_integer("num_workers", num_workers, 1)
        return replace(self, num_workers=number)._sealed()

    @cached_property
    def plan(self) -> EpochPlan:
        """The plan of the epoch that the state speaks of, from `first_example` on, for rank 0 with one worker.

        Raises:
            ConfigError: there can be no such epoch.
        """
        blocks = None
        if self.block_records is not None and self.window_blocks is not None:
            blocks = BlockShuffle(self.block_records, self.window_blocks, self.block_groups or 1)
        return EpochPlan(
            num_examples=self.num_examples,
            world=World(num_replicas=self.num_replicas),
            batch_size=self.batch_size,
            remainder=Remainder(self.remainder),
            is_training=self.is_training,
            repeats=self.repeats,
            shuffle=self.shuffle,
            seed=self.seed,
            blocks=blocks,
            first_example=self.first_example,
        )

    @property
    def num_batches(self) -> int:
        """Batches that each rank has in the epoch, from `first_example` on."""
        return self.plan.num_batches

    @property
    def start(self) -> Start:
        """Where an iteration begins that goes on from here."""
        return Start(self.epoch, self.batches_delivered, self.first_example)

    @property
    def examples_delivered(self) -> int:
        """Examples of the epoch that all ranks together have delivered; when it is over, all that it has."""
        if self.batches_delivered >= self.num_batches:
            return self.plan.num_own_slots
        return self.first_example + self.batches_delivered * self.global_batch_size

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as a dict of plain values."""
        return asdict(self)

    def to_json(self) -> str:
        """Returns the fields as one line of JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> "LoaderState":
        """Returns the state that `to_json` wrote.

        Raises:
            StateMismatchError: text is not JSON, or as in `from_dict`.
        """
        try:
            state = json.loads(text)
        except ValueError as error:
            raise StateMismatchError(f"LoaderState: this text is not JSON ({error}): {quoted(text)}.") from None
        return cls.from_dict(state)

    @classmethod
    def from_dict(cls, state: object) -> "LoaderState":
        """Returns the state that `to_dict` wrote, without asking whether it fits a dataset; `load` asks.

        Raises:
            StateMismatchError: a field is missing, unknown, of a wrong type or out of range; the fields contradict
                each other or were changed after saving; or another version wrote them.
        """
        read = cls._read(state)
        read._check_itself([field.name for field in fields(cls) if field.name != "checksum"])
        return read

    @classmethod
    def load(cls, state: object, here: "LoaderState", *, allow_batch_change: bool = False) -> "LoaderState":
        """Returns a saved state that fits the dataset which is to continue it.

        In read mode "index" the numbers of ranks and workers may differ, as long as the global batch is the same, or
        may change; the other modes continue in the same world only. The remainders "keep" and "pad" are the same here:
        they are the usual ones of evaluation on one rank and on several.

        Args:
            state: what `to_dict` wrote.
            here: what the receiving dataset says of itself; its epoch and batches_delivered do not matter.
            allow_batch_change: whether a state of another global batch size becomes one of the size that there is here,
                at the same example, in read mode `index`.

        Raises:
            StateMismatchError: as in `from_dict`, or it does not fit. Every field that differs from `here` is named
                first, with the value stored, the value found and the remedy.
        """
        read = cls._read(state)
        found = differences(asdict(read), asdict(here), allow_batch_change=allow_batch_change)
        if found:
            raise StateMismatchError(f"The state does not fit this dataset. {' '.join(found)}")
        other = {name: getattr(here, name) for name in _COMPARED if getattr(read, name) != getattr(here, name)}
        read._check_itself(["epoch", "first_example", "batches_delivered", "num_workers", *other])
        if "global_batch_size" in other:  # The rest of the epoch is dealt anew.
            read = replace(read, **other, first_example=read.examples_delivered, batches_delivered=0)
        return read._sealed()

    @classmethod
    def from_stateful(cls, state: Mapping[str, Any]) -> "LoaderState":
        """Returns what a state of torchdata's `StatefulDataLoader` says, free of its workers.

        Args:
            state: what `StatefulDataLoader.state_dict()` returned, over a dataset of this package.

        Raises:
            StateMismatchError: it is not such a state, or it does not lie between two batches.
        """
        return _read_stateful(state)

    @classmethod
    def _read(cls, state: object) -> "LoaderState":
        """Returns a saved state whose fields are right one by one."""
        if isinstance(state, Mapping):
            check_kind(state)
        return cls(**read_fields("LoaderState", state, STATE_FIELDS))

    def _check_itself(self, suspects: list[str]) -> None:
        """Checks that the fields agree with each other and with the checksum, which names the suspects."""
        contradiction = self._contradiction()
        if contradiction is not None:
            raise StateMismatchError(f"LoaderState: {contradiction} Load the state as it was saved.")
        expected = checksum_of(self._fields_without_checksum())
        if self.checksum != expected:
            values = ", ".join(f"{name}={quoted(getattr(self, name))}" for name in suspects)
            raise StateMismatchError(
                f"LoaderState: checksum={quoted(self.checksum)} does not fit its fields, which give {expected!r}. "
                f"One of {values} or the checksum was changed after saving. Load the state as it was saved."
            )

    def _contradiction(self) -> str | None:
        """Returns which fields contradict each other, because one was changed; None: they agree."""
        if self.global_batch_size != self.num_replicas * self.batch_size:
            ranks = f"num_replicas={self.num_replicas} x batch_size={self.batch_size}"
            return f"global_batch_size={self.global_batch_size} must be {ranks}."
        if (self.block_records is None) != (self.window_blocks is None):
            blocks = f"block_records={self.block_records} and window_blocks={self.window_blocks}"
            return f"{blocks} must both be numbers or both None."
        if self.block_groups is not None and self.block_records is None:
            return f"block_groups={self.block_groups} must be None where block_records is."
        first = f"first_example={self.first_example}"
        if self.first_example and self.read_mode != "index":
            return (
                f"{first} must be 0 in read mode {self.read_mode!r}, whose global batch size does not change within an "
                f"epoch."
            )
        try:
            num_batches, last_epoch = self.num_batches, self.plan.last_epoch
        except ConfigError as error:
            raise StateMismatchError(f"LoaderState: its fields describe no epoch. {error}") from None
        if self.batches_delivered > num_batches:
            batches = "the batches of an epoch" + (f" from {first} on" if self.first_example else "")
            return f"batches_delivered={self.batches_delivered} must be in 0..{num_batches}, {batches}."
        if self.epoch > last_epoch:
            return f"epoch={self.epoch} must be in 0..{last_epoch}: later sample keys do not fit into 64 bits."
        return None

    def _sealed(self) -> "LoaderState":
        return replace(self, checksum=checksum_of(self._fields_without_checksum()))

    def _fields_without_checksum(self) -> dict[str, Any]:
        return {name: value for name, value in self.to_dict().items() if name != "checksum"}


@dataclass(frozen=True)
class WorkerPosition:
    """How far one worker has got in an iteration of a loader.

    Attributes:
        worker: this worker, 0 <= worker < num_workers.
        num_workers: W, the workers of the rank; 1 when the rank reads by itself.
        batches: whole batches of its own that it has delivered.
        examples: how many of its next batch it has delivered, fewer than that batch has.
        began_at: where the iteration began; its batches_delivered is the iteration's first batch.
    """

    worker: int
    num_workers: int
    batches: int
    examples: int
    began_at: LoaderState

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
        """Whether the loader is within an epoch, neither at its beginning nor at its end, for this worker."""
        has_begun = bool(self.batches or self.examples or self.began_at.batches_delivered)
        return has_begun and self.next_batch < self.began_at.num_batches

    def to_dict(self) -> dict[str, Any]:
        """Returns the position as a dict of plain values, with a checksum over them."""
        fields = {name: getattr(self, name) for name in ("worker", "num_workers", "batches", "examples")}
        fields["began_at"] = self.began_at.to_dict()
        return {**fields, "checksum": checksum_of(fields)}

    @classmethod
    def from_dict(cls, state: object) -> "WorkerPosition":
        """Returns the position that `to_dict` wrote."""
        fields = read_fields("WorkerPosition", state, POSITION_FIELDS)
        return cls._of_fields(fields, LoaderState.from_dict(fields["began_at"]))

    @classmethod
    def load(cls, state: object, here: LoaderState, *, worker: int, num_workers: int) -> "WorkerPosition":
        """Returns a saved position from which a worker of `num_workers` can go on; `here` as in `LoaderState.load`."""
        fields = read_fields("WorkerPosition", state, POSITION_FIELDS)
        position = cls._of_fields(fields, LoaderState.load(fields["began_at"], here))
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
    def _of_fields(cls, fields: dict[str, Any], began_at: LoaderState) -> "WorkerPosition":
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


def _read_stateful(state: object) -> LoaderState:
    if not isinstance(state, Mapping):
        raise StateMismatchError(
            f"A StatefulDataLoader's state_dict() is a dict with '_snapshot' or 'dataset_state', and this is "
            f"{quoted(state)}."
        )
    if "_snapshot" not in state:
        own = stateful_entry(state, "dataset_state")
        if not (isinstance(own, Mapping) and "began_at" in own):
            return LoaderState.from_dict(own)
        position = WorkerPosition.from_dict(own)
        _check_together([position])
        return position.began_at.with_workers(1).at(position.next_batch)
    positions = _positions(stateful_entry(state, "_snapshot", "_worker_snapshots"))
    num_steps = stateful_entry(state, "_steps_since_snapshot")
    if type(num_steps) is not int or num_steps < 0:
        raise stateful_misfit(f"_steps_since_snapshot={quoted(num_steps)} must be an integer >= 0.")
    num_own, step = (
        sum(position.batches for position in positions),
        stateful_entry(state, "_snapshot", "_snapshot_step"),
    )
    if num_steps and step != num_own:
        raise stateful_misfit(
            f"at its snapshot the loader had given {quoted(step)} batches, and the dataset {num_own}: their batches "
            f"differ, so what came since cannot be counted. Give the parser the loader's batch_size, or the loader "
            f"snapshot_every_n_steps=1."
        )
    began_at, first_missing = positions[0].began_at, min(position.next_batch for position in positions)
    if first_missing + num_steps > began_at.num_batches:
        raise stateful_misfit(
            f"_steps_since_snapshot={num_steps} after batch {first_missing} passes the epoch's end at batch "
            f"{began_at.num_batches}."
        )
    return began_at.with_workers(len(positions)).at(first_missing + num_steps)


def _positions(snapshots: object) -> list[WorkerPosition]:
    if not isinstance(snapshots, Mapping) or not snapshots:
        raise stateful_misfit(f"_worker_snapshots must hold a state of every worker, and is {quoted(snapshots)}.")
    names = [f"worker_{number}" for number in range(len(snapshots))]
    positions = [WorkerPosition.from_dict(stateful_entry(snapshots, name, "dataset_state")) for name in names]
    _check_together(positions)
    return positions


def _check_together(positions: list[WorkerPosition]) -> None:
    """Checks that the positions are those of all workers of one iteration, between two batches."""
    num_workers = len(positions)
    for number, position in enumerate(positions):
        if (position.worker, position.num_workers) != (number, num_workers):
            raise stateful_misfit(
                f"the position of worker {number} of {num_workers} says worker={position.worker}, "
                f"num_workers={position.num_workers}."
            )
        if position.began_at != positions[0].began_at:
            raise stateful_misfit(
                f"began_at differs between worker 0 and worker {number}: they are not of one iteration."
            )
        if position.examples:
            raise stateful_misfit(
                f"worker {number} is in the middle of a batch (examples={position.examples} of batch "
                f"{position.next_batch}). Give the loader the batch_size of the dataset, "
                f"{position.began_at.batch_size}."
            )
    following = sorted(position.next_batch for position in positions)
    if following != list(range(following[0], following[0] + num_workers)):
        batches = ", ".join(str(position.batches) for position in positions)
        raise stateful_misfit(
            f"its workers have delivered {batches} batches, which is not a round-robin from worker 0 on. Keep "
            f"in_order=True, and load the state as it was saved."
        )
