"""A dataset of one's own on grids of 1 to 4 ranks and 0 to 3 workers: nothing is lost, nothing comes twice."""

from collections import Counter
from typing import Any

import pytest
from grids.fleet import Fleet

from tfds_torch import World
from torch_data.own_grids import GLOBAL_BATCH, NUM_EPOCHS, Batches, own_parser, read_parsers, read_rows


def global_batches(ranks: list[Batches]) -> list[tuple[list[int], list[bool]]]:
    """Returns the batches of all ranks together; all must have as many."""
    assert len({len(batches) for batches in ranks}) == 1
    return [
        ([one for index, _ in batches for one in index], [one for _, valid in batches for one in valid])
        for batches in zip(*ranks, strict=True)
    ]


def check_grids(results: list[dict[str, list[Batches]]], plan: Any, num_items: int) -> None:
    """Checks what the ranks read, with every number of workers, against a plan of one rank."""
    for way in results[0]:
        for epoch in range(NUM_EPOCHS):
            came = global_batches([rank[way][epoch] for rank in results])
            planned = [plan.batch(epoch, number) for number in range(plan.num_batches)]
            assert came == [(batch.index.tolist(), batch.valid.tolist()) for batch in planned], (way, epoch)
            own = [one for index, valid in came for one, is_valid in zip(index, valid, strict=True) if is_valid]
            assert Counter(own[:num_items]) == dict.fromkeys(range(num_items), 1), (way, epoch)


@pytest.mark.parametrize(
    ("num_replicas", "is_training"),
    [
        (2, True),
        (3, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((1, True), (1, False), (2, False), (3, True), (4, True), (4, False))
        ),
    ],
)
def test_every_grid_reads_what_is_planned(num_replicas: int, is_training: bool, fleet: Fleet) -> None:
    num_items = 41
    results = fleet.call(read_parsers, is_training, num_items, num_replicas=num_replicas, reads=False, deadline_s=200)
    check_grids(results, own_parser(1, is_training, num_items).plan(World()), num_items)


@pytest.mark.parametrize("num_replicas", [2, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (1, 4))])
def test_every_grid_of_create_loader_reads_what_is_planned(num_replicas: int, fleet: Fleet) -> None:
    num_items = 4 * GLOBAL_BATCH
    results = fleet.call(read_rows, num_items, num_replicas=num_replicas, reads=False, deadline_s=200)
    check_grids(results, own_parser(1, True, num_items).plan(World()), num_items)
