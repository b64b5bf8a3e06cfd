"""What the ranks of other tests do. Each is a function for `Fleet.call`."""

import os
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch.utils.data import DataLoader

from grids.cell import FORK, Cell, RankLedger, Row, Split
from grids.fleet import Place
from grids.rank import LEDGER, make_dataset, make_loader, make_parser, process_group, rows_of, size_of
from tfds_torch import ImageDataset, World
from tfds_torch.errors import ConfigError

Epochs = list[list[list[Row]]]


# Worlds


def begin_after_the_dataset(place: Place, cell: Cell, split: Split) -> tuple[RankLedger, int, list[str]]:
    """A rank that its environment does not name; torch.distributed is initialised between construction and reading.

    Also returns the length before that, and which of torchrun's variables there are.
    """
    dataset = make_dataset(place, cell, split)
    loader = make_loader(dataset, cell)
    len_before = len(dataset)
    named = [name for name in ("RANK", "WORLD_SIZE") if name in os.environ]
    with process_group(place):
        epochs = [rows_of(loader, split) for _ in cell.epochs]
        refusal = "read mode 'files' is judged elsewhere"
        return RankLedger(os.getpid(), epochs, len(loader), len(dataset), refusal), len_before, named


def read_without_group(place: Place, cell: Cell, split: Split) -> RankLedger:
    """A rank that only its environment names."""
    dataset = make_dataset(place, cell, split)
    loader = make_loader(dataset, cell)
    return RankLedger(os.getpid(), [rows_of(loader, split) for _ in cell.epochs], len(loader), len(dataset))


def read_with_group(place: Place, cell: Cell, split: Split) -> RankLedger:
    """A rank that torch.distributed names, whatever the environment says."""
    with process_group(place):
        return read_without_group(place, cell, split)


def meet_refusals(place: Place, cell: Cell, split: Split, with_group: bool) -> list[str]:
    """Returns what `len(dataset)`, `len(loader)`, an iteration and one of workers say; "" for no error."""

    def message(function: Callable[[], Any]) -> str:
        try:
            function()
        except ConfigError as error:
            return str(error)
        return ""

    def refusals() -> list[str]:
        dataset = make_dataset(place, cell, split)
        loader = make_loader(dataset, cell)
        calls = (lambda: len(dataset), lambda: len(loader), lambda: next(iter(dataset)), lambda: next(iter(loader)))
        return [message(call) for call in calls]

    if not with_group:
        return refusals()
    with process_group(place):
        return refusals()


def read_explicit_world(place: Place, cell: Cell, split: Split) -> tuple[RankLedger, int]:
    """Every rank says that it is another one than torch.distributed and the environment say; returns which."""
    rank = (place.rank + 1) % place.num_replicas
    with process_group(place):
        dataset = ImageDataset(
            make_parser(cell, split, "examples"),
            transform=size_of,
            fields=[*LEDGER, "file_name"],
            world=World(rank, place.num_replicas),
        )
        loader = make_loader(dataset, cell)
        return RankLedger(os.getpid(), [rows_of(loader, split)], len(loader), len(dataset)), rank


# Loaders


def take_turns(place: Place, cell: Cell, split: Split, persistent: bool) -> tuple[Epochs, Epochs]:
    """Returns epochs of two loaders over one dataset that follow each other, and epochs 0, 1, ... set by hand."""
    with process_group():
        shared, fixed = make_dataset(place, cell, split), make_dataset(place, cell, split)
        first, second = make_loader(shared, cell), make_loader(shared, cell)
        quickest = replace(cell, method=FORK, persistent=True) if cell.num_workers else cell
        # Persistent workers count their own iterations: there each loader is used up before the other one begins.
        order = [first, first, second, second] if persistent else [first, second, first, first, second]
        counted = [rows_of(loader, split) for loader in order]
        by_hand = []
        loader = make_loader(fixed, quickest)
        for epoch in range(len(order)):
            fixed.set_epoch(epoch)
            by_hand.append(rows_of(loader, split))
        return counted, by_hand


def set_epochs_of_two(place: Place, cell: Cell, split: Split) -> list[list[list[Row]]]:
    """Two loaders with workers that live on take turns; the epoch is set by hand, as documented."""
    with process_group():
        dataset = make_dataset(place, cell, split)
        loaders = make_loader(dataset, cell), make_loader(dataset, cell)
        epochs = []
        for epoch in (0, 1):
            dataset.set_epoch(epoch)
            epochs += [rows_of(loader, split) for loader in loaders]
        return epochs


def ask_for_files_in_evaluation(place: Place, cell: Cell, split: Split) -> list[str]:
    """Returns type and message of what a loader raises when mode `files` is asked for in evaluation."""
    with process_group():
        dataset = ImageDataset(make_parser(cell, split, "files"), fields=LEDGER)
        try:
            next(iter(DataLoader(dataset, cell.batch_size, num_workers=cell.num_workers)))
        except Exception as error:
            return [type(error).__name__, str(error)]
        return []


# Ranks that fail


def hang(place: Place) -> None:
    """The last rank waits for ever; the others complete."""
    if place.rank == place.num_replicas - 1:
        wait_for_ever()


def wait_for_ever() -> None:
    threading.Event().wait()


def hang_in_a_worker(place: Place) -> None:
    """The loader's worker waits for ever."""
    next(iter(DataLoader([0], num_workers=1, collate_fn=_wait_in_worker)))  # type: ignore[arg-type]


def _wait_in_worker(_: object) -> None:
    wait_for_ever()


def die(place: Place) -> None:
    """Rank 0 ends without a word; the others complete."""
    if place.rank == 0:
        os._exit(7)


def tell_place(place: Place) -> tuple[int, int, dict[str, str]]:
    """Returns the process, the rank, and what of torchrun's variables there are."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return os.getpid(), place.rank, {name: os.environ[name] for name in names if name in os.environ}
