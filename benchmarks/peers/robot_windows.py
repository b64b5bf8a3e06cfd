"""This package: windows of robot episodes, read by number: an action of 16 steps, both cameras, and the state.

Configured: `is_training`, batch size, workers, and the windows. Images are delivered as they are stored, 256x256. All
else is a default: a global shuffle, whose last batch is filled. Without workers, threads of the training process
decode.
"""

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.task import Task

NUM_ACTIONS = 16
CAMERAS = {"image_primary": "observation/image_0", "image_wrist": "observation/image_1"}
_FIELDS = (*CAMERAS, "action", "action_pad", "state", "episode", "step")


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of the primary camera's images, torch uint8 [B, 3, 256, 256]."""
    from tfds_torch import ImageDataset, create_loader

    loader = create_loader(ImageDataset(make_parser(task), fields=_FIELDS), num_workers=task.num_workers)
    return lambda epoch: (batch[0] for batch in loader)


def make_parser(task: Task) -> Any:
    """Returns the parser of the windows; its index of steps is built where there is none."""
    from tfds_torch import ParserTfds, ReadOptions, Windows

    return ParserTfds(
        task.data_dir,
        task.dataset,
        is_training=True,
        batch_size=task.batch_size,
        windows=Windows("steps", offsets={"action": range(NUM_ACTIONS)}),
        fields={**CAMERAS, "state": "observation/state"},
        read=ReadOptions(**task.read),
    )
