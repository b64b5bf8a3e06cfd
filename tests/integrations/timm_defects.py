"""The same measurements of timm's reader and of ours.

A fresh process that has loaded tensorflow, but not run it, forks one process for every measurement (one per rank where
there are ranks), and these fork their loader workers: nothing is loaded twice, and nothing stays from one to the next.
"""

import gc
import itertools
import multiprocessing
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import torch
import torch.distributed
import torchvision_build
from tfds_fixtures import write_numbered
from torch.utils.data import DataLoader, get_worker_info
from torch_data.forked import run_forked

from tfds_torch import ImageDataset, ParserTfds, errors
from tfds_torch.engines.options import ReadOptions
from tfds_torch.images.decoding import ImageDecoder
from tfds_torch.plan.epoch import PAD_LABEL

BATCH_SIZE = 4
NUM_REPLICAS = 2
NUM_EXAMPLES = 61
UNEVEN_SHARDS = (9, 3, 13, 5, 11, 7, 2, 11)
GAP_SHARDS = (0, 19, 0, 0)
SUM_SHARDS = {"train": (5,), "test": (5,)}
CUT_SHARDS = {"train": (2,), "test": (2,)}
NUM_PICTURES, PICTURE_SIDE = 2048, 256
REPEATS = 2
NUM_TAKEN = 5 * REPEATS * NUM_EXAMPLES
"""Where an evaluation that does not end is broken off, in examples."""

_DEADLINE_S = 100.0  # For a process that hangs.

Loaded = tuple[Any, "DataLoader[Any]"]
Batches = list[tuple[int, list[int]]]
"""(worker, labels) of every batch."""


def write_datasets(root: Path) -> None:
    """Writes what is measured: a folder per dataset."""
    write_numbered(root / "uneven", {"train": UNEVEN_SHARDS})
    write_numbered(root / "single", {"train": (NUM_EXAMPLES,)})
    write_numbered(root / "gaps", {"train": GAP_SHARDS})
    write_numbered(root / "sums", SUM_SHARDS)
    write_numbered(root / "cuts", CUT_SHARDS)
    write_numbered(root / "pictures", {"train": (NUM_PICTURES,)}, PICTURE_SIDE)


# The two readers


@dataclass(frozen=True)
class Task:
    """What is read; `mode` is our read mode, of which timm has one only."""

    root: str
    split: str = "train"
    batch_size: int = BATCH_SIZE
    num_workers: int = 0
    is_training: bool = False
    repeats: int = 0
    mode: str = "auto"


def load_ours(task: Task) -> Loaded:
    """Returns an ImageDataset, and timm's loader over it, without the shim."""
    parser = ParserTfds(
        *(task.root, "numbered", task.split),
        is_training=task.is_training,
        batch_size=task.batch_size,
        repeats=task.repeats,
        read=ReadOptions(mode=task.mode),
    )
    return load_with_timm(ImageDataset(parser), task)


def load_timm(task: Task) -> Loaded:
    """Returns what timm's own scripts read with, but for the transform."""
    from timm.data import create_dataset

    dataset = create_dataset(
        "tfds/numbered",
        root=task.root,
        split=task.split,
        is_training=task.is_training,
        batch_size=task.batch_size,
        repeats=task.repeats,
    )
    return load_with_timm(dataset, task)


def load_with_timm(dataset: Any, task: Task) -> Loaded:
    from timm.data import create_loader

    loader = create_loader(
        dataset,
        input_size=(3, 8, 8),
        batch_size=task.batch_size,
        is_training=task.is_training,
        num_workers=task.num_workers,
        device=torch.device("cpu"),
    )
    dataset.transform = show_worker
    return dataset, loader.loader  # The DataLoader inside of it: the outer one normalises images.


READERS: dict[str, Callable[[Task], Loaded]] = {"ours": load_ours, "timm": load_timm}
Load = Callable[[Task], Loaded]


def show_worker(image: Any) -> torch.Tensor:
    """A transform: the number of the worker, uint8 [1, 1, 1], takes the image's place."""
    assert image.mode == "RGB"
    worker = get_worker_info()
    return torch.full((1, 1, 1), worker.id if worker else 0, dtype=torch.uint8)


def read(loaded: Loaded) -> Batches:
    """Returns an epoch."""
    return [(int(images[0]), labels.tolist()) for images, labels in loaded[1]]


def labels_of(batches: Batches) -> list[int]:
    """Returns the labels that a metric would count, in order."""
    return [label for _, labels in batches for label in labels if label != PAD_LABEL]


# The measurements


def train_epochs(load: Load, root: str) -> dict[str, list[Batches]]:
    """Two epochs without `set_epoch`, then three with it, of two persistent workers."""
    loaded = load(Task(f"{root}/uneven", num_workers=2, is_training=True))
    by_themselves, set_by_hand = [read(loaded), read(loaded)], []
    for epoch in range(3):
        loaded[0].set_epoch(epoch)
        set_by_hand.append(read(loaded))
    return {"by themselves": by_themselves, "set by hand": set_by_hand}


def train_on_one_shard(load: Load, root: str) -> list[int]:
    """The labels of an epoch of two workers."""
    return labels_of(read(load(Task(f"{root}/single", num_workers=2, is_training=True))))


def train_with_empty_shards(load: Load, root: str) -> dict[str, Any]:
    """The labels of two workers over four shards, of which one holds examples."""
    task = Task(f"{root}/gaps", num_workers=2, is_training=True)
    return _labels_or_error(load, task, "Cannot shard the pipeline with given `input_context`")


def evaluate_sum(load: Load, root: str) -> Batches:
    """An evaluation of the sum of two splits, by two workers."""
    return read(load(Task(f"{root}/sums", "train+test", batch_size=1, num_workers=2)))


def evaluate_sum_of_cuts(load: Load, root: str) -> dict[str, Any]:
    """The labels of two workers over the sum of two halves, each of one example."""
    task = Task(f"{root}/cuts", "train[:50%]+test[:50%]", batch_size=1, num_workers=2)
    return _labels_or_error(load, task, "corresponds to no data!")


def evaluate_with_workers(load: Load, root: str) -> dict[str, int]:
    """How many batches of seven are announced, and how many come from two workers."""
    loaded = load(Task(f"{root}/uneven", batch_size=7, num_workers=2))
    return {"announced": len(loaded[1]), "came": len(read(loaded))}


def evaluate_rank(load: Load, root: str) -> dict[int, list[int]]:
    """The labels that this rank counts, by the number of its loader workers."""
    return {workers: labels_of(read(load(Task(f"{root}/uneven", num_workers=workers)))) for workers in (1, 0)}


def ask_filenames(load: Load, root: str) -> dict[str, Any]:
    """The names that validate.py asks for, and whether tensorflow runs in the training process then."""
    dataset, _ = load(Task(f"{root}/uneven", num_workers=2))
    assert not _tensorflow_runs()
    return {"names": [_to_text(name) for name in dataset.filenames()], "tensorflow runs": _tensorflow_runs()}


def evaluate_repeats(load: Load, root: str) -> int:
    """How many examples come from an evaluation with repeats; none where it is refused."""
    try:
        dataset, _ = load(Task(f"{root}/uneven", repeats=REPEATS))
    except errors.ConfigError:
        return 0
    return sum(1 for _ in itertools.islice(dataset, NUM_TAKEN))


def list_ops(load: Load, root: str) -> list[str]:
    """The ops of the tf.data graph that an evaluation iterates, of ours in a stream mode."""
    from tensorflow.core.framework import graph_pb2
    from tensorflow.python.data.ops import iterator_ops

    create_iterator, ops = iterator_ops.OwnedIterator._create_iterator, set()

    def note_ops(iterator: Any, dataset: Any) -> Any:
        graph = graph_pb2.GraphDef.FromString(dataset._as_serialized_graph().numpy())
        in_functions = itertools.chain.from_iterable(function.node_def for function in graph.library.function)
        ops.update(node.op for node in itertools.chain(graph.node, in_functions))
        return create_iterator(iterator, dataset)

    with mock.patch.object(iterator_ops.OwnedIterator, "_create_iterator", note_ops):
        read(load(Task(f"{root}/single", mode="examples")))
    return sorted(ops)


def train_on_pictures(load: Load, root: str) -> dict[str, Any]:
    """What is decoded before each of two epochs delivers an example, and the memory that one of them takes, bytes."""
    import tensorflow as tf

    read(load(Task(f"{root}/single", is_training=True)))  # The runtime's own memory is not what is measured.
    gc.collect()
    process, decoded = psutil.Process(), []
    memory_bytes = [process.memory_info().rss]

    def count() -> np.int64:
        decoded.append(1)  # By several threads.
        return np.int64(len(decoded))

    def counting(decode: Callable[..., Any]) -> Callable[..., Any]:
        def decode_and_count(*args: Any, **kwargs: Any) -> Any:
            with tf.control_dependencies([tf.numpy_function(count, [], tf.int64)]):
                return decode(*args, **kwargs)

        return decode_and_count

    def counting_ours(decode: Callable[..., Any]) -> Callable[..., Any]:
        def decode_and_count(*args: Any, **kwargs: Any) -> Any:
            count()
            return decode(*args, **kwargs)

        return decode_and_count

    dataset, _ = load(Task(f"{root}/pictures", is_training=True))
    decoded_at_first = []
    with (
        mock.patch.object(tf.image, "decode_jpeg", counting(tf.image.decode_jpeg)),
        mock.patch.object(tf.io, "decode_image", counting(tf.io.decode_image)),
        mock.patch.object(ImageDecoder, "decode", counting_ours(ImageDecoder.decode)),
        mock.patch.object(ImageDecoder, "decode_into", counting_ours(ImageDecoder.decode_into)),
    ):
        for epoch in range(2):
            dataset.set_epoch(epoch)
            decoded.clear()
            examples = iter(dataset)
            next(examples)
            decoded_at_first.append(len(decoded))
            if epoch == 0:
                memory_bytes += [process.memory_info().rss for _ in examples]
                num_decoded = len(decoded)
    return {
        "examples": len(memory_bytes),
        "decoded": num_decoded,
        "decoded at first": decoded_at_first,
        "memory": max(memory_bytes) - memory_bytes[0],
    }


def _labels_or_error(load: Load, task: Task, expected: str) -> dict[str, Any]:
    """Returns the labels, or the error when it is the expected one of TFDS."""
    try:
        return {"labels": labels_of(read(load(task))), "error": ""}
    except ValueError as error:
        if expected not in str(error):
            raise
        return {"labels": [], "error": expected}


def _to_text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def _tensorflow_runs() -> bool:
    from tensorflow.python.eager import context

    return context.context()._context_handle is not None


MEASUREMENTS: dict[Callable[..., Any], int] = {
    train_epochs: 1,
    train_on_one_shard: 1,
    train_with_empty_shards: 1,
    evaluate_sum: 1,
    evaluate_sum_of_cuts: 1,
    evaluate_with_workers: 1,
    evaluate_rank: NUM_REPLICAS,
    ask_filenames: 1,
    evaluate_repeats: 1,
    list_ops: 1,
    train_on_pictures: 1,
}
"""Measurement -> number of ranks."""


# The processes


def measure_all(reader: str, root: str, functions: Sequence[Callable[..., Any]]) -> dict[str, list[Any]]:
    """Returns name of the measurement -> what every rank returned, or its error as a text. Loads tensorflow."""
    multiprocessing.set_start_method("fork", force=True)  # timm's loader takes Python's default.
    declared = torchvision_build.declare_where_needed()
    import tensorflow
    import timm.data

    if reader == "timm":
        import timm.data.readers.reader_tfds

    results = {
        function.__name__: run_forked(_measure, MEASUREMENTS[function], _DEADLINE_S, function, reader, root)
        for function in functions
    }
    del tensorflow, timm, declared
    return results


def _measure(sender: Connection, rank: int, function: Callable[..., Any], reader: str, root: str) -> None:
    torch.manual_seed(0)  # timm shuffles by torch's seed.
    try:
        if MEASUREMENTS[function] > 1:
            store = f"file://{root}/store_of_{reader}"
            torch.distributed.init_process_group("gloo", store, rank=rank, world_size=MEASUREMENTS[function])
        result = function(READERS[reader], root)
    except Exception:
        result = traceback.format_exc()
    sender.send(result)
