"""What ranks do with Hugging Face Accelerate. Each function is one life of every rank; results are plain values."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import accelerate.accelerator
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
from torch_data.reading import LEDGER, rows_of

from tfds_torch import ImageDataset, ParserTfds, World, create_loader
from tfds_torch.integrations.accelerate import keep_own_shards

BATCH_SIZE = 8


class Wrapped(IterableDataset[Any]):
    """A user's dataset around ours, which has no epochs."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.examples = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)


def make_dataset(root: str, is_training: bool, world: World | None = None, **arguments: Any) -> ImageDataset:
    parser = ParserTfds(root, "photos", is_training=is_training, **{"batch_size": BATCH_SIZE, **arguments})
    return ImageDataset(parser, fields=LEDGER, world=world)


def make_plain(root: str, is_training: bool, num_workers: int = 0) -> "DataLoader[Any]":
    return DataLoader(
        make_dataset(root, is_training), BATCH_SIZE, num_workers=num_workers, persistent_workers=num_workers > 0
    )


def make_ours(root: str, is_training: bool, num_workers: int = 0) -> Any:
    return create_loader(make_dataset(root, is_training), num_workers)


def make_accelerator(**arguments: Any) -> Accelerator:
    """An Accelerator that keeps our shards."""
    accelerator = make_plain_accelerator(**arguments)
    keep_own_shards(accelerator)
    return accelerator


def make_plain_accelerator(**arguments: Any) -> Accelerator:
    config = DataLoaderConfiguration(**arguments.pop("config", {}))
    return Accelerator(cpu=True, dataloader_config=config, **arguments)


# A usual program


def train_and_evaluate(root: str, make_loader: Callable[..., Any]) -> dict[str, Any]:
    """Everything goes through `prepare`, as it is."""
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
    train_loader.set_epoch(1)
    result["epoch 1 again"] = rows_of(train_loader)
    return result


def evaluate(accelerator: Accelerator, loader: Iterable[Any]) -> list[list[int]]:
    """Returns (index, label) of the valid examples that `gather_for_metrics` gives, the same on every rank."""
    gathered = []
    for index, label, valid, _ in loader:
        index, label, valid = accelerator.gather_for_metrics((index, label, valid))
        gathered += torch.stack([index, label], 1)[valid].tolist()
    return gathered


def gather_losses(root: str) -> dict[str, list[float]]:
    """The mean of what every batch's mean is repeated and gathered to, and the numbers that are gathered, by loader."""

    def make_batched(_: str, world: World | None = None) -> "DataLoader[Any]":
        parser = ParserTfds(root, "photos", is_training=False, batch_size=BATCH_SIZE)
        fields = ("index", "label", "valid")
        return DataLoader(ImageDataset(parser, fields=fields, batched=True, world=world), None)

    accelerator = make_accelerator()
    num_ranks = accelerator.num_processes
    warnings.filterwarnings("ignore", "range has 61 items, and 2 ranks")
    loaders = {
        "Loader": make_ours(root, False),
        "Loader with a worker": make_ours(root, False, 1),
        "a Loader that reads everything": create_loader(make_dataset(root, False, World())),
        "DataLoader": make_plain(root, False),
        "DataLoader with workers": make_plain(root, False, 2),
        "DataLoader that reads everything": DataLoader(make_dataset(root, False, World()), BATCH_SIZE),
        "DataLoader of batches": make_batched(root),
        "own dataset": create_loader(range(61), batch_size=BATCH_SIZE),
    }
    if num_ranks == 1:
        plain = ParserTfds(root, "photos", is_training=False)  # It plans single examples.
        loaders["DataLoader of other batches"] = DataLoader(ImageDataset(plain, fields=LEDGER), BATCH_SIZE)
        whole = make_dataset(root, False)
        loaders["DataLoader that drops the last"] = DataLoader(whole, BATCH_SIZE, drop_last=True)
    prepared = {name: accelerator.prepare(loader) for name, loader in loaders.items()}
    prepared["skipped"] = accelerator.skip_first_batches(accelerator.prepare(make_batched(root)), 1)
    result = {}
    for name, loader in prepared.items():
        means, numbers = [], []
        for batch in loader:
            index = batch if name == "own dataset" else batch[0]
            valid = torch.ones_like(index, dtype=torch.bool) if name == "own dataset" else batch[2]
            mean = index[valid].double().mean()  # NaN where all is padding.
            means.append(accelerator.gather_for_metrics(mean.repeat(BATCH_SIZE)))
            numbers.append(accelerator.gather_for_metrics(index))
        result[name] = [torch.cat(means).mean().item(), *torch.cat(numbers).tolist()]
    return result


# Settings, and other loaders


def use_settings(root: str) -> dict[str, Any]:
    """Settings that change nothing for our loaders, loaders that are not ours, and what is refused."""
    result: dict[str, Any] = {}
    settings: dict[str, dict[str, Any]] = {
        "even_batches": {"config": {"even_batches": False}},
        "dispatch_batches": {"config": {"dispatch_batches": False}},
        "use_seedable_sampler": {"config": {"use_seedable_sampler": True}},
        "rng_types": {"rng_types": ["torch"]},
    }
    for name, arguments in settings.items():
        accelerator = make_accelerator(**arguments)
        result[name] = evaluate(accelerator, accelerator.prepare(make_plain(root, False)))
    accelerator = make_accelerator()
    everything = DataLoader(make_dataset(root, False, World()), BATCH_SIZE)
    result["an explicit world"] = rows_of(accelerator.prepare(everything))
    result["wrapped"] = rows_of(accelerator.prepare(DataLoader(Wrapped(make_dataset(root, False)), BATCH_SIZE)))
    other = DataLoader(TensorDataset(torch.arange(61)), BATCH_SIZE)
    result["not ours"] = [batch.tolist() for (batch,) in accelerator.prepare(other)]
    once = accelerator.prepare(make_ours(root, False))
    result["prepared twice"] = [accelerator.prepare(once) is once, accelerator.prepare_data_loader(once) is once]
    keep_own_shards(accelerator)
    result["asked twice"] = len(accelerator._save_model_state_pre_hook)
    result["refused"] = {
        f"{name} {make_loader.__name__}": complaint(
            make_accelerator(config={name: True}).prepare, make_loader(root, False)
        )
        for name in ("split_batches", "dispatch_batches")
        for make_loader in (make_plain, make_ours)
    }
    skipped = accelerator.prepare(make_plain(root, True))
    result["skipped"] = rows_of(accelerator.skip_first_batches(skipped, 2))
    skipped.set_epoch(0)
    result["not skipped"] = rows_of(skipped)
    stateful = make_accelerator(config={"use_stateful_dataloader": True})
    result["refused"]["stateful"] = complaint(stateful.prepare, make_plain(root, True))
    ours = accelerator.prepare(make_ours(root, True))
    result["refused"]["skip"] = complaint(accelerator.skip_first_batches, ours, 2)
    return result


def complaint(function: Callable[..., Any], *args: Any) -> str:
    try:
        function(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def forget_the_line(root: str, spawns: bool) -> dict[str, Any]:
    """What is said where nobody called `keep_own_shards`, by the way in which Accelerate deals examples out.

    Args:
        root: of the datasets.
        spawns: whether workers are spawned, too.
    """
    ways: dict[str, dict[str, Any]] = {
        "default": {},
        "sharded": {"dispatch_batches": False},
        "split": {"dispatch_batches": False, "split_batches": True},
    }
    datasets: dict[str, Callable[[], Any]] = {
        "own": lambda: make_dataset(root, True),
        "wrapped": lambda: Wrapped(make_dataset(root, True)),
    }
    workers: dict[str, dict[str, Any]] = {
        "": {},
        ", forked": {"num_workers": 1, "multiprocessing_context": "fork"},
    }
    if spawns:
        workers[", spawned"] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    said = {}
    for way, config in ways.items():
        for kind, make in datasets.items():
            for where, arguments in workers.items():
                if where and way != "sharded":  # By Accelerate's default, rank 0 alone reads what its workers say.
                    continue
                loader = make_plain_accelerator(config=config).prepare(DataLoader(make(), BATCH_SIZE, **arguments))
                said[f"{way}, {kind}{where}"] = complaint(list, loader)
    original = accelerate.accelerator.prepare_data_loader.__module__, Accelerator.prepare.__module__
    accelerator = make_plain_accelerator()
    loader = make_ours(root, True)
    return {
        "said": said,
        "a Loader": [accelerator.prepare(loader) is loader, rows_of(loader)],
        "of accelerate": original,
    }


# Checkpoints


def save(
    root: str, folder: str, num_batches: int, make_loader: Callable[..., Any] = make_ours, num_workers: int = 0
) -> dict[str, Any]:
    """Saves after some batches; what the uninterrupted program reads from there on."""
    accelerator, loaders = make_accelerator(), [make_loader(root, True, num_workers), make_loader(root, False)]
    train_loader, eval_loader = accelerator.prepare(*loaders)
    rows_of(eval_loader)
    number, rest = 0, []
    while number <= num_batches:
        for batch in train_loader:
            number += 1
            if number > num_batches:
                rest.append(batch)
            elif number == num_batches:
                accelerator.save_state(folder)
    return {"rest": rows_of(rest), "next": rows_of(train_loader)}


def load(root: str, folder: str, batch_size: int = BATCH_SIZE, num_workers: int = 0) -> dict[str, Any]:
    """Goes on from there."""
    accelerator = make_accelerator()
    loaders = [
        create_loader(make_dataset(root, is_training, batch_size=batch_size), num_workers)
        for is_training in (True, False)
    ]
    train_loader, eval_loader = accelerator.prepare(*loaders)
    accelerator.load_state(folder)
    return {
        "epoch": train_loader.iteration,
        "rest": rows_of(train_loader),
        "next": rows_of(train_loader),
        "evaluated": evaluate(accelerator, eval_loader),
    }


def load_into_another_dataset(root: str, folder: str) -> str:
    accelerator = make_accelerator()
    digits = ParserTfds(root, "digits", is_training=True, batch_size=BATCH_SIZE)
    accelerator.prepare(create_loader(ImageDataset(digits, fields=("label",))), make_ours(root, False))
    return complaint(accelerator.load_state, folder)


def make_numbers(batch_size: int, num_workers: int) -> Any:
    """A Loader over 64 numbers, a dataset of one's own."""
    return create_loader(range(64), num_workers, batch_size=batch_size, shuffle=True, seed=0)


def save_numbers(folder: str, num_batches: int) -> list[list[int]]:
    """Saves after some batches; what the uninterrupted program reads from there on, to the end of the next epoch."""
    accelerator = make_accelerator()
    loader = accelerator.prepare(make_numbers(BATCH_SIZE, 1))
    read = []
    for _ in range(2):
        for batch in loader:
            read.append(batch.tolist())
            if len(read) == num_batches:
                accelerator.save_state(folder)
    return read[num_batches:]


def load_numbers(folder: str, batch_size: int) -> list[list[int]]:
    """Goes on from there."""
    accelerator = make_accelerator()
    loader = accelerator.prepare(make_numbers(batch_size, 0))
    accelerator.load_state(folder)
    return [batch.tolist() for _ in range(loader.iteration, 2) for batch in loader]


def save_plain(root: str, folder: str) -> dict[str, str]:
    """What is said where the position of a plain DataLoader is not saved."""
    accelerator = make_accelerator()
    loader = accelerator.prepare(make_plain(root, True))
    before = complaint(accelerator.save_state, folder)
    for _ in loader:
        within = complaint(accelerator.save_state, folder)
    return {"before": before, "within": within, "after": complaint(accelerator.save_state, folder)}


def go_on_stateful(root: str, folder: str, make_loader: Callable[..., Any], num_workers: int) -> dict[str, Any]:
    """What comes after a state that is saved and loaded with use_stateful_dataloader, and what should."""
    config = {"use_stateful_dataloader": True}
    warnings.simplefilter("ignore", UserWarning)  # torchdata calls what torch has deprecated.
    accelerator = make_accelerator(config=config)
    loader = accelerator.prepare(make_loader(root, True, num_workers))
    expected = []
    for number, batch in enumerate(loader, 1):
        if number == 2:
            accelerator.save_state(folder)
        if number > 2:
            expected.append(batch)
    following = rows_of(loader)
    accelerator.wait_for_everyone()  # The first rank writes what the others load.
    accelerator = make_accelerator(config=config)
    loader = accelerator.prepare(make_loader(root, True, num_workers))
    accelerator.load_state(folder)
    return {"expected": [rows_of(expected), following], "found": [rows_of(loader), rows_of(loader)]}
