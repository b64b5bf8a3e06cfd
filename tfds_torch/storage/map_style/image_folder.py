"""ImageFolderSource: a split of a folder of images, `root/<split>/<label>/<image>.jpg`, as `tfds.ImageFolder` lists it.

A folder without splits, `root/<label>/<image>.jpg`, is one split, `train`, in the order that TFDS would use.
Files of all formats that are read are images; TFDS takes .jpg, .jpeg and .png alone.

Source of the order: `tensorflow_datasets/core/folder_dataset/image_folder.py` of TFDS 4.9.10.
"""

import hashlib
import logging
import os
import random
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ConfigError, CorruptRecordError, DatasetNotFoundError, ShardError
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.image_formats import EXTENSIONS, FORMATS
from tfds_torch.storage.record_source import InstructionTable
from tfds_torch.storage.shard_errors import other_kind
from tfds_torch.storage.source import Columns, FieldSpec, FileInstruction, LazyIds, ReadByNumber, not_found, such_as

IMAGE, LABEL, FILENAME = "image", "label", "image/filename"
"""The features of an image folder, as TFDS calls them."""

LAYOUT = (
    "The layout is <root>/<split>/<label>/<image>.jpg (or .png, .tif, ...), and the root is the folder that holds the "
    "splits; or <root>/<label>/<image>.jpg, which is one split, train."
)
_SPECS = {IMAGE: FieldSpec((), object), LABEL: FieldSpec((), np.int64), FILENAME: FieldSpec((), object)}
_EXTENSIONS = tuple(f".{extension}" for extension in EXTENSIONS)
_SHOWN_EXTENSIONS = ", ".join(f".{one.extensions[0]}" for one in FORMATS)
_NAMES_OF_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}  # No labels.
_MOST_SHOWN = 5
_logger = logging.getLogger(__name__)

_Labels = Mapping[str, list[tuple[str, int, int]]]
"""Label -> name, size in bytes and modification time in ns of each image."""


@dataclass(frozen=True)
class ListedSplit:
    """The images of a split, which are consecutive rows of a listing.

    Attributes:
        first: the first row in the listing.
        num_examples: number of images.
        num_bytes: size of all files, in bytes.
        digest: hash of class names, file names and file sizes.
        times: hash of the times when the files were modified.
    """

    first: int
    num_examples: int
    num_bytes: int
    digest: str
    times: str


@dataclass(frozen=True, eq=False)
class FolderListing:
    """The images of all splits, in TFDS's order.

    String objects for the paths would take twice the memory, and their reference counts would copy them into every
    forked worker.

    Attributes:
        root: path of the folder as it was passed.
        class_names: the labels of all splits, in order.
        splits: name of a split -> its rows.
        paths: paths of the images below the root, with "/", a NUL before each path and behind the last one.
        starts: int64 [n + 1], where each path begins, and where one behind the last path would begin.
        labels: int32 [n], label of each image.
    """

    root: str
    class_names: tuple[str, ...]
    splits: Mapping[str, ListedSplit]
    paths: bytes
    starts: NDArray[np.int64]
    labels: NDArray[np.int32]

    def paths_of(self, rows: Int64Array) -> list[str]:
        """Return the paths of images, int64 [n], below the root."""
        ranges = zip(self.starts[rows].tolist(), self.starts[rows + 1].tolist(), strict=True)
        return [os.fsdecode(self.paths[start : stop - 1]) for start, stop in ranges]

    def find(self, path: str) -> int | None:
        """Return the row of a path below the root; None: there is no such image."""
        place = self.paths.find(b"\0" + os.fsencode(path) + b"\0")
        return None if place < 0 or "\0" in path else int(np.searchsorted(self.starts, place + 1))


def list_image_folder(root: str) -> FolderListing:
    """Return the listing of an image folder.

    Raises:
        DatasetNotFoundError: the root does not exist, has another layout, or holds no image.
    """
    if not os.path.isdir(root):
        raise DatasetNotFoundError(f"The root {root} of an image folder is missing, or is not a directory. {LAYOUT}")
    try:
        folders = _list_folders(root)
        found = {split: _list_labels(os.path.join(root, split)) for split in folders}
        prefixes = {split: f"{split}/" for split in folders}
        if not any(map(_count, found.values())) and not set(folders) <= _NAMES_OF_SPLITS:
            found, prefixes = {"train": _list_labels(root)}, {"train": ""}
        num_images = sum(map(_count, found.values()))
        if not num_images:
            names = ", ".join(folders[:_MOST_SHOWN]) + ", ..." * (len(folders) > _MOST_SHOWN)
            raise DatasetNotFoundError(
                f"The root {root} is not an image folder: no image lies two folders below it. Its folders are: "
                f"{names or 'none'}. {LAYOUT}"
            )
        parents = [os.path.join(root, prefixes[split], label) for split, labels in found.items() for label in labels]
        num_others = sum(len(os.listdir(parent)) for parent in parents) - num_images
    except OSError as error:
        raise DatasetNotFoundError(f"The image folder {root} cannot be listed: {error}.") from None
    if num_others:
        others = f"{num_others} files or folders that are hidden or do not end in {_SHOWN_EXTENSIONS} or the like"
        _warn_once(f"The image folder {root}: left out {others}.")
    if num_hidden := sum(_count_hidden(folder) for folder in {root, *map(os.path.dirname, parents)}):
        _warn_once(f"The image folder {root}: left out {num_hidden} hidden folders, such as those of Jupyter.")
    return _arrange(root, {split: labels for split, labels in found.items() if labels}, prefixes)


@cache
def _warn_once(text: str) -> None:
    """Log a warning once in each process, as a folder is often opened several times."""
    _logger.warning("%s", text)


def _count(labels: _Labels) -> int:
    return sum(map(len, labels.values()))


def _count_hidden(path: str) -> int:
    with os.scandir(path) as entries:
        return sum(entry.name.startswith(".") and entry.is_dir() for entry in entries)


def _list_folders(path: str) -> list[str]:
    """Return the folders that are not hidden; TFDS would take an .ipynb_checkpoints as a class."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _list_labels(path: str) -> _Labels:
    """Return the files with an image's suffix; a file that is not an image raises an error when it is read."""
    found = {}
    for label in _list_folders(path):
        with os.scandir(os.path.join(path, label)) as entries:
            found[label] = sorted(_describe(entry) for entry in entries if _is_image(entry.name))
    return found


def _is_image(name: str) -> bool:
    return name.lower().endswith(_EXTENSIONS) and not name.startswith(".")


def _describe(entry: "os.DirEntry[str]") -> tuple[str, int, int]:
    try:
        status = entry.stat()
    except OSError:  # A link to nothing.
        return entry.name, 0, 0
    return entry.name, status.st_size, status.st_mtime_ns


def _arrange(root: str, found: Mapping[str, _Labels], prefixes: Mapping[str, str]) -> FolderListing:
    """Return the images in TFDS's order: by label and name, then shuffled by the split's name."""
    class_names = tuple(sorted({label for labels in found.values() for label in labels}))
    number_of = {label: number for number, label in enumerate(class_names)}
    splits: dict[str, ListedSplit] = {}
    paths: list[bytes] = []
    numbers: list[int] = []
    for split, labels in found.items():
        rows = [(label, *image) for label, images in labels.items() for image in images]
        random.Random(split).shuffle(rows)  # noqa: S311 (TFDS's order)
        own = np.array([number_of[row[0]] for row in rows], "<i4")
        sizes, times = (np.array([row[column] for row in rows], "<i8") for column in (2, 3))
        digest = hashlib.blake2b(digest_of(class_names).encode(), digest_size=16)
        for part in (b"\0".join(os.fsencode(row[1]) for row in rows), own.tobytes(), sizes.tobytes()):
            digest.update(part)
        of_times = hashlib.blake2b(times.tobytes(), digest_size=16).hexdigest()
        splits[split] = ListedSplit(len(paths), len(rows), int(sizes.sum()), digest.hexdigest(), of_times)
        paths += [os.fsencode(f"{prefixes[split]}{label}/{name}") for label, name, *_ in rows]
        numbers += own.tolist()
    starts = np.fromiter(accumulate((len(path) + 1 for path in paths), initial=1), np.int64, len(paths) + 1)
    text = b"\0" + b"".join(path + b"\0" for path in paths)
    return FolderListing(root, class_names, splits, text, starts, np.array(numbers, np.int32))


class ImageFolderSource(ReadByNumber):
    """A `Source` of image files. A file is opened only where its image is read; none stays open.

    Args:
        name: name of the dataset, for messages.
        instructions: instructions of one split expression; the last part of each path is the name of a split.
        listing: all images of the folder.
        mean_example_bytes: mean size of an image file, in bytes.
    """

    has_shards = False

    def __init__(
        self, name: str, instructions: Sequence[FileInstruction], listing: FolderListing, mean_example_bytes: int
    ) -> None:
        self.name, self.instructions, self.listing = name, tuple(instructions), listing
        self.mean_example_bytes = mean_example_bytes
        self.table = InstructionTable(self.instructions, name)
        self._splits = [listing.splits[os.path.basename(path)] for path in self.table.files]
        self._root = os.path.abspath(listing.root)  # The path means the same after a change of the working folder.

    @property
    def specs(self) -> Mapping[str, FieldSpec]:
        """The encoded image, its label, and its path as TFDS has it: below the root as it was passed."""
        return _SPECS

    @property
    def identity(self) -> object:
        """Names of the splits, the ranges of their images that are read, and a digest of all names and sizes."""
        named = [(os.path.basename(item.path), item) for item in self.instructions]
        return [(name, item.skip, item.take, self.listing.splits[name].digest) for name, item in named]

    @property
    def stamps(self) -> object:
        """Digests of the times of all images, when they were listed; their sizes are part of the identity."""
        return [split.times for split in self._splits]

    def __len__(self) -> int:
        return len(self.table)

    def check(self, streamed: Collection[str] | None = None) -> None:
        """Do nothing: a look at millions of files takes long, and only decoding shows that a file is whole."""

    def read(self, index: Int64Array, fields: Sequence[str]) -> Columns:
        """Return encoded values of examples in the order asked; see `Source`."""
        rows = self._rows(index)
        columns: dict[str, Any] = {}
        for name in fields:
            if name not in _SPECS:
                raise ConfigError(f"An example has no field {quoted(name)}: its fields are {', '.join(_SPECS)}.")
            if name == LABEL:
                columns[name] = self.listing.labels[rows].astype(np.int64)
            elif name == FILENAME:
                columns[name] = [os.fsencode(path) for path in self._paths(self.listing.root, rows)]
            else:
                columns[name] = [self._read_image(path) for path in self._paths(self._root, rows)]
        return columns

    def announce(self, index: Int64Array) -> None:
        """Ask the system to read the images ahead, where it can; only reading reports a bad file."""
        for path in self._paths(self._root, self._rows(index)) if hasattr(os, "posix_fadvise") else ():
            with suppress(OSError), open(path, "rb", buffering=0, opener=_open_at_once) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)

    def ids(self, index: Int64Array) -> LazyIds:
        """Return the paths below the root, with "/": `<split>/<label>/<image>`, or `<label>/<image>` without splits."""
        return LazyIds(self._name_images, np.asarray(index, np.int64))

    def find(self, id: str) -> int:
        """Return the number of the image with this path below the root."""
        row = self.listing.find(id)
        if row is None:
            raise not_found(self, id, f"ids are paths below {self.listing.root}, with '/'{such_as(self)}.")
        for item in self.instructions:
            record = row - self.listing.splits[os.path.basename(item.path)].first
            if item.skip <= record < item.skip + item.take:
                return item.first_index + record - item.skip
        raise not_found(self, id, "the image is there, but outside the split.")

    def undecodable(self, index: int, reason: str) -> CorruptRecordError:
        """Return the error for an image that cannot be decoded; see `Source`."""
        (path,) = self._paths(self._root, self._rows(np.array([index], np.int64)))
        return CorruptRecordError(
            f"{path} of {self.name} (index {index}) cannot be decoded: it is damaged, or not an image. {reason}"
        )

    def close(self) -> None:  # noqa: D102
        pass

    def _rows(self, index: Int64Array) -> Int64Array:
        """Return the rows of examples in the listing, int64 [n]."""
        file, record = self.table.find(index)
        return np.array([split.first for split in self._splits], np.int64)[file] + record

    def _name_images(self, index: Int64Array) -> list[str]:
        return self.listing.paths_of(self._rows(index))

    def _paths(self, root: str, rows: Int64Array) -> list[str]:
        return [os.path.join(root, path) for path in self.listing.paths_of(rows)]

    def _read_image(self, path: str) -> bytes:
        try:
            kind = other_kind(os.stat(path))  # Checked before the file is opened: opening a FIFO waits for ever.
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


def _open_at_once(path: str, flags: int) -> int:
    """Open a file, without waiting where it is a FIFO."""
    return os.open(path, flags | os.O_NONBLOCK)
