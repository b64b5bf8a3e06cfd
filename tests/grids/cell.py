"""What a grid is asked to do, and what its ranks report. Plain values: no torch, no tensorflow."""

from collections.abc import Iterator
from dataclasses import dataclass

TRAIN_INDEX, TRAIN_EXAMPLES, TRAIN_FILES = "train-index", "train-examples", "train-files"
EVALUATION, EVALUATION_EXAMPLES = "eval-index", "eval-examples"
FORK, FORKSERVER, SPAWN, FORK_AFTER_TENSORFLOW, NO_WORKERS = "fork", "forkserver", "spawn", "fork-after-tf", "none"

READ_MODES = {
    TRAIN_INDEX: "index",
    TRAIN_EXAMPLES: "examples",
    TRAIN_FILES: "files",
    EVALUATION: "index",
    EVALUATION_EXAMPLES: "examples",
}
"""Task -> read mode; `auto` takes `index` wherever it can."""

OWN_ITEMS = "own items"
"""The name of the dataset in own_items.py."""

COUNTED = None
"""An epoch that the dataset counts by itself."""


@dataclass(frozen=True)
class Split:
    """A split on disk, or a dataset of one's own.

    Attributes:
        root: TFDS data directory.
        name: the dataset; OWN_ITEMS: one that is no TFDS dataset.
        split: TFDS's expression.
        shuffles: whether training shuffles.
        content: a feature, stored in each record, that proves which record was read; None where there is none.
        chosen: how examples are chosen of it, a key of choices.py.
        windows: which windows of the split's episodes are its examples, a key of numbered_episodes.WINDOWS; None: they
            are records.
        groups: of blocks, into which the shuffled order is dealt; 1: single examples are shuffled.
        url: of the root, where the examples are read from a store; None: they are read from `root`.
        variables: of the environment in which the store is read.
    """

    root: str
    name: str
    split: str
    shuffles: bool = True
    content: str | None = "file_name"
    chosen: str = "all"
    windows: str | None = None
    groups: int = 1
    url: str | None = None
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        """The field that a row shows as its label: of windows, which have none, the number of their step."""
        return "label" if self.windows is None else "number"


@dataclass(frozen=True)
class Cell:
    """One grid: R ranks x W workers over a split.

    Attributes:
        data: name of the split, see splits.py.
        num_replicas: R.
        num_workers: W, 0 where the rank reads by itself.
        task: training or evaluation in one of the read modes.
        method: how workers start.
        persistent: whether workers live from epoch to epoch.
        group_first: whether torch.distributed is initialised before the dataset is built, or after it.
        batch_size: B, of a rank.
        epochs: the iterations: an epoch that is set by hand, or `COUNTED`.
        fault: a planted fault, see rank.py.
        without_torch: whether a MultiLoader reads the parser, not a DataLoader an ImageDataset.
    """

    data: str
    num_replicas: int
    num_workers: int
    task: str
    method: str
    persistent: bool = False
    group_first: bool = True
    batch_size: int = 4
    epochs: tuple[int | None, ...] = (COUNTED, COUNTED, 0)
    fault: str | None = None
    without_torch: bool = False

    def __str__(self) -> str:
        kept = "persistent" if self.persistent else "new"
        order = "group,dataset" if self.group_first else "dataset,group"
        fault = f", planted: {self.fault}" if self.fault else ""
        loader = ", MultiLoader" if self.without_torch else ""
        return (
            f"{self.data} {self.task} R{self.num_replicas}xW{self.num_workers} B{self.batch_size} "
            f"{self.method} ({kept} workers; {order}{fault}{loader})"
        )

    @property
    def is_training(self) -> bool:
        return self.task not in (EVALUATION, EVALUATION_EXAMPLES)

    @property
    def is_by_index(self) -> bool:
        """Whether the order of all ranks together is that of one rank without workers."""
        return READ_MODES[self.task] == "index"

    @property
    def shows_images(self) -> bool:
        """Whether pictures are decoded too: in small evaluations, as it costs half as much again."""
        return not self.is_training and self.num_pipelines <= 3 and not self.without_torch

    @property
    def global_batch(self) -> int:
        return self.num_replicas * self.batch_size

    @property
    def workers(self) -> int:
        """Pipelines of a rank."""
        return max(1, self.num_workers)

    @property
    def num_pipelines(self) -> int:
        return self.num_replicas * self.workers

    @property
    def pipelines(self) -> Iterator[tuple[int, int]]:
        """(rank, worker) of every pipeline, rank by rank."""
        return ((rank, worker) for rank in range(self.num_replicas) for worker in range(self.workers))

    @property
    def epoch_numbers(self) -> list[int]:
        """Which epoch each iteration must be: those that count themselves begin with 0."""
        counted = iter(range(len(self.epochs)))
        return [next(counted) if epoch is COUNTED else epoch for epoch in self.epochs]


@dataclass(frozen=True)
class Row:
    """One example as it arrived in the training process; `content` and `image_size` where they were asked for."""

    id: str
    index: int
    valid: bool
    label: int
    content: str | None = None
    image_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class RankLedger:
    """Everything that one rank saw of a cell.

    Attributes:
        pid: of the rank's process.
        epochs: for every iteration its batches, for every batch its rows.
        len_loader: what `len(loader)` announced.
        len_dataset: what `len(dataset)` announced.
        refusal: what came instead of examples when `files` was asked for in evaluation.
    """

    pid: int
    epochs: list[list[list[Row]]]
    len_loader: int
    len_dataset: int
    refusal: str | None = None
