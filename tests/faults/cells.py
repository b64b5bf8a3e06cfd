"""The loaders that have workers, and the ways in which these start and live: every promise holds in every cell."""

import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from covering import covering

from faults.harm import Harm, HarmedParser, HarmedTarget
from tfds_torch import ImageDataset, MultiLoader, ParserTfds, TrainPreprocess, World, create_loader

BATCH_SIZE, IMAGE_SIZE = 4, 64
NUM_WORKERS = 2
HARMED_BATCH = 3
"""Of an epoch: worker 1 reads it, after one that it has sent."""
Place = tuple[int, int, tuple[int, ...]]
"""Of a batch: its epoch, its number, and the indices of its examples."""


@dataclass(frozen=True)
class Cell:
    """A way of reading with workers.

    Attributes:
        kind: `Loader` (whole batches), `examples` (a Loader that transforms and collates single examples), or the
            transport of a MultiLoader: `shared`, `zmq`.
        method: how workers start.
        persistent: whether they live from epoch to epoch.
    """

    kind: str
    method: str
    persistent: bool

    @property
    def is_multi(self) -> bool:
        """Whether it is a MultiLoader."""
        return self.kind in ("shared", "zmq")

    @property
    def loader_name(self) -> str:
        """The loader's class, as messages name it."""
        return "MultiLoader" if self.is_multi else "Loader"

    def __str__(self) -> str:
        return f"{self.kind}-{self.method}-{'persistent' if self.persistent else 'once'}"


KINDS, METHODS = ("Loader", "examples", "shared", "zmq"), ("fork", "spawn", "forkserver")
ALL = [Cell(*values) for values in itertools.product(KINDS, METHODS, (True, False))]
QUICK = ("Loader-fork-persistent", "shared-fork-once")
FORKED = tuple(str(cell) for cell in ALL if cell.method == "fork")
ALSO_FORKED = ("Loader-fork-once", "zmq-fork-persistent")
SLOW = ("Loader-spawn-once", "shared-spawn-persistent", "zmq-forkserver-once")


def cells(
    quick: Collection[str] = QUICK,
    slow: Collection[str] = SLOW,
    among: Iterable[Cell] = ALL,
) -> list[Any]:
    """Returns cells as pytest's parameters: the named ones, and of the others those in which all pairs meet.

    Args:
        quick: names of quick ones.
        slow: of slow ones.
        among: which cells.
    """
    only_way = [()]
    return crossed(only_way, dict.fromkeys(quick, only_way), dict.fromkeys(slow, only_way), among)


def crossed(
    ways: Iterable[Any],
    quick: Mapping[str, Collection[Any]],
    slow: Mapping[str, Collection[Any]],
    among: Iterable[Cell] = ALL,
) -> list[Any]:
    """Returns cells in ways, as pytest's parameters: the named ones, and those of the campaign; see `cells`.

    Args:
        ways: each a value, or a tuple of several.
        quick: name of a cell -> its quick ways.
        slow: name of a cell -> its slow ways.
        among: which cells.
    """
    pairs = list(itertools.product(among, map(_values_of, ways)))
    of_campaign = covering(pairs, lambda pair: (pair[0].kind, pair[0].method, pair[0].persistent, *pair[1]))
    found = []
    for cell, values in pairs:
        is_quick, is_slow = (values in map(_values_of, named.get(str(cell), ())) for named in (quick, slow))
        if is_quick or is_slow or (cell, values) in of_campaign:
            marks = () if is_quick else pytest.mark.slow if is_slow else pytest.mark.campaign
            found.append(pytest.param(*values, cell, marks=marks, id="-".join(map(str, (cell, *values)))))
    return found


def _values_of(way: Any) -> tuple[Any, ...]:
    return way if isinstance(way, tuple) else (way,)


def make_parser(root: str, **options: Any) -> ParserTfds:
    """Returns an unharmed parser of whole batches."""
    return HarmedParser(None, root, "numbered", is_training=True, batch_size=BATCH_SIZE, **options)


def planned(root: str, epoch: int) -> list[Place]:
    """Returns the batches of an epoch."""
    plan = make_parser(root).plan(World())
    return [(epoch, n, tuple(plan.batch(epoch, n).index.tolist())) for n in range(plan.num_batches)]


def harm_at(root: str, how: str, folder: str | Path, batch: int = HARMED_BATCH) -> Harm:
    """Returns harm to the process that reads a batch of epoch 0."""
    return Harm(how, planned(root, 0)[batch][2][0], str(folder))


def make_loader(cell: Cell, root: str, harm: Harm | None = None, **options: Any) -> Any:
    """Returns a loader, whose workers are harmed; it waits for a batch for 100 s, if `timeout_s` does not say."""
    options = {"timeout_s": 100.0, "persistent_workers": cell.persistent, **options}
    of_parser: dict[str, Any] = {"is_training": True, "batch_size": BATCH_SIZE}
    if cell.kind == "examples":
        target_transform = None if harm is None else HarmedTarget(harm)
        examples = ImageDataset(
            ParserTfds(root, "numbered", **of_parser),
            target_transform=target_transform,
            fields=("image", "label", "index"),
        )
        return create_loader(
            examples, NUM_WORKERS, multiprocessing_context=cell.method, collate_fn=collate_columns, **options
        )
    parser = HarmedParser(harm, root, "numbered", preprocess=TrainPreprocess(IMAGE_SIZE), **of_parser)
    if cell.is_multi:
        return MultiLoader(parser, NUM_WORKERS, start_method=cell.method, transport=cell.kind, **options)
    dataset = ImageDataset(parser, fields=("image", "label", "index"))
    return create_loader(dataset, NUM_WORKERS, multiprocessing_context=cell.method, **options)


def collate_columns(examples: list[tuple[Any, ...]]) -> list[Any]:
    """Makes a batch of single examples."""
    return [list(column) for column in zip(*examples, strict=True)]


def indices_of(batch: Any) -> tuple[int, ...]:
    """Returns the examples of a batch of any of the loaders; their labels must be the same numbers."""
    _, labels, indices = batch if isinstance(batch, list | tuple) else (None, batch.label, batch.index)
    assert list(map(int, labels)) == list(map(int, indices))
    return tuple(map(int, indices))


def places(loader: Any, batches: Iterable[Any] | None = None) -> Iterator[Place]:
    """Yields the batches of an iteration, new where none is given, with the place that the loader's state names."""
    for batch in loader if batches is None else batches:
        state = loader.state_dict()
        yield state["epoch"], state["batches"] - 1, indices_of(batch)


def wait_for(path: Path) -> None:
    """Waits until a file is there."""
    ends_at = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < ends_at, f"{path.name} was not made"
        time.sleep(0.01)
