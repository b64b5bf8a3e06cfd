"""Reads whole batches through `create_loader` for a few seconds, to see how fast they come.

Only with the number of workers that is checked: `--workers 0` measures reading in the training process.
"""

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image

from tfds_torch.check.content import ImageSizes
from tfds_torch.check.expected_ids import is_image_folder
from tfds_torch.check.fused import STAGES, FusedMeasure, FusedSpeed, choose_preprocess, describe
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.parsers.config import Config
from tfds_torch.parsers.parser import DEFAULT_FIELDS
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.runtime import fresh_process
from tfds_torch.runtime.memory import tree_pss_bytes
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import Loader, create_loader

_MOST_S, _SHORT_EPOCH_S = 3.0, 1.5
_TIMEOUT_S = 120.0
_NUM_TRANSFORMS, _MOST_TRANSFORMS_S = 32, 0.2


def measure_fused(
    config: Config, parser: ParserTfds, sizes: ImageSizes, num_replicas: int, num_workers: int
) -> FusedMeasure:
    """Returns how fast rank 0 gets whole batches; what goes wrong there is told, and breaks nothing.

    Args:
        config: what is checked; its preprocess is used, or the usual one where it has none.
        parser: of the first reading, without a preprocess.
        sizes: of the images.
        num_replicas: ranks; the others do not read meanwhile.
        num_workers: loader processes; 0 reads in this process, or in a fresh one where a map_fn loads tensorflow.
    """
    preprocess = config.preprocess or choose_preprocess(parser.is_training, sizes)
    is_own, transform_s, speed, reason = config.preprocess is not None, None, None, None
    try:
        transform_s = time_transform(preprocess, sizes.median, parser.image_mode or "RGB")
        fused = _reopen(config, parser, preprocess)
        if preprocess.map_fn is not None and not num_workers:
            # tensorflow stays out of this process, from which further workers are forked.
            speed = fresh_process.call(read_fused, fused, num_replicas, num_workers)
        else:
            speed = read_fused(fused, num_replicas, num_workers)
    except Exception as error:  # The check's verdict is about single examples, and they are proved.
        name = "" if isinstance(error, TfdsTorchError) else f"{type(error).__name__}: "
        reason = name + (next(iter(str(error).splitlines()), "") or "no reason given")
    return FusedMeasure(describe(preprocess), is_own, num_workers, transform_s, speed, reason)


def time_transform(preprocess: Preprocess, size: tuple[int, int], mode: str) -> float:
    """Returns the mean time, seconds, in which Pillow cuts and resizes an image as a preprocess says.

    Args:
        preprocess: what is done.
        size: (width, height) of the image.
        mode: `RGB`, `L` or `RGBA`.
    """
    sizes = np.tile(np.array(size[::-1], np.int64), (_NUM_TRANSFORMS, 1))
    crops = preprocess.crop_parameters(sizes, np.arange(len(sizes)), 0, np.zeros(len(sizes), np.bool_))
    image = Image.new(mode, size)
    started, num_done, elapsed_s = time.perf_counter(), 0, 0.0
    for (top, left, height, width), row in zip(crops.windows.tolist(), crops.rows(), strict=True):
        (resized_height, resized_width), bicubic = row[0], row[-1]
        kind = Image.Resampling.BICUBIC if bicubic else Image.Resampling.BILINEAR
        np.asarray(image.resize((resized_width, resized_height), kind, (left, top, left + width, top + height)))
        num_done, elapsed_s = num_done + 1, time.perf_counter() - started
        if elapsed_s >= _MOST_TRANSFORMS_S:
            break
    return elapsed_s / num_done


def read_fused(parser: ParserTfds, num_replicas: int, num_workers: int) -> FusedSpeed:
    """Returns the speed of a parser with a preprocess, from three seconds at most, or from two short epochs.

    Raises:
        ConfigError: there are no batches.
        TfdsTorchError: as the loader raises it; StallError where a batch does not come within two minutes.
    """
    fields = tuple(filter(parser.has_field, DEFAULT_FIELDS))
    dataset = ImageDataset(parser, fields=fields, world=World(0, num_replicas))
    with warnings.catch_warnings():
        # Advice tells of memory and workers; here they would be said twice.
        warnings.simplefilter("ignore", UserWarning)
        started = time.perf_counter()
        with create_loader(dataset, num_workers, timeout_s=_TIMEOUT_S) as loader:
            speed = _time(loader, started)
    if speed is None:
        raise ConfigError(f"{parser.dataset_name}, split {parser.split!r}: rank 0 has no batches that could be timed.")
    return speed


class _Timing:
    """Times the batches of a loader from a point on."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.begin()

    def begin(self) -> None:
        """Forgets what came before."""
        self._began, self.num_batches, self.num_examples = time.perf_counter(), 0, 0
        self._begun = self._loader.stats()

    @property
    def timed_s(self) -> float:
        return time.perf_counter() - self._began

    def add(self, batch: Sequence[Any]) -> None:
        self.num_batches += 1
        self.num_examples += len(batch[0])

    def speed(self, first_batch_s: float) -> FusedSpeed:
        timed_s = self.timed_s
        ended, names = self._loader.stats(), {stage: f"{stage}_s" for stage in STAGES}
        return FusedSpeed(
            first_batch_s=first_batch_s,
            examples_per_s=self.num_examples / timed_s,
            num_batches=self.num_batches,
            num_examples=self.num_examples,
            timed_s=timed_s,
            stages={stage: getattr(ended, name) - getattr(self._begun, name) for stage, name in names.items()},
            memory=tree_pss_bytes(),  # Last, because looking takes time, and while the workers are there.
        )


def _time(loader: Loader, started: float) -> FusedSpeed | None:
    """Returns the speed after the first batch; of a short epoch, that of the whole second one; None without batches."""
    timing, first_batch_s = _Timing(loader), None
    for batch in loader:
        if first_batch_s is None:
            first_batch_s = time.perf_counter() - started
            timing.begin()
            continue
        timing.add(batch)
        if timing.timed_s >= _MOST_S:
            return timing.speed(first_batch_s)
    if first_batch_s is None:
        return None
    if timing.timed_s > _SHORT_EPOCH_S and timing.num_batches:
        return timing.speed(first_batch_s)
    timing.begin()
    for batch in loader:
        timing.add(batch)
        if timing.timed_s >= _MOST_S:
            break
    return timing.speed(first_batch_s)


def _reopen(config: Config, parser: ParserTfds, preprocess: Preprocess) -> ParserTfds:
    """Returns the same parser with a preprocess."""
    config = replace(config, split=parser.split, preprocess=preprocess)
    if is_image_folder(parser.data_dir):
        return config.make_parser(parser.data_dir)
    return replace(config, name=str(parser.data_dir)).make_parser()
