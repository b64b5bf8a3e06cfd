"""The limit: decoding alone, by tensorflow's decoder, in the threads of tf.data on all cores.

Configured so that nothing else takes time: the encoded images lie in memory, and of each only a piece is decoded
(`decode_and_crop_jpeg`), distributed as in training, or the middle one of an evaluation; nothing is resized, and
nothing but heights is handed over. Boxes are drawn before the first epoch. An image that is delivered as it is, is
decoded whole. 16 images are decoded by a call, one after the other in a `tf.map_fn`, and as many calls run as there are
cores: element by element it takes about a tenth less time, but then nothing is batched. The decoder has tensorflow's
defaults, of which the inverse DCT is a little faster and less exact than ours. Autotuning is off, because its thread
delays the end of an epoch.
"""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from benchmarks.protocol import PLAIN, TRAIN, Epochs, Task, serve
from benchmarks.transform import CROP_PCT, RandomResizedCropFlip
from tfds_torch.runtime.limits import num_cores

_IMAGES_OF_A_CALL = 16


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of heights, numpy int32 [16]."""
    import tensorflow as tf

    images = list(_read(task))
    boxes = [box_of(image, task.work) for image in images]
    options = tf.data.Options()
    options.autotune.enabled = False
    options.threading.private_threadpool_size = num_cores()

    def decode(image: Any, box: Any) -> Any:
        is_whole = task.work == PLAIN
        pixels = tf.io.decode_png(image, 3) if is_whole else tf.io.decode_and_crop_jpeg(image, box, channels=3)
        return tf.shape(pixels)[0]

    def decode_batch(images: Any, boxes: Any) -> Any:
        return tf.map_fn(lambda pair: decode(*pair), (images, boxes), fn_output_signature=tf.int32)

    dataset = (
        tf.data.Dataset.from_tensor_slices((images, boxes))
        .batch(_IMAGES_OF_A_CALL)
        .map(decode_batch, num_parallel_calls=num_cores())
        .with_options(options)
    )
    return lambda epoch: dataset.as_numpy_iterator()


def _read(task: Task) -> Iterable[bytes]:
    """Yields the encoded images of the split `train`."""
    import tensorflow as tf

    shards = sorted(map(str, (Path(task.data_dir) / task.dataset).glob("*/*-train.tfrecord-*")))
    for record in tf.data.TFRecordDataset(shards).as_numpy_iterator():
        yield tf.train.Example.FromString(record).features.feature["image"].bytes_list.value[0]


def box_of(image: bytes, work: str) -> tuple[int, int, int, int]:
    """Returns top, left, height and width of the piece that is decoded."""
    width, height = Image.open(io.BytesIO(image)).size
    if work == TRAIN:
        left, top, right, bottom = RandomResizedCropFlip().draw_box(width, height)
        return top, left, bottom - top, right - left
    side = round(CROP_PCT * min(width, height))
    return (height - side) // 2, (width - side) // 2, side, side


if __name__ == "__main__":
    serve(load)
