"""Beginning at any batch of an epoch gives the tail of the uninterrupted epoch; in mode `index` in any world."""

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from resume_tally import Count, Outcome, add_count, count_outcomes
from tfds_fixtures import Datasets, Read, call_reader, collect_rank, read_all, with_read, write_numbered
from zygote import Answering, torch_zygote

from parsers.resuming import Course, Grid, Resumes, check_all, follow
from tfds_torch.engines.batch import Batch
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


def worker_counts(epoch: Epoch) -> tuple[int, ...]:
    return (1, 3) if epoch.arguments["read"].mode == "index" else (2,)


def begin_everywhere(datasets: Datasets, epochs: Sequence[Epoch]) -> list[Runs]:
    """Returns the runs of every epoch, all read in one process."""
    places = [[(w, s) for w in worker_counts(epoch) for s in range(epoch.num_batches + 1)] for epoch in epochs]
    reads = [
        Read(epoch.arguments, epoch.world.at_worker(worker, w), epoch.epoch, s, ("label",))
        for epoch, starts in zip(epochs, places, strict=True)
        for w, s in starts
        for worker in range(w)
    ]
    results = iter(read_all(datasets.root, reads))
    return [{(w, s): collect_rank([next(results) for _ in range(w)]) for w, s in starts} for starts in places]


def check_tails(runs: Runs, epoch: Epoch) -> None:
    for (num_workers, start), tail in runs.items():
        where = f"{num_workers} workers from batch {start}"
        assert [batch.batch for batch in tail] == list(range(start, epoch.num_batches)), where
        uninterrupted = runs[1 if epoch.arguments["read"].mode == "index" else num_workers, 0]
        for ours, whole in zip(tail, uninterrupted[start:], strict=True):
            assert (ours.id, ours.batch, ours.epoch) == (whole.id, whole.batch, whole.epoch), where
            for name in ("index", "valid", "label"):
                np.testing.assert_array_equal(getattr(ours, name), getattr(whole, name), where)


def in_mode(mode: str, **arguments: Any) -> dict[str, Any]:
    return {"name": "shapes", "is_training": True, "batch_size": 16, "read": with_read(mode), **arguments}


EVALUATION = {"split": "train[201:]+test", "batch_size": 4, "is_training": False}
EPOCHS = {
    "index": Epoch(in_mode("index", split="train[:70]", batch_size=14), 5),
    "files": Epoch(in_mode("files", split="train[:70]", batch_size=14), 5),
    "examples": Epoch(in_mode("examples", split="train[:70]", batch_size=14), 5),
    "evaluation by index": Epoch(in_mode("index", **EVALUATION), 4, World(rank=2, num_replicas=3)),
    "evaluation": Epoch(in_mode("examples", **EVALUATION), 4, World(rank=2, num_replicas=3)),
}
LONG_EVALUATION = {"split": "train+test", "batch_size": 48, "shuffle": True, "is_training": False}
LONGER_EPOCHS = {
    "index": Epoch(in_mode("index", batch_size=20), 11),
    "files": Epoch(in_mode("files", batch_size=20), 11),
    "files of rank 1": Epoch(in_mode("files"), 7, World(rank=1, num_replicas=2)),
    "examples of rank 1": Epoch(in_mode("examples"), 7, World(rank=1, num_replicas=2), epoch=3),
    "repeats": Epoch(in_mode("examples", batch_size=40, repeats=2), 11, epoch=2),
    "evaluation": Epoch(in_mode("examples", **LONG_EVALUATION), 6),
}


@pytest.fixture(scope="module")
def runs(datasets: Datasets) -> dict[str, Runs]:
    return dict(zip(EPOCHS, begin_everywhere(datasets, list(EPOCHS.values())), strict=True))


@pytest.mark.parametrize("name", EPOCHS)
def test_resume_at_every_step_gives_the_same_tail(runs: dict[str, Runs], name: str) -> None:
    check_tails(runs[name], EPOCHS[name])


@pytest.mark.parametrize("name", ["evaluation by index", "evaluation"])
def test_the_padded_batch_is_among_the_resumed_ones(runs: dict[str, Runs], name: str) -> None:
    for num_workers in worker_counts(EPOCHS[name]):
        assert not runs[name][num_workers, 3][0].valid.all()


IN_SLOW_TESTS = ("files of rank 1", "repeats", "evaluation")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in IN_SLOW_TESTS else pytest.mark.campaign)
        for name in LONGER_EPOCHS
    ],
)
def test_resume_at_every_step_of_a_longer_epoch(datasets: Datasets, name: str) -> None:
    (runs,) = begin_everywhere(datasets, [LONGER_EPOCHS[name]])
    check_tails(runs, LONGER_EPOCHS[name])


# Conformance: over epochs' ends and worlds

SHARDS = (4, 0, 3, 5, 1, 6, 2)
NUM_EXAMPLES = sum(SHARDS)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Root of a dataset of 21 examples in 7 shards."""
    root: Path = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": SHARDS})
    return str(root)


def resumes(
    mode: str, global_batch: int, grid: Grid, other: Grid | None = None, *, num_epochs: int = 1, **arguments: Any
) -> Resumes:
    options = {"block_records": 3} if arguments.pop("blocks", False) else {}
    if mode != "index" or options:  # Mode 'index' has no other use for it.
        options["shuffle_buffer"] = 6
    arguments = {"name": "numbered", "is_training": True, "read": with_read(mode, **options), **arguments}
    return Resumes(arguments, global_batch, grid, other or grid, num_epochs)


CASES = {
    "index, 1x2 -> 1x3": resumes("index", 12, (1, 2), (1, 3)),
    "index, evaluation, 2x1 -> 1x2": resumes("index", 8, (2, 1), (1, 2), is_training=False, remainder="pad"),
    "files, 1x2": resumes("files", 12, (1, 2)),
    "examples, 1x1": resumes("examples", 12, (1, 1)),
}
FURTHER_CASES = {
    "index, 1x2 -> 1x3, two epochs": resumes("index", 12, (1, 2), (1, 3), num_epochs=2),
    "index, 2x2 -> 1x3": resumes("index", 12, (2, 2), (1, 3)),
    "index, 1x1 -> 3x1, in order": resumes("index", 12, (1, 1), (3, 1), shuffle=False),
    "index, drop": resumes("index", 8, (1, 2), (2, 1), remainder="drop"),
    "index, repeats": resumes("index", 14, (1, 2), (1, 1), repeats=2),
    "index, blocks": resumes("index", 12, (2, 1), (1, 2), blocks=True),
    "index, short batch": resumes("index", 12, (1, 3), (1, 1), is_training=False, shuffle=True),
    "files, 2x2": resumes("files", 12, (2, 2)),
    "examples, 2x1, evaluation": resumes("examples", 8, (2, 1), is_training=False),
    "examples, 1x3, repeats": resumes("examples", 14, (1, 3), repeats=2),
}


def check_cases(root: str, cases: dict[str, Resumes]) -> dict[str, int | str]:
    return call_reader(
        check_all,
        {
            name: Resumes({"root": root, **case.arguments}, case.global_batch, case.grid, case.other, case.num_epochs)
            for name, case in cases.items()
        },
    )


def num_tails(case: Resumes) -> int:
    """Two of every point: before the first step, after each, and after each epoch's end."""
    num_passes, is_dropping = case.arguments.get("repeats", 1), case.arguments.get("remainder") == "drop"
    num_slots = NUM_EXAMPLES * num_passes
    num_steps = num_slots // case.global_batch if is_dropping else -(-num_slots // case.global_batch)
    return 2 * (1 + case.num_epochs * (num_steps + 1))


def test_a_parser_restored_at_every_step_gives_the_uninterrupted_tail(numbered: str) -> None:
    assert check_cases(numbered, CASES) == {name: num_tails(case) for name, case in CASES.items()}


@pytest.mark.slow
def test_a_parser_of_any_plan_restored_at_every_step_gives_the_uninterrupted_tail(numbered: str) -> None:
    assert check_cases(numbered, FURTHER_CASES) == {name: num_tails(case) for name, case in FURTHER_CASES.items()}


# Random stops

NUM_COURSES, NUM_STOPS = 128, 8
GRIDS: tuple[Grid, ...] = ((1, 1), (1, 2), (1, 3), (2, 1), (2, 2), (3, 1), (4, 1))
WEIGHTS = (6, 5, 2, 5, 1, 1, 1)  # Every pipeline costs some 25 ms of a core.


def random_courses(root: str) -> Iterator[Course]:
    """Yields courses of splits of 1..21 examples, with 8 stops each, also before the first batch and after the last."""
    draw = random.Random(20_261_121)
    for _ in range(NUM_COURSES):
        num_examples = draw.randint(1, NUM_EXAMPLES)
        global_batch = draw.choice((1, 2, 3, 4, 6, 12))
        shuffle = draw.random() < 0.8
        blocks = draw.choice(({}, {}, {"block_records": 1}, {"block_records": 4}))
        arguments = {
            "root": root,
            "name": "numbered",
            "split": f"train[:{num_examples}]",
            "is_training": True,
            "shuffle": shuffle,
            "seed": draw.randrange(2**32),
            "repeats": draw.choice((0, 0, 0, 2)),
            "read": with_read("index", **(blocks and {"shuffle_buffer": 8, **blocks})),
        }
        num_slots = num_examples * max(1, arguments["repeats"])
        if num_slots >= global_batch:
            arguments["remainder"] = draw.choice(("wrap", "drop"))
        is_dropping = arguments.get("remainder") == "drop"
        num_batches = num_slots // global_batch if is_dropping else -(-num_slots // global_batch)
        possible = [at for at, (num_replicas, _) in enumerate(GRIDS) if global_batch % num_replicas == 0]
        grid, *others = (GRIDS[at] for at in draw.choices(possible, [WEIGHTS[at] for at in possible], k=1 + NUM_STOPS))
        stops = sorted(draw.choices(range(num_batches + 1), k=NUM_STOPS))
        yield Course(arguments, global_batch, draw.randrange(100), grid, tuple(zip(stops, others, strict=True)))


@pytest.mark.slow
@pytest.mark.timeout(900)  # It takes half a minute; this is for busy machines.
def test_a_thousand_random_stops_lose_nothing_and_repeat_nothing(numbered: str, request: pytest.FixtureRequest) -> None:
    courses = list(random_courses(numbered))
    assert {course.grid for course in courses} == {grid for course in courses for _, grid in course.stops} == set(GRIDS)
    with ThreadPoolExecutor(2) as pool, Answering(torch_zygote()) as one, Answering(torch_zygote()) as other:
        parts = pool.map(lambda process, part: process.ask(follow, part), (one, other), (courses[::2], courses[1::2]))
        count = count_outcomes([outcome for part in parts for outcome in part])
    add_count(request.config, "parsers", count)
    assert count.num_stops == NUM_COURSES * NUM_STOPS >= 1000
    assert (count.num_other, count.num_missing, count.num_twice) == (0, 0, 0)


def test_the_count_of_random_stops_finds_what_is_lost_and_what_comes_twice() -> None:
    planned = [3, 1, 2, 0]
    outcomes = [Outcome([3, 1], [2, 0], planned), Outcome([3, 1], [1, 0], planned), Outcome([3], [2, 1, 0], planned)]
    assert count_outcomes(outcomes) == Count(3, 2, 1, 1)
