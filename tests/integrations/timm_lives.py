"""Lives of processes that use the real timm, with and without the shim.

A fresh process that has loaded timm and tensorflow, but not run the latter, forks one process for each (one per rank
where there are ranks), and these fork their loader workers: nothing is loaded twice, nothing stays from one to another.
"""

import inspect
import logging
import multiprocessing
import pickle
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed
import torchvision_build
from PIL import Image
from tfds_fixtures import Tiny, write_numbered
from torch.nn import functional as F
from torch_data.forked import run_forked

from tfds_torch import ImageDataset, ParserTfds

NUM_EXAMPLES = 61
SHARDS = (9, 3, 13, 0, 5, 11, 7, 2, 11)
GRIDS = ((2, 75, 16), (2, 37, 8), (3, 70, 16), (3, 2, 4), (2, 64, 16))
"""Ranks, examples, batch size: a last batch that is all padding on a rank, mixed, both, less than a rank each, none."""

CPU = torch.device("cpu")
_DEADLINE_S = 100.0


@dataclass(frozen=True)
class Data:
    """Where the datasets lie: `numbered` in several shards and in one, `digits`, `shapes`; and two folders.

    Attributes:
        single: is read in mode `examples`, which yields every example in training as well.
        empty: nothing is prepared there.
        images: a folder of images.
    """

    numbered: str
    single: str
    digits: str
    shapes: str
    empty: str
    images: str


def prepare_data(root: Path, digits: Path, shapes: Path) -> Data:
    """Writes what else is read here."""
    write_numbered(root / "numbered", {"train": SHARDS})
    write_numbered(root / "single", {"train": (NUM_EXAMPLES,)})
    (root / "images" / "one").mkdir(parents=True)
    (root / "empty").mkdir()
    Image.new("RGB", (8, 8)).save(root / "images" / "one" / "a.png")
    ours = {name: str(root / name) for name in ("numbered", "single", "empty", "images")}
    return Data(**ours, digits=str(digits), shapes=str(shapes))


def load(dataset: Any, batch_size: int, **arguments: Any) -> Any:
    """Returns timm's loader over a dataset, for small images."""
    from timm.data import create_loader

    arguments = {"input_size": (3, 32, 32), "device": CPU, **arguments}
    return create_loader(dataset, batch_size=batch_size, **arguments)


def labels_of(loader: Iterable[Any]) -> list[list[int]]:
    return [labels.tolist() for _, labels in loader]


# Without the shim


def train_without_shim(data: Data) -> dict[str, Any]:
    """Epochs 0, 1, 1 of two persistent workers; what comes out of the workers, and of the loader."""
    dataset = ImageDataset(ParserTfds(data.single, "numbered", is_training=True, batch_size=4))
    loader = load(dataset, 4, is_training=True, num_workers=2)
    epochs = []
    for epoch in (0, 1, 1):
        loader.dataset.set_epoch(epoch)
        epochs.append(labels_of(loader))
    raw, cooked = next(iter(loader.loader)), next(iter(loader))
    return {
        "announced": len(loader),
        "epochs": epochs,
        "transform": type(dataset.transform).__name__,
        "raw": [str(raw[0].dtype), list(raw[0].shape), str(raw[1].dtype)],
        "cooked": [str(cooked[0].dtype), list(cooked[0].shape), bool(cooked[0].min() < 0)],
        "persistent": loader.loader.persistent_workers,
    }


def train_without_prefetcher(data: Data) -> dict[str, Any]:
    """An epoch of one worker, and one without."""
    found: dict[str, Any] = {}
    for num_workers in (1, 0):
        dataset = ImageDataset(ParserTfds(data.single, "numbered", is_training=True, batch_size=4))
        dataset.set_epoch(3)
        loader = load(dataset, 4, is_training=True, num_workers=num_workers, use_prefetcher=False)
        batches = list(loader)
        found["image"] = [str(batches[0][0].dtype), list(batches[0][0].shape)]
        found[f"labels {num_workers}"] = [labels.tolist() for _, labels in batches]
        found[f"announced {num_workers}"] = len(loader)
    return found


def evaluate_without_shim(data: Data) -> dict[str, Any]:
    """Evaluations by the number of workers."""
    found: dict[str, Any] = {}
    for num_workers in (0, 1, 3):
        dataset = ImageDataset(ParserTfds(data.numbered, "numbered", batch_size=7))
        loader = load(dataset, 7, num_workers=num_workers, persistent_workers=False)
        found[str(num_workers)] = {"announced": len(loader), "labels": labels_of(loader)}
        found["names"] = loader.dataset.filenames(basename=True)
    return found


# With the shim


def install() -> None:
    from tfds_torch.timm import install

    install()


def validate_with_shim(data: Data) -> dict[str, Any]:
    """As timm's validate.py and inference.py: no batch size for the dataset; names before and after the loader."""
    install()
    from timm.data import create_dataset

    found: dict[str, Any] = {}
    for when, num_workers in (("after", 3), ("before", 3), ("before", 0)):
        dataset = create_dataset(root=data.numbered, name="TFDS/numbered", split="train", download=False, class_map="")
        names = dataset.filenames(basename=True) if when == "before" else None
        loader = load(dataset, 7, num_workers=num_workers)
        labels = [label for batch in labels_of(loader) for label in batch]
        found[f"{when}, {num_workers}"] = {
            "labels": labels,
            "names": names or loader.dataset.filenames(basename=True),
            "announced": len(loader),
            "workers": loader.loader.num_workers,
            "loader": type(loader).__name__,
        }
    return found


def train_with_shim(data: Data) -> dict[str, Any]:
    """Two epochs as timm's train.py, with a batch size that the dataset was not told."""
    install()
    from timm.data import create_dataset

    dataset = create_dataset(
        *("tfds/numbered", data.single, "train"),
        is_training=True,
        batch_size=4,
        repeats=0.0,
        seed=3,
        shuffle_size=30,
        max_threadpool_size=4,
    )
    loader = load(dataset, 5, is_training=True, num_workers=2)
    epochs = []
    for epoch in range(2):
        loader.dataset.set_epoch(epoch)
        epochs.append(labels_of(loader))
    return {"announced": len(loader), "epochs": epochs, "threads": dataset.reader.parser.read.num_threads}


def read_as_asked(data: Data) -> dict[str, Any]:
    """Images and targets by input_img_mode, class_map and a list of target keys."""
    install()
    from timm.data import create_dataset

    def open_as(name: str, root: str, **arguments: Any) -> Any:
        return create_dataset(f"tfds/{name}", root=root, split="train", **arguments)

    class_map = Path(data.empty) / "map.txt"
    class_map.write_text("\n".join("9876543210"))
    gray, colour = (next(iter(open_as("digits", data.digits, input_img_mode=mode))) for mode in ("L", "RGB"))
    mapped = open_as("digits", data.digits, class_map=str(class_map))
    several, *single = (open_as("shapes", data.shapes, target_key=key) for key in ("flag, small", "flag", "small"))
    return {
        "modes": [gray[0].mode, colour[0].mode],
        "labels": [gray[1], next(iter(mapped))[1]],
        "class_to_idx": [mapped.reader.class_to_idx, several.reader.class_to_idx],
        "several targets": [target for _, target in several],
        "single targets": [[int(target) for _, target in dataset] for dataset in single],
        "mask": next(iter(open_as("shapes", data.shapes, input_key="mask", input_img_mode="L")))[0].mode,
    }


def download(data: Data) -> dict[str, Any]:
    """A dataset that was not there."""
    install()
    from timm.data import create_dataset

    dataset = create_dataset(f"tfds/{Tiny.name}", root=data.empty, split="train", download=True, target_key="id")
    return {"targets": sorted(target for _, target in dataset), "len": len(dataset)}


def use_other_readers(data: Data) -> dict[str, Any]:
    """What is not TFDS stays timm's own."""
    install()
    from timm.data import create_dataset, create_loader, create_reader

    folder = create_dataset("", root=data.images)
    loader = create_loader(folder, (3, 8, 8), 1, num_workers=0, device=CPU)
    return {
        "readers": [type(folder.reader).__name__, type(create_reader("", data.images)).__name__],
        "loader": type(loader).__name__,
        "labels": labels_of(loader),
        "unknown": complaint_of(lambda: create_dataset("hfds/nothing", root=None)),
    }


def install_twice(data: Data) -> dict[str, Any]:
    """What stands where timm looks, after one and two calls; what a late call says."""
    import timm.data
    import timm.utils

    names = {timm.data: ("create_loader", "create_naflex_loader", "create_reader")}
    names[timm.utils] = ("accuracy", "reduce_tensor", "AverageMeter")

    def stand() -> list[int]:
        return [id(getattr(module, name)) for module, of_module in names.items() for name in of_module]

    own, too_late = stand(), []
    for place in ("__main__", "engine"):
        module = sys.modules.setdefault(place, ModuleType(place))
        module.late = timm.data.create_loader  # type: ignore[attr-defined]
        too_late.append(complaint_of(install))
        del module.late  # type: ignore[attr-defined]
    unchanged = stand() == own
    signature = inspect.signature(timm.data.create_loader)
    install()
    once = stand()
    install()
    meter = timm.utils.AverageMeter()
    meter.update(3.0, 2)
    return {
        "too late": too_late,
        "unchanged": unchanged,
        "replaced": [ours != theirs for ours, theirs in zip(once, own, strict=True)],
        "same": stand() == once,
        "everywhere": timm.data.dataset.create_reader is timm.data.readers.reader_factory.create_reader,
        "signature": inspect.signature(timm.data.create_loader) == signature,
        "pickled": pickle.loads(pickle.dumps(meter)).avg,
        "reader_tfds": "timm.data.readers.reader_tfds" in sys.modules,
    }


def be_refused(data: Data) -> dict[str, str]:
    """What the shim says to loaders that cannot work."""
    install()
    from timm.data import AugMixDataset, create_dataset, create_naflex_loader

    def training() -> Any:
        return create_dataset("tfds/numbered", root=data.numbered, split="train", is_training=True, batch_size=4)

    def evaluation() -> Any:
        return create_dataset("tfds/numbered", root=data.numbered, split="train")

    plain = ImageDataset(ParserTfds(data.numbered, "numbered", batch_size=8))

    def replan() -> None:
        dataset = evaluation()
        load(dataset, 4)
        load(dataset, 8)

    ways: dict[str, Callable[[], Any]] = {
        "second loader": replan,
        "evaluation of training data": lambda: load(training(), 4),
        "argument": lambda: create_dataset("tfds/numbered", root=data.numbered, split="train", suffle_size=3),
        "no name": lambda: create_dataset("tfds/", root=data.numbered),
        "batch size": lambda: load(plain, 4),
        "drop_last": lambda: load(evaluation(), 4, is_training=True),
        "augmix": lambda: load(AugMixDataset(training()), 4, is_training=True, num_aug_splits=2),
        "multi epochs": lambda: load(training(), 4, is_training=True, use_multi_epochs_loader=True),
        "naflex": lambda: create_naflex_loader(plain, batch_size=4, device=CPU),
    }
    return {way: complaint_of(make) for way, make in ways.items()}


def complaint_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# Several ranks


def validate(output_of: Callable[[Any], Any], loader: Any, num_replicas: int) -> list[float]:
    """Returns loss, top1 and top5 as timm's train.py finds them."""
    from timm import utils

    losses, top1, top5 = utils.AverageMeter(), utils.AverageMeter(), utils.AverageMeter()
    with torch.inference_mode():
        for images, targets in loader:
            output = output_of(images)
            loss = F.cross_entropy(output, targets)
            acc1, acc5 = utils.accuracy(output, targets, topk=(1, 5))
            if num_replicas > 1:
                loss = utils.reduce_tensor(loss.data, num_replicas)
                acc1 = utils.reduce_tensor(acc1, num_replicas)
                acc5 = utils.reduce_tensor(acc5, num_replicas)
            losses.update(loss.item(), output.shape[0])
            top1.update(acc1.item(), output.shape[0])
            top5.update(acc5.item(), output.shape[0])
    return [losses.avg, top1.avg, top5.avg]


def evaluate_as_rank(data: Data, num_replicas: int, num_examples: int, batch_size: int) -> list[float]:
    """The figures of a fixed linear model on some digits."""
    install()
    from timm.data import create_dataset

    weights = torch.randn(10, 64, generator=torch.Generator().manual_seed(0)) / 4
    dataset = create_dataset(
        "tfds/digits", root=data.digits, split=f"train[:{num_examples}]", batch_size=batch_size, input_img_mode="L"
    )
    size = {"input_size": (1, 8, 8), "mean": (0.5,), "std": (0.5,), "crop_pct": 1.0}
    loader = load(dataset, batch_size, num_workers=min(2, num_replicas), **size)
    return validate(lambda images: images.flatten(1) @ weights.T, loader, num_replicas)


def differ(data: Data, num_replicas: int) -> str:
    """What create_loader says to a rank whose seed is its own."""
    install()
    from timm.data import create_dataset

    dataset = create_dataset(
        *("tfds/numbered", data.numbered, "train"),
        is_training=True,
        batch_size=4,
        seed=torch.distributed.get_rank(),
    )
    return complaint_of(lambda: load(dataset, 4, is_training=True))


LIVES = (
    *(train_without_shim, train_without_prefetcher, evaluate_without_shim),
    *(validate_with_shim, train_with_shim, read_as_asked, download, use_other_readers, install_twice, be_refused),
)


# The processes


def live_all(data: Data, store: str) -> dict[str, list[Any]]:
    """Returns life -> what every rank returned, or its error as a text. Loads tensorflow."""
    multiprocessing.set_start_method("fork", force=True)
    declared = torchvision_build.declare_where_needed()
    import tensorflow
    import timm.data

    results = {life.__name__: _run(life, data, 1, store) for life in LIVES}
    for grid in GRIDS:
        for num_replicas in (1, grid[0]):
            name = f"{num_replicas} of {grid}"
            results[name] = _run(evaluate_as_rank, data, num_replicas, store, *grid[1:])
    results["differ"] = _run(differ, data, 2, store)
    del tensorflow, timm, declared
    return results


def _run(function: Callable[..., Any], data: Data, num_replicas: int, store: str, *args: Any) -> list[Any]:
    store = f"{store}-{function.__name__}-{num_replicas}-{args}"
    return run_forked(_be_a_rank, num_replicas, _DEADLINE_S, function, data, num_replicas, store, *args)


def _be_a_rank(
    sender: Connection, rank: int, function: Callable[..., Any], data: Data, num_replicas: int, store: str, *args: Any
) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    try:
        if num_replicas > 1 or args:
            if num_replicas > 1:
                torch.distributed.init_process_group(
                    "gloo", init_method=f"file://{store}", rank=rank, world_size=num_replicas
                )
            result = function(data, num_replicas, *args)
        else:
            result = function(data)
    except Exception:
        result = traceback.format_exc()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    sender.send(result)
