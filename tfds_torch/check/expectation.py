"""What must come of a reading: by the ids that were promised, and by the plan of every rank."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tfds_torch.check.expected_ids import ExpectedIds
from tfds_torch.check.reference import CheckedParser, ids_of
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.plan.deal import WorkerOrder, pipeline_counts
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.mixed import Mixed
from tfds_torch.plan.world import World


@dataclass(frozen=True)
class Share:
    """What a rank is to receive in one epoch, in mode `index` in this order.

    Attributes:
        index: int64 [n], its examples; n is the sum of the sizes of its batches.
        valid: bool [n], False for padding.
    """

    index: NDArray[np.int64]
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Expectation:
    """What must come.

    Attributes:
        plan: the epoch plan of rank 0; its world has the numbers of ranks and workers.
        mode: the read mode, `index`, `files` or `examples`.
        ids: the split's ids by index.
        share: (rank, epoch) -> what that rank is to receive; worked out anew for every call.
        members: of a mixture, name -> number of examples of a pass, in their order; of balanced classes, label ->
            number of its examples; else empty.
        stored: of a mixture, the examples of each member's split; None: those of a pass.
        num_unread: examples of an epoch that uneven files leave unread in mode `files`; else 0.
        num_repeated: examples of an epoch that uneven files repeat in mode `files`; else 0.
        may_lack_labels: whether examples may have the label of padding, which None in an optional feature becomes.
    """

    plan: EpochPlan
    mode: str
    ids: ExpectedIds
    num_epochs: int
    share: Callable[[int, int], Share]
    members: Mapping[str, int] = field(default_factory=dict)
    stored: Sequence[int] | None = None
    num_unread: int = 0
    num_repeated: int = 0
    may_lack_labels: bool = False

    @property
    def num_replicas(self) -> int:
        """Ranks."""
        return self.plan.world.num_replicas

    @property
    def last_size(self) -> int:
        """Size of a rank's last batch."""
        return self.plan.num_samples - self.plan.batch_size * (self.plan.num_batches - 1)

    def batch_slice(self, number: int) -> slice:
        """Returns which examples of a share are in the rank's batch of this number."""
        return slice(number * self.plan.batch_size, (number + 1) * self.plan.batch_size)


@dataclass(frozen=True)
class PipelineCounts:
    """What one worker of one rank is to read in epoch 0.

    Attributes:
        num_examples: examples of the epoch's own.
        num_fill: examples that fill its last batch (wrapped or padded).
        num_available: examples of the epoch in the files that it reads; differs from num_examples in mode `files`.
    """

    rank: int
    worker: int
    num_batches: int
    num_examples: int
    num_fill: int
    num_available: int


def expect(parser: CheckedParser, num_replicas: int, num_workers: int, num_epochs: int) -> Expectation:
    """Returns what must come from a world of `num_replicas` ranks with `num_workers` loader processes each.

    Raises:
        TfdsTorchError: the plan cannot work there, or the files are not those of `dataset_info.json`.
    """
    here = World(0, num_replicas, 0, max(1, num_workers))
    plan, mode = parser.plan(here), parser.read_mode(here)
    ids = ids_of(parser)
    if mode == "index":
        return Expectation(
            plan,
            mode,
            ids,
            num_epochs,
            lambda rank, epoch: _share_of_order(parser.plan(World(rank, num_replicas)), epoch),
            *_members_of(parser, plan),
            may_lack_labels=parser.dataset.has_optional_label,
        )
    num_unread = num_repeated = 0
    for epoch in range(num_epochs):
        assignments = [parser.assignment(world, epoch) for world in World.grid(num_replicas, here.num_workers)]
        excess = [assignment.num_available - assignment.num_valid for assignment in assignments]
        num_unread = max(num_unread, sum(number for number in excess if number > 0))
        num_repeated = max(num_repeated, -sum(number for number in excess if number < 0))
    return Expectation(
        plan,
        mode,
        ids,
        num_epochs,
        lambda rank, epoch: _share_of_rank(parser, plan, rank, epoch),
        num_unread=num_unread,
        num_repeated=num_repeated,
        may_lack_labels=parser.dataset.has_optional_label,
    )


def _members_of(parser: CheckedParser, plan: EpochPlan) -> tuple[Mapping[str, int], Sequence[int] | None]:
    """Returns `members` and `stored` of an Expectation."""
    if isinstance(parser, ParserMixture):
        return parser.member_sizes, [len(one.source) for one in parser.members.values()]
    classes = plan.order.members if isinstance(plan.order, Mixed) else ()
    return {one.name: one.pass_size for one in classes}, None


def count_pipelines(parser: CheckedParser, expected: Expectation) -> list[PipelineCounts]:
    """Returns the counts of every pipeline."""
    world = expected.plan.world
    return [_count(parser, one, expected.mode) for one in World.grid(world.num_replicas, world.num_workers)]


def _count(parser: CheckedParser, world: World, mode: str) -> PipelineCounts:
    plan = parser.plan(world)
    num_batches = len(plan.worker_batches())
    if mode == "index":  # Every pipeline reads in all files.
        num_examples, num_fill = pipeline_counts(plan)
        return PipelineCounts(world.rank, world.worker, num_batches, num_examples, num_fill, num_examples)
    assignment = parser.assignment(world)
    return PipelineCounts(
        world.rank, world.worker, num_batches, assignment.num_valid, assignment.num_fill, assignment.num_available
    )


def _share_of_order(plan: EpochPlan, epoch: int) -> Share:
    order = WorkerOrder(plan, epoch)
    planned = order.planned(0, len(order))
    return Share(planned.index, planned.valid)


def _share_of_rank(parser: CheckedParser, plan: EpochPlan, rank: int, epoch: int) -> Share:
    num_replicas, num_workers = plan.world.num_replicas, plan.world.num_workers
    worlds = (World(rank, num_replicas, worker, num_workers) for worker in range(num_workers))
    shares = [_share_of_files(parser, plan, world, epoch) for world in worlds]
    return Share(np.concatenate([one.index for one in shares]), np.concatenate([one.valid for one in shares]))


def _share_of_files(parser: CheckedParser, plan: EpochPlan, world: World, epoch: int) -> Share:
    index: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    valid: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    assignment = parser.assignment(world, epoch)
    for ranges, is_valid in ((assignment.valid, True), (assignment.fill, plan.remainder is not Remainder.PAD)):
        for part in ranges:
            first = parser.files[part.file].first_index
            index.append(np.arange(first + part.start, first + part.stop))
            valid.append(np.full(part.stop - part.start, is_valid))
    return Share(np.concatenate(index), np.concatenate(valid))
