"""Mode `index`: the order is the plan's, whatever the world, the format of the files and the batch it begins at."""

from typing import Any

import numpy as np
import pytest
from tfds_fixtures import NUM_TRAIN, Datasets, Ledger, Read, collect_rank, grid, read_all, with_read

from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

GLOBAL_BATCH = 12
WORLDS = ((1, 1), (1, 3), (2, 2))
MORE_WORLDS = (*WORLDS, (4, 1), (6, 2))
KINDS: dict[str, dict[str, Any]] = {
    "training": {"is_training": True},
    "training on a sum of slices": {"is_training": True, "split": "train[:50%]+test[:50%]+train[5shard:7shard]"},
    "training in order": {"is_training": True, "shuffle": False},
    "training in blocks": {"is_training": True, "read": with_read("index", block_records=7, shuffle_buffer=30)},
    "training in groups": {
        "is_training": True,
        "read": with_read("index", block_records=7, shuffle_buffer=30, block_groups=4),
        "repeats": 2,
    },
    "training twice": {"is_training": True, "repeats": 2},
    "training, dropped": {"is_training": True, "remainder": "drop"},
    "evaluation": {"remainder": "pad"},
    "evaluation, shuffled": {"remainder": "pad", "shuffle": True, "split": "train+test"},
}


ALL_WORLDS = {kind: MORE_WORLDS if kind in ("training", "evaluation") else WORLDS for kind in KINDS}


def arguments(kind: str, num_replicas: int = 1) -> dict[str, Any]:
    return {"name": "shapes", "batch_size": GLOBAL_BATCH // num_replicas} | KINDS[kind]


@pytest.fixture(scope="module")
def global_batches(datasets: Datasets) -> dict[tuple[str, int, int], list[list[int]]]:
    """(kind, ranks, workers) -> every global batch of an epoch."""
    places = [(kind, r, w) for kind in KINDS for r, w in ALL_WORLDS[kind]]
    results = iter(
        read_all(datasets.root, [Read(arguments(kind, r), world, 1) for kind, r, w in places for world in grid(r, w)])
    )
    return {(kind, r, w): join_ranks([next(results) for _ in grid(r, w)], r) for kind, r, w in places}


def join_ranks(parts: list[list[Batch]], num_replicas: int) -> list[list[int]]:
    num_workers = len(parts) // num_replicas
    ranks = [collect_rank(parts[rank * num_workers :][:num_workers]) for rank in range(num_replicas)]
    return [[i for batch in batches for i in batch.index.tolist()] for batches in zip(*ranks, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_global_batches_are_the_same_for_any_number_of_ranks_and_workers(
    global_batches: dict[tuple[str, int, int], list[list[int]]], kind: str
) -> None:
    batches = global_batches[kind, 1, 1]
    assert len(batches) > 12
    for r, w in ALL_WORLDS[kind][1:]:
        assert global_batches[kind, r, w] == batches, (r, w)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_plan(
    datasets: Datasets, global_batches: dict[tuple[str, int, int], list[list[int]]], kind: str
) -> None:
    plan = ParserTfds(datasets.root, **arguments(kind)).plan(World())
    assert global_batches[kind, 1, 1] == [plan.batch(1, number).index.tolist() for number in range(plan.num_batches)]


def test_a_shuffled_epoch_mixes_the_whole_split(
    global_batches: dict[tuple[str, int, int], list[list[int]]],
) -> None:
    order = np.concatenate(global_batches["training", 1, 1])[:NUM_TRAIN]
    assert sorted(order) == list(range(NUM_TRAIN))
    steps = np.abs(np.diff(order))
    assert np.median(steps) > NUM_TRAIN / 6, "examples of a batch come from all over the split"
    in_blocks = np.concatenate(global_batches["training in blocks", 1, 1])[:NUM_TRAIN]
    assert sorted(in_blocks) == list(range(NUM_TRAIN))
    assert len(set(in_blocks[:28].tolist()) & set(order[:28].tolist())) < 28
    assert len({index // 7 for index in in_blocks[:28].tolist()}) <= 5, "the first window is made of whole blocks"


def test_array_records_are_the_same_examples(datasets: Datasets, ledgers: dict[tuple[str, str], Ledger]) -> None:
    fields = ("image", "label", "file_name")
    asked = {"name": "shapes", "split": "train[30:90]+test", "batch_size": 10, "is_training": True}
    reads = [
        Read(asked | {"root": str(root)}, world, 2, fields=fields)
        for root in (datasets.root, datasets.array_record)
        for world in grid(1, 2)
    ]
    theirs, others, ours, our_others = read_all(datasets.root, reads)
    assert len(theirs) + len(others) == 10
    for batch, expected in zip([*ours, *our_others], [*theirs, *others], strict=True):
        np.testing.assert_array_equal(batch.index, expected.index)
        np.testing.assert_array_equal(batch.label, expected.label)
        assert batch.features == expected.features
        assert batch.id == [name.replace("tfrecord", "array_record") for name in expected.id]
        for image, other in zip(batch.image, expected.image, strict=True):
            np.testing.assert_array_equal(image, other)


def test_file_names_of_array_records_are_read(datasets: Datasets, ledgers: dict[tuple[str, str], Ledger]) -> None:
    parser = ParserTfds(datasets.array_record, "shapes", "train+test")
    assert parser.filenames() == ledgers["root", "train+test"].file_names
