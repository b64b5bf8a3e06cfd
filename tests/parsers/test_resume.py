"""Beginning at any batch of an epoch gives the tail of the uninterrupted epoch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tfds_fixtures import Datasets, Read, collect_rank, read_all, with_read

from tfds_torch.parsers.parser import Batch
from tfds_torch.plan.world import World


@dataclass(frozen=True)
class Epoch:
    """A rank's epoch, to be begun at every batch of it, and at its end."""

    arguments: dict[str, Any]
    num_batches: int
    world: World = World()
    epoch: int = 1


Runs = dict[tuple[int, int], list[Batch]]
"""(num_workers, start_batch) -> the rank's batches, as a fresh DataLoader collects them."""


def begin_everywhere(datasets: Datasets, epochs: Sequence[Epoch]) -> list[Runs]:
    """Returns the runs of every epoch, all read in one child."""
    places = [[(w, s) for w in (1, 2, 3) for s in range(epoch.num_batches + 1)] for epoch in epochs]
    reads = [
        Read(epoch.arguments, epoch.world.at_worker(worker, w), epoch.epoch, s, ("label",))
        for epoch, starts in zip(epochs, places, strict=True)
        for w, s in starts
        for worker in range(w)
    ]
    results = iter(read_all(datasets.root, reads))
    return [{(w, s): collect_rank([next(results) for _ in range(w)]) for w, s in starts} for starts in places]


def check_tails(runs: Runs, num_batches: int) -> None:
    for (num_workers, start), tail in runs.items():
        where = f"{num_workers} workers from batch {start}"
        assert [batch.batch for batch in tail] == list(range(start, num_batches)), where
        for ours, whole in zip(tail, runs[num_workers, 0][start:], strict=True):
            assert (ours.id, ours.batch, ours.epoch) == (whole.id, whole.batch, whole.epoch), where
            for name in ("index", "valid", "label"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(whole, name), where)


def in_mode(mode: str, **arguments: Any) -> dict[str, Any]:
    return {"name": "shapes", "is_training": True, "batch_size": 16, "read": with_read(mode), **arguments}


EPOCHS = {
    "files": Epoch(in_mode("files", split="train[:70]", batch_size=14), 5),
    "examples": Epoch(in_mode("examples", split="train[:70]", batch_size=14), 5),
    "evaluation": Epoch(
        {"name": "shapes", "split": "train[201:]+test", "batch_size": 4}, 4, World(rank=2, num_replicas=3)
    ),
}
LONGER_EPOCHS = {
    "files": Epoch(in_mode("files", batch_size=10), 22),
    "examples": Epoch(in_mode("examples", batch_size=10), 22),
    "files of rank 1": Epoch(in_mode("files"), 7, World(rank=1, num_replicas=2)),
    "examples of rank 1": Epoch(in_mode("examples"), 7, World(rank=1, num_replicas=2), epoch=3),
    "repeats": Epoch(in_mode("examples", batch_size=40, repeats=2), 11, epoch=2),
    "evaluation": Epoch({"name": "shapes", "split": "train+test", "batch_size": 12, "shuffle": True}, 21),
}


@pytest.fixture(scope="module")
def runs(datasets: Datasets) -> dict[str, Runs]:
    return dict(zip(EPOCHS, begin_everywhere(datasets, list(EPOCHS.values())), strict=True))


@pytest.mark.parametrize("name", EPOCHS)
def test_resume_at_every_step_gives_the_same_tail(runs: dict[str, Runs], name: str) -> None:
    check_tails(runs[name], EPOCHS[name].num_batches)


def test_the_padded_batch_is_among_the_resumed_ones(runs: dict[str, Runs]) -> None:
    assert not runs["evaluation"][1, 3][0].valid.all()


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGER_EPOCHS)
def test_resume_at_every_step_of_a_longer_epoch(datasets: Datasets, name: str) -> None:
    (runs,) = begin_everywhere(datasets, [LONGER_EPOCHS[name]])
    check_tails(runs, LONGER_EPOCHS[name].num_batches)
