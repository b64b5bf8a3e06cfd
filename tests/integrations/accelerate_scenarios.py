"""Ranks that train with Hugging Face Accelerate: `accelerate_scenarios.py FUNCTION ARGUMENTS...` prints JSON."""

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader, TensorDataset

from tfds_torch import ImageDataset, ParserTfds, World, errors

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

from torch_data.reading import LEDGER, rows_of

BATCH_SIZE = 8


def make_dataset(root: str, is_training: bool, world: World | None = None, **arguments: Any) -> ImageDataset:
    parser = ParserTfds(root, "photos", is_training=is_training, **{"batch_size": BATCH_SIZE, **arguments})
    return ImageDataset(parser, fields=LEDGER, world=world)


def make_loader(root: str, is_training: bool, num_workers: int = 0) -> "DataLoader[Any]":
    return DataLoader(
        make_dataset(root, is_training), BATCH_SIZE, num_workers=num_workers, persistent_workers=num_workers > 0
    )


def make_accelerator(**arguments: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DataLoaderConfiguration

    config = arguments.pop("config", {})
    return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**config), **arguments)


def train_and_evaluate(root: str) -> dict[str, Any]:
    """A usual program: everything goes through `prepare`, as it is."""
    accelerator = make_accelerator(gradient_accumulation_steps=3)
    train_loader, eval_loader = make_loader(root, True), make_loader(root, False)
    result: dict[str, Any] = {"len": [len(train_loader), len(eval_loader)]}
    model = torch.nn.Linear(1, 10)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, train_loader, eval_loader)
    result["prepared len"] = [len(train_loader), len(eval_loader)]
    result["epochs"], result["synchronised"], result["metrics"] = [], [], []
    for _ in range(2):
        batches, synchronised = [], []
        for batch in train_loader:
            index, label, _, _ = batch
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(index[:, None].float() / 61), label)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            batches.append(batch)
            synchronised.append(accelerator.sync_gradients)
        result["epochs"].append(rows_of(batches))
        result["synchronised"].append(synchronised)
        result["metrics"].append(evaluate(accelerator, eval_loader))
    result["evaluated"] = [rows_of(eval_loader), rows_of(eval_loader)]
    result["weight"] = accelerator.unwrap_model(model).weight.sum().item()
    result["skipped"] = rows_of(accelerator.skip_first_batches(train_loader, 2))  # Of the epoch to come.
    next(iter(train_loader))
    result["epoch 2"] = rows_of(train_loader)
    train_loader.set_epoch(1)
    result["epoch 1 again"] = rows_of(train_loader)
    accelerator.end_training()
    return result


def evaluate(accelerator: Any, loader: Iterable[Any]) -> list[list[int]]:
    """Returns (index, label) of the valid examples that `gather_for_metrics` gives, the same on every rank."""
    gathered = []
    for index, label, valid, _ in loader:
        index, label, valid = accelerator.gather_for_metrics((index, label, valid))
        gathered += torch.stack([index, label], 1)[valid].tolist()
    return gathered


def evaluate_with_settings(root: str) -> dict[str, Any]:
    """accelerate is imported after the first dataset was built; then settings that change nothing for our loaders."""
    loader = make_loader(root, False)
    assert not any(name.startswith("accelerate") for name in sys.modules)
    accelerator = make_accelerator()
    result: dict[str, Any] = {"late import": evaluate(accelerator, accelerator.prepare(loader))}
    result["finders"] = sum("Accelerate" in type(finder).__name__ for finder in sys.meta_path)
    settings: dict[str, dict[str, Any]] = {
        "even_batches": {"config": {"even_batches": False}},
        "dispatch_batches": {"config": {"dispatch_batches": False}},
        "use_seedable_sampler": {"config": {"use_seedable_sampler": True}},
        "rng_types": {"rng_types": ["torch"]},
    }
    for name, arguments in settings.items():
        accelerator = make_accelerator(**arguments)
        result[name] = evaluate(accelerator, accelerator.prepare(make_loader(root, False)))
    accelerator = make_accelerator()
    everything = DataLoader(make_dataset(root, False, World()), BATCH_SIZE)
    result["an explicit world"] = rows_of(accelerator.prepare(everything))
    other = DataLoader(TensorDataset(torch.arange(61)), BATCH_SIZE)
    result["not ours"] = [batch.tolist() for (batch,) in accelerator.prepare(other)]
    result["refused"] = {
        "split_batches": complaint(make_accelerator(config={"split_batches": True}), loader),
        "dispatch_batches": complaint(make_accelerator(config={"dispatch_batches": True}), loader),
    }
    make_accelerator().end_training()
    return result


def complaint(accelerator: Any, loader: "DataLoader[Any]") -> str:
    try:
        accelerator.prepare(loader)
    except errors.TfdsTorchError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def go_without_hook(root: str) -> dict[str, Any]:
    """What Accelerate does by itself in its two ways, the first of them its default; and what is said of it."""
    import accelerate.accelerator

    result: dict[str, Any] = {}
    for way, dispatch_batches in {"dispatched": None, "sharded": False}.items():
        accelerator = make_accelerator(config={"dispatch_batches": dispatch_batches})
        dataset = make_dataset(root, False)
        dataset.fields = ("index", "valid")  # Only tensors can be dispatched.
        theirs = accelerate.accelerator.prepare_data_loader.__wrapped__
        with mock.patch.object(accelerate.accelerator, "prepare_data_loader", theirs):
            loader = accelerator.prepare(DataLoader(dataset, BATCH_SIZE))
        try:
            next(iter(loader))
        except errors.ConfigError as error:
            result[f"said when {way}"] = str(error)
        with mock.patch("tfds_torch.torch_data.image_dataset.refuse_second_shards"):
            result[way] = [row for index, valid in loader for row in zip(index.tolist(), valid.tolist(), strict=True)]
    accelerator.end_training()
    return result


def spawn_ranks(root: str, folder: str) -> None:
    """Ranks that get their loader from the process that starts them; each writes what it saw to a file."""
    torch.multiprocessing.spawn(_train_spawned, args=(make_loader(root, True), folder), nprocs=2)


def _train_spawned(rank: int, loader: "DataLoader[Any]", folder: str) -> None:
    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    accelerator = make_accelerator()
    prepared = accelerator.prepare(loader)
    epochs = [rows_of(prepared), rows_of(prepared)]
    (Path(folder) / f"{rank}.json").write_text(json.dumps(epochs))
    accelerator.end_training()


def train_with_workers(root: str) -> dict[str, Any]:
    """Epochs of persistent workers, and evaluation."""
    accelerator = make_accelerator()
    train_loader, eval_loader = accelerator.prepare(make_loader(root, True, 2), make_loader(root, False, 1))
    result: dict[str, Any] = {"train": [rows_of(train_loader), rows_of(train_loader)]}
    result["evaluate"] = [rows_of(eval_loader), rows_of(eval_loader)]
    result["tensorflow"] = "tensorflow" in sys.modules
    accelerator.end_training()
    return result


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](*sys.argv[2:])))
