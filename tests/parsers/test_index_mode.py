"""Mode `index`: the order is the plan's, whatever the order's kind, the world, and the batch it begins at.

What holds of every source is in test_all_sources; here are orders in blocks, and splits of several parts.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import collect_rank, grid, with_read, write_numbered

from tfds_torch import ParserTfds, World

NUM_EXAMPLES, GLOBAL_BATCH = 211, 12
BLOCKS: dict[str, Any] = {"block_records": 7, "shuffle_buffer": 30}
KINDS: dict[str, dict[str, Any]] = {
    "training": {"is_training": True},
    "training on a sum of slices": {"is_training": True, "split": "train[:50%]+test[:50%]+train[5shard:7shard]"},
    "training in order": {"is_training": True, "shuffle": False},
    "training in blocks": {"is_training": True, "read": with_read("index", **BLOCKS)},
    "training in groups": {"is_training": True, "read": with_read("index", **BLOCKS, block_groups=4), "repeats": 2},
    "evaluation, shuffled": {"remainder": "pad", "shuffle": True, "split": "train+test"},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("index")
    write_numbered(root, {"train": (40, 3, 61, 17, 50, 29, 11), "test": (37,)})
    return root


def global_batches(root: Path, kind: str, num_replicas: int, num_workers: int, start: int = 0) -> list[list[int]]:
    parser = ParserTfds(root, "numbered", batch_size=GLOBAL_BATCH // num_replicas, **KINDS[kind])
    parts = [list(parser.batches(world, 1, start, fields=())) for world in grid(num_replicas, num_workers)]
    ranks = [collect_rank(parts[rank * num_workers :][:num_workers]) for rank in range(num_replicas)]
    return [[i for batch in batches for i in batch.index.tolist()] for batches in zip(*ranks, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_global_batches_are_those_of_the_plan_for_any_number_of_ranks_and_workers(root: Path, kind: str) -> None:
    plan = ParserTfds(root, "numbered", batch_size=GLOBAL_BATCH, **KINDS[kind]).plan(World())
    planned = [plan.batch(1, number).index.tolist() for number in range(plan.num_batches)]
    assert len(planned) > 12
    for num_replicas, num_workers in ((1, 1), (1, 3), (2, 2), (4, 1), (6, 2)):
        assert global_batches(root, kind, num_replicas, num_workers) == planned, (num_replicas, num_workers)
    assert global_batches(root, kind, 2, 1, start=5) == planned[5:]


def test_a_shuffled_epoch_mixes_the_whole_split_and_one_in_blocks_some_of_it(root: Path) -> None:
    order, in_blocks = (
        np.concatenate(global_batches(root, kind, 1, 1))[:NUM_EXAMPLES] for kind in ("training", "training in blocks")
    )
    assert sorted(order) == sorted(in_blocks) == list(range(NUM_EXAMPLES))
    steps = np.abs(np.diff(order))
    assert np.median(steps) > NUM_EXAMPLES / 6, "examples of a batch come from all over the split"
    assert len(set(in_blocks[:28].tolist()) & set(order[:28].tolist())) < 28
    assert len({index // 7 for index in in_blocks[:28].tolist()}) <= 5, "the first window is made of whole blocks"
