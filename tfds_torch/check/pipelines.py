"""What each pipeline is to read in epoch 0."""

from dataclasses import dataclass

from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.assignment import pipeline_counts
from tfds_torch.plan.world import World


@dataclass(frozen=True)
class PipelineCounts:
    """What one worker of one rank is to read in epoch 0.

    Attributes:
        rank: which rank.
        worker: which of its workers.
        num_batches: its batches.
        num_examples: its examples of the epoch's own.
        num_fill: the examples that fill its last batch (wrapped or padded).
        num_available: examples of the epoch in the files that it reads; differs from num_examples in mode `files`.
    """

    rank: int
    worker: int
    num_batches: int
    num_examples: int
    num_fill: int
    num_available: int


def count_pipelines(parser: ParserTfds, num_replicas: int, num_workers: int, mode: str) -> list[PipelineCounts]:
    """Returns the counts of every pipeline.

    Args:
        parser: what is read.
        num_replicas: ranks.
        num_workers: workers of each, >= 1.
        mode: the read mode there.
    """
    return [_count(parser, world, mode) for world in World.grid(num_replicas, num_workers)]


def _count(parser: ParserTfds, world: World, mode: str) -> PipelineCounts:
    plan = parser.plan(world)
    num_batches = len(plan.worker_batches())
    if mode == "index":  # Every pipeline reads in all files.
        num_examples, num_fill = pipeline_counts(plan)
        return PipelineCounts(world.rank, world.worker, num_batches, num_examples, num_fill, num_examples)
    assignment = parser.assignment(world)
    return PipelineCounts(
        world.rank, world.worker, num_batches, assignment.num_valid, assignment.num_fill, assignment.num_available
    )
