"""What is in an image folder, `root/<split>/<label>/<image>.jpg`, listed as `tfds.ImageFolder` lists it.

A folder without splits, `root/<label>/<image>.jpg`, is one split, `train`, in the order that TFDS would give it.

Source of the order: `tensorflow_datasets/core/folder_dataset/image_folder.py` of TFDS 4.9.10.
"""

import hashlib
import logging
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import DatasetNotFoundError

LAYOUT = (
    "The layout is <root>/<split>/<label>/<image>.jpg (or .jpeg, .png), and the root is the folder that holds the "
    "splits; or <root>/<label>/<image>.jpg, which is one split, train."
)
ONLY_SPLIT = "train"
"""The split of a folder without splits."""
_logger = logging.getLogger(__name__)
_EXTENSIONS = (".jpg", ".jpeg", ".png")
_MOST_SHOWN = 5
_NAMES_OF_SPLITS = {"train", "training", "val", "valid", "validation", "dev", "test", "testing"}  # No labels.
_Listed = tuple[str, int, int]  # Name, size in bytes, and modification time in ns, of an image.


@dataclass(frozen=True, eq=False)
class ListedSplit:
    """The images of a split, in TFDS's order.

    A string object per image would take twice the memory, and be copied into every forked worker by its reference
    count.

    Attributes:
        names: the file names, end to end.
        stops: int64 [n], where each one ends.
        labels: int32 [n].
        num_bytes: size of all files.
        digest: hash of class names, file names and file sizes.
        times: hash of the times when the files were modified.
    """

    names: bytes
    stops: NDArray[np.int64]
    labels: NDArray[np.int32]
    num_bytes: int
    digest: str
    times: str

    def __len__(self) -> int:
        return len(self.stops)

    def names_of(self, records: NDArray[np.int64]) -> list[str]:
        """Returns the file names of images, int64 [n]."""
        stops = self.stops[records]
        starts = np.where(records > 0, self.stops[records - 1], 0)
        return [
            os.fsdecode(self.names[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]


@dataclass(frozen=True, eq=False)
class FolderListing:
    """An image folder.

    Attributes:
        root: as it was given.
        class_names: the labels of all splits, in order.
        splits: the images of each split.
        has_splits: whether splits are folders; else there is one, of the labels below the root.
    """

    root: str
    class_names: tuple[str, ...]
    splits: Mapping[str, ListedSplit]
    has_splits: bool = True

    def path_of(self, split: str, separator: str = os.sep) -> str:
        """Returns the beginning of the paths of a split's images below the root."""
        return f"{split}{separator}" if self.has_splits else ""


def list_image_folder(root: str) -> FolderListing:
    """Returns the listing of an image folder, in TFDS's order.

    Raises:
        DatasetNotFoundError: the root does not exist, has another layout, or holds no image.
    """
    if not os.path.isdir(root):
        raise DatasetNotFoundError(f"The root {root} of an image folder is missing, or is not a directory. {LAYOUT}")
    try:
        found = {
            split: {label: _list_images(os.path.join(root, split, label)) for label in labels}
            for split in _list_folders(root)
            if (labels := _list_folders(os.path.join(root, split)))  # TFDS knows no split without labels.
        }
        has_splits = any(images for labels in found.values() for images in labels.values())
        if not has_splits:
            flat = {label: _list_images(os.path.join(root, label)) for label in _list_folders(root)}
            is_labelled = any(flat.values()) and not flat.keys() <= _NAMES_OF_SPLITS
            found = {ONLY_SPLIT: flat} if is_labelled else found
    except OSError as error:
        raise DatasetNotFoundError(f"The image folder {root} cannot be listed: {error}.") from None
    if not any(images for labels in found.values() for images in labels.values()):
        raise DatasetNotFoundError(f"The root {root} is not an image folder: {_describe(root, found)} {LAYOUT}")
    _warn_of_others(root, found if has_splits else {"": found[ONLY_SPLIT]})
    class_names = tuple(sorted({label for labels in found.values() for label in labels}))
    splits = {split: _arrange(split, labels, class_names) for split, labels in found.items()}
    return FolderListing(root, class_names, splits, has_splits)


def _warn_of_others(root: str, found: Mapping[str, Mapping[str, list[_Listed]]]) -> None:
    """Warns of other files: TFDS reads three kinds of files, in the folders of labels only."""
    folders = [os.path.join(root, split, label) for split, labels in found.items() for label in labels]
    num_images = sum(len(images) for labels in found.values() for images in labels.values())
    num_others = sum(len(os.listdir(folder)) for folder in folders) - num_images
    if num_others:
        _logger.warning(
            "The image folder %s: left out %d files or folders that do not end in %s.",
            *(root, num_others, ", ".join(_EXTENSIONS)),
        )


def _list_folders(path: str) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def _list_images(path: str) -> list[_Listed]:
    """Returns the files with an image's suffix; a file that only looks like an image is an error when it is read."""
    with os.scandir(path) as entries:
        return sorted((entry.name, *_stamp(entry)) for entry in entries if entry.name.lower().endswith(_EXTENSIONS))


def _stamp(entry: "os.DirEntry[str]") -> tuple[int, int]:
    try:
        status = entry.stat()
    except OSError:  # A link to nothing.
        return 0, 0
    return status.st_size, status.st_mtime_ns


def _arrange(split: str, images: Mapping[str, list[_Listed]], class_names: Sequence[str]) -> ListedSplit:
    """Returns a split's images in TFDS's order: by label and name, then shuffled by the split's name."""
    label_of = {label: number for number, label in enumerate(class_names)}
    rows = [(label_of[label], *file) for label, files in images.items() for file in files]
    random.Random(split).shuffle(rows)  # noqa: S311 (TFDS's order)
    names = [os.fsencode(name) for _, name, _, _ in rows]
    labels = np.array([label for label, _, _, _ in rows], np.int32)
    sizes = np.array([size for _, _, size, _ in rows], np.int64)
    times = np.array([time for _, _, _, time in rows], "<i8")
    digest = hashlib.blake2b(repr(tuple(class_names)).encode(), digest_size=16)
    for part in (b"\0".join(names), labels.astype("<i4").tobytes(), sizes.astype("<i8").tobytes()):
        digest.update(part)
    stops = np.fromiter(accumulate(map(len, names)), np.int64, len(names))
    of_times = hashlib.blake2b(times.tobytes(), digest_size=16).hexdigest()
    return ListedSplit(b"".join(names), stops, labels, int(sizes.sum()), digest.hexdigest(), of_times)


def _describe(root: str, found: Mapping[str, Mapping[str, object]]) -> str:
    """Returns a sentence on what lies there instead of images."""
    folders = _list_folders(root)
    labels = [f"{split}/{label}" for split, in_split in found.items() for label in in_split]
    if with_images := [name for name in folders if _list_images(os.path.join(root, name))]:
        return f"{_shown(with_images)} hold images themselves, where folders of labels are expected."
    if labels:
        return f"there is no image in {_shown(labels)}."
    if folders:
        return f"there is no folder of a label in {_shown(folders)}."
    return f"there is no folder in it, but {len(os.listdir(root))} files."


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return ", ".join(names[:_MOST_SHOWN]) + more
