"""A tf.data pipeline over whole episodes, in the order of steps that the loaders of Octo and OpenVLA have.

Configured as they are: TFDS reads episodes and leaves images encoded; each episode becomes windows (an action of 16
steps, padded with its last one; both cameras; the state), and windows a stream, without end; a buffer of so many
encoded windows (the option `num_shuffled`) shuffles it; images are decoded after the buffer, and batched. To its
favour: it resizes nothing, because the images have their size; tf.io.decode_jpeg takes the fast transform, its default,
whose pixels differ from Pillow's, and ours, by a grey level on average; batches are prefetched; and the stream goes on
over the ends of epochs, so that its buffer is filled once. Every stage has as many threads as there are cores. The
budget of tf.data's own buffers is 1 GB, as OpenVLA has it. The batches go to a training process that is this one; there
are no other processes.

Sources: github.com/octo-models/octo, octo/data/dataset.py; github.com/openvla/openvla, prismatic/vla/datasets/rlds.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.peers.ours import NUM_ACTIONS
from benchmarks.protocol import Epochs, Task, serve
from tfds_torch.runtime.limits import num_cores

STEPS_OF_AN_EPISODE = 90
"""About so many windows for each episode are an epoch."""

_RAM_BUDGET = 10**9


def load(task: Task) -> Epochs:
    """Returns the function epoch -> batches of the primary camera's images, numpy uint8 [B, 3, 256, 256]."""
    num_batches = max(1, task.num_examples * STEPS_OF_AN_EPISODE // task.batch_size)
    streams: list[Iterator[Any]] = []

    def epoch_of(epoch: int) -> Iterator[Any]:
        if not streams:  # Its start belongs to the time of the first epoch.
            streams.append(make_stream(task).as_numpy_iterator())
        for batch in itertools.islice(streams[0], num_batches):
            yield batch["image_primary"].transpose(0, 3, 1, 2)  # [B, H, W, C] -> [B, C, H, W], a view

    return epoch_of


def make_stream(task: Task) -> Any:
    """Returns the tf.data.Dataset of batches."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    threads = num_cores()
    (version,) = (Path(task.data_dir) / task.dataset).glob("[0-9]*")
    episodes = tfds.builder_from_directory(version).as_dataset(
        split="train",
        shuffle_files=True,
        decoders={"steps": tfds.decode.SkipDecoding()},
        read_config=tfds.ReadConfig(
            skip_prefetch=True,
            try_autocache=False,
            num_parallel_calls_for_interleave_files=threads,
            interleave_cycle_length=threads,
        ),
    )

    def to_windows(episode: Any) -> Any:
        steps = episode["steps"]
        num_steps = tf.shape(steps["action"])[0]
        wanted = tf.range(num_steps)[:, None] + tf.range(NUM_ACTIONS)[None]  # [T, 16]
        return {
            "image_primary": steps["observation"]["image_0"],
            "image_wrist": steps["observation"]["image_1"],
            "state": steps["observation"]["state"],
            "action": tf.gather(steps["action"], tf.minimum(wanted, num_steps - 1)),
            "action_pad": wanted >= num_steps,
        }

    def decode(window: Any) -> Any:
        images = {key: tf.io.decode_jpeg(window[key], channels=3) for key in ("image_primary", "image_wrist")}
        return {**window, **images}

    options = tf.data.Options()
    options.deterministic = False
    options.autotune.ram_budget = _RAM_BUDGET
    options.threading.private_threadpool_size = threads
    return (
        episodes.repeat()
        .map(to_windows, num_parallel_calls=threads)
        .interleave(tf.data.Dataset.from_tensor_slices, cycle_length=threads, num_parallel_calls=threads)
        .shuffle(task.options["num_shuffled"])
        .map(decode, num_parallel_calls=threads)
        .batch(task.batch_size, drop_remainder=True, num_parallel_calls=threads)
        .prefetch(2)
        .with_options(options)
    )


if __name__ == "__main__":
    serve(load, ("tensorflow-datasets",))
