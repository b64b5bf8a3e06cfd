"""An image folder, `root/<split>/<label>/<image>.jpg`, in the shape of a prepared dataset, without tensorflow.

`tfds.ImageFolder` loads tensorflow, reads whole splits only, and takes no read_config. What stands for it here has the
shape of a prepared dataset's builder: a split is one shard, its folder, whose records are the images in TFDS's order.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.example_files import ExampleFiles, Indices
from tfds_torch.parsers.folder_listing import LAYOUT, FolderListing, ListedSplit, list_image_folder
from tfds_torch.pipeline.image_files import FILENAME, IMAGE, LABEL, ImageFiles
from tfds_torch.pipeline.options import ReadOptions
from tfds_torch.pipeline.stream_spec import ExampleSource
from tfds_torch.plan.order import epoch_order
from tfds_torch.plan.worker_order import RecordOrder
from tfds_torch.records.record_run import RecordRun, is_local
from tfds_torch.runtime.clock import Clock

NAME, VERSION = "image_folder", "1.0.0"


@dataclass(frozen=True, eq=False)
class FolderInfo:
    """Stands for a TFDS builder's `info`."""

    features: Any
    splits: Any
    name: str = NAME
    config_name: None = None
    version: str = VERSION
    file_format: None = None


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Stands for a TFDS builder of a prepared dataset."""

    listing: FolderListing
    info: FolderInfo

    @property
    def data_path(self) -> Path:
        """The folder that holds the splits."""
        return Path(self.listing.root)


@dataclass(frozen=True)
class FolderFiles(ExampleFiles):
    """Images of an image folder; the runs' shards are the folders of the splits.

    Attributes:
        listing: of the whole folder.
    """

    listing: FolderListing

    has_shards = False
    streams = True

    def find_obstacle(self) -> str | None:
        """Returns None: every example is a file of its own."""
        return None

    @property
    def num_shards(self) -> int:  # noqa: D102
        return self.num_examples

    @property
    def identity(self) -> object:  # noqa: D102
        return [
            (os.path.basename(run.path), run.skip, run.take, split.digest)
            for run, split in zip(self.runs, self._splits, strict=True)
        ]

    def ids(self, index: Indices) -> list[str]:
        """Returns the paths below the root, `<split>/<label>/<image>`, with "/" on every system."""
        return self._join(index, "/")

    def names(self, key: str, parse: Callable[[bytes], Any]) -> list[str]:
        """Returns the ids: they are the names of the files, and nothing needs to be read."""
        return self.ids(np.arange(self.num_examples))

    def paths(self, index: Indices) -> list[str]:
        """Returns the files of examples given by index, int64 [n], as TFDS gives them: below the root as given."""
        below_root = os.path.join(self.listing.root, "")
        return [below_root + path for path in self._join(index, os.sep)]

    def labels(self, index: Indices) -> NDArray[np.int64]:
        """Returns the labels, int64 [n], of examples given by index, int64 [n]."""
        numbers, records = self._locate(index)
        labels = np.zeros(len(index), np.int64)
        for number, split in enumerate(self._splits):
            here = numbers == number
            labels[here] = split.labels[records[here]]
        return labels

    def source(  # noqa: D102
        self,
        valid: Sequence[RecordRun],
        fill: Sequence[RecordRun],
        *,
        seed: int | None,
        read: ReadOptions,
        num_workers: int,
    ) -> ExampleSource:
        own = self._occurrences_of(valid)
        own = own if seed is None else _shuffle(own, self.num_examples, seed)
        occurrences = np.concatenate([own, self._occurrences_of(fill)])
        return self._image_files(len(occurrences), lambda *at: occurrences[slice(*at)], read, num_workers)

    def indexed_source(self, order: RecordOrder, *, read: ReadOptions, clock: Clock | None) -> ExampleSource:  # noqa: D102
        return self._image_files(len(order), order.occurrences, read, order.plan.world.num_workers)

    def _image_files(
        self, num_examples: int, occurrences: Callable[[int, int], Indices], read: ReadOptions, num_workers: int
    ) -> ImageFiles:
        num_threads = read.threads_of_worker(num_workers)
        return ImageFiles(
            self.dataset, num_examples, self.num_examples, occurrences, self.paths, self.labels, num_threads
        )

    def _occurrences_of(self, runs: Sequence[RecordRun]) -> Indices:
        firsts = [(run.pass_number * self.num_examples + run.first_index, run.take) for run in runs]
        return np.concatenate([np.empty(0, np.int64), *(np.arange(first, first + take) for first, take in firsts)])

    def _join(self, index: Indices, separator: str) -> list[str]:
        """Returns the paths of examples below the root."""
        numbers, records = self._locate(index)
        paths = np.empty(len(index), object)
        for number, (run, split) in enumerate(zip(self.runs, self._splits, strict=True)):
            here = np.flatnonzero(numbers == number)
            folder = os.path.basename(run.path)
            prefixes = [f"{folder}{separator}{label}{separator}" for label in self.listing.class_names]
            labels = split.labels[records[here]].tolist()
            paths[here] = [
                prefixes[label] + name for label, name in zip(labels, split.names_of(records[here]), strict=True)
            ]
        return paths.tolist()

    @property
    def _splits(self) -> list[ListedSplit]:
        return [self.listing.splits[os.path.basename(run.path)] for run in self.runs]


def open_image_folder(
    root: str | os.PathLike[str] | None, arguments: Mapping[str, Any], download: bool, tfds: Any
) -> ImageFolder:
    """Lists an image folder.

    Args:
        root: the folder that holds the splits.
        arguments: `config` and `version`, where the dataset's name has them.
        download: whether the caller asked for a download.
        tfds: the module tensorflow_datasets.

    Raises:
        ConfigError: no root, a remote root, a config, or a download.
        DatasetNotFoundError: there is no image folder, or another version is asked for.
    """
    if root is None:
        raise ConfigError(f"{NAME} needs root: the folder that holds the splits. {LAYOUT}")
    root = os.path.expanduser(os.fspath(root))
    if not is_local(root):
        raise ConfigError(f"{NAME}: the root {root} is remote, and only folders of this machine can be listed.")
    if download:
        raise ConfigError(f"{NAME}: download=True, and there is nothing to download: its images are those in {root}.")
    version = arguments.get("version") or VERSION
    if "config" in arguments or not fnmatch(VERSION, str(version)):
        asked = ", ".join(f"{key} {value!r}" for key, value in sorted(arguments.items()))
        raise DatasetNotFoundError(f"{NAME} has no configs, and its only version is {VERSION}: asked for was {asked}.")
    listing = list_image_folder(root)
    features = tfds.features.FeaturesDict(
        {
            IMAGE: tfds.features.Image(),
            LABEL: tfds.features.ClassLabel(names=list(listing.class_names)),
            FILENAME: tfds.features.Text(),
        }
    )
    template = tfds.core.ShardedFileTemplate(
        data_dir=root, template="{SPLIT}", dataset_name=NAME, filetype_suffix="tfrecord"
    )
    splits = tfds.core.SplitDict(
        tfds.core.SplitInfo(
            name=name, shard_lengths=[len(split)], num_bytes=split.num_bytes, filename_template=template
        )
        for name, split in listing.splits.items()
    )
    return ImageFolder(listing, FolderInfo(features, splits))


def _shuffle(indices: Indices, num_examples: int, seed: int) -> Indices:
    """Returns the indices, shuffled a pass (at most) at a time: an epoch of several passes keeps them apart."""
    shuffled = indices.copy()
    for number, start in enumerate(range(0, len(indices), max(1, num_examples))):
        part = indices[start : start + num_examples]
        shuffled[start : start + num_examples] = part[epoch_order(len(part), seed, number)]
    return shuffled
