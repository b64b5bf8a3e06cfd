"""Beginning at any batch of an epoch gives the uninterrupted tail, over epochs' ends; in mode `index` in any world."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from resume_counts import Count, Outcome, add_count, count_outcomes
from tfds_fixtures import call_reader, with_read, write_numbered
from zygote import Answering, torch_zygote

from parsers.resuming import Course, Grid, Resumes, check_all, follow

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
    options |= {"block_records": 3, "block_groups": groups} if (groups := arguments.pop("groups", 0)) else {}
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
    "examples, evaluation, 1x1": resumes(
        "examples", 12, (1, 1), is_training=False, remainder="pad", split="train[:9]+train[12:]"
    ),
    "index, groups of blocks": resumes("index", 12, (2, 1), (1, 2), groups=4),
    "index, groups and repeats": resumes("index", 10, (1, 2), (2, 1), groups=5, repeats=2),
    "files, 2x2": resumes("files", 12, (2, 2)),
    "examples, evaluation, 3x1": resumes("examples", 12, (3, 1), is_training=False, split="train[:9]+train[12:]"),
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
    num_slots = (18 if "split" in case.arguments else NUM_EXAMPLES) * num_passes
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
        if blocks and global_batch % 3 == 0:
            blocks["block_groups"] = 3
        arguments: dict[str, Any] = {
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
