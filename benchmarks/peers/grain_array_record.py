"""Grain: ArrayRecord files of the same encoded images, through its `MapDataset`.

Configured as its documentation does it for training: a global shuffle that changes with every epoch (`shuffle`, then
`repeat`), the transform in a `map`, batches made in the workers, one iterator for the whole training. Threads and
buffers of a worker are Grain's defaults. Images are decoded by Pillow. For an evaluation nothing is shuffled.

The iterator never ends, so an epoch is as many batches as the others have, it has no tail, and its first batches were
begun while the epoch before was still running: that work was measured there.
"""

import io
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import read_tars, transform_of

_LABEL_BYTES = 8  # A record begins with the label; the image file follows.


class DecodeAndTransform:
    """A record -> (image uint8 [3, H, W], label), by the transform of a task. Picklable."""

    def __init__(self, task: Task) -> None:
        self.transform = transform_of(task)

    def __call__(self, record: bytes) -> tuple[Any, int]:
        """Returns image and label of a record that `prepare` wrote."""
        image = Image.open(io.BytesIO(record[_LABEL_BYTES:])).convert("RGB")
        return self.transform(image), int.from_bytes(record[:_LABEL_BYTES], "little")


def prepare(task: Task) -> None:
    """Writes the images of `task.tars`; an image file does not get smaller by another compression."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(f"{task.files}/images.array_record", "group_size:1,uncompressed")
    for image, label in read_tars(task.tars):
        writer.write(label.to_bytes(_LABEL_BYTES, "little") + image)
    writer.close()


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, numpy uint8 [B, 3, H, W]."""
    import grain

    shards = sorted(map(str, Path(task.files).glob("*.array_record")))
    examples = grain.MapDataset.source(grain.sources.ArrayRecordDataSource(shards))
    if task.is_training:
        examples = examples.seed(0).shuffle()
    dataset = examples.repeat().map(DecodeAndTransform(task)).to_iter_dataset().batch(task.batch_size)
    if task.num_workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=task.num_workers))
    batches = iter(dataset)
    num_batches = task.num_examples // task.batch_size
    return lambda epoch: (images for images, _ in islice(batches, num_batches))


if __name__ == "__main__":
    serve(load, ("grain", "array-record"), prepare=prepare)
