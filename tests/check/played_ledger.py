"""Ledgers of what never came from a loader: a good reading as a plan has it, edited and played into the judge."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from tfds_torch.check.expected import Expectation, expect
from tfds_torch.check.ledger import EpochEnd, Ledger, Received
from tfds_torch.check.report import Promise
from tfds_torch.parsers.provenance import Provenance
from tfds_torch.plan.deal import Assignment, ShardRange, deal_examples, deal_files
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan, Remainder
from tfds_torch.plan.passes import Passes
from tfds_torch.plan.world import World
from tfds_torch.storage.source import FileInstruction

NUM_CLASSES = 10
Key = tuple[int, int]
"""Rank and epoch."""


@dataclass(frozen=True)
class Entry:
    """One example as it arrived."""

    id: str
    index: int
    valid: bool = True
    label: object = None


Batches = dict[Key, list[list[Entry]]]


@dataclass(frozen=True)
class Case:
    """A split, a world and a number of epochs, from which a good reading is made as a DataLoader would receive it."""

    lengths: tuple[int, ...]
    num_replicas: int = 1
    num_workers: int = 1
    batch_size: int = 4
    num_epochs: int = 2
    mode: str = "examples"
    is_training: bool = True
    remainder: Remainder | None = None
    repeats: int = 1
    shuffle: bool | None = None  # None: as in training or evaluation.

    @property
    def ids(self) -> list[str]:
        return [f"ds-train.tfrecord-{file:05d}__{i}" for file, length in enumerate(self.lengths) for i in range(length)]

    def plan(self, rank: int = 0, worker: int = 0) -> EpochPlan:
        world = World(rank, self.num_replicas, worker, self.num_workers)
        return EpochPlan(
            Passes(sum(self.lengths), shuffle=self.is_training if self.shuffle is None else self.shuffle),
            world=world,
            batch_size=self.batch_size,
            remainder=self.remainder or EpochPlan.default_remainder(self.is_training, world),
            is_training=self.is_training,
            repeats=self.repeats,
        )

    def expectation(self) -> Expectation:
        return expect(PlannedParser(self), self.num_replicas, self.num_workers, self.num_epochs)  # type: ignore[arg-type]

    def stretches(self, rank: int, worker: int, epoch: int) -> tuple[list[int], list[int], int]:
        """Returns the indices of a pipeline's valid and fill examples, and what its files hold."""
        deal = deal_files if self.mode == "files" else deal_examples
        share = deal(self.plan(rank, worker), self.lengths, epoch)
        return self._indices(share.valid), self._indices(share.fill), share.num_available

    def _indices(self, stretches: Sequence[ShardRange]) -> list[int]:
        starts = [sum(self.lengths[:file]) for file in range(len(self.lengths))]
        return [starts[s.file] + i for s in stretches for i in range(s.start, s.stop)]

    def batches(self) -> Batches:
        keys = [(rank, epoch) for rank in range(self.num_replicas) for epoch in range(self.num_epochs)]
        return {key: self._planned(*key) if self.mode == "index" else self._streamed(*key) for key in keys}

    def _planned(self, rank: int, epoch: int) -> list[list[Entry]]:
        plan = self.plan(rank)
        found = [plan.batch(epoch, number) for number in range(plan.num_batches)]
        return [[self.entry(*row) for row in zip(one.index.tolist(), one.valid.tolist(), strict=True)] for one in found]

    def _streamed(self, rank: int, epoch: int) -> list[list[Entry]]:
        workers = []
        for worker in range(self.num_workers):
            valid, fill, _ = self.stretches(rank, worker, epoch)
            if self.is_training:
                random.Random(repr((rank, worker, epoch))).shuffle(valid)
            is_padding = self.plan().remainder is Remainder.PAD
            entries = [*map(self.entry, valid), *(self.entry(index, not is_padding) for index in fill)]
            workers.append([entries[i : i + self.batch_size] for i in range(0, len(entries), self.batch_size)])
        return [its[i] for i in range(max(map(len, workers))) for its in workers if i < len(its)]

    def entry(self, index: int, valid: bool = True) -> Entry:
        return Entry(self.ids[index], index, valid, index % NUM_CLASSES if valid else PAD_LABEL)

    def play(
        self,
        batches: Batches | Iterable[tuple[Key, list[list[Entry]]]] | None = None,
        expected: Expectation | None = None,
        ends: Mapping[Key, EpochEnd] | EpochEnd | None = None,
        kept: Iterable[tuple[int, int]] = (),
    ) -> Ledger:
        """Returns the ledger of what came, of the good reading by default."""
        ledger = Ledger(expected or self.expectation(), kept=kept)
        usual = ends if isinstance(ends, EpochEnd) else EpochEnd(self.plan().num_batches)
        own = ends if isinstance(ends, Mapping) else {}
        rows = self.batches() if batches is None else batches
        for (rank, epoch), its in rows.items() if isinstance(rows, dict) else rows:
            for batch in its:
                ledger.add(rank, epoch, receive(batch))
            ledger.end(rank, epoch, own.get((rank, epoch), usual))
        return ledger

    def edited(self, edit: Callable[[Batches], object]) -> Batches:
        batches = self.batches()
        edit(batches)
        return batches


class PlannedParser:
    """What `expect` asks of a parser, of a case: it is its own dataset."""

    has_optional_label, dataset_name = False, "ds"

    def __init__(self, case: Case) -> None:
        self.case = case
        starts = accumulate(case.lengths, initial=0)
        self.files = [
            FileInstruction(f"{file}", 0, length, first, length)
            for file, (first, length) in enumerate(zip(starts, case.lengths, strict=False))
        ]
        self.dataset, self.source = self, case.ids

    def provenance(self) -> Provenance:
        return Provenance(promised_by="the case")

    def ids(self, index: Any) -> list[str]:
        return self.case.ids

    def plan(self, world: World) -> EpochPlan:
        return replace(self.case.plan(), world=world)

    def read_mode(self, world: World) -> str:
        return self.case.mode

    def assignment(self, world: World, epoch: int = 0) -> Assignment:
        deal = deal_files if self.case.mode == "files" else deal_examples
        return deal(self.plan(world), self.case.lengths, epoch)


def receive(entries: Sequence[Entry]) -> Received:
    labels = [entry.label for entry in entries]
    return Received(
        [entry.id for entry in entries],
        np.array([entry.index for entry in entries], np.int64),
        np.array([entry.valid for entry in entries], np.bool_),
        np.array(labels, np.int64) if all(isinstance(label, int) for label in labels) else None,
    )


def broken(promises: Iterable[Promise]) -> dict[str, str]:
    """Returns broken promise -> detail."""
    return {promise.name: promise.detail for promise in promises if not promise.kept}


def play_plan(
    expected: Expectation,
    edit: Callable[[Received], Received] | None = None,
    at: tuple[int, int, int] = (0, 0, 0),
    class_names: Sequence[str] | None = None,
) -> Ledger:
    """Returns the ledger of what is expected, in which one batch (rank, epoch, number) is edited."""
    ledger = Ledger(expected, class_names)
    for rank in range(expected.num_replicas):
        for epoch in range(expected.num_epochs):
            share = expected.share(rank, epoch)
            for number in range(expected.plan.num_batches):
                here = expected.batch_slice(number)
                index, valid = share.index[here], share.valid[here]
                is_mixed = ledger.members is not None and expected.stored is not None
                member = ledger.members.members_of(index) if ledger.members is not None and is_mixed else None
                ids = [expected.ids[one] for one in index.tolist()]
                batch = Received(ids, index, valid, np.where(valid, index, PAD_LABEL), member=member)
                ledger.add(rank, epoch, edit(batch) if edit is not None and (rank, epoch, number) == at else batch)
            ledger.end(rank, epoch, EpochEnd(expected.plan.num_batches))
    return ledger
