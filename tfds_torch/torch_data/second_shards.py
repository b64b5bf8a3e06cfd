"""Refuses to read a rank's share that Accelerate deals out a second time."""

import sys
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.wrapped_datasets import unwrap

_DATA_LOADER, _STATE = "accelerate.data_loader", "accelerate.state"


def refuse_second_shards(dataset: Any, name: str) -> None:
    """Checks the loader that Accelerate is iterating, where a program has imported Accelerate; else does nothing.

    `Accelerator.prepare` splits an iterable dataset among the processes: rank 0 reads for all (its default), or every
    rank keeps each R-th batch. An ImageDataset already reads its rank's share, so either way most examples would never
    be seen. Accelerate sets the epoch in every process before it reads anything, so that no rank waits for another one.

    Args:
        dataset: whose epoch is being set, which is being iterated, or which is being handed to workers.
        name: of it, for the message.

    Raises:
        ConfigError: the loader that Accelerate is about to iterate deals out the dataset's share a second time.
    """
    if _STATE not in sys.modules or _DATA_LOADER not in sys.modules:
        return
    loader, kinds = sys.modules[_STATE].GradientState().active_dataloader, sys.modules[_DATA_LOADER]
    inner = getattr(loader, "dataset", None)
    if isinstance(loader, kinds.DataLoaderDispatcher):
        num_processes = loader.state.num_processes
    elif isinstance(inner, kinds.IterableDatasetShard):
        num_processes = inner.num_processes
    else:
        return
    if num_processes > 1 and any(layer is dataset for layer in unwrap(inner)):
        raise ConfigError(
            f"Accelerate would deal out this rank's share of {name} once more, among {num_processes} processes, and "
            f"most examples would never be read. Before accelerator.prepare, add: from "
            f"tfds_torch.integrations.accelerate import keep_own_shards; keep_own_shards(accelerator)"
        )
