"""Which examples come: ids against TFDS's own reader, in every mode, over worlds, splits and epochs."""

from collections import Counter
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np
import pytest
from run_folder import computed_once
from tfds_fixtures import SPLITS, Datasets, Ledger, Read, collect_rank, grid, read_all, with_read

from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.deal import Assignment
from tfds_torch.plan.world import World

Ledgers = dict[tuple[str, str], Ledger]


@dataclass(frozen=True)
class Case:
    """All pipelines of an epoch."""

    place: tuple[str, str]
    num_replicas: int = 1
    num_workers: int = 1
    batch_size: int = 8
    mode: str = "auto"
    is_training: bool = False
    shuffle: bool | None = None
    epoch: int = 0
    repeats: int = 0
    seed: int = 42
    remainder: str | None = None
    run: int = 0

    def __str__(self) -> str:
        kind = "train" if self.is_training else "eval"
        extras = "".join(
            f",{name}={getattr(self, name)}"
            for name in ("shuffle", "epoch", "repeats", "seed", "remainder", "run")
            if getattr(self, name) != getattr(Case(self.place), name)
        )
        where = f"{self.place[0]}:{self.place[1]}"
        return f"{kind},{where},R{self.num_replicas}xW{self.num_workers},B{self.batch_size},{self.mode}{extras}"

    @property
    def worlds(self) -> list[World]:
        return grid(self.num_replicas, self.num_workers)

    def arguments(self, datasets: Datasets) -> dict[str, Any]:
        return {
            "root": str(getattr(datasets, self.place[0])),
            "name": "shapes",
            "split": self.place[1],
            "batch_size": self.batch_size,
            "is_training": self.is_training,
            "shuffle": self.shuffle,
            "repeats": self.repeats,
            "seed": self.seed,
            "remainder": self.remainder,
            "read": with_read(self.mode),
        }


def shuffled(mode: str, **changes: Any) -> Case:
    """Returns a training of two workers."""
    return replace(Case(("root", "train"), 1, 2, mode=mode, is_training=True), **changes)


STREAMS = ("files", "examples")
MODES = ("index", *STREAMS)
FEW_SPLITS = (("root", "train"), ("root", "train[5shard:7shard]"), ("gaps", "train+test"))

EVALUATION = [
    *(Case(place) for place in SPLITS),
    *(Case(place, 2, 2, mode="examples") for place in FEW_SPLITS[1:]),
    Case(("root", "train"), 1, 3, mode="examples", batch_size=50),
    Case(("root", "train+test"), 3, 1, shuffle=True, epoch=2),
]
TRAINING = [
    Case(("gaps", "train+test"), 2, 3, mode="index", is_training=True),
    *(Case(("gaps", "train+test"), 2, 2, mode=mode, is_training=True) for mode in STREAMS),
    Case(("root", "train[10:37]"), 2, 2, mode="examples", is_training=True, repeats=3),
    Case(("root", "train[5shard:7shard]"), 1, 2, mode="files", is_training=True, repeats=3),
    Case(("root", "train[10:37]"), 1, 2, mode="examples", batch_size=32, is_training=True),  # G > N.
    Case(("root", "train"), 2, 2, mode="examples", is_training=True, remainder="drop"),
    Case(("root", "train"), 2, 2, mode="examples", is_training=True, remainder="pad"),
    *(
        shuffled(mode, **changes)
        for mode in MODES
        for changes in ({}, {"epoch": 2}, {"shuffle": False}, {"run": 1}, {"seed": 7})
    ),
]


class Epochs:
    """The batches of many cases: every rank's, as a DataLoader collects them."""

    def __init__(self, factory: pytest.TempPathFactory, name: str, datasets: Datasets, cases: list[Case]) -> None:
        reads = [
            Read(case.arguments(datasets), world, case.epoch, fields=("label",))
            for case in cases
            for world in case.worlds
        ]
        results = iter(computed_once(factory, name, lambda: read_all(datasets.root, reads)))
        self.parts = {case: [next(results) for _ in case.worlds] for case in cases}

    def pipelines(self, case: Case) -> list[list[Batch]]:
        parts = self.parts[case]
        assert any(parts), "nothing was read"
        return parts

    def ranks(self, case: Case) -> list[list[Batch]]:
        parts, w = self.parts[case], case.num_workers
        return [collect_rank(parts[rank * w : (rank + 1) * w]) for rank in range(case.num_replicas)]

    def ids(self, case: Case) -> list[list[str]]:
        return [[name for batch in rank for name in batch.id] for rank in self.ranks(case)]


@pytest.fixture(scope="module")
def epochs(datasets: Datasets, tmp_path_factory: pytest.TempPathFactory) -> Epochs:
    return Epochs(tmp_path_factory, "quick epochs", datasets, [*EVALUATION, *TRAINING])


def test_every_evaluation_yields_every_example_exactly_once_among_valid(epochs: Epochs, ledgers: Ledgers) -> None:
    for case in EVALUATION:
        check_evaluation(case, epochs.ranks(case), ledgers[case.place])


@pytest.mark.parametrize("case", TRAINING, ids=str)
def test_training_yields_what_its_mode_promises(
    epochs: Epochs, ledgers: Ledgers, datasets: Datasets, case: Case
) -> None:
    check_training(case, epochs, ledgers[case.place], datasets)


def check_batches(case: Case, ranks: list[list[Batch]], ledger: Ledger) -> list[Batch]:
    """Asserts what holds in every mode; returns the batches of all ranks."""
    num_slots = len(ledger.ids) * max(1, case.repeats)
    global_batch = case.num_replicas * case.batch_size
    num_batches = num_slots // global_batch if case.remainder == "drop" else ceil(num_slots / global_batch)
    batches = [batch for rank in ranks for batch in rank]
    for rank in ranks:
        assert [batch.batch for batch in rank] == list(range(num_batches)), str(case)
    for batch in batches:
        assert batch.epoch == case.epoch
        assert batch.id == [ledger.ids[i] for i in batch.index.tolist()], str(case)
        expected = [ledger.labels[i] if valid else -100 for i, valid in zip(batch.index, batch.valid, strict=True)]
        assert batch.label is not None
        assert batch.label.tolist() == expected, str(case)
        assert (batch.label.dtype, batch.index.dtype, batch.valid.dtype) == (np.int64, np.int64, np.bool_)
    return batches


def check_evaluation(case: Case, ranks: list[list[Batch]], ledger: Ledger) -> None:
    batches = check_batches(case, ranks, ledger)
    valid = [name for batch in batches for name, v in zip(batch.id, batch.valid, strict=True) if v]
    if case.remainder == "drop":
        assert len(set(valid)) == len(valid) == len(batches) * case.batch_size
        return
    assert sorted(valid) == sorted(ledger.ids), str(case)
    sizes = [len(batch) for batch in batches]
    if case.num_replicas > 1:
        assert set(sizes) == {case.batch_size}, str(case)
    else:
        assert set(sizes[:-1]) <= {case.batch_size}
        assert sum(sizes) == len(ledger.ids)


def check_training(case: Case, epochs: Epochs, ledger: Ledger, datasets: Datasets) -> None:
    batches = check_batches(case, epochs.ranks(case), ledger)
    assert {len(batch) for batch in batches} == {case.batch_size}
    if case.remainder != "pad":
        assert all(batch.valid.all() for batch in batches)
    counts = Counter(name for batch in batches for name, v in zip(batch.id, batch.valid, strict=True) if v)
    passes, num_slots = max(1, case.repeats), len(batches) * case.batch_size
    if case.mode != "files":
        num_extra = num_slots - passes * len(ledger.ids)
        if case.remainder == "drop":
            assert set(counts.values()) == {1}
        elif case.remainder == "pad":
            assert counts == Counter(ledger.ids)
        else:
            assert all(counts[name] >= passes for name in ledger.ids)
            assert sum(count - passes for count in counts.values()) == num_extra
            if num_extra <= len(ledger.ids):
                assert max(counts.values()) <= passes + 1
        return
    parser = ParserTfds(**case.arguments(datasets))
    for world, part in zip(case.worlds, epochs.pipelines(case), strict=True):
        read = Counter(index for batch in part for index in batch.index.tolist())
        assert read == Counter(planned_indices(parser, parser.assignment(world, case.epoch)))


def planned_indices(parser: ParserTfds, assignment: Assignment) -> list[int]:
    """Returns what a pipeline reads, in the order of the plan."""
    ranges = (*assignment.valid, *assignment.fill)
    first = [parser.files[part.file].first_index for part in ranges]
    return [index for at, part in zip(first, ranges, strict=True) for index in range(at + part.start, at + part.stop)]


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_sequence(epochs: Epochs, mode: str) -> None:
    assert epochs.ids(shuffled(mode)) == epochs.ids(shuffled(mode, run=1))


@pytest.mark.parametrize("mode", MODES)
def test_another_seed_gives_another_sequence(epochs: Epochs, mode: str) -> None:
    assert epochs.ids(shuffled(mode)) != epochs.ids(shuffled(mode, seed=7))


@pytest.mark.parametrize("mode", MODES)
def test_every_epoch_differs(epochs: Epochs, mode: str) -> None:
    assert epochs.ids(shuffled(mode)) != epochs.ids(shuffled(mode, epoch=2))


@pytest.mark.parametrize("mode", STREAMS)
class TestStreams:
    def test_the_order_is_shuffled_within_a_pipeline(self, epochs: Epochs, mode: str) -> None:
        for part in epochs.pipelines(shuffled(mode)):
            # The last batch may end with wrapped examples, which are in order.
            steps = np.diff(np.concatenate([batch.index for batch in part[:-1]]))
            assert (steps != 1).mean() > 0.8, "neighbours on disk must not stay neighbours"

    def test_shards_move_between_workers_from_epoch_to_epoch(self, epochs: Epochs, mode: str) -> None:
        runs = [epochs.pipelines(shuffled(mode, epoch=epoch)) for epoch in (0, 2)]
        for pipeline in range(2):
            seen = [frozenset(n.split("__")[0] for b in run[pipeline] for n in b.id) for run in runs]
            assert len(set(seen)) > 1, f"pipeline {pipeline} saw the same shards in every epoch"

    def test_every_shard_reaches_every_pipeline(self, datasets: Datasets, mode: str) -> None:
        case = shuffled(mode)
        parser = ParserTfds(**case.arguments(datasets))
        assert len(case.worlds) > 1
        for world in case.worlds:
            files = {s.file for epoch in range(40) for s in parser.assignment(world, epoch).valid}
            assert files == set(range(7))

    def test_unshuffled_training_keeps_the_order_of_the_files(
        self, epochs: Epochs, datasets: Datasets, mode: str
    ) -> None:
        case = shuffled(mode, shuffle=False)
        parser = ParserTfds(**case.arguments(datasets))
        for world, part in zip(case.worlds, epochs.pipelines(case), strict=True):
            assert [i for batch in part for i in batch.index.tolist()] == planned_indices(
                parser, parser.assignment(world)
            )


def test_unshuffled_evaluation_of_one_worker_is_in_the_order_of_the_files(epochs: Epochs, ledgers: Ledgers) -> None:
    for place in SPLITS:
        (ids,) = epochs.ids(Case(place))
        assert ids == ledgers[place].ids
