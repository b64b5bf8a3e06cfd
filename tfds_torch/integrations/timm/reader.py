"""TfdsReader: timm's `ReaderTfds` with our parser behind it."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np

from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.timm.metrics import CURRENT
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_integer, did_you_mean
from tfds_torch.torch_data.image_dataset import ImageDataset

_logger = logging.getLogger(__name__)

_OURS = {
    "is_training": "is_training",
    "repeats": "repeats",
    "seed": "seed",
    "download": "download",
    "class_map": "class_map",
    "input_key": "image_key",
    "input_img_mode": "image_mode",
    "target_key": "target_key",
}
"""timm's name of an argument -> that of ParserTfds."""
_OTHERS = [
    "batch_size",
    "shuffle_size",
    "max_threadpool_size",
    "prefetch_size",
    "num_samples",
    "max_steps",
    "target_format",
    "target_img_mode",
    "additional_features",
]
_REFUSED = {
    "max_steps": ": an epoch of a TFDS dataset is as long as its split. Use a slice, for example split='train[:10%]'.",
    "additional_features": ", as in timm's own TFDS reader. Use tfds_torch.ImageDataset(parser, fields=('image', "
    "'label', ...)).",
    "target_img_mode": ": targets that are images come as arrays. Use tfds_torch.ImageDataset(parser, fields=('image', "
    "'label')) with a target_transform.",
}


class TfdsReader:
    """Yields `(PIL.Image, target)`, with the methods that timm's scripts and datasets call on a reader.

    Takes the arguments of timm's `ReaderTfds`. `prefetch_size` has no effect (decoded examples are never hoarded: a
    worker holds two batches). `shuffle_size` counts encoded examples of one rank; its workers share them.

    `len` is exact, and needs no number of workers. It remembers a loader's batch size (`use_loader`) and number of
    workers, which divides the threads. Survives fork, and travels to workers of spawn and forkserver.

    Args:
        name: name of the dataset, `name/config:version`.
        root: TFDS data directory; None or empty: TFDS's default.
        split: any TFDS split expression.
        arguments: as timm's `ReaderTfds`.

    Raises:
        ConfigError: an argument that does not exist, or cannot work.
        DatasetNotFoundError: no such dataset, or it is not prepared.
    """

    def __init__(self, name: str, root: str | None = None, split: str = "train", **arguments: Any) -> None:
        arguments = {key: value for key, value in arguments.items() if value is not None}
        _check(arguments)
        self._num_threads = arguments.get("max_threadpool_size")
        if self._num_threads is not None:
            self._num_threads = check_integer("max_threadpool_size", self._num_threads, 1)
        read = ReadOptions(shuffle_buffer=arguments["shuffle_size"]) if "shuffle_size" in arguments else ReadOptions()
        batch_size = arguments.get("batch_size")
        if batch_size == 1 and not arguments.get("is_training"):
            batch_size = None  # timm's default, which its validate.py leaves as it is.
        ours = {_OURS[key]: value for key, value in arguments.items() if key in _OURS}
        if not ours.get("class_map", True):
            del ours["class_map"]
        if ours.get("image_mode") == "":
            ours["image_mode"] = None  # As stored.
        if isinstance(ours.get("repeats"), float) and ours["repeats"].is_integer():
            ours["repeats"] = int(ours["repeats"])  # timm's --epoch-repeats is a float.
        self._loader_batch_size: int | None = None
        self._order_given: int | None = None
        self.done_for: Any = None  # The dataset of timm whose transform is done here.
        self.dataset = ImageDataset(ParserTfds(root or None, name, split, batch_size=batch_size, read=read, **ours))
        self.set_loader_cfg(1)
        wanted = arguments.get("num_samples", self.num_samples)
        if wanted != self.num_samples:
            raise ConfigError(
                f"num_samples={wanted!r}, and {self.parser.dataset_name}, split {self.parser.split!r}, holds "
                f"{self.num_samples} examples. Leave num_samples away, or ask for a slice: "
                f"split='{self.parser.split}[:{wanted}]'."
            )

    @property
    def parser(self) -> ParserTfds:
        """Where the examples come from."""
        return cast(ParserTfds, self.dataset.parser)

    @property
    def num_samples(self) -> int:
        """Examples of the split."""
        return self.parser.num_examples

    @property
    def class_to_idx(self) -> dict[Any, int]:
        """Class name -> label; empty when the target has no classes."""
        return self.parser.class_to_idx

    def __len__(self) -> int:
        """Examples that this rank yields in an epoch; wrapped and padded ones count."""
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        done = getattr(self.done_for, "transform", None)
        if self.done_for is not None and getattr(done, "transform", None) is not self.dataset.transform:
            self.done_for = self.dataset.transform = None  # The script has set another one, which timm's dataset does.
        return iter(self.dataset)

    def set_epoch(self, count: int) -> None:
        """Fix the epoch of the iterations to come, also of workers that already run."""
        CURRENT.padded = None  # An evaluation whose iterator was kept, but not used up, is over.
        self.dataset.set_epoch(count)

    def set_loader_cfg(self, num_workers: int | None = None) -> None:
        """Take the number of workers from timm's `create_loader`; 0 is this process."""
        if num_workers is None:
            return
        self.num_workers = max(1, num_workers)
        if self._num_threads is not None:
            num_threads = max(1, self._num_threads // self.num_workers)
            self.dataset.parser = self.parser.with_read(replace(self.parser.read, num_threads=num_threads))

    def use_loader(self, batch_size: int, num_workers: int) -> int:
        """Take over the batch size of the loader that is going to read; return how many workers it must have.

        They are fewer than asked for when `filenames()` has already named the examples in the order in which one worker
        reads them.

        Raises:
            ConfigError: batch_size leaves no batch, or is not that of an earlier loader.
        """
        if self._loader_batch_size not in (None, batch_size):
            raise ConfigError(
                f"create_loader(batch_size={batch_size}): a loader with batch_size={self._loader_batch_size} already "
                f"reads this dataset, and its batches would no longer be those it announced. Call create_dataset() "
                f"once for each loader."
            )
        self.dataset.parser = self.parser.with_batch_size(batch_size)
        self._loader_batch_size = batch_size
        if self._order_given is not None and max(1, num_workers) != self._order_given:
            _logger.warning(
                "filenames() of %s, split %r, was called before its loader was made, and named the examples in the "
                "order of %d worker(s): reading with %d instead of %d, so that results belong to their names.",
                self.parser.dataset_name,
                self.parser.split,
                self._order_given,
                self._order_given,
                num_workers,
            )
            num_workers = self._order_given
        self.set_loader_cfg(num_workers)
        return num_workers

    def filename(self, index: int, basename: bool = False, absolute: bool = False) -> str:
        """Raise ConfigError, as timm's readers of streams do."""
        raise ConfigError("A TFDS dataset is a stream: its examples have no file names by number. Use filenames().")

    def filenames(self, basename: bool = False, absolute: bool = False) -> list[str]:
        """Return a name for every example of the split, as `ImageDataset.filenames`.

        Where one rank reads without shuffling, they come in the order in which its loader delivers the examples; else
        in the order of the split.
        """
        names = self.dataset.filenames(basename, absolute)
        plan = self.dataset.plan()
        if plan.order.shuffle or plan.is_training or plan.world.num_replicas > 1:
            return names
        if self.parser.read_mode(plan.world.at_worker(0, self.num_workers)) == "index":
            return names  # In this order they are delivered, by any number of workers.
        self._order_given = self.num_workers
        return [names[index] for index in delivered_order(self.parser, self.num_workers)]


def delivered_order(parser: ParserTfds, num_workers: int) -> list[int]:
    """Return the examples of a split, by index, as a loader with workers delivers a stream to a single rank.

    Every worker reads consecutive examples, and the loader takes batches from the workers by turns. The parser reads
    without shuffling, and not in mode `index`.
    """
    streams = []
    for worker in range(num_workers):
        ranges = parser.assignment(World(worker=worker, num_workers=num_workers)).valid
        parts = [np.arange(each.start, each.stop) + parser.files[each.file].first_index for each in ranges]
        streams.append(iter(np.concatenate([*parts, np.empty(0, np.int64)]).tolist()))
    plan = parser.plan(World())
    order: list[int] = []
    for number in range(plan.num_batches):
        order += [index for _, index in zip(range(plan.batch_size), streams[number % num_workers], strict=False)]
    return order


def _check(arguments: dict[str, Any]) -> None:
    """Refuse arguments that do not exist, or that a TFDS stream does not support here."""
    known = (*_OURS, *_OTHERS)
    for key in arguments:
        if key not in known:
            raise ConfigError(
                f"create_dataset('tfds/...') has no argument {key!r}: it takes {', '.join(sorted(known))}."
                f"{did_you_mean(key, known)}"
            )
    for key, reason in _REFUSED.items():
        if arguments.get(key, "") != "":
            raise ConfigError(f"{key}={arguments[key]!r} is not supported{reason}")
    target_format = arguments.get("target_format", "indices")
    if target_format not in ("indices", "multihot"):
        raise ConfigError(f"Unknown target_format {target_format!r}: choose 'indices' or 'multihot'.")
    if target_format == "multihot" and "," in str(arguments.get("target_key", "")):
        raise ConfigError(
            f"target_format='multihot' and the list target_key={arguments['target_key']!r} contradict each other: such "
            f"a target is a list of indices."
        )
    if target_format == "multihot" and arguments.get("class_map"):
        raise ConfigError("class_map with target_format='multihot' is not supported: remap in a target_transform.")
