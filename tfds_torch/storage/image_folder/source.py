"""ImageFolderSource: a split of an image folder, one file an example, as `tfds.ImageFolder` reads it."""

import os
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.image_folder.listing import ONLY_SPLIT, FolderListing, ListedSplit
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import other_kind
from tfds_torch.storage.source import Columns, FieldSpec, FileInstruction, LazyIds, ReadByNumber, not_found, such_as

IMAGE, LABEL, FILENAME = "image", "label", "image/filename"
"""The features of an image folder, as TFDS calls them."""

_SPECS = {IMAGE: FieldSpec((), object), LABEL: FieldSpec((), np.int64), FILENAME: FieldSpec((), object)}


class ImageFolderSource(ReadByNumber):
    """A `Source` of image files. A file is opened only where its image is read; none stays open."""

    has_shards = False
    is_one_threaded = False
    streams = "numbers"

    def __init__(self, name: str, instructions: Sequence[FileInstruction], listing: FolderListing) -> None:
        self.name, self.instructions, self.listing = name, tuple(instructions), listing
        self.table = InstructionTable(self.instructions, name)
        self._root = os.path.abspath(listing.root)  # Means the same after a change of the working folder.

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The encoded image, its label, and its path as TFDS gives it: below the root as it was given."""
        return MappingProxyType(_SPECS)

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an image file, over all splits."""
        splits = self.listing.splits.values()
        return sum(split.num_bytes for split in splits) // max(1, sum(map(len, splits)))

    @property
    def identity(self) -> object:
        """Names of the splits, which of their images are read, and a digest of all their names and sizes."""
        names = [os.path.basename(item.path) for item in self.instructions]
        return [
            (name, item.skip, item.take, self.listing.splits[name].digest)
            for name, item in zip(names, self.instructions, strict=True)
        ]

    @property
    def stamps(self) -> object:
        """Digests of the times of all images, when they were listed; their sizes are part of the identity."""
        return [self.listing.splits[os.path.basename(path)].times for path in self.table.files]

    def __len__(self) -> int:
        return len(self.table)

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Does nothing: a look at millions of files takes long, and only decoding shows that a file is whole."""

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Returns encoded values of examples in the order asked; see `Source`."""
        file, record = self.table.find(index)
        columns: dict[str, Any] = {}
        for name in fields:
            if name == LABEL:
                columns[name] = self._labels(file, record)
            elif name == FILENAME:
                base = os.path.join(self.listing.root, "")
                columns[name] = [os.fsencode(base + path) for path in self._join(file, record, os.sep)]
            elif name == IMAGE:
                paths = self._paths(file, record)
                columns[name] = [self._read_image(path) for path in paths]
            else:
                raise ConfigError(f"An example has no field {quoted(name)}: its fields are {', '.join(_SPECS)}.")
        return columns

    def announce(self, index: Int64Array) -> None:
        """Asks the system to read the images ahead, where it can."""
        if not hasattr(os, "posix_fadvise"):
            return
        for path in self._paths(*self.table.find(index)):
            try:  # Reading reports what is wrong with a file.
                if other_kind(os.stat(path)) is None:
                    _advise(path)
            except OSError:
                pass

    def ids(self, index: Int64Array) -> LazyIds:
        """Returns the paths below the root, `<split>/<label>/<image>`, with "/" on every system; see FolderListing."""
        return LazyIds(self._name_images, np.asarray(index, np.int64))

    def find(self, id: str) -> int:
        """Returns the number of the image with this path below the root."""
        split, _, below = id.partition("/") if self.listing.has_splits else (ONLY_SPLIT, "/", id)
        label, _, name = below.partition("/")
        class_names = self.listing.class_names
        listed = self.listing.splits.get(split)
        record = -1
        if listed is not None and name and label in class_names:
            record = _find_name(listed, os.fsencode(name), class_names.index(label))
        for item in self.instructions:
            if record >= 0 and os.path.basename(item.path) == split and item.skip <= record < item.skip + item.take:
                return item.first_index + record - item.skip
        if record >= 0:
            raise not_found(self, id, "the image is there, but outside the split.")
        hint = did_you_mean(split, self.listing.splits) if listed is None else ""
        if listed is not None and label not in class_names:
            hint = did_you_mean(label, class_names)
        raise not_found(self, id, f"ids are paths below {self.listing.root}, with '/'{such_as(self)}.{hint}")

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Returns the error for an image that cannot be decoded; see `Source`."""
        (path,) = self._paths(*self.table.find(np.array([index], np.int64)))
        return CorruptRecordError(
            f"{path} of {self.name} (index {index}) cannot be decoded: it is damaged, or not an image. {reason}"
        )

    def close(self) -> None:
        """Does nothing: no file stays open."""

    def _read_image(self, path: str) -> bytes:
        try:
            kind = other_kind(os.stat(path))  # Before it is opened: opening a FIFO waits for ever.
            if kind is not None:
                raise ShardError(f"{path} of {self.name} is {kind}, not an image file. Restore the image.")
            with open(path, "rb", buffering=0) as file:
                image = file.read()
        except FileNotFoundError:
            raise ShardError(
                f"{path} of {self.name} is missing: it was removed after the folder was listed, or is a link to "
                f"nothing. Restore it, or open the dataset anew."
            ) from None
        except OSError as error:
            raise ShardError(f"{path} of {self.name} cannot be read: {error.strerror}.") from error
        if not image:
            raise CorruptRecordError(f"{path} of {self.name} is empty: it holds no image.")
        return image

    def _labels(self, file: Int64Array, record: Int64Array) -> NDArray[np.int64]:
        labels = np.zeros(len(file), np.int64)
        for number, split in enumerate(self._splits):
            here = file == number
            labels[here] = split.labels[record[here]]
        return labels

    def _paths(self, file: Int64Array, record: Int64Array) -> list[str]:
        base = os.path.join(self._root, "")
        return [base + path for path in self._join(file, record, os.sep)]

    def _name_images(self, index: Int64Array) -> list[str]:
        return self._join(*self.table.find(index), "/")

    def _join(self, file: Int64Array, record: Int64Array, separator: str) -> list[str]:
        """Returns the paths of examples below the root."""
        paths = np.empty(len(file), object)
        for number, (folder, split) in enumerate(zip(self.table.files, self._splits, strict=True)):
            here = np.flatnonzero(file == number)
            if not len(here):
                continue
            first = self.listing.path_of(os.path.basename(folder), separator)
            prefixes = [f"{first}{label}{separator}" for label in self.listing.class_names]
            labels = split.labels[record[here]].tolist()
            names = split.names_of(record[here])
            paths[here] = [prefixes[label] + name for label, name in zip(labels, names, strict=True)]
        return paths.tolist()

    @property
    def _splits(self) -> list[ListedSplit]:
        return [self.listing.splits[os.path.basename(folder)] for folder in self.table.files]


def _advise(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def _find_name(listed: ListedSplit, name: bytes, label: int) -> int:
    """Returns the number of an image in its split, or -1.

    The names lie end to end: a search through them all needs no string for each, of which there may be millions.
    """
    start = listed.names.find(name)
    while start >= 0:
        number = int(np.searchsorted(listed.stops, start, side="right"))
        begins = start == (listed.stops[number - 1] if number else 0)
        if begins and listed.stops[number] == start + len(name) and listed.labels[number] == label:
            return number
        start = listed.names.find(name, start + 1)
    return -1
