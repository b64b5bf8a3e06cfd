"""What runs inside a rank's process, and in its workers."""

import faulthandler
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed
import torch.utils.data
from numbered_episodes import WINDOWS
from PIL import Image
from torch.utils.data import DataLoader

from grids.cell import FORK, FORK_AFTER_TENSORFLOW, NO_WORKERS, OWN_ITEMS, READ_MODES, Cell, RankLedger, Row, Split
from grids.choices import choose
from grids.fleet import Place
from grids.own_items import OwnItems
from tfds_torch import ImageDataset, MultiLoader, ParserMapStyle, ParserTfds, ReadOptions, World
from tfds_torch.engines import tensorflow_runtime
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError

_TIMEOUT = timedelta(seconds=60)
ABOUT = ("id", "index", "valid")
LEDGER = (*ABOUT, "label")

# What a fork server has ready; importing it runs no tensorflow.
multiprocessing.set_forkserver_preload(
    ["tensorflow", "torch.utils.data", "tfds_torch.parsers.tfds.parser", "tfds_torch.torch_data.image_dataset"]
)
warnings.filterwarnings("ignore", message="This DataLoader will create")
# torch waits five seconds for a worker that has failed before it ends it.
torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL = 1.0


@contextmanager
def process_group(place: Place | None = None) -> Iterator[None]:
    """torch.distributed, initialised from the environment, or for a place that the environment does not name."""
    if place is None:
        torch.distributed.init_process_group("gloo", timeout=_TIMEOUT)
    else:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{place.port}",
            rank=place.rank,
            world_size=place.num_replicas,
            timeout=_TIMEOUT,
        )
    try:
        torch.distributed.barrier()
        yield
    finally:
        torch.distributed.destroy_process_group()


def make_parser(cell: Cell, split: Split, mode: str) -> Any:
    blocks: dict[str, Any] = (
        {"block_records": 7, "shuffle_buffer": 28, "block_groups": split.groups} if split.groups > 1 else {}
    )
    arguments: dict[str, Any] = {
        "is_training": cell.is_training,
        "shuffle": cell.is_training and split.shuffles,
        "batch_size": cell.batch_size,
        "read": ReadOptions(mode=mode, num_threads=1, cycle_length=16 if mode == "index" else 4, **blocks),
    }
    if split.url is not None:
        arguments["read"] = ReadOptions(mode=mode, num_threads=1, block_records=16, shuffle_buffer=48)
        name = f"{split.name}:1.0.0"  # A web server does not list versions.
        return choose(ParserTfds(split.url, name, split.split, **arguments), split.chosen)
    if split.windows is not None:
        return choose(WINDOWS[split.windows](split.root, **arguments), split.chosen)
    if split.name == OWN_ITEMS:
        return choose(ParserMapStyle(OwnItems(), **arguments), split.chosen)
    return choose(ParserTfds(split.root, split.name, split.split, **arguments), split.chosen)


def read_cell(place: Place, cell: Cell, split: Split) -> RankLedger:
    """Reads a cell as one of its ranks."""
    if cell.without_torch:
        return read_without_torch(cell, split)
    if cell.group_first:
        with process_group():
            return _read(place, cell, split, make_dataset(place, cell, split))
    dataset = make_dataset(place, cell, split)
    with process_group():
        return _read(place, cell, split, dataset)


def make_dataset(place: Place, cell: Cell, split: Split) -> ImageDataset:
    has_images = cell.shows_images and split.windows is None
    fields = [*ABOUT, split.label, *([split.content] if split.content else []), *(["image"] if has_images else [])]
    world = World(0, place.num_replicas) if cell.fault == "reads the share of rank 0" else None
    transform = size_of if split.windows is None else None  # Windows come in whole batches.
    return ImageDataset(make_parser(cell, split, READ_MODES[cell.task]), transform, fields=fields, world=world)


def _read(place: Place, cell: Cell, split: Split, dataset: ImageDataset) -> RankLedger:
    assert not tensorflow_runtime.has_inherited_runtime()
    loader = make_loader(dataset, cell)
    epochs = []
    for epoch in cell.epochs:
        if epoch is not None:
            dataset.set_epoch(epoch)
        epochs.append(rows_of(loader, split))
    refusal = None if cell.is_training else refused_files(cell, split)
    num_examples = dataset.plan().num_samples if dataset.is_batched else len(dataset)
    return RankLedger(os.getpid(), epochs, len(loader), num_examples, refusal)


def read_without_torch(cell: Cell, split: Split) -> RankLedger:
    """Reads a cell with a MultiLoader, as a rank that only its environment names."""
    parser = make_parser(cell, split, READ_MODES[cell.task])
    fields = [split.label, *([split.content] if split.content else [])]
    refusal = None if cell.is_training else refused_files(cell, split)
    with MultiLoader(
        parser,
        cell.num_workers,
        start_method=cell.method,
        persistent_workers=cell.persistent,
        fields=fields,
        timeout_s=_TIMEOUT.total_seconds(),
    ) as loader:
        epochs = []
        for epoch in cell.epochs:
            if epoch is not None:
                loader.set_epoch(epoch)
            epochs.append([_rows_of_arrays(batch, split) for batch in loader])
        return RankLedger(os.getpid(), epochs, len(loader), len(parser.plan(loader.world)), refusal)


def _rows_of_arrays(batch: Batch, split: Split) -> list[Row]:
    num_rows = len(batch)
    contents = batch.features[split.content] if split.content else [None] * num_rows
    label = batch.label if split.label == "label" else batch.features[split.label]
    columns = list(batch.id), batch.index.tolist(), batch.valid.tolist(), label.tolist(), map(show, contents)
    return [Row(*values) for values in zip(*columns, strict=True)]


def make_loader(dataset: ImageDataset, cell: Cell) -> "DataLoader[Any]":
    method = {NO_WORKERS: None, FORK_AFTER_TENSORFLOW: FORK}.get(cell.method, cell.method)
    if cell.method == FORK_AFTER_TENSORFLOW:
        run_tensorflow()
    return DataLoader(
        dataset,
        None if dataset.is_batched else cell.batch_size,
        num_workers=cell.num_workers,
        multiprocessing_context=method,
        persistent_workers=cell.persistent,
        worker_init_fn=partial(start_worker, cell.method) if cell.num_workers else None,
    )


def run_tensorflow() -> None:
    import tensorflow as tf

    assert int(tf.constant(1) + 1) == 2


def start_worker(method: str, worker: int) -> None:
    """Lets the fleet ask for a worker's stacks, and sees to it that tensorflow runs where this cell is about."""
    faulthandler.register(signal.SIGUSR1)
    assert tensorflow_runtime.has_inherited_runtime() == (method == FORK_AFTER_TENSORFLOW)


def rows_of(loader: "DataLoader[Any]", split: Split) -> list[list[Row]]:
    return [_rows_of_batch(batch, split) for batch in loader]


def _rows_of_batch(batch: list[Any], split: Split) -> list[Row]:
    ids, index, valid, label, *rest = batch
    contents = rest.pop(0) if split.content else [None] * len(ids)
    sizes = list(zip(*(side.tolist() for side in rest[0]), strict=True)) if rest else [None] * len(ids)
    columns = ids, index.tolist(), valid.tolist(), label.tolist(), map(show, contents), sizes
    return [Row(*values) for values in zip(*columns, strict=True)]


def show(content: Any) -> str | None:
    """Returns what a row shows of a content: of the texts of a window, all."""
    if isinstance(content, list):
        return ", ".join(content)
    return content.decode() if isinstance(content, bytes) else content


def refused_files(cell: Cell, split: Split) -> str:
    """Returns how read mode `files` is refused in evaluation."""
    try:
        next(iter(ImageDataset(make_parser(cell, split, "files"), fields=[*ABOUT, split.label])))
    except ConfigError as error:
        return str(error)
    raise AssertionError("read mode 'files' yields an example in evaluation")


def size_of(image: Image.Image) -> tuple[int, int]:
    """A transform that tells pictures apart: width and height."""
    return image.size


def has_run_tensorflow(_: Place) -> bool:
    """Whether a process forked from here would find that tensorflow had run."""
    context = sys.modules["tensorflow.python.eager.context"]
    return context._context is not None
