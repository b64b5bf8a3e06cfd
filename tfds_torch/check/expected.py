"""The expected result of a reading: the ids that were promised, and each rank's share of them by the plan.

A proof must not rest on the plan: ids come from `dataset_info.json` alone, or for an image folder, which has no such
file, from the folder, listed anew.
"""

import bisect
import json
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfds_torch.errors import ShardError
from tfds_torch.parsers.dataset import Dataset
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.parsers.provenance import Episodes
from tfds_torch.parsers.tfds.folder import INFO, Folder
from tfds_torch.plan.deal import WorkerOrder, pipeline_counts
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.mixed import Mixed
from tfds_torch.plan.world import World
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
        names: the ids of all examples of the split; None if they are `<file>__<number>`.
        separator: the text before the number.
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
        """Return the ids of a mixture, `<member>/<id>`: those of each member, one after the other."""
        runs = []
        for name, ids in members.items():
            for run in ids._runs:
                names = None if run.names is None else [f"{name}/{id}" for id in run.names]
                runs.append(replace(run, file=f"{name}/{run.file}", names=names))
        return cls(runs)

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
        """Return whether an id is the one that belongs to an index."""
        return 0 <= index < len(self) and self[index] == id

    def find(self, id: str) -> int | None:
        """Return the first index of an id; None if it is not the split's."""
        for start, run in zip(self._starts, self._runs, strict=False):
            if run.names is None:
                file, _, record = id.rpartition(run.separator)
                number = int(record) if run.file == file and record.isdecimal() else -1
            else:
                number = run.names.index(id) if id in run.names else -1
            if number in range(run.first, run.first + run.length * run.stride, run.stride):
                return start + (number - run.first) // run.stride
        return None


def ids_of(dataset: Dataset) -> ExpectedIds:
    """Return the ids of a dataset's examples, by index.

    Raises:
        ShardError: `dataset_info.json` does not fit the split.
    """
    found = dataset.provenance()
    if found.members:
        return ExpectedIds.of_members({name: ids_of(one) for name, one in found.members.items()})
    if found.folder is None:  # There is no other record of them.
        names = list(dataset.ids(np.arange(len(dataset.source))))
        return ExpectedIds([IdRun(dataset.dataset_name, 0, len(names), names)])
    if found.episodes is None:
        return expected_ids(found.folder, dataset.split, dataset.source.instructions)
    return expected_windows(expected_ids(found.folder, dataset.split, found.episodes.files), found.episodes)


def expected_ids(folder: Folder, split: str, files: Sequence[FileInstruction]) -> ExpectedIds:
    """Return the ids of a split's examples, `<shard file>__<record>`, by index.

    Whole splits, and sums of them, come from `dataset_info.json` alone. For slices, TFDS's file instructions say which
    records are meant, and each of them is compared with the file. Ids of an image folder are the paths of its images.

    Args:
        folder: the dataset's version directory, or the root of an image folder.
        split: a TFDS split expression.
        files: TFDS's file instructions for it.

    Raises:
        ShardError: an instruction names a shard or a record that `dataset_info.json`, or the folder, does not have.
    """
    info = folder.read(INFO)
    if info is None:
        splits = _list_image_splits(Path(folder.path))
        found = "the folder holds"
        remedy = "Images were removed after the parser had listed them: make the parser anew."
    else:
        splits = _read_splits(json.loads(info))
        found, remedy = "dataset_info.json gives it", "Prepare the dataset again."
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
                f"Split {split!r} reads examples {part.skip}..{part.skip + part.take - 1} of {file}, and {found} "
                f"{there.length} examples. {remedy}"
            )
        runs.append(IdRun(file, part.skip, part.take, there.names))
    return ExpectedIds(runs)


def expected_windows(ids: ExpectedIds, episodes: Episodes) -> ExpectedIds:
    """Return the ids of windows, `<shard file>__<record>/<step>`, by index; `ids` are those of the episodes."""
    windows = episodes.windows
    offsets = [0]
    if windows.whole:  # Each field must find all of its steps in the episode.
        offsets += [offset for of_field in windows.offsets.values() for offset in of_field]
    num_before, num_after = -min(offsets), max(offsets)
    runs = []
    for episode, num_steps in zip(ids, episodes.num_steps.tolist(), strict=True):
        steps = [step for step in range(0, num_steps, windows.stride) if num_before <= step < num_steps - num_after]
        if steps:
            runs.append(IdRun(episode, steps[0], len(steps), separator="/", stride=windows.stride))
    return ExpectedIds(runs)


def _list_image_splits(root: Path) -> dict[str, list[IdRun]]:
    """Return split -> its images, as one run, for a folder `<split>/<label>/<image>` or `<label>/<image>`."""
    names = {one.name: _ordered_images(one, one.name) for one in root.iterdir() if one.is_dir()}
    if not any(names.values()):  # Folders of labels, without splits.
        names = {"train": [id.partition("/")[2] for id in _ordered_images(root, "train")]}
    return {name: [IdRun(name, 0, len(images), images)] for name, images in names.items()}


def _ordered_images(folder: Path, split: str) -> list[str]:
    """Return `<split>/<label>/<image>` in TFDS's order: as `tfds.ImageFolder` lists, sorts and shuffles them."""
    suffixes = tuple(f".{extension}" for extension in EXTENSIONS)  # TFDS knows .jpg, .jpeg and .png alone.
    labels = sorted(label.name for label in folder.iterdir() if label.is_dir())
    ids = [
        f"{split}/{label}/{name}"
        for label in labels
        for name in sorted(name for name in os.listdir(folder / label) if name.lower().endswith(suffixes))
    ]
    random.Random(split).shuffle(ids)  # noqa: S311 (TFDS's order)
    return ids


def _read_splits(info: Mapping[str, Any]) -> dict[str, list[IdRun]]:
    """Return split -> its shards, each as a whole, by the content of `dataset_info.json`."""
    splits = {}
    for split in info.get("splits", []):
        lengths = [int(length) for length in split.get("shardLengths", [])]
        template = split.get("filepathTemplate") or _USUAL_TEMPLATE
        splits[split["name"]] = [
            IdRun(_shard_name(template, info, split["name"], number, len(lengths)), 0, length)
            for number, length in enumerate(lengths)
        ]
    return splits


def _shard_name(template: str, info: Mapping[str, Any], split: str, number: int, num_shards: int) -> str:
    """Return the name of a shard's file by a template of TFDS."""
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


# The plan


@dataclass(frozen=True)
class Share:
    """The examples that a rank must receive in one epoch, in mode `index` in this order.

    Attributes:
        index: int64 [n], its examples; n is the sum of the sizes of its batches.
        valid: bool [n], False for padding.
    """

    index: NDArray[np.int64]
    valid: NDArray[np.bool_]


@dataclass(frozen=True)
class Expectation:
    """The expected result of a reading.

    Attributes:
        plan: the epoch plan of rank 0; its world has the numbers of ranks and workers.
        mode: the read mode, `index`, `files` or `examples`.
        ids: the split's ids by index.
        num_epochs: epochs that are read.
        share: (rank, epoch) -> the examples that this rank must receive; worked out anew for every call.
        members: of a mixture, name -> number of examples of a pass, in their order; of balanced classes, label ->
            number of its examples; else empty.
        stored: of a mixture, the examples of each member's split; None for those of a pass.
        num_unread: examples of an epoch that uneven files leave unread in mode `files`; else 0.
        num_repeated: examples of an epoch that uneven files repeat in mode `files`; else 0.
        may_lack_labels: whether valid examples may have the label of padding: that of an optional feature without a
            value.
    """

    plan: EpochPlan
    mode: str
    ids: ExpectedIds
    num_epochs: int
    share: Callable[[int, int], Share]
    members: Mapping[str, int] = field(default_factory=dict)
    stored: Sequence[int] | None = None
    num_unread: int = 0
    num_repeated: int = 0
    may_lack_labels: bool = False

    @property
    def num_replicas(self) -> int:
        """Number of ranks."""
        return self.plan.world.num_replicas

    @property
    def last_size(self) -> int:
        """Size of a rank's last batch."""
        return self.plan.num_samples - self.plan.batch_size * (self.plan.num_batches - 1)

    def batch_slice(self, number: int) -> slice:
        """Return which examples of a share are in the rank's batch of this number."""
        return slice(number * self.plan.batch_size, (number + 1) * self.plan.batch_size)


@dataclass(frozen=True)
class PipelineCounts:
    """The numbers of examples that one worker of one rank must read in epoch 0.

    Attributes:
        rank: number of the rank.
        worker: number of its worker.
        num_batches: batches of this worker.
        num_examples: examples of the epoch's own.
        num_fill: examples that fill its last batch (wrapped or padded).
        num_available: examples of the epoch in the files that it reads; differs from num_examples in mode `files`.
    """

    rank: int
    worker: int
    num_batches: int
    num_examples: int
    num_fill: int
    num_available: int


def expect(parser: DatasetParser, num_replicas: int, num_workers: int, num_epochs: int) -> Expectation:
    """Return the expected result for a world of `num_replicas` ranks with `num_workers` loader processes each.

    Raises:
        TfdsTorchError: the plan cannot work there, or the files are not those of `dataset_info.json`.
    """
    here = World(0, num_replicas, 0, max(1, num_workers))
    plan, mode = parser.plan(here), parser.read_mode(here)
    ids = ids_of(parser.dataset)
    may_lack_labels = parser.dataset.has_optional_label
    if mode == "index":
        members, stored = _members_of(parser, plan)
        return Expectation(
            plan=plan,
            mode=mode,
            ids=ids,
            num_epochs=num_epochs,
            share=lambda rank, epoch: _share_of_order(parser.plan(World(rank, num_replicas)), epoch),
            members=members,
            stored=stored,
            may_lack_labels=may_lack_labels,
        )
    num_unread = num_repeated = 0
    for epoch in range(num_epochs):
        assignments = [parser.assignment(world, epoch) for world in World.grid(num_replicas, here.num_workers)]
        excess = [assignment.num_available - assignment.num_valid for assignment in assignments]
        num_unread = max(num_unread, sum(number for number in excess if number > 0))
        num_repeated = max(num_repeated, -sum(number for number in excess if number < 0))
    return Expectation(
        plan=plan,
        mode=mode,
        ids=ids,
        num_epochs=num_epochs,
        share=lambda rank, epoch: _share_of_rank(parser, plan, rank, epoch),
        num_unread=num_unread,
        num_repeated=num_repeated,
        may_lack_labels=may_lack_labels,
    )


def _members_of(parser: DatasetParser, plan: EpochPlan) -> tuple[Mapping[str, int], Sequence[int] | None]:
    """Return `members` and `stored` of an Expectation."""
    if members := parser.provenance().members:
        return {name: len(one) for name, one in members.items()}, [len(one.source) for one in members.values()]
    classes = plan.order.members if isinstance(plan.order, Mixed) else ()
    return {one.name: one.pass_size for one in classes}, None


def count_pipelines(parser: DatasetParser, expected: Expectation) -> list[PipelineCounts]:
    """Return the counts of every pipeline."""
    world = expected.plan.world
    return [_count(parser, one, expected.mode) for one in World.grid(world.num_replicas, world.num_workers)]


def _count(parser: DatasetParser, world: World, mode: str) -> PipelineCounts:
    plan = parser.plan(world)
    if mode == "index":  # Every pipeline reads in all files.
        num_examples, num_fill = pipeline_counts(plan)
        num_available = num_examples
    else:
        assignment = parser.assignment(world)
        num_examples, num_fill = assignment.num_valid, assignment.num_fill
        num_available = assignment.num_available
    return PipelineCounts(
        rank=world.rank,
        worker=world.worker,
        num_batches=len(plan.worker_batches()),
        num_examples=num_examples,
        num_fill=num_fill,
        num_available=num_available,
    )


def _share_of_order(plan: EpochPlan, epoch: int) -> Share:
    order = WorkerOrder(plan, epoch)
    planned = order.planned(0, len(order))
    return Share(planned.index, planned.valid)


def _share_of_rank(parser: DatasetParser, plan: EpochPlan, rank: int, epoch: int) -> Share:
    num_replicas, num_workers = plan.world.num_replicas, plan.world.num_workers
    worlds = (World(rank, num_replicas, worker, num_workers) for worker in range(num_workers))
    shares = [_share_of_files(parser, plan, world, epoch) for world in worlds]
    return Share(np.concatenate([one.index for one in shares]), np.concatenate([one.valid for one in shares]))


def _share_of_files(parser: DatasetParser, plan: EpochPlan, world: World, epoch: int) -> Share:
    index: list[NDArray[np.int64]] = [np.empty(0, np.int64)]
    valid: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]
    assignment = parser.assignment(world, epoch)
    for ranges, is_valid in ((assignment.valid, True), (assignment.fill, plan.remainder is not Remainder.PAD)):
        for part in ranges:
            first = parser.files[part.file].first_index
            index.append(np.arange(first + part.start, first + part.stop))
            valid.append(np.full(part.stop - part.start, is_valid))
    return Share(np.concatenate(index), np.concatenate(valid))
