"""check_shares: proves that a function of the World gives no item to two workers, before a MultiLoader reads it."""

import hashlib
import reprlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError
from tfds_torch.loaders.multi_loader import MultiLoader
from tfds_torch.loaders.wire import batch_to_dict
from tfds_torch.loaders.wire_items import ItemWriter
from tfds_torch.loaders.worker_sources import FunctionSource, source_of
from tfds_torch.plan.arguments import check_integer
from tfds_torch.plan.world import World

Id = str | bytes | int
FindIds = Callable[[Any], Iterable[Id]]

_NUM_SHOWN = 3


def check_shares(
    source: Callable[[World], Iterable[Any]],
    num_workers: int = 4,
    *,
    num_replicas: int = 1,
    find_ids: FindIds | None = None,
    most_items: int | None = None,
    timeout_s: float | None = 300.0,
    start_method: str | None = None,
) -> dict[World, int]:
    """Reads the shares of all workers of all ranks, and checks that no two of them have an item in common.

    A MultiLoader cannot see this while it reads: of a function that ignores its World, the loop gets every item once
    from each worker. A real MultiLoader reads each rank, one after the other, so that the function's
    other faults show as well. An item that comes twice from one worker is not an error.

    Args:
        source: a function that takes a World and returns the items of that worker, as a MultiLoader takes it.
        num_workers: of each rank.
        num_replicas: number of ranks.
        find_ids: returns the ids of an item's examples, called in the workers; None: those of a `Batch`, and of any
            other item its content, so that different examples of equal content are taken for one.
        most_items: of each worker that are read; None: all of them. A source without an end needs it.
        timeout_s: as in MultiLoader.
        start_method: as in MultiLoader.

    Returns:
        How many items each worker has, by its place in the world.

    Raises:
        ConfigError: two workers have the same items (the message names them), or an argument that cannot work.
        WorkerError, StallError: as in MultiLoader. What the function raises comes with its own type.
    """
    share = source_of(source, 1, None)
    if not isinstance(share, FunctionSource):
        raise ConfigError(
            f"check_shares: source is {share.name}. It must be a function that takes a World and returns the items of "
            f"that worker. `python -m tfds_torch.check` proves what a Parser gives to workers; an iterable is read "
            f"whole by each of them."
        )
    if find_ids is not None and not callable(find_ids):
        raise ConfigError(f"check_shares: find_ids={find_ids!r} must be a function that takes an item, or None.")
    most = None if most_items is None else check_integer("check_shares: most_items", most_items, 1)
    read = _NamedItems(share, find_ids, most)
    found = _Owners()
    for rank in range(check_integer("check_shares: num_replicas", num_replicas, 1)):
        world = World(rank, num_replicas)
        with MultiLoader(read, num_workers, world=world, timeout_s=timeout_s, start_method=start_method) as loader:
            places = [world.at_worker(worker, loader.num_workers) for worker in range(loader.num_workers)]
            found.counts |= dict.fromkeys(places, 0)
            for worker, names, shown in loader:
                found.add(places[worker], names, shown)
    if found.shared:
        raise ConfigError(f"check_shares: {share.name} {found.describe()}")
    return found.counts


class _Owners:
    """Which worker had which item first, and `shared`: items of a second worker, as shown -> both workers."""

    def __init__(self) -> None:
        self.counts: dict[World, int] = {}
        self.shared: dict[Id, tuple[str, World, World]] = {}
        self._owners: dict[Id, World] = {}

    def add(self, place: World, names: list[Id], shown: list[str]) -> None:
        self.counts[place] += 1
        for name, text in zip(names, shown, strict=True):
            owner = self._owners.setdefault(name, place)
            if owner != place:
                one, other = sorted((owner, place), key=lambda world: world.pipeline)
                self.shared.setdefault(name, (text, one, other))

    def describe(self) -> str:
        """Returns what is said of the shared items, after the name of the source."""
        first = [
            f"{text} (worker {one.worker} of rank {one.rank}, worker {other.worker} of rank {other.rank})"
            for text, one, other in list(self.shared.values())[:_NUM_SHOWN]
        ]
        return (
            f"gives {len(self.shared):,} of its {len(self._owners):,} items to more than one worker, such as "
            f"{', '.join(first)}. A function must return the items of its World alone: for example "
            f"items[world.pipeline :: world.num_pipelines]."
        )


class _NamedItems:
    """Reads a function's items in a worker, and yields only what they are known by."""

    def __init__(self, share: FunctionSource, find_ids: FindIds | None, most_items: int | None) -> None:
        self.__qualname__ = share.name  # In messages it is the user's function.
        self._share, self._find_ids, self._most_items = share, find_ids, most_items

    def __call__(self, world: World) -> Iterator[tuple[int, list[Id], list[str]]]:
        items = self._share.iterate(world)
        return ((world.worker, *self._names(item)) for item in islice(items, self._most_items))

    def _names(self, item: Any) -> tuple[list[Id], list[str]]:
        """Returns what an item is known by, and how that is shown."""
        content = _content_of(
            batch_to_dict(item, False) if isinstance(item, Batch) else item
        )  # Raises for what cannot travel.
        if self._find_ids is not None:
            ids = _plain_ids(self._find_ids(item))
        elif isinstance(item, Batch):
            ids = [name for name, is_valid in zip(item.id, item.valid, strict=True) if is_valid]
        else:
            return [content], [_in_short(item)]
        return ids, [_in_short(one) for one in ids]


def _content_of(item: Any) -> bytes:
    """Returns a digest of all values of an item."""
    writer = ItemWriter()
    digest = hashlib.sha256(repr(writer.write(item)).encode("utf-8", "surrogatepass"))
    for part in writer.parts:
        digest.update(f"{part.dtype.str}{part.shape}".encode())
        for piece in part.pieces:
            digest.update(np.ascontiguousarray(piece).tobytes())
    return digest.digest()


def _plain_ids(found: Any) -> list[Id]:
    """Returns ids as Python's own values."""
    is_one = isinstance(found, str | bytes) or not isinstance(found, Iterable)
    ids = [] if is_one else [one.item() if isinstance(one, np.generic) else one for one in found]
    if is_one or not all(isinstance(one, str | bytes | int) for one in ids):
        raise ConfigError(
            f"check_shares: find_ids returned {_in_short(found)}: it must return a list of the item's ids, each "
            f"a str, bytes or an integer."
        )
    return ids


def _in_short(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())  # An array's own is of several lines.
