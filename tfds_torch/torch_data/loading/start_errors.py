"""What cannot be handed to the workers of a loader that are spawned or come from a fork server."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.runtime.pickling import unpicklable
from tfds_torch.torch_data.loader_options import LoaderOptions


@contextmanager
def unpicklable_is_named(dataset: Any, options: LoaderOptions, loader: "DataLoader[Any]") -> Iterator[None]:
    """Names the argument that cannot be pickled where the workers of a loader are started.

    What they get is pickled before the first of them is started. It is looked at only where that has failed.

    Args:
        dataset: of the loader.
        options: of the loader.
        loader: torch's.

    Raises:
        ConfigError: an argument cannot be pickled.
    """
    method = (loader.multiprocessing_context or torch.multiprocessing).get_start_method()
    if not loader.num_workers or method == "fork":
        yield
        return
    try:
        with warnings.catch_warnings():
            # torch's warning does not say which argument it is.
            warnings.filterwarnings("ignore", "Got pickle error when attempting to start", UserWarning)
            yield
    except TfdsTorchError:
        raise
    except Exception as error:
        parts = {"collate_fn": options.collate_fn, "worker_init_fn": options.worker_init_fn, "dataset": dataset}
        found = unpicklable(parts, error, repr(method))
        if found is None:
            raise
        raise ConfigError(f"create_loader: {found}") from error
