"""A parser's pipelines as a training reads them, begun anywhere. What loads tensorflow runs in a fresh process."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
from conformance import Step, check_resumes
from resume_counts import Outcome

from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

Grid = tuple[int, int]
"""R ranks x W workers."""


class ParserLoader:
    """All pipelines of a grid in one process: a step is a global batch, one worker's batch of every rank.

    Its state is the epoch and the rank's batches that came, as `Parser.batches` takes them.
    """

    def __init__(self, make_parser: Callable[..., Any], grid: Grid, global_batch: int) -> None:
        self.num_replicas, self.num_workers = grid
        self.parser = make_parser(batch_size=global_batch // self.num_replicas)
        self.epoch, self.start, self.is_begun = 0, 0, False

    def __iter__(self) -> Iterator[Step]:
        if self.is_begun:
            self.epoch, self.start = self.epoch + 1, 0
        self.is_begun = True
        return self._steps()

    def _steps(self) -> Iterator[Step]:
        pipelines = [
            [self._batches(rank, worker) for worker in range(self.num_workers)] for rank in range(self.num_replicas)
        ]
        for turn in count():
            batches = [next(workers[turn % self.num_workers], None) for workers in pipelines]
            if None in batches:
                assert batches == [None] * self.num_replicas, "ranks of different lengths"
                return
            yield step_of([batch for batch in batches if batch is not None])

    def _batches(self, rank: int, worker: int) -> Iterator[Batch]:
        world = World(rank, self.num_replicas, worker, self.num_workers)
        return self.parser.batches(world, self.epoch, self.start, fields=())

    def state(self, num_steps: int) -> Any:
        return [self.epoch, self.start + num_steps]

    def load(self, state: Any) -> None:
        (self.epoch, self.start), self.is_begun = state, False

    def close(self) -> None:
        pass


def step_of(batches: Sequence[Batch]) -> Step:
    """Returns the global batch of the ranks' batches."""
    ((epoch, number),) = {(batch.epoch, batch.batch) for batch in batches}
    index, valid = (np.concatenate([getattr(batch, name) for batch in batches]) for name in ("index", "valid"))
    return Step(epoch, number, tuple(index.tolist()), tuple(valid.tolist()))


@dataclass(frozen=True)
class Resumes:
    """What is saved at every step, in one grid, and resumed in another one.

    Attributes:
        arguments: of ParserTfds, without `batch_size`.
        global_batch: G.
        grid: where states are saved.
        other: where they are loaded.
        num_epochs: in which states are saved.
    """

    arguments: dict[str, Any]
    global_batch: int
    grid: Grid = (1, 1)
    other: Grid = (1, 1)
    num_epochs: int = 2


def check_all(cases: dict[str, Resumes]) -> dict[str, int | str]:
    """Returns how many tails each case compared, or what was wrong. Loads tensorflow."""
    return {name: _check(case) for name, case in cases.items()}


def _check(case: Resumes) -> int | str:
    make, make_other = (
        partial(ParserLoader, partial(ParserTfds, **case.arguments), grid, case.global_batch)
        for grid in (case.grid, case.other)
    )
    try:
        return check_resumes(make, make_other, num_epochs=case.num_epochs)
    except AssertionError as error:
        return str(error)


@dataclass(frozen=True)
class Course:
    """An epoch that is stopped at several batches, and gone on with in another grid from each of them.

    Attributes:
        arguments: of ParserTfds, without `batch_size`.
        global_batch: G.
        epoch: which one.
        grid: reads from the first batch on.
        stops: (batches of each rank that came before, grid that reads the rest), in order.
    """

    arguments: dict[str, Any]
    global_batch: int
    epoch: int
    grid: Grid
    stops: tuple[tuple[int, Grid], ...]


def follow(courses: Sequence[Course]) -> list[Outcome]:
    """Returns what came at every stop of every course. Loads tensorflow."""
    return [outcome for course in courses for outcome in _follow(course)]


def _follow(course: Course) -> Iterator[Outcome]:
    def begin(grid: Grid, start: int) -> Iterator[Step]:
        loader = ParserLoader(partial(ParserTfds, **course.arguments), grid, course.global_batch)
        loader.load([course.epoch, start])
        return iter(loader)

    planned = examples_of(begin((1, 1), 0))
    running, before, num_delivered = begin(course.grid, 0), [], 0
    for stop, grid in course.stops:
        before = before + examples_of(islice(running, stop - num_delivered))
        num_delivered = stop
        yield Outcome(before, examples_of(begin(grid, stop)), planned)


def examples_of(steps: Iterable[Step]) -> list[int]:
    """Returns the examples of all steps in order."""
    return [example for step in steps for example in step.index]
