"""Which rank a process is: torch.distributed, the environment and `world=`, in real processes."""

from dataclasses import replace

import pytest

from grids import promises, scenarios
from grids.cell import COUNTED, EVALUATION, FORK, FORKSERVER, NO_WORKERS, SPAWN, TRAIN_EXAMPLES, Cell, RankLedger, Split
from grids.fleet import Fleet
from grids.splits import Truth

slow, campaign = pytest.mark.slow, pytest.mark.campaign

METHODS = [
    pytest.param(NO_WORKERS, 0, id="no-workers"),
    pytest.param(FORK, 1, id="fork"),
    pytest.param(FORKSERVER, 1, id="forkserver", marks=campaign),
    pytest.param(SPAWN, 1, id="spawn", marks=slow),
]
IN_THE_RANK = [pytest.param(*way.values, id=way.id, marks=campaign if way.marks else ()) for way in METHODS]
"""The rank refuses before any worker starts."""
DATA = "train+test"
NOTHING: dict[str, str] = {}
LIGHTNING = {"WORLD_SIZE": "{num_replicas}", "LOCAL_RANK": "{rank}"}  # It names no rank in the main process.


def cell_of(method: str, num_workers: int, num_replicas: int = 2) -> Cell:
    return Cell(DATA, num_replicas, num_workers, EVALUATION, method, num_workers > 0, epochs=(COUNTED,))


def judge(cell: Cell, truth: Truth, ranks: list[RankLedger]) -> None:
    broken = promises.judge(cell, truth, True, ranks).broken
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(("method", "num_workers"), METHODS)
def test_torch_distributed_is_honoured_when_it_begins_after_the_dataset_is_built(
    method: str, num_workers: int, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth]
) -> None:
    cell = cell_of(method, num_workers)
    results = fleet.call(
        scenarios.begin_after_the_dataset,
        cell,
        splits[DATA],
        num_replicas=2,
        reads=num_workers == 0,
        environment=NOTHING,
        deadline_s=120,
    )
    for _, len_before, named in results:
        assert (len_before, named) == (len(truths[DATA]), [])  # Until then there was one replica.
    judge(cell, truths[DATA], [ledger for ledger, _, _ in results])


@pytest.mark.parametrize(("method", "num_workers"), [METHODS[1], METHODS[3]])
def test_half_an_environment_is_enough_once_torch_distributed_is_there(
    method: str, num_workers: int, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth]
) -> None:
    cell = replace(cell_of(method, num_workers), task=TRAIN_EXAMPLES)
    refused = fleet.call(scenarios.meet_refusals, cell, splits[DATA], False, num_replicas=2, environment=LIGHTNING)
    for messages in refused:
        assert all("sets WORLD_SIZE=2 but not RANK" in message for message in messages), messages
    results = fleet.call(scenarios.read_with_group, cell, splits[DATA], num_replicas=2, environment=LIGHTNING)
    judge(cell, truths[DATA], results)


@pytest.mark.parametrize(("method", "num_workers"), METHODS[:2])
def test_the_environment_alone_names_the_ranks(
    method: str, num_workers: int, fleet: Fleet, splits: dict[str, Split], truths: dict[str, Truth]
) -> None:
    cell = replace(cell_of(method, num_workers, 3), task=TRAIN_EXAMPLES)
    ranks = fleet.call(scenarios.read_without_group, cell, splits[DATA], num_replicas=3, reads=num_workers == 0)
    judge(cell, truths[DATA], ranks)


@pytest.mark.parametrize(("method", "num_workers"), IN_THE_RANK)
@pytest.mark.parametrize(
    "environment",
    [{"RANK": "{rank}", "WORLD_SIZE": "3"}, {"RANK": "2", "WORLD_SIZE": "5"}],
    ids=["another-size", "another-rank"],
)
def test_an_environment_that_contradicts_torch_distributed_is_an_error_with_both(
    environment: dict[str, str], method: str, num_workers: int, fleet: Fleet, splits: dict[str, Split]
) -> None:
    cell = cell_of(method, num_workers)
    results = fleet.call(
        scenarios.meet_refusals,
        cell,
        splits[DATA],
        True,
        num_replicas=2,
        reads=num_workers == 0,
        environment=environment,
    )
    assert len(results) == 2
    for rank, messages in enumerate(results):
        assert len(messages) == 4
        said = environment["RANK"].format(rank=rank), environment["WORLD_SIZE"]
        for message in messages:
            assert f"rank {rank} of 2" in message, messages
            assert all(number in message for number in said), messages


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "contradiction": {"RANK": "4", "WORLD_SIZE": "7"},
    "torchrun": {"RANK": "{rank}", "WORLD_SIZE": "{num_replicas}"},
    "nonsense": {"WORLD_SIZE": "x"},
}


@pytest.mark.parametrize(
    ("method", "num_workers", "environment"),
    [
        pytest.param(NO_WORKERS, 0, "contradiction", id="contradiction-no-workers"),
        pytest.param(FORK, 1, "contradiction", id="contradiction-fork"),
        pytest.param(SPAWN, 1, "contradiction", id="contradiction-spawn", marks=campaign),
        *(
            pytest.param(method, num_workers, name, id=f"{name}-{method}", marks=slow)
            for name in ("torchrun", "nonsense")
            for method, num_workers in ((NO_WORKERS, 0), (FORK, 1))
        ),
        pytest.param(FORKSERVER, 1, "torchrun", id="torchrun-forkserver", marks=slow),
        # What a worker is told comes with the dataset, however it is started.
        *(
            pytest.param(method, 1, name, id=f"{name}-{method}", marks=campaign)
            for method, name in (
                (FORKSERVER, "contradiction"),
                (FORKSERVER, "nonsense"),
                (SPAWN, "torchrun"),
                (SPAWN, "nonsense"),
            )
        ),
    ],
)
def test_an_explicit_world_always_wins(
    environment: str,
    method: str,
    num_workers: int,
    fleet: Fleet,
    splits: dict[str, Split],
    truths: dict[str, Truth],
) -> None:
    cell = replace(cell_of(method, num_workers), task=TRAIN_EXAMPLES)
    results = fleet.call(
        scenarios.read_explicit_world,
        cell,
        splits[DATA],
        num_replicas=2,
        reads=num_workers == 0,
        environment=ENVIRONMENTS[environment],
        deadline_s=120,
    )
    assert [rank for _, rank in results] == [1, 0]
    # In the order of the ranks they name all is right; the shares are the other way round only if the world was heard.
    judge(cell, truths[DATA], [ledger for ledger, _ in sorted(results, key=lambda result: result[1])])
    quickest = replace(cell, method=FORK) if num_workers else cell
    own = fleet.call(scenarios.read_without_group, quickest, splits[DATA], num_replicas=2, reads=num_workers == 0)
    assert [ledger.epochs for ledger in own] == [results[1][0].epochs, results[0][0].epochs]
