"""Plain TFDS: `tfds.as_numpy`, as a script without a loader of its own uses it.

Configured as the TFDS guides do it for training: files are shuffled (`shuffle_files=True`), then 1,000 decoded
examples (`shuffle(1000)`), and `prefetch(AUTOTUNE)`. It has no workers: tf.data decodes in its threads, and the shared
transform and the stacking of batches run in the training process.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.protocol import Epochs, Task, serve
from benchmarks.transform import RandomResizedCropFlip


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of images, numpy uint8 [B, 3, 224, 224]."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    dataset = tfds.builder("photos", data_dir=task.data_dir).as_dataset(split="train", shuffle_files=True)
    examples = tfds.as_numpy(dataset.shuffle(1000).prefetch(tf.data.AUTOTUNE))
    transform = RandomResizedCropFlip()

    def batches() -> Iterator[Any]:
        images = (transform(Image.fromarray(example["image"])) for example in examples)
        while batch := list(islice(images, task.batch_size)):
            yield np.stack(batch)

    return lambda epoch: batches()


if __name__ == "__main__":
    serve(load, ("tensorflow-datasets",))
