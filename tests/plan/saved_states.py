"""States of plans, and what is said of states that cannot be loaded."""

from collections.abc import Callable

import pytest

from tfds_torch.errors import StateMismatchError
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.state import LoaderState
from tfds_torch.plan.world import World

PLAN = EpochPlan(100, World(num_workers=3), 8, Remainder.KEEP)  # 13 batches.


def state_of(plan: EpochPlan, batches_delivered: int = 0, epoch: int = 1) -> LoaderState:
    return LoaderState.of(
        plan,
        dataset="digits:1.0.0",
        split="test",
        fingerprint="f",
        read_mode="index",
        num_workers=plan.world.num_workers,
        epoch=epoch,
        batches_delivered=batches_delivered,
    )


def message_of(do: Callable[..., object], *arguments: object, **more: object) -> str:
    """Returns what the mismatch is that a call raises."""
    with pytest.raises(StateMismatchError) as caught:
        do(*arguments, **more)
    return str(caught.value)
