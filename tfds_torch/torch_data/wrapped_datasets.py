"""Finds datasets within another one: timm, torch's ChainDataset, Accelerate or the user may wrap an ImageDataset."""

import sys
from collections.abc import Iterator
from typing import Any, TypeVar

from torch.utils.data import Dataset

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.protocol import Parser

_DATA_LOADER, _STATE = "accelerate.data_loader", "accelerate.state"
"""Modules of Accelerate."""

_Found = TypeVar("_Found")


def unwrap(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and, from the outside in, the layers that it reads from: its `reader`, and datasets in it."""
    found: list[Any] = [dataset]
    seen: list[Any] = []
    while found:
        layer = found.pop(0)
        if layer is None or any(layer is other for other in seen):
            continue
        seen.append(layer)
        yield layer
        for name, value in list(getattr(layer, "__dict__", {}).items()):
            values = value if isinstance(value, list | tuple) else [value]
            found += [inner for inner in values if isinstance(inner, Dataset) or name == "reader"]


def find_layer(dataset: Any, kind: type[_Found]) -> _Found | None:
    """Return the outermost layer that is of a kind; None: there is none."""
    return next((layer for layer in unwrap(dataset) if isinstance(layer, kind)), None)


def refuse_second_shards(dataset: Any, parser: Parser) -> None:
    """Check the loader that Accelerate is iterating, where a program has imported Accelerate; else do nothing.

    `Accelerator.prepare` splits an iterable dataset among the processes: rank 0 reads for all (its default), or every
    rank keeps each R-th batch. An ImageDataset already reads its rank's share, so either way most examples would never
    be seen. Accelerate sets the epoch in every process before it reads anything, so that no rank waits for another one.

    Args:
        dataset: the dataset that reads, anywhere within the loader's.
        parser: its parser, for the message.

    Raises:
        ConfigError: Accelerate splits the dataset among several processes.
    """
    if _STATE not in sys.modules or _DATA_LOADER not in sys.modules:
        return
    data_loader = sys.modules[_DATA_LOADER]
    loader = sys.modules[_STATE].GradientState().active_dataloader
    inner = getattr(loader, "dataset", None)
    if isinstance(loader, data_loader.DataLoaderDispatcher):
        num_processes = loader.state.num_processes
    elif isinstance(inner, data_loader.IterableDatasetShard):
        num_processes = inner.num_processes
    else:
        return
    if num_processes > 1 and any(layer is dataset for layer in unwrap(inner)):
        raise ConfigError(
            f"Accelerate would deal out this rank's share of {parser.dataset_name} ({parser.split}) once more, among "
            f"{num_processes} processes, and most examples would never be read. Before accelerator.prepare, add: from "
            f"tfds_torch.integrations.accelerate import keep_own_shards; keep_own_shards(accelerator)"
        )
