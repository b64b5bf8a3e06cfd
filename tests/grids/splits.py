"""The splits that grids read, and what TFDS itself says is in them."""

import atexit
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property  # noqa: TID251
from itertools import groupby
from pathlib import Path

import tensorflow_datasets as tfds
from image_folder_fixtures import write_image_folder
from numbered_episodes import ALL, EPOCH_SIZE, MEMBERS, OFFSETS, member_ranges, write_numbered_episodes
from numbered_episodes import NAME as EPISODES
from servers.faulty_server import FaultyFolder
from servers.s3_server import S3Server, find_moto, s3_environ
from tfds_fixtures import Datasets, edited_info, iterate_tfds, reshard

from grids.cell import OWN_ITEMS, Split
from grids.choices import CLASSES, SUBSET, WEIGHTED, Choice, make_choice
from grids.own_items import NUM_ITEMS, label_of_item, size_of_item

IMAGE_FOLDER = "image_folder"

NUM_FILES = {
    "uneven shards": 7,
    "one shard": 1,
    "more shards than pipelines": 17,
    "empty shards": 3,
    "fewer examples than pipelines": 1,
    "train+test": 8,
    "halves": 5,
    "sub-split": 1,
    "empty shards in train+test": 5,
    "shuffling disabled": 7,
    "image folder": 0,  # Its images are files of their own.
    "own dataset": 0,
    "subset": 7,
    "own dataset, weighted": 0,
    "own dataset, balanced subset": 0,
    "balanced subset": 7,
    "windows": 3,
    "mixture of windows": 0,
    "groups of blocks": 7,
    "objects in a store": 7,
    "objects in a bucket": 7,
}
"""Name -> shards that hold examples of the split: mode `files` deals them."""

MANY_SHARDS = (5, 9, 14, 20, 7, 12, 1, 30, 8, 16, 11, 19, 3, 23, 13, 10, 10)


@dataclass(frozen=True)
class Truth:
    """What a split holds by TFDS's own reader, in the order of the files: `index` is the position.

    Attributes:
        ids: `<shard file>__<record>`.
        labels: of each example.
        contents: of the feature that proves which record was read.
        image_sizes: width and height of each image, pixels.
        choice: which of them come.
        masks_labels: whether padding has no label.
    """

    ids: list[str]
    labels: list[int]
    contents: list[str | None]
    image_sizes: list[tuple[int, int] | None]
    choice: Choice
    masks_labels: bool = True

    def __len__(self) -> int:
        """Examples of an epoch."""
        return self.choice.num_slots

    @cached_property
    def chosen(self) -> frozenset[int]:
        """The indices of those that may come."""
        return frozenset(self.choice.numbers)

    @cached_property
    def shards(self) -> list[str]:
        """The shard of every example."""
        return [name.rpartition("__")[0] for name in self.ids]

    @cached_property
    def file_lengths(self) -> list[int]:
        """How many examples of the split lie in each of its files that hold any."""
        return [len(list(group)) for _, group in groupby(self.shards)]


def make_splits(datasets: Datasets, folder: Path) -> dict[str, Split]:
    """Returns the splits by name; `folder` takes the datasets that only grids read."""
    many, ordered, images = folder / "many", folder / "ordered", folder / "images"
    write_numbered_episodes(folder)
    windows = Split(str(folder), EPISODES, "train", content="name", windows="windows")
    write_image_folder(images)
    for own in (many, ordered):
        shutil.copytree(datasets.root / "shapes", own / "shapes")
    reshard(many / "shapes" / "1.0.0", "train", MANY_SHARDS)
    with edited_info(ordered / "shapes" / "1.0.0") as info:
        info["disableShuffling"] = True
    root, gaps = str(datasets.root), str(datasets.gaps)
    return {
        "uneven shards": Split(root, "shapes", "train"),  # 211 examples: a prime number.
        "one shard": Split(root, "shapes", "test"),
        "more shards than pipelines": Split(str(many), "shapes", "train"),
        "empty shards": Split(gaps, "shapes", "train"),
        "fewer examples than pipelines": Split(root, "shapes", "train[100:103]"),
        "train+test": Split(root, "shapes", "train+test"),
        "halves": Split(root, "shapes", "train[:50%]+test[:50%]"),
        "sub-split": Split(root, "shapes", "train[10:37]"),
        "empty shards in train+test": Split(gaps, "shapes", "train+test"),
        "shuffling disabled": Split(str(ordered), "shapes", "train", shuffles=False),
        "image folder": Split(str(images), IMAGE_FOLDER, "train", content="image/filename"),
        "own dataset": Split("", OWN_ITEMS, "all", content="content"),
        "subset": Split(root, "shapes", "train", chosen=SUBSET),
        "own dataset, weighted": Split("", OWN_ITEMS, "all", content="content", chosen=WEIGHTED),
        "own dataset, balanced subset": Split("", OWN_ITEMS, "all", content="content", chosen=CLASSES),
        "balanced subset": Split(root, "shapes", "train", chosen=CLASSES),
        "windows": windows,
        "mixture of windows": replace(windows, windows="mixture"),
        "groups of blocks": Split(root, "shapes", "train", groups=4),
        "objects in a store": Split(root, "shapes", "train", url=_serve(datasets.root)),
        "objects in a bucket": _fill_bucket(Split(root, "shapes", "train")),
    }


def _serve(folder: Path) -> str:
    """Returns the URL of a folder, which is served until this process ends."""
    server = FaultyFolder(folder)
    atexit.register(server.end)
    return server.url


def _fill_bucket(split: Split) -> Split:
    """Returns a split as it lies in a bucket of moto; without moto, of the tests' own server, which answers alike."""
    root = Path(split.root)
    if find_moto() is None:
        server = FaultyFolder(root.parent)
        atexit.register(server.end)
        return replace(split, url=f"s3://{root.name}", variables=tuple(s3_environ(server.url).items()))
    moto = S3Server()
    atexit.register(moto.end)
    return replace(split, url=moto.fill(root, "grids"), variables=tuple(moto.environ.items()))


def list_splits(_: object, splits: Mapping[str, Split]) -> dict[str, Truth]:
    """Returns what TFDS reads. Loads tensorflow: a task for a rank that reads."""
    return {name: _list_split(split) for name, split in splits.items()}


def _list_split(split: Split) -> Truth:
    if split.windows is not None:
        return _list_windows(split, split.windows)
    if split.name == OWN_ITEMS:
        numbers = range(NUM_ITEMS)
        labels = list(map(label_of_item, numbers))
        contents: list[str | None] = [f"item {number}" for number in numbers]
        sizes: list[tuple[int, int] | None] = list(map(size_of_item, numbers))
        return Truth(list(map(str, numbers)), labels, contents, sizes, make_choice(split.chosen, labels))
    if split.name == IMAGE_FOLDER:  # TFDS gives no ids to it: they are the paths below the root.
        dataset = tfds.ImageFolder(split.root).as_dataset(split=split.split, shuffle_files=False)
        examples = list(tfds.as_numpy(dataset))
        for example in examples:
            example["tfds_id"] = os.path.relpath(example["image/filename"], split.root.encode())
    else:
        examples = list(iterate_tfds(split.root, split.name, split.split))
    labels = [int(example["label"]) for example in examples]
    return Truth(
        [example["tfds_id"].decode() for example in examples],
        labels,
        [example[split.content].decode() if split.content else None for example in examples],
        [example["image"].shape[1::-1] for example in examples],
        make_choice(split.chosen, labels),
    )


def _list_windows(split: Split, windows: str) -> Truth:
    """Cuts the windows out of the episodes that TFDS reads."""
    members = {"": ALL} if windows == "windows" else {f"{name}/": one for name, one in MEMBERS.items()}
    episodes = [
        (episode["tfds_id"].decode(), [(int(step["number"]), step["name"].decode()) for step in episode["steps"]])
        for episode in iterate_tfds(split.root, split.name, split.split)
    ]
    ids, numbers, contents = [], [], list[str | None]()
    for prefix, member in members.items():
        for episode, step in member.steps():
            id, steps = episodes[episode]
            ids.append(f"{prefix}{id}/{step}")
            numbers.append(steps[step][0])
            contents.append(", ".join(steps[min(max(step + one, 0), len(steps) - 1)][1] for one in OFFSETS))
    weights = [one.weight for one in MEMBERS.values()]
    choice = (
        Choice(range(len(ids)), member_ranges(), weights, EPOCH_SIZE)
        if windows == "mixture"
        else make_choice(split.chosen, numbers)
    )
    return Truth(ids, numbers, contents, [None] * len(ids), choice, masks_labels=False)
