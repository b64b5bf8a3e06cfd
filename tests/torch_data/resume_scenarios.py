"""What ranks do in the tests of states: each is a function for `Fleet.call`, in a process where it may read."""

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any
from unittest import mock

import torch
from conformance import Step
from grids.fleet import Place

from tfds_torch import ImageDataset, World
from tfds_torch.errors import TfdsTorchError
from tfds_torch.plan.state import LoaderState
from torch_data.resuming import KINDS, PlainLoader, SampleLoader, Setup, StatefulLoader

# Real ranks


Rows = list[tuple[tuple[int, ...], tuple[bool, ...]]]
"""For every batch the indices, and which of them are valid."""


@dataclass(frozen=True)
class Leg:
    """What the ranks of a training read, from its beginning or from a state on, before they stop.

    Attributes:
        setup: of every rank, which the environment names.
        epoch: set by hand; None: it counts by itself.
        num_batches: after which they stop; None: they read all.
    """

    setup: Setup
    epoch: int | None = None
    num_batches: int | None = None


def read_leg(_: Place, leg: Leg, state: Any) -> tuple[Rows, Any]:
    """Returns the batches of this rank, and the state when it stopped."""
    dataset = leg.setup.dataset(None)
    if leg.epoch is not None:
        dataset.set_epoch(leg.epoch)
    if state is not None:
        dataset.load_state_dict(state)
    rows: Rows = []
    if leg.num_batches != 0:
        rows = [tuple(batch) for batch in islice(leg.setup.loader(dataset), leg.num_batches)]
    return rows, dataset.state_dict(batches_delivered=len(rows))


def read_epochs_as_rank(_: Place, setup: Setup, num_epochs: int) -> list[Rows]:
    """Returns epochs of this rank, which the environment names."""
    loader = setup.loader(setup.dataset(None))
    return [[tuple(batch) for batch in loader] for _ in range(num_epochs)]


def global_rows(ranks: Sequence[Rows]) -> Rows:
    """Returns the global batches of all ranks' batches."""
    return [
        (sum((index for index, _ in batches), ()), sum((valid for _, valid in batches), ()))
        for batches in zip(*ranks, strict=True)
    ]


# States that are refused, and iterations after them


def read_after(_: Place, setup: Setup, good: Any, bad: Sequence[Any]) -> tuple[list[str], list[Step]]:
    """Returns what loading each bad state said, and the next iteration; `good` is loaded before them unless None."""
    loader = PlainLoader(setup)
    if good is not None:
        loader.load(good)
    messages = [message_of(lambda state=state: loader.load(state)) for state in bad]  # type: ignore[misc]
    return messages, list(loader)


def try_to_read_after(_: Place, setup: Setup, state: Any) -> str:
    """Returns what loading a state, or the iteration after it, says."""
    loader = PlainLoader(setup)
    return message_of(lambda: loader.load(state)) or message_of(lambda: list(loader.loader))


def message_of(function: Callable[[], Any]) -> str:
    """Returns type and message of our own error that a call raises; "" for none."""
    try:
        function()
    except TfdsTorchError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def misuse_counts(_: Place, setup: Setup) -> dict[str, str]:
    """Returns what `state_dict` says to counts that cannot be, with workers."""
    loader = PlainLoader(setup)
    dataset, said = loader.dataset, {}
    num_batches = dataset.plan().num_batches
    said["none before the first"] = message_of(dataset.state_dict)
    said["one before the first"] = message_of(lambda: dataset.state_dict(batches_delivered=1))
    iterator = iter(loader.loader)
    next(iterator)
    said["none"] = message_of(dataset.state_dict)
    said["one"] = message_of(lambda: dataset.state_dict(batches_delivered=1))
    said["more than there are"] = message_of(lambda: dataset.state_dict(batches_delivered=num_batches + 1))
    said["more than were read"] = message_of(lambda: dataset.state_dict(batches_delivered=num_batches))
    rest = list(iterator)
    said["0 after all"] = message_of(lambda: dataset.state_dict(batches_delivered=0))
    said["all"] = message_of(lambda: dataset.state_dict(batches_delivered=1 + len(rest)))
    state = dataset.state_dict(batches_delivered=num_batches - 2)
    resumed = PlainLoader(setup)
    resumed.load(state)
    said["two, before the resumed epoch goes on"] = message_of(lambda: resumed.state(2))
    num_read = len(list(resumed.loader))
    said["two of the resumed epoch"] = message_of(lambda: resumed.state(num_read))
    said["counted from the epoch's beginning"] = message_of(lambda: resumed.state(num_batches))
    resumed.close()
    return said


def resume_running_workers(_: Place, setup: Setup) -> list[list[Step]]:
    """Returns epochs 0 and 1 of a loader, and what comes after its dataset was sent back to batch 2 of epoch 0.

    Then epoch 3, fixed by hand, and epoch 0 in the same way, though a state of it had been loaded.
    """
    loader = PlainLoader(setup)
    epochs, state = [[]], None
    for step in loader:
        epochs[0].append(step)
        if len(epochs[0]) == 2:
            state = loader.state(2)
    epochs.append(list(loader))
    loader.load(state)
    epochs += [list(loader), list(loader)]
    loader.dataset.set_epoch(3)
    epochs.append(list(loader))
    return epochs


def fix_epochs_after_load(_: Place, setup: Setup) -> list[list[Step]]:
    """Returns what comes of epochs 1, 2 and 0, set by hand after a state of batch 2 of epoch 1 was loaded."""
    first = PlainLoader(setup)
    epochs = []
    for epoch in (1, 2, 0):
        loader = PlainLoader(setup)
        loader.load(state_at(first.dataset, 1, 2))
        loader.dataset.set_epoch(epoch)
        epochs.append(list(loader))
    return epochs


def resume_under_one_seed(
    _: Place, kind: str, setup: Setup, seeds_every_epoch: bool, is_new: bool
) -> tuple[list[list[Step]], list[list[Step]]]:
    """Returns four epochs; and those of a script that seeds torch, stops after two batches of epoch 1, and goes on.

    Args:
        kind: of the loader.
        setup: of it.
        seeds_every_epoch: whether torch is seeded before every epoch, too, rather than at the script's start only.
        is_new: whether what goes on is a new loader, as in a new process.
    """
    make = partial(KINDS[kind], setup)
    untouched = make()
    expected = [list(untouched) for _ in range(4)]
    torch.manual_seed(5)
    loader = make()
    came = [list(loader)]
    if seeds_every_epoch:
        torch.manual_seed(5)
    part = list(islice(loader, 2))
    state = loader.state(2)
    torch.manual_seed(5)
    if is_new:
        loader = make()
    loader.load(state)
    came.append(part + list(loader))
    for _epoch in range(2):
        if seeds_every_epoch:
            torch.manual_seed(5)
        came.append(list(loader))
    return expected, came


def state_at(dataset: ImageDataset, epoch: int, batches_delivered: int) -> dict[str, Any]:
    """Returns the state of a point that was not read up to."""
    copied = copy.deepcopy(dataset)
    copied.set_epoch(epoch)
    return LoaderState.from_dict(copied.state_dict()).at(batches_delivered).to_dict()


def read_copies(_: Place, setup: Setup) -> list[list[Step]]:
    """Returns the next iteration of a dataset with a loaded state, and of its deep and its pickled copy."""
    loader = PlainLoader(setup)
    loader.load(state_at(loader.dataset, 1, 2))
    came = []
    for dataset in (copy.deepcopy(loader.dataset), pickle.loads(pickle.dumps(loader.dataset)), loader.dataset):
        loader.dataset, loader.loader = dataset, setup.loader(dataset)
        came.append(list(loader))
    return came


# What is read from the files


@dataclass(frozen=True)
class Reads:
    """What came, and what was read for it.

    Attributes:
        came: examples that were handed over, in order.
        read: examples that were read from the files, in order.
    """

    came: list[int]
    read: list[int]


def count_reads(_: Place, setup: Setup, state: Any, num_batches: int | None, worker: int = 0) -> Reads:
    """Returns what an iteration reads that begins at a state and is left after some batches; None: at its end.

    With workers it is what one of them reads: the files are read in its process.
    """
    read: list[int] = []
    dataset = setup.dataset()
    dataset.load_state_dict(state)
    kind = type(dataset.parser.source)
    original = kind.read

    def note(source: Any, index: Any, fields: Sequence[str]) -> Any:
        read.extend(index.tolist())
        return original(source, index, fields)

    with mock.patch.object(kind, "read", note):
        if setup.num_workers:
            start = LoaderState.from_dict(state)
            world = World(0, setup.num_replicas, worker, setup.num_workers)
            parts = dataset.parser.batches(world, start.epoch, start.batches, fields=("label",))
            came = [int(index) for batch in islice(parts, num_batches) for index in batch.index]
            del parts
        else:
            came = [int(i) for index, _ in islice(setup.loader(dataset), num_batches) for i in index]
    return Reads(came, read)


# What StatefulDataLoader's states are good for


def stop_stateful(setup: Setup, num_steps: int, kind: type[StatefulLoader] = StatefulLoader) -> Any:
    """Returns the state of a StatefulDataLoader after some steps."""
    loader = kind(setup)
    list(islice(loader, num_steps))
    return loader.state(num_steps)


def set_epoch_after_state(_: Place, setup: Setup, num_steps: int, epoch: int) -> tuple[list[Any], list[Any], str]:
    """Returns an epoch of a new loader that is set by hand, without and with a state of epoch 0; or the error."""
    state = stop_stateful(setup, num_steps)
    fresh, resumed = StatefulLoader(setup).loader, StatefulLoader(setup).loader
    resumed.load_state_dict(state)
    for loader in (fresh, resumed):
        loader.dataset.set_epoch(epoch)
    came: list[Any] = []
    message = message_of(lambda: came.extend(resumed))
    return list(fresh), came, message


def load_in_other_workers(_: Place, setup: Setup, num_workers: int) -> str:
    """Returns what another number of workers says to a state."""
    other = StatefulLoader(replace(setup, num_workers=num_workers))
    other.load(stop_stateful(setup, 1))
    try:
        list(other)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def free_a_state_within_a_batch(_: Place, setup: Setup, num_steps: int) -> str:
    """Returns what `from_stateful` says to a state after some examples."""
    state = stop_stateful(setup, num_steps, SampleLoader)
    return message_of(lambda: LoaderState.from_stateful(state))


def go_on_with_plain_workers(_: Place, setup: Setup, num_workers: int) -> tuple[list[Step], list[Step]]:
    """Returns an epoch of a StatefulDataLoader, and what a DataLoader yields after a state of its second step."""
    whole = list(StatefulLoader(setup))
    plain = PlainLoader(replace(setup, num_workers=num_workers))
    plain.load(LoaderState.from_stateful(stop_stateful(setup, 2)).to_dict())
    return whole, list(plain)
