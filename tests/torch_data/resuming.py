"""Loaders over ImageDataset as conformance.py drives them. Runs in ranks of a fleet (see conftest.py)."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from chosen import choose, class_of
from conformance import OwnStateLoader, ResumableLoader, Step, check_resumes
from grids.fleet import Place
from mixed_numbers import mix_numbered
from numbered_fixtures import NUM_EXAMPLES
from tfds_fixtures import with_read
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tfds_torch import ImageDataset, Loader, ParserMapStyle, ParserTfds, World, create_loader
from tfds_torch.engines.batch import Batch
from tfds_torch.parsers.protocol import Parser
from tfds_torch.plan.state import LoaderState

NUM_ROWS = 24


@dataclass(frozen=True)
class Setup:
    """A loader of one or several ranks.

    Attributes:
        arguments: of ParserTfds, without `batch_size`.
        global_batch: G.
        num_replicas: R; the ranks of a conformance run live in one process, each with an explicit world.
        num_workers: W of each, 0 where the rank reads by itself.
        persistent: whether workers live from epoch to epoch.
        method: how workers start.
        loader_arguments: further ones of the loader.
    """

    arguments: dict[str, Any]
    global_batch: int
    num_replicas: int = 1
    num_workers: int = 0
    persistent: bool = False
    method: str = "fork"
    loader_arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def batch_size(self) -> int:
        return self.global_batch // self.num_replicas

    @property
    def number_field(self) -> str:
        """The field of a record that holds the number of its example; -100 where it is padding."""
        return "label"

    @property
    def content_fields(self) -> tuple[str, ...]:
        """Fields that prove which examples were read."""
        return (self.number_field,)

    def check_batch(self, batch: Batch) -> None:
        """Compares the content fields of a MultiLoader's batch with the numbers of its examples."""
        numbers = batch.label if self.number_field == "label" else batch.features[self.number_field]
        assert numbers is not None
        assert numbers[batch.valid].tolist() == batch.index[batch.valid].tolist()

    @property
    def loader_batch_size(self) -> int | None:
        """What a loader of torch is given."""
        return self.batch_size

    @property
    def collate(self) -> Callable[[Any], Any]:
        return columns_of

    def make_parser(self) -> Parser:
        return ParserTfds(**self.arguments, batch_size=self.batch_size)

    @property
    def reads(self) -> bool:
        """Whether tensorflow runs in the ranks."""
        return self.num_workers == 0 and self.arguments["read"].mode != "index"

    @property
    def of_workers(self) -> dict[str, Any]:
        return {
            "num_workers": self.num_workers,
            "persistent_workers": self.persistent,
            "multiprocessing_context": self.method if self.num_workers else None,
            **self.loader_arguments,
        }

    def dataset(self, rank: int | None = 0) -> ImageDataset:
        """Returns the dataset of a rank; None: of the one that the environment names."""
        parser, fields = self.make_parser(), ("index", "valid", *self.content_fields)
        return ImageDataset(parser, fields=fields, world=None if rank is None else World(rank, self.num_replicas))

    def loader(self, dataset: ImageDataset) -> "DataLoader[Any]":
        return DataLoader(dataset, self.loader_batch_size, collate_fn=self.collate, **self.of_workers)


class MixtureSetup(Setup):
    """A loader over a mixture of three parts of the dataset, whose weights change within an epoch."""

    def make_parser(self) -> Parser:
        return mix_numbered(**self.arguments, batch_size=self.batch_size)


class ChosenSetup(Setup):
    """A loader over some of the examples: `chosen` says which."""

    def make_parser(self) -> Parser:
        arguments = dict(self.arguments)
        how = arguments.pop("chosen", "all")
        return cast(Parser, choose(ParserTfds(**arguments, batch_size=self.batch_size), how))


class Rows:
    """A dataset of one's own, without a base class: numbered examples, whose images are of one size."""

    def __init__(self, num_examples: int) -> None:
        self.num_examples = num_examples

    def __len__(self) -> int:
        return self.num_examples

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"image": np.full((9, 7, 3), number, np.uint8), "label": number}


class MapStyleSetup(Setup):
    """A loader over a dataset of one's own, with as many examples as `numbered`: its plans are the same."""

    def make_parser(self) -> Parser:
        arguments = {name: value for name, value in self.arguments.items() if name not in ("root", "name")}
        return ParserMapStyle(Rows(NUM_EXAMPLES), **arguments, batch_size=self.batch_size)


class ClassRows(Rows):
    """The same examples without images, each with its class."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"number": number, "label": class_of(number)}


class ClassesSetup(Setup):
    """A loader over some examples of a dataset of one's own, whose labels are classes: `chosen` says which."""

    @property
    def number_field(self) -> str:
        return "number"

    def make_parser(self) -> Parser:
        arguments = {name: value for name, value in self.arguments.items() if name not in ("root", "name")}
        how = arguments.pop("chosen", "all")
        parser = ParserMapStyle(ClassRows(NUM_EXAMPLES), **arguments, batch_size=self.batch_size)
        return cast(Parser, choose(parser, how))


def make_setup(root: str, mode: str = "index", kind: type[Setup] = Setup, **arguments: Any) -> Setup:
    """Returns a training over `numbered`, in 2 batches of 24 unless the arguments say else."""
    names = ("global_batch", "num_replicas", "num_workers", "persistent", "method", "loader_arguments")
    of_setup = {"global_batch": 24} | {name: arguments.pop(name) for name in names if name in arguments}
    return kind(
        {"root": root, "name": "numbered", "is_training": True, "read": with_read(mode), **arguments}, **of_setup
    )


def columns_of(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Collates examples to a tuple of indices and one of `valid`, once their records have proved to be the right ones.

    Without batching it gets one example.
    """
    index, valid, number = zip(*rows, strict=True) if isinstance(rows, list) else ((value,) for value in rows)
    assert number == tuple(at if is_valid else -100 for at, is_valid in zip(index, valid, strict=True))
    return [index, valid]


class PlainLoader:
    """DataLoader over ImageDataset, counted by the training process: one rank."""

    def __init__(self, setup: Setup, rank: int = 0) -> None:
        self.dataset = setup.dataset(rank)
        self.loader = setup.loader(self.dataset)

    def __iter__(self) -> Iterator[Step]:
        for number, (index, valid) in enumerate(self.loader, 1):
            state = self.state(number)
            yield Step(state["epoch"], state["batches"] - 1, index, valid)

    def state(self, num_steps: int) -> Any:
        return self.dataset.state_dict(batches_delivered=num_steps)

    def load(self, state: Any) -> None:
        self.dataset.load_state_dict(state)

    def close(self) -> None:
        del self.loader  # torch ends the workers.


class UncountedLoader(PlainLoader):
    """The same without workers, where the dataset itself knows how much was delivered."""

    def state(self, num_steps: int) -> Any:
        return self.dataset.state_dict()


class Ranks:
    """Several ranks side by side: a step is a global batch. All of them must say the same state."""

    def __init__(self, setup: Setup, make: Callable[[Setup, int], ResumableLoader]) -> None:
        self.ranks = [make(setup, rank) for rank in range(setup.num_replicas)]

    def __iter__(self) -> Iterator[Step]:
        for steps in zip(*self.ranks, strict=True):
            ((epoch, batch),) = {(step.epoch, step.batch) for step in steps}
            index, valid = (sum((getattr(step, name) for step in steps), ()) for name in ("index", "valid"))
            yield Step(epoch, batch, index, valid)

    def state(self, num_steps: int) -> Any:
        first, *others = (rank.state(num_steps) for rank in self.ranks)
        assert all(other == first for other in others), "the ranks have different states"
        return first

    def load(self, state: Any) -> None:
        for rank in self.ranks:
            rank.load(state)

    def close(self) -> None:
        for rank in self.ranks:
            rank.close()


class StatefulLoader(OwnStateLoader):
    """torchdata's StatefulDataLoader over ImageDataset, which counts by itself: one rank."""

    def __init__(self, setup: Setup, rank: int = 0) -> None:
        self.loader: Any = StatefulDataLoader(
            setup.dataset(rank), setup.loader_batch_size, collate_fn=setup.collate, **setup.of_workers
        )

    def __iter__(self) -> Iterator[Step]:
        for index, valid in self.loader:
            state = LoaderState.from_stateful(self.loader.state_dict())
            yield Step(state.epoch, state.batches - 1, index, valid)

    def close(self) -> None:
        del self.loader


class FreedLoader(StatefulLoader):
    """The same, but with states that are made free of its workers, and go to the dataset."""

    def state(self, num_steps: int) -> Any:
        return LoaderState.from_stateful(super().state(num_steps)).to_dict()

    def load(self, state: Any) -> None:
        self.loader.dataset.load_state_dict(state)


class SampleLoader(StatefulLoader):
    """StatefulDataLoader without batching: a step is one example, of one worker after the other."""

    def __init__(self, setup: Setup) -> None:
        self.loader = StatefulDataLoader(setup.dataset(), batch_size=None, collate_fn=columns_of, **setup.of_workers)

    def __iter__(self) -> Iterator[Step]:
        for index, valid in self.loader:
            yield Step(-1, -1, index, valid)


class Ahead:
    """Stands for a device prefetcher on CUDA: takes two batches more than it has yielded."""

    def iterate(self, batches: Iterator[Any]) -> Iterator[Any]:
        taken: deque[Any] = deque()
        for batch in batches:
            taken.append(batch)
            if len(taken) > 2:
                yield taken.popleft()
        yield from taken


class CountedLoader(OwnStateLoader):
    """A Loader, which counts by itself: one rank."""

    def __init__(self, setup: Setup, rank: int = 0) -> None:
        self.loader: Any = make_loader(setup, rank)

    def __iter__(self) -> Iterator[Step]:
        return steps_of(self.loader)


class RowsSetup(Setup):
    """What `RowsLoader` plans: 24 items, which all numbers of ranks divide."""

    def make_parser(self) -> Parser:
        return ParserMapStyle(Rows(NUM_ROWS), shuffle=True, batch_size=self.batch_size, seed=3)


class RowsLoader(CountedLoader):
    """`create_loader(rows, batch_size=...)`, whose batches torch's collation makes: one rank."""

    def __init__(self, setup: Setup, rank: int = 0) -> None:
        rows = Rows(NUM_ROWS if isinstance(setup, RowsSetup) else 2 * setup.global_batch)
        self.loader = create_loader(rows, batch_size=setup.batch_size, shuffle=True, seed=3, **setup.of_workers)
        assert self.loader._planned is not None
        self.loader._planned._rank.world = World(rank, setup.num_replicas)

    def __iter__(self) -> Iterator[Step]:
        for batch in self.loader:
            labels = tuple(batch["label"].tolist())
            assert batch["image"][:, 0, 0, 0].tolist() == list(labels)
            state = self.loader.state_dict()
            yield Step(state["epoch"], state["batches"] - 1, labels, (True,) * len(labels))


def make_loader(setup: Setup, rank: int = 0) -> Loader:
    """Returns a Loader of one rank, whose prefetcher is ahead where there is a device."""
    loader = create_loader(setup.dataset(rank), collate_fn=setup.collate, **setup.of_workers)
    if "device" in setup.loader_arguments:
        loader._device_stage = Ahead  # type: ignore[assignment, method-assign]
    return loader


def steps_of(loader: Loader) -> Iterator[Step]:
    """Yields the batches of an iteration, numbered as the loader's own state numbers them."""
    for index, valid in loader:
        state = loader.state_dict()
        yield Step(state["epoch"], state["batches"] - 1, tuple(index), tuple(valid))


KINDS: dict[str, Callable[[Setup], ResumableLoader]] = {
    "plain": partial(Ranks, make=PlainLoader),
    "uncounted": partial(Ranks, make=UncountedLoader),
    "loader": partial(Ranks, make=CountedLoader),
    "rows": partial(Ranks, make=RowsLoader),
    "stateful": StatefulLoader,
    "freed": FreedLoader,
    "samples": SampleLoader,
}


def run_conformance(_: Place, kind: str, setup: Setup, changes: dict[str, Any], num_epochs: int) -> int:
    """Returns how many tails were compared; `changes` make the setup of the loaders that resume."""
    # Parsers of a store share its fetcher, which ends with the last of them: some live as long as this runs.
    _kept = [one.make_parser() for one in (setup, replace(setup, **changes))]
    return check_resumes(
        partial(KINDS[kind], setup),
        partial(KINDS[kind], replace(setup, **changes)),
        num_epochs=num_epochs,
        # After its loop has ended, a StatefulDataLoader goes on with the next epoch at once.
        ended_epochs_come_empty=kind not in ("stateful", "samples"),
    )
