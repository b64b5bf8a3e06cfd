"""Several loaders over one dataset, and what a loader refuses, on real ranks."""

import pytest

from grids import scenarios
from grids.cell import EVALUATION, FORK, FORKSERVER, NO_WORKERS, SPAWN, TRAIN_EXAMPLES, Cell, Row, Split
from grids.fleet import Fleet

slow, campaign = pytest.mark.slow, pytest.mark.campaign
DATA = "one shard"


def ids(epoch: list[list[Row]]) -> list[str]:
    return [row.id for batch in epoch for row in batch]


@pytest.mark.parametrize(
    ("method", "num_workers", "persistent"),
    [
        pytest.param(NO_WORKERS, 0, False, id="no-workers"),
        pytest.param(FORK, 2, False, id="fork"),
        pytest.param(FORK, 2, True, id="fork-persistent", marks=campaign),
        pytest.param(FORKSERVER, 2, False, id="forkserver", marks=campaign),
        pytest.param(FORKSERVER, 2, True, id="forkserver-persistent", marks=slow),
        pytest.param(SPAWN, 1, False, id="spawn", marks=campaign),
        pytest.param(SPAWN, 1, True, id="spawn-persistent", marks=campaign),
    ],
)
def test_two_loaders_that_follow_each_other_share_the_count_of_epochs(
    method: str, num_workers: int, persistent: bool, fleet: Fleet, splits: dict[str, Split]
) -> None:
    num_replicas = 2 if method != SPAWN or persistent else 1  # A spawned worker takes five seconds to start.
    cell = Cell(DATA, num_replicas, num_workers, TRAIN_EXAMPLES, method, persistent)
    results = fleet.call(
        scenarios.take_turns,
        cell,
        splits[DATA],
        persistent,
        num_replicas=num_replicas,
        reads=num_workers == 0,
        deadline_s=180,
    )
    assert len(results) == num_replicas
    for counted, by_hand in results:
        assert len(by_hand) > 1
        assert len({tuple(ids(epoch)) for epoch in by_hand}) == len(by_hand)
        assert list(map(ids, counted)) == list(map(ids, by_hand))


@pytest.mark.parametrize("method", [FORK, pytest.param(FORKSERVER, marks=campaign)])
def test_loaders_with_persistent_workers_that_take_turns_obey_set_epoch(
    method: str, fleet: Fleet, splits: dict[str, Split]
) -> None:
    cell = Cell(DATA, 2, 2, TRAIN_EXAMPLES, method, persistent=True)
    results = fleet.call(scenarios.set_epochs_of_two, cell, splits[DATA], num_replicas=2)
    assert len(results) == 2
    for epochs in results:
        first, again, second, second_again = map(ids, epochs)
        assert first == again != second == second_again


@pytest.mark.parametrize("num_workers", [0, 2])
def test_mode_files_is_refused_in_evaluation_wherever_it_is_met(
    num_workers: int, fleet: Fleet, splits: dict[str, Split]
) -> None:
    cell = Cell("uneven shards", 2, num_workers, EVALUATION, FORK)
    results = fleet.call(
        scenarios.ask_for_files_in_evaluation, cell, splits[cell.data], num_replicas=2, reads=num_workers == 0
    )
    assert len(results) == 2
    for type_name, message in results:
        assert type_name == "ConfigError"
        assert "read mode 'files'" in message
