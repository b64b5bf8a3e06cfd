"""Mode `index`: the order of all ranks together does not depend on how many ranks and workers read it.

Every rank is a process that the environment names, and its workers are processes.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from grids.fleet import Failure, Fleet, Task
from numbered_fixtures import NUMBERED_SHARDS
from resume_counts import Outcome, add_count, count_outcomes
from tfds_fixtures import with_read

from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.plan.world import World
from torch_data.resume_scenarios import Leg, Rows, global_rows, read_epochs_as_rank, read_leg
from torch_data.resuming import Setup

NUM_EXAMPLES, GLOBAL_BATCH = sum(NUMBERED_SHARDS), 12
Grid = tuple[int, int]
"""R ranks x W workers, 0 where the rank reads by itself."""

WORLDS: tuple[Grid, ...] = ((1, 0), (1, 3), (2, 2), (4, 1))


@dataclass(frozen=True)
class Plan:
    """What is read in every world: arguments of ParserTfds, how often, and how many valid examples an epoch has."""

    arguments: dict[str, Any]
    num_valid: int
    num_epochs: int = 1


PLANS = {
    "training": Plan({"is_training": True}, 48, num_epochs=2),
    "training in order": Plan({"is_training": True, "shuffle": False}, 48),
    "padded evaluation": Plan({"remainder": "pad"}, NUM_EXAMPLES),
    "shuffled evaluation": Plan({"remainder": "pad", "shuffle": True}, NUM_EXAMPLES),
    "training in blocks": Plan(
        {"is_training": True, "read": with_read("index", block_records=4, shuffle_buffer=12)}, 48, num_epochs=2
    ),
    "training in groups": Plan(
        {"is_training": True, "read": with_read("index", block_records=4, shuffle_buffer=12, block_groups=3)},
        48,
        num_epochs=2,
    ),
    "dropping": Plan({"is_training": True, "remainder": "drop"}, 36, num_epochs=2),
}


def make_setup(root: str, grid: Grid, global_batch: int = GLOBAL_BATCH, **arguments: Any) -> Setup:
    arguments = {"root": root, "name": "numbered", "read": with_read("index"), **arguments}
    return Setup(arguments, global_batch, *grid)


def run_all(fleet: Fleet, tasks: list[Task]) -> list[list[Any]]:
    """Returns the results of the ranks of every task."""
    results: dict[int, list[Any]] = {}
    for number, result in fleet.run(tasks):
        assert not isinstance(result, Failure), result.text
        results[number] = result
    return [results[number] for number in range(len(tasks))]


def planned_rows(setup: Setup, epoch: int) -> Rows:
    """Returns the global batches of an epoch by arithmetic alone: those of one rank."""
    plan: EpochPlan = Setup(setup.arguments, setup.global_batch).dataset().parser.plan(World())
    batches = [plan.batch(epoch, number) for number in range(plan.num_batches)]
    return [(tuple(batch.index.tolist()), tuple(batch.valid.tolist())) for batch in batches]


@pytest.mark.parametrize(
    ("names", "worlds"),
    [(("training",), WORLDS[1:3]), pytest.param(tuple(PLANS), WORLDS, marks=pytest.mark.slow)],
    ids=["quick", "slow"],
)
def test_the_global_batches_are_the_same_in_every_world(
    names: tuple[str, ...], worlds: tuple[Grid, ...], fleet: Fleet, numbered_root: str
) -> None:
    setups = {
        (name, grid): make_setup(numbered_root, grid, **PLANS[name].arguments) for name in names for grid in worlds
    }
    tasks = [
        Task(read_epochs_as_rank, (setup, PLANS[name].num_epochs), setup.num_replicas, reads=setup.reads)
        for (name, _), setup in setups.items()
    ]
    for ((name, grid), setup), ranks in zip(setups.items(), run_all(fleet, tasks), strict=True):
        plan = PLANS[name]
        assert len(ranks) == grid[0]
        epochs = [global_rows([rank[epoch] for rank in ranks]) for epoch in range(plan.num_epochs)]
        assert epochs == [planned_rows(setup, epoch) for epoch in range(plan.num_epochs)], (name, grid)
        valid = [i for index, is_valid in epochs[0] for i, v in zip(index, is_valid, strict=True) if v]
        assert len(valid) == plan.num_valid, (name, grid)
        assert len(set(valid)) == min(NUM_EXAMPLES, plan.num_valid), (name, grid)
        assert (valid == sorted(valid)) == (name == "padded evaluation"), (name, grid)
        assert len({str(epoch) for epoch in epochs}) == plan.num_epochs


# Random stops

NUM_POINTS = 50
CHANGES: tuple[tuple[Grid, Grid], ...] = (((1, 2), (1, 3)), ((1, 3), (1, 0)), ((2, 2), (1, 3)), ((1, 0), (2, 1)))
GRIDS: tuple[Grid, ...] = ((1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (3, 1), (4, 1))


@dataclass(frozen=True)
class Point:
    """A training that stops, and goes on in another world; both legs know nothing but the state."""

    before: Leg
    after: Leg


def random_points(root: str) -> Iterator[Point]:
    draw = random.Random(5)
    for number in range(NUM_POINTS):
        grid, other = CHANGES[number % 5] if number % 5 < len(CHANGES) else draw.sample(GRIDS, 2)
        num_examples, global_batch = draw.randint(1, NUM_EXAMPLES), draw.choice((12, 12, 24))
        arguments: dict[str, Any] = {
            "split": f"train[:{num_examples}]",
            "is_training": True,
            "seed": draw.randrange(2**32),
            "repeats": draw.choice((0, 2, 3)),
        }
        num_batches = -(-num_examples * max(1, arguments["repeats"]) // global_batch)
        setup, to = (make_setup(root, at, global_batch, **arguments) for at in (grid, other))
        yield Point(Leg(setup, draw.randrange(50), draw.randint(0, num_batches)), Leg(to))


@pytest.mark.slow
def test_random_stops_of_real_loaders_lose_nothing_and_repeat_nothing(
    fleet: Fleet, numbered_root: str, request: pytest.FixtureRequest
) -> None:
    points = list(random_points(numbered_root))
    read = run_all(fleet, [task_of(point.before) for point in points])
    states = [state_of(ranks) for ranks in read]
    rest = run_all(fleet, [task_of(point.after, state) for point, state in zip(points, states, strict=True)])
    whole = [Leg(make_uninterrupted(point.before.setup), point.before.epoch) for point in points]
    planned = run_all(fleet, [task_of(leg) for leg in whole])
    outcomes = [Outcome(*map(examples_of, legs)) for legs in zip(read, rest, planned, strict=True)]
    count = count_outcomes(outcomes)
    add_count(request.config, "loaders", count)
    assert (count.num_stops, count.num_other, count.num_missing, count.num_twice) == (NUM_POINTS, 0, 0, 0)
    # A state in the middle, and one at either end, were among them.
    assert {bool(outcome.before) + 2 * bool(outcome.after) for outcome in outcomes} == {1, 2, 3}
    assert all(state_of(ranks)["epoch"] == leg.epoch for ranks, leg in zip(rest, whole, strict=True))


def task_of(leg: Leg, state: Any = None) -> Task:
    return Task(read_leg, (leg, state), leg.setup.num_replicas, reads=leg.setup.reads)


def state_of(ranks: list[tuple[Rows, Any]]) -> dict[str, Any]:
    """Returns the state, which all ranks must agree about."""
    assert all(state == ranks[0][1] for _, state in ranks)
    return ranks[0][1]


def make_uninterrupted(setup: Setup) -> Setup:
    return Setup(setup.arguments, setup.global_batch)


def examples_of(ranks: list[tuple[Rows, Any]]) -> list[int]:
    return [example for index, _ in global_rows([rows for rows, _ in ranks]) for example in index]
