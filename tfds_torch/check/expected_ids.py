"""The ids that a split must yield, from `dataset_info.json` alone: what is proven must not come from the plan.

An image folder has no such file: there it is the folder itself, listed anew.
"""

import bisect
import json
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from tfds_torch.errors import ShardError
from tfds_torch.parsers.tfds.folder import INFO, Folder
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.image_formats import EXTENSIONS
from tfds_torch.storage.source import FileInstruction

_USUAL_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclass(frozen=True)
class IdRun:
    """Consecutive examples of a file, or windows of an episode.

    Attributes:
        file: the shard's name, the split of an image folder, or the id of the episode.
        first: number of the first one; of a window, the step at which it begins.
        length: how many.
        names: the ids of all examples of the split; None: they are `<file>__<number>`.
        separator: what stands before the number.
        stride: from one number to the next, >= 1.
    """

    file: str
    first: int
    length: int
    names: Sequence[str] | None = None
    separator: str = "__"
    stride: int = 1


class ExpectedIds:
    """The ids of a split by index, put together when one is asked for."""

    def __init__(self, runs: Sequence[IdRun]) -> None:
        self._runs = [run for run in runs if run.length]
        self._starts = list(accumulate((run.length for run in self._runs), initial=0))

    @classmethod
    def of_members(cls, members: Mapping[str, "ExpectedIds"]) -> "ExpectedIds":
        """Returns the ids of a mixture, `<member>/<id>`: those of each member, one after the other."""
        return cls(
            [
                replace(run, file=f"{name}/{run.file}")
                if run.names is None
                else replace(run, names=[f"{name}/{id}" for id in run.names])
                for name, ids in members.items()
                for run in ids._runs
            ]
        )

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> str:
        if not 0 <= index < len(self):
            raise IndexError(index)
        number = bisect.bisect_right(self._starts, index) - 1
        run = self._runs[number]
        record = run.first + (index - self._starts[number]) * run.stride
        return f"{run.file}{run.separator}{record}" if run.names is None else run.names[record]

    def __iter__(self) -> Iterator[str]:
        return map(self.__getitem__, range(len(self)))

    def is_at(self, index: int, id: str) -> bool:
        """Whether an id is the one that belongs to an index."""
        return 0 <= index < len(self) and self[index] == id

    def find(self, id: str) -> int | None:
        """Returns the first index of an id; None: it is not the split's."""
        for start, run in zip(self._starts, self._runs, strict=False):
            if run.names is None:
                file, _, record = id.rpartition(run.separator)
                number = int(record) if run.file == file and record.isdecimal() else -1
            else:
                number = run.names.index(id) if id in run.names else -1
            if number in range(run.first, run.first + run.length * run.stride, run.stride):
                return start + (number - run.first) // run.stride
        return None


def expected_ids(folder: Folder, split: str, files: Sequence[FileInstruction]) -> ExpectedIds:
    """Returns the ids of a split's examples, `<shard file>__<record>`, by index.

    Whole splits, and sums of them, come from `dataset_info.json` alone. For slices, TFDS's file instructions say which
    records are meant, and each of them is compared with the file. Ids of an image folder are the paths of its images.

    Args:
        folder: the dataset's version directory, or the root of an image folder.
        split: a TFDS split expression.
        files: TFDS's file instructions for it.

    Raises:
        ShardError: an instruction names a shard or a record that `dataset_info.json`, or the folder, does not have.
    """
    if is_image_folder(folder):
        root = Path(folder.path)
        names = {one.name: _ordered_images(one, one.name) for one in root.iterdir() if one.is_dir()}
        if not any(names.values()):  # Folders of labels, without splits.
            names = {"train": [id.partition("/")[2] for id in _ordered_images(root, "train")]}
        splits = {name: [IdRun(name, 0, len(images), images)] for name, images in names.items()}
        source = "the folder holds"
    else:
        splits, source = _read_splits(folder), "dataset_info.json gives it"
    asked = [name.strip() for name in split.split("+")]
    if all(name in splits for name in asked):
        return ExpectedIds([run for name in asked for run in splits[name]])
    whole = {run.file: run for runs in splits.values() for run in runs}
    runs = []
    for part in files:
        file = os.path.basename(part.path)
        there = whole.get(file, IdRun(file, 0, 0))
        if part.skip + part.take > there.length:
            raise ShardError(
                f"Split {split!r} reads examples {part.skip}..{part.skip + part.take - 1} of {file}, and {source} "
                f"{there.length} examples."
            )
        runs.append(IdRun(file, part.skip, part.take, there.names))
    return ExpectedIds(runs)


def expected_windows(episodes: ExpectedIds, num_steps: Sequence[int], windows: Windows) -> ExpectedIds:
    """Returns the ids of the windows of episodes, `<shard file>__<record>/<step>`, by index.

    Args:
        episodes: their ids.
        num_steps: of each episode.
        windows: which windows there are.
    """
    offsets = [0, *(one for own in windows.offsets.values() for one in own)] if windows.whole else [0]
    before, after = -min(offsets), max(offsets)
    runs = []
    for episode, steps in zip(episodes, num_steps, strict=True):
        own = [step for step in range(0, steps, windows.stride) if before <= step < steps - after]
        if own:
            runs.append(IdRun(episode, own[0], len(own), separator="/", stride=windows.stride))
    return ExpectedIds(runs)


def is_image_folder(folder: Folder) -> bool:
    """Whether a dataset is an image folder, without a `dataset_info.json`."""
    return folder.read(INFO) is None


def _ordered_images(folder: Path, split: str) -> list[str]:
    """Returns `<split>/<label>/<image>` in TFDS's order: as `tfds.ImageFolder` lists, sorts and shuffles them."""
    is_image = tuple(f".{extension}" for extension in EXTENSIONS)  # TFDS knows .jpg, .jpeg and .png alone.
    labels = sorted(label.name for label in folder.iterdir() if label.is_dir())
    ids = [
        f"{split}/{label}/{name}"
        for label in labels
        for name in sorted(name for name in os.listdir(folder / label) if name.lower().endswith(is_image))
    ]
    random.Random(split).shuffle(ids)  # noqa: S311 (TFDS's order)
    return ids


def _read_splits(folder: Folder) -> dict[str, list[IdRun]]:
    """Return split -> its shards, each as a whole."""
    info = json.loads(folder.read(INFO) or b"{}")
    splits = {}
    for split in info.get("splits", []):
        lengths = [int(length) for length in split.get("shardLengths", [])]
        template = split.get("filepathTemplate") or _USUAL_TEMPLATE
        splits[split["name"]] = [
            IdRun(_shard_name(template, info, split["name"], number, len(lengths)), 0, length)
            for number, length in enumerate(lengths)
        ]
    return splits


def _shard_name(template: str, info: dict[str, str], split: str, number: int, num_shards: int) -> str:
    width = max(5, len(str(num_shards)))
    index, total = f"{number:0{width}d}", f"{num_shards:0{width}d}"
    parts = {
        "DATASET": info["name"],
        "SPLIT": split,
        "FILEFORMAT": info.get("fileFormat", "tfrecord"),
        "SHARD_INDEX": index,
        "NUM_SHARDS": total,
        "SHARD_X_OF_Y": f"{index}-of-{total}",
    }
    for key, value in parts.items():
        template = template.replace(f"{{{key}}}", value)
    return os.path.basename(template)
