"""The limit of windows: decoding alone, by our own decoder, in threads on all cores.

Configured so that nothing else takes time: the encoded images of both cameras lie in memory, some thousands of windows
that are decoded again and again, into memory that each thread keeps. Nothing is shuffled, batched or handed over: only
the number of windows comes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.rlds_stream import STEPS_OF_AN_EPISODE
from benchmarks.peers.robot_windows import CAMERAS
from benchmarks.task import Task
from tfds_torch.runtime.limits import num_cores

_MOST_WINDOWS = 4096
_WINDOWS_OF_A_CALL = 32


def load(task: Task) -> Callable[[int], Iterable[Any]]:
    """Returns the function epoch -> arrays as long as the windows of a call."""
    from tfds_torch.images.decoding import ImageDecoder

    windows, decoder, own = list(_read(task)), ImageDecoder("RGB"), threading.local()
    calls = [windows[at : at + _WINDOWS_OF_A_CALL] for at in range(0, len(windows), _WINDOWS_OF_A_CALL)]
    num_calls = max(1, task.num_photos * STEPS_OF_AN_EPISODE // _WINDOWS_OF_A_CALL)
    pool = ThreadPoolExecutor(num_cores())

    def decode(number: int) -> Any:
        call = calls[number % len(calls)]
        for image in (image for window in call for image in window):
            header = decoder.read_header(image)
            shape = (header.height, header.width, 3)
            if getattr(own, "pixels", np.empty(0)).shape != shape:
                own.pixels = np.empty(shape, np.uint8)
            decoder.decode_into(image, header, own.pixels)
        return np.empty(len(call))

    return lambda epoch: pool.map(decode, range(num_calls))


def _read(task: Task) -> Iterator[tuple[bytes, ...]]:
    """Yields the encoded images of the first windows."""
    import tensorflow as tf

    found = 0
    for shard in sorted((Path(task.data_dir) / task.dataset).glob("*/*-train.tfrecord-*")):
        for record in tf.data.TFRecordDataset(str(shard)).as_numpy_iterator():
            features = tf.train.Example.FromString(record).features.feature
            images = [features[f"steps/{key}"].bytes_list.value for key in CAMERAS.values()]
            yield from zip(*images, strict=True)
            found += len(images[0])
            if found >= _MOST_WINDOWS:
                return
