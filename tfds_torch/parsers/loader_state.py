"""The state that a loader over a parser saves at a point in an epoch."""

from tfds_torch.parsers.parser import Parser
from tfds_torch.plan.cursor import Start
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World


def state_at(parser: Parser, rank: World, now: Start, num_workers: int | None) -> LoaderState:
    """Returns the state of a point in an epoch."""
    num_readers = None if num_workers is None else max(1, num_workers)
    world = rank.at_worker(0, num_readers or 1)
    return LoaderState.of(
        parser.plan(world, first_example=now.first_example),
        dataset=parser.dataset_name,
        split=parser.split,
        fingerprint=parser.fingerprint,
        read_mode=parser.read_mode(world),
        num_workers=num_readers,
        epoch=now.epoch,
        batches_delivered=now.start_batch,
    )
