"""Grain: ArrayRecord files of the same encoded images, through its `MapDataset`.

Configured as its documentation does it for training: a global shuffle that changes with every epoch (`shuffle`, then
`repeat`), the transform in a `map`, batches made in the workers, one iterator for the whole training. Threads and
buffers of a worker are Grain's defaults. Images are decoded by Pillow. For an evaluation nothing is shuffled.

The iterator never ends, so an epoch is as many batches as the others have, it has no tail, and its first batches were
begun while the epoch before was still running: that work was measured there.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.task import Task
from benchmarks.transform import transform_of


class DecodeAndTransform:
    """A record -> (image uint8 [3, H, W], label), by the transform of a task. Picklable."""

    def __init__(self, task: Task) -> None:
        self.transform = transform_of(task)

    def __call__(self, record: bytes) -> tuple[Any, int]:
        """Returns image and label of a record that `benchmarks.conversion` wrote."""
        from benchmarks.conversion import decode_record

        image, label = decode_record(record)
        return self.transform(image), label


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> batches of images, numpy uint8 [B, 3, H, W]."""
    import grain

    shards = sorted(map(str, Path(str(task.converted_dir)).glob("*.array_record")))
    examples = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shards))
    if task.is_training:
        examples = examples.seed(0).shuffle()
    dataset = examples.repeat().map(DecodeAndTransform(task)).to_iter_dataset().batch(task.batch_size)
    if task.num_workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.num_workers))
    batches = iter(dataset)
    num_batches = task.num_photos // task.batch_size
    return lambda epoch: (images for images, _ in islice(batches, num_batches))
