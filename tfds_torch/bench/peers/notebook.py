"""This package in whole batches, behind workers of a process that is new, or has read an epoch without workers before.

Configured as in `ours_fused`, with the `ReadOptions` of the task. A notebook that first looks at its data with
`num_workers=0` and then trains is such a process: what reading has left in it (threads, an imported tensorflow) must
not slow down the workers that it starts.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tfds_torch.bench.peers import ours_fused
from tfds_torch.bench.task import Task


def fresh(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, torch uint8 [B, 3, H, W]."""
    return ours_fused.load(task)


def after_reading(task: Task) -> Callable[[int], Iterable[Any]]:
    """As `fresh`, after an epoch of another loader without workers."""
    for _ in ours_fused.load(replace(task, num_workers=0))(0):
        pass
    return fresh(task)
