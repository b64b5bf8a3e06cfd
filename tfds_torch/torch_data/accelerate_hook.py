"""Keeps Hugging Face Accelerate from dealing out a rank's share a second time.

`Accelerator.prepare` splits an iterable dataset among the processes: rank 0 reads for all (its default), or every rank
keeps each R-th batch. An ImageDataset already reads its rank's share, so either way most examples would never be seen,
and Accelerate has no setting that leaves a loader's data alone while it still moves batches to the device, sets the
epoch and tells when gradients are due at the end. What does all that is its own `prepare_data_loader` for one process:
that is what loaders over an ImageDataset get here. Other loaders are not touched, nor is anything before accelerate is
imported by the program itself.
"""

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import Parser
from tfds_torch.plan.world import World
from tfds_torch.torch_data.wrapped_datasets import unwrap

_ACCELERATOR, _DATA_LOADER, _STATE = "accelerate.accelerator", "accelerate.data_loader", "accelerate.state"
_PREPARE = "prepare_data_loader"


class RankedDataset(Protocol):
    """A dataset that reads its rank's part by itself; ImageDataset is one."""

    @property
    def parser(self) -> Parser:
        """Where its examples come from."""

    @property
    def world(self) -> World | None:
        """The rank that it was given; None: it finds out."""

    is_read_ahead: bool
    """Whether what stands between it and the training loop fetches ahead; the hook sets it."""

    def find_rank(self) -> World:
        """Returns the rank that it reads as."""


def keep_own_shards(kind: type[RankedDataset]) -> None:
    """Lets `Accelerator.prepare` take loaders over such datasets as they are, also when accelerate is imported later.

    Args:
        kind: the class of the datasets.
    """
    if _ACCELERATOR in sys.modules:
        _hook(kind)
    elif not any(isinstance(finder, _AccelerateFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AccelerateFinder(kind))


def refuse_second_shards(dataset: RankedDataset) -> None:
    """Stands behind `keep_own_shards`, which a loader can get around: a version of Accelerate that works otherwise.

    Accelerate sets the epoch in every process before it reads anything, so that no rank waits for another one.

    Args:
        dataset: whose epoch is being set.

    Raises:
        ConfigError: the loader that Accelerate is about to iterate deals out the dataset's share a second time.
    """
    if _STATE not in sys.modules or _DATA_LOADER not in sys.modules:
        return
    loader, kinds = sys.modules[_STATE].GradientState().active_dataloader, sys.modules[_DATA_LOADER]
    inner = getattr(loader, "dataset", None)
    if not any(layer is dataset for layer in unwrap(inner)):
        return
    if isinstance(loader, kinds.DataLoaderDispatcher):
        num_processes = loader.state.num_processes
    elif isinstance(inner, kinds.IterableDatasetShard):
        num_processes = inner.num_processes
    else:
        return
    if num_processes > 1:
        raise ConfigError(
            f"Accelerate would deal out this rank's share of {_name(dataset)} once more, among {num_processes} "
            f"processes, and most examples would never be read: its loader was not prepared by accelerator.prepare "
            f"as this package knows it. Move batches to the device yourself and leave the loader unprepared, or use "
            f"the version of accelerate that this package is tested with."
        )


class _AccelerateFinder(MetaPathFinder):
    """Hooks accelerate as soon as it has been imported; finds nothing else, and leaves afterwards."""

    def __init__(self, kind: type[RankedDataset]) -> None:
        self._kind = kind
        self._is_looking = False

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _ACCELERATOR or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_hook(module: ModuleType) -> None:
                execute(module)
                _hook(self._kind)
                sys.meta_path.remove(self)

            setattr(spec.loader, "exec_module", execute_and_hook)  # noqa: B010 (mypy: a method is no variable)
        return spec


def _hook(kind: type[RankedDataset]) -> None:
    """Replaces the function that prepares loaders, once, wherever Accelerate looks it up."""
    for name in (_ACCELERATOR, _DATA_LOADER):
        module = sys.modules[name]
        prepare = getattr(module, _PREPARE, None)
        # A version without it is left alone: `refuse_second_shards` then says what would go wrong.
        if prepare is not None and not isinstance(prepare, _PrepareOwnShards):
            setattr(module, _PREPARE, _PrepareOwnShards(prepare, kind))


class _PrepareOwnShards:
    """Accelerate's `prepare_data_loader`, for one process when the dataset deals out shares itself."""

    def __init__(self, prepare: Callable[..., Any], kind: type[RankedDataset]) -> None:
        functools.update_wrapper(self, prepare)
        self._prepare, self._kind = prepare, kind

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        arguments = inspect.signature(self._prepare).bind(*args, **kwargs).arguments
        loader = arguments.get("dataloader")
        layers = unwrap(getattr(loader, "dataset", None))
        dataset = next((layer for layer in layers if isinstance(layer, self._kind)), None)
        if dataset is None:
            return self._prepare(*args, **kwargs)
        _check_settings(arguments, dataset)
        _check_share(arguments, dataset)
        _check_batch_size(loader, dataset)
        dataset.is_read_ahead = True  # The prepared loader fetches a batch before it hands over the one before.
        # A device mesh would bring its own number of processes.
        arguments = {name: value for name, value in arguments.items() if name != "torch_device_mesh"}
        return self._prepare(**arguments | {"num_processes": 1, "process_index": 0, "dispatch_batches": False})


def _check_settings(arguments: dict[str, Any], dataset: RankedDataset) -> None:
    for name in ("split_batches", "dispatch_batches"):
        if arguments.get(name):
            raise ConfigError(
                f"Accelerate was asked for {name}=True, and a loader over {_name(dataset)} cannot have it: every "
                f"process reads a share of its own already. Leave {name} out of DataLoaderConfiguration, and let "
                f"batch_size be that of one process ({dataset.parser.batch_size})."
            )


def _check_share(arguments: dict[str, Any], dataset: RankedDataset) -> None:
    """Compares the share that Accelerate would give this process with the one that the dataset found out by itself."""
    if dataset.world is not None or arguments.get("num_processes") is None:
        return
    place, num_places = arguments["process_index"], arguments["num_processes"]
    mesh = arguments.get("torch_device_mesh")
    if mesh is not None:  # Processes that hold parts of one model, or of one sequence, need the same batches.
        together = 1
        for name in set(mesh.mesh_dim_names or ()) & {"tp", "cp"}:
            together *= mesh[name].size()
        place, num_places = place // together, num_places // together
    world = dataset.find_rank()
    if (world.rank, world.num_replicas) != (place, num_places):
        raise ConfigError(
            f"By Accelerate's count this process reads share {place} of {num_places}; {_name(dataset)} would read "
            f"share {world.rank} of {world.num_replicas}. If Accelerate is right, build the dataset with "
            f"world=World(rank={place}, num_replicas={num_places}); if not, start the processes with `accelerate "
            f"launch` (on CPUs with --cpu, or Accelerator(cpu=True))."
        )


def _check_batch_size(loader: Any, dataset: RankedDataset) -> None:
    """Other batches than the planned ones: `gather_for_metrics` would cut valid examples off the last one."""
    planned, several = dataset.parser.batch_size, dataset.find_rank().num_replicas > 1
    if loader.batch_size not in (None, planned) and (planned is not None or several):
        raise ConfigError(
            f"The loader makes batches of {loader.batch_size}, and the parser of {_name(dataset)} plans "
            f"batch_size={planned}: the last batch would come short, and accelerator.gather_for_metrics would drop "
            f"examples from it. Use the same batch_size for both."
        )


def _name(dataset: RankedDataset) -> str:
    return f"{dataset.parser.dataset_name} ({dataset.parser.split})"
