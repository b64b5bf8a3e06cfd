"""Lives of whole processes, run as scripts: `scenarios.py FUNCTION ARGUMENTS...` prints the result as JSON."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch.distributed
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, MaskedMean, ParserTfds, ReadOptions, TrainPreprocess, World, errors

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

from torch_data.reading import LEDGER, rows_of

BATCH_SIZE = 8


def training_parser(root: str | Path) -> ParserTfds:
    """The parser of these scenarios."""
    return ParserTfds(root, "photos", is_training=True, batch_size=BATCH_SIZE)


def train_with_workers(root: str) -> dict[str, Any]:
    """A training process with two workers."""
    dataset = ImageDataset(training_parser(root), fields=LEDGER)
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=2)
    result: dict[str, Any] = {"names": dataset.filenames(), "len": len(loader), "rows": rows_of(loader)}
    result["tensorflow"] = "tensorflow" in sys.modules
    # The resource tracker is Python's own, and watches the epoch counter's semaphore.
    commands = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    result["children"] = [command for command in commands if "resource_tracker" not in command]
    return result


def meet_errors(root: str, *damaged_roots: str) -> dict[str, list[str]]:
    """A process whose workers fail in several ways; returns type and message of what arrived.

    It runs by itself, as torch takes five seconds to release a failed worker, unless the process ends.
    """
    parsers = {damaged: training_parser(damaged) for damaged in damaged_roots}
    parsers["no batch_size"] = ParserTfds(root, "photos")
    found, iterators = {}, []
    for name, parser in parsers.items():
        loader = DataLoader(ImageDataset(parser, fields=LEDGER), BATCH_SIZE, num_workers=2)
        iterators.append(iter(loader))
        try:
            rows_of(iterators[-1])
        except errors.TfdsTorchError as error:
            found[name] = [type(error).__name__, str(error)]
    found["tensorflow"] = [str("tensorflow" in sys.modules)]
    return found


def use_notebook(root: str, *steps: str) -> list[Any]:
    """One process and one dataset; returns a result for every step.

    A step is a number of workers (under fork), `break` (an epoch of two workers, broken off), `run tf` or `import tf`.
    """
    dataset = ImageDataset(training_parser(root), fields=LEDGER)

    def load(num_workers: int) -> DataLoader[Any]:
        return DataLoader(
            dataset, BATCH_SIZE, num_workers=num_workers, multiprocessing_context="fork" if num_workers else None
        )

    def take(step: str) -> Any:
        if step == "import tf":
            import tensorflow as tf

            return tf.__version__
        if step == "run tf":
            import tensorflow as tf

            doubled = tf.data.Dataset.range(8).map(lambda x: x * 2, num_parallel_calls=2)
            return sum(doubled.as_numpy_iterator()).item()
        return rows_of([next(iter(load(2)))] if step == "break" else load(int(step)))

    return [take(step) for step in steps]


def train_with_forkserver(root: str) -> list[Any]:
    """Two epochs of persistent workers, and one of others, of a fork server."""
    dataset = ImageDataset(training_parser(root), fields=LEDGER)
    loader = DataLoader(
        dataset, BATCH_SIZE, num_workers=2, multiprocessing_context="forkserver", persistent_workers=True
    )
    epochs = [rows_of(loader), rows_of(loader)]
    dataset.set_epoch(2)
    other = DataLoader(dataset, BATCH_SIZE, num_workers=2, multiprocessing_context="forkserver")
    return [*epochs, rows_of(other)]


def train_as_rank(root: str, rank: str, num_replicas: str, store: str, method: str) -> dict[str, Any]:
    """One rank of a training under torch.distributed, started by hand: the environment names no rank."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=int(rank), world_size=int(num_replicas)
    )
    dataset = ImageDataset(training_parser(root), fields=LEDGER)
    loader = DataLoader(dataset, BATCH_SIZE, num_workers=2, multiprocessing_context=method)
    alone = ImageDataset(training_parser(root), fields=LEDGER, world=World())
    result = {"len": len(loader), "rows": rows_of(loader), "len alone": len(DataLoader(alone, BATCH_SIZE))}
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    return result


def join_ranks(store: str) -> int:
    """Initialises torch.distributed as the environment says, and returns the rank."""
    rank, num_replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=num_replicas)
    return rank


def average_numbers(store: str) -> dict[str, Any]:
    """Means over what each rank holds: rank r has the numbers 0..r, one of them padding, and one batch of padding."""
    rank = join_ranks(store)
    mean, empty, summed = MaskedMean(), MaskedMean(), MaskedMean()
    values = torch.arange(rank + 2, dtype=torch.float32)
    mean.update(torch.cat([values, torch.tensor([float("nan")])]), torch.arange(rank + 3) < rank + 2)
    mean.update(torch.full((3,), float("nan")), torch.zeros(3, dtype=torch.bool))
    labels = torch.full((4,), -100) if rank else torch.tensor([0, 1, 2, -100])
    logits = torch.arange(12, dtype=torch.float32).reshape(4, 3).sin()
    summed.update_sum(F.cross_entropy(logits, labels, reduction="sum"), (labels != -100).sum())
    alone = F.cross_entropy(logits[:3], torch.tensor([0, 1, 2])).item()
    result = {
        "sums": mean.sums(),
        "mean": mean.compute(),
        "empty": str(empty.compute()),
        "loss": summed.compute(),
        "loss alone": alone,
    }
    torch.distributed.destroy_process_group()
    return result


def evaluate_digits(root: str, num_workers: int) -> dict[str, Any]:
    """Loss and accuracy of a fixed linear model on the test split of the digits, by MaskedMean, on this rank."""
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 10)
    parser = ParserTfds(root, "digits", "test", batch_size=32, image_mode="L")
    dataset = ImageDataset(parser, transform=_flatten, fields=("image", "label", "valid", "id"))
    hits, losses, summed, ids = MaskedMean(), MaskedMean(), MaskedMean(), []
    with torch.inference_mode():
        for images, labels, valid, names in DataLoader(dataset, 32, num_workers=num_workers):
            logits = model(images)
            hits.update(logits.argmax(1) == labels, valid)
            losses.update(F.cross_entropy(logits, labels, reduction="none"), valid)
            summed.update_sum(F.cross_entropy(logits, labels, reduction="sum"), valid.sum())
            ids += [name for name, is_valid in zip(names, valid.tolist(), strict=True) if is_valid]
    return {"hits": hits.sums(), "loss": losses.compute(), "summed": summed.compute(), "ids": ids}


def evaluate_digits_as_rank(store: str, root: str, num_workers: str) -> dict[str, Any]:
    """The same on a rank of torch.distributed."""
    join_ranks(store)
    result = evaluate_digits(root, int(num_workers))
    torch.distributed.destroy_process_group()
    return result


def evaluate_digits_alone(root: str, num_workers: str) -> dict[str, Any]:
    """The same on one rank."""
    return evaluate_digits(root, int(num_workers))


def _flatten(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image, np.float32)).flatten() / 16


def compare_ranks(store: str, root: str) -> dict[str, str]:
    """What `check_ranks` says on this rank, of several ways to differ."""
    from own_preprocess import Shade  # Only here: other ways run as scripts, which do not find it.

    rank = join_ranks(store)

    def make(**arguments: Any) -> ParserTfds:
        return ParserTfds(root, **{"name": "photos", "is_training": True, "batch_size": 8, **arguments})

    ways: dict[str, Callable[[], ImageDataset]] = {
        "equal": lambda: ImageDataset(make()),
        "seed": lambda: ImageDataset(make(seed=rank)),
        "batch size": lambda: ImageDataset(make(batch_size=8 + 8 * rank)),
        "split": lambda: ImageDataset(make(split=f"train[:{60 - rank}]")),
        "dataset": lambda: ImageDataset(make(name=["photos", "digits"][rank])),
        "remainder": lambda: ImageDataset(make(remainder=["drop", "wrap"][rank])),
        "a plan that fails on rank 1": lambda: ImageDataset(make(remainder="drop", batch_size=[8, 48][rank])),
        "one world for both": lambda: ImageDataset(make(), world=World(0, 2)),
        "worlds of other sizes": lambda: ImageDataset(make(), world=World(0, 1 + rank)),
        "each by itself": lambda: ImageDataset(make(), world=World()),
        "preprocess": lambda: ImageDataset(make(preprocess=TrainPreprocess([8, 16][rank]))),
        "own preprocess": lambda: ImageDataset(make(preprocess=Shade(8, most=[8, 16][rank]))),
        "jpeg decoder": lambda: ImageDataset(make(read=ReadOptions(jpeg_decoder=["simplejpeg", "pillow"][rank]))),
        "groups of blocks": lambda: ImageDataset(make(read=ReadOptions(block_records=4, block_groups=[2, 4][rank]))),
        "epoch": lambda: _at(ImageDataset(make()), epoch=rank),
        "state": lambda: _at(ImageDataset(make()), epoch=0, start_batch=2 * rank),
        "another environment": lambda: _in_environment(ImageDataset(make()), rank),
    }
    said = {way: _complaint(lambda make=make: make().check_ranks(30.0)) for way, make in ways.items()}  # type: ignore[misc]
    # The last one leaves rank 0 alone: the group is no longer in step afterwards.
    said["rank 1 does not come"] = "" if rank else _complaint(lambda: ImageDataset(make()).check_ranks(0.5))
    return said


def _at(dataset: ImageDataset, epoch: int, start_batch: int = 0) -> ImageDataset:
    if start_batch:
        dataset.load_state_dict(dataset.state_at(epoch, start_batch, 0).to_dict())
    else:
        dataset.set_epoch(epoch)
    return dataset


def _in_environment(dataset: ImageDataset, rank: int) -> ImageDataset:
    if rank:
        os.environ["RANK"] = "0"
    return dataset


def _complaint(function: Callable[[], None]) -> str:
    try:
        function()
    except errors.TfdsTorchError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
