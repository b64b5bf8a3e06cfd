"""MultiLoader, WebDataset's loader of that name, and torch's Loader: the same arrays, and the same photographs.

Configured: WebDataset's gets only the number of workers. It may lose the end of an epoch, whose items are still under
way when a worker exits, and then waits for ever; so an endless row of items is read, and broken off.
"""

import contextlib
import io
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch import MultiLoader, ParserTfds, TrainPreprocess

SHARED, ZMQ, WEBDATASET, LOADER = "MultiLoader", "MultiLoader, zmq", "WebDataset's MultiLoader", "Loader"
ITEM_SHAPE = (128, 32, 32, 3)
"""Of the uint8 images of an item, which has int64 labels, too."""

_NUM_ITEMS, _NUM_FIRST = 8, 200

Sample = tuple[str, dict[str, float]]
"""A loader, and its items or examples per second in one turn."""


class EndlessItems:
    """The same few items again and again."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self._items = [
            {"image": rng.integers(0, 256, ITEM_SHAPE, np.uint8), "label": rng.integers(0, 10, ITEM_SHAPE[0])}
            for _ in range(_NUM_ITEMS)
        ]

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self._items


def run_item_turns(num_items: int, num_workers: int, num_turns: int) -> Iterator[Sample]:
    """Yields turns of the loaders, which read the same arrays; the first items of a turn are not counted."""
    warnings.simplefilter("ignore")  # Each worker reads all items: that is meant.
    items = EndlessItems()
    loaders = {SHARED: MultiLoader(items, num_workers)}
    try:
        from webdataset.multi import MultiLoader as TheirLoader
    except ImportError:  # It, or pyzmq, is not there.
        pass
    else:
        loaders |= {ZMQ: MultiLoader(items, num_workers, transport="zmq"), WEBDATASET: TheirLoader(items, num_workers)}
    for _ in range(num_turns):
        for name, loader in loaders.items():
            with contextlib.redirect_stdout(io.StringIO()):  # WebDataset's prints the workers that it ends.
                yield name, {"per_s": _items_per_s(loader, num_items)}
                loader.kill()


def _items_per_s(loader: Any, num_items: int) -> float:
    items = iter(loader)
    for _ in range(_NUM_FIRST):
        next(items)
    began = time.perf_counter()
    for _ in range(num_items):
        next(items)["image"][0, 0, 0, 0]
    return num_items / (time.perf_counter() - began)


def run_photo_turns(data_dir: str, batch_size: int, num_workers: int, num_turns: int) -> Iterator[Sample]:
    """Yields whole epochs of the photographs, cropped and resized to 224x224; a first one of each is not counted."""
    from tfds_torch import ImageDataset, create_loader

    parser = _make_parser(data_dir, batch_size)
    loaders: dict[str, Any] = {
        SHARED: MultiLoader(parser, num_workers, persistent_workers=True),
        LOADER: create_loader(ImageDataset(parser), num_workers),
    }
    if _has_zmq():
        loaders[ZMQ] = MultiLoader(parser, num_workers, persistent_workers=True, transport="zmq")
    for turn in range(num_turns + 1):
        for name, loader in loaders.items():
            began = time.perf_counter()
            num_batches = sum(1 for _ in loader)
            if turn:
                yield name, {"per_s": num_batches * batch_size / (time.perf_counter() - began)}
    for loader in loaders.values():
        loader.close()


def worker_bytes(data_dir: str, batch_size: int, num_workers: int) -> list[int | None]:
    """Returns the resident memory of each worker of a MultiLoader over photographs, without the shared batches."""
    loader = MultiLoader(_make_parser(data_dir, batch_size), num_workers, persistent_workers=True, start_method="spawn")
    with loader:
        for _ in range(3):
            for _ in loader:
                pass
        return [_own_bytes(pid) for pid in loader.worker_pids]


def _own_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    kilobytes = {key: int(rest.split()[0]) for key, _, rest in (line.partition(":") for line in lines) if "Rss" in key}
    return 1024 * (kilobytes["RssAnon"] + kilobytes["RssFile"])


def _make_parser(data_dir: str, batch_size: int) -> ParserTfds:
    return ParserTfds(data_dir, "photos", is_training=True, batch_size=batch_size, preprocess=TrainPreprocess(size=224))


def _has_zmq() -> bool:
    try:
        import zmq  # noqa: F401
    except ImportError:
        return False
    return True
