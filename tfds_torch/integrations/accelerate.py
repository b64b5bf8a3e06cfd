"""Hugging Face Accelerate: an `Accelerator` that takes our loaders as they are, and saves and restores their position.

    accelerator = Accelerator()
    keep_own_shards(accelerator)
    model, optimizer, train_loader = accelerator.prepare(model, optimizer, train_loader)

`Accelerator.prepare` splits an iterable dataset among the processes. Our loaders already read their rank's share, so
most examples would never be seen, and Accelerate has no setting that leaves a loader's data alone while it still moves
batches to the device, sets the epoch and tells when gradients are due at the end. Its own `prepare_data_loader` for one
process does all that, and our loaders get it here.
"""

import functools
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderStateMixin, prepare_data_loader
from accelerate.state import GradientState, PartialState
from accelerate.utils import DistributedType, send_to_device

from tfds_torch.errors import ConfigError
from tfds_torch.integrations.wrapped_loader import WrappedLoader, step_back
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.plan.state import LoaderState
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import Loader
from tfds_torch.torch_data.wrapped_datasets import find_layer

_MARK = "_keeps_own_shards"


def keep_own_shards(accelerator: Accelerator) -> None:
    """Let an Accelerator's `prepare` take our loaders as they are. Call it before `prepare`.

    Only this one object is changed, and its `prepare` treats only loaders over an ImageDataset, and Loaders of
    `create_loader` over a map-style dataset that they plan, in another way:

    - A Loader of `create_loader` becomes a `PreparedLoader`. `save_state` and `load_state` carry its position: after
      `load_state` the next iteration continues where the state was saved, also in another number of processes (with the
      same global batch). `skip_first_batches` is not needed, and is refused: it would leave out batches once more.
    - torch's DataLoader becomes Accelerate's, as for one process. Its position is not saved; a `save_state` in the
      middle of its epoch warns.

    In evaluation, `gather_for_metrics` returns a value for every example, once: for the last batch only the examples
    that are left, without padding.

    A second call changes nothing.

    Args:
        accelerator: the Accelerator to change.

    Raises:
        ConfigError: by `prepare`, on every process: split_batches or dispatch_batches was asked for;
            use_stateful_dataloader, for a DataLoader without workers; Accelerate counts other processes than the
            dataset; the loader makes other batches than the parser plans.
    """
    if hasattr(accelerator, _MARK):
        return
    setattr(accelerator, _MARK, True)
    prepare, prepare_one = accelerator.prepare, accelerator.prepare_data_loader
    skip = accelerator.skip_first_batches
    plain_loaders: list[Any] = []

    @functools.wraps(prepare)
    def prepare_all(*args: Any, **kwargs: Any) -> Any:
        return prepare(*(prepare_ours(arg) if isinstance(arg, Loader) else arg for arg in args), **kwargs)

    @functools.wraps(prepare_one)
    def prepare_loader(data_loader: Any, device_placement: bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(data_loader, Loader | PreparedLoader):
            return prepare_ours(data_loader, device_placement)
        dataset = find_layer(getattr(data_loader, "dataset", None), ImageDataset)
        if dataset is None or getattr(data_loader, "_is_accelerate_prepared", False):
            return prepare_one(data_loader, device_placement, *args, **kwargs)
        check_accelerator(accelerator, dataset)
        _check_batch_size(data_loader, dataset)
        if accelerator.use_stateful_dataloader and data_loader.num_workers == 0:
            raise ConfigError(
                f"use_stateful_dataloader=True, and a DataLoader over {_name(dataset)} without workers: Accelerate "
                f"reads a batch ahead, which its state would count. Use num_workers >= 1, or create_loader, whose "
                f"position is saved without that setting."
            )
        prepared = _prepare_plain(accelerator, data_loader, dataset, device_placement)
        plain_loaders.append(prepared)
        return prepared

    def prepare_ours(loader: Any, device_placement: bool | None = None) -> Any:
        if isinstance(loader, PreparedLoader) or loader.options.planned is None:
            return loader
        check_accelerator(accelerator, loader.options.planned)
        is_moved = accelerator.device_placement if device_placement is None else device_placement
        prepared = PreparedLoader(loader, accelerator.device if is_moved and loader.options.device is None else None)
        accelerator.register_for_checkpointing(prepared)
        return prepared

    @functools.wraps(skip)
    def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
        if isinstance(dataloader, PreparedLoader):
            raise ConfigError(
                "skip_first_batches is not needed with a Loader: accelerator.load_state has restored its position, and "
                "iterating it goes on from there. Iterate the loader itself."
            )
        rest = skip(dataloader, num_batches)
        if any(dataloader is prepared for prepared in plain_loaders):
            _count_last_batch(rest)
        return rest

    def warn_of_plain_loaders(models: Any, weights: Any, output_dir: Any) -> None:
        underway = accelerator.gradient_state.dataloader_references
        if not accelerator.use_stateful_dataloader and any(a is b for a in plain_loaders for b in underway):
            warnings.warn(
                "accelerator.save_state does not hold how far a torch DataLoader over an ImageDataset is in its epoch. "
                "Make the loader with tfds_torch.create_loader, whose position is saved and restored.",
                stacklevel=3,
            )

    # On this object only: its class, and other Accelerators, stay as they are.
    vars(accelerator).update(
        prepare=prepare_all, prepare_data_loader=prepare_loader, skip_first_batches=skip_first_batches
    )
    accelerator.register_save_state_pre_hook(warn_of_plain_loaders)


class PreparedLoader(WrappedLoader, DataLoaderStateMixin):  # type: ignore[misc] # Of a package without types.
    """A Loader that tells Accelerate where its epoch ends, and whose position `save_state` saves.

    Gradients are due at the last batch, as with Accelerate's own loaders, and `gather_for_metrics` knows how many
    examples it has. All else is the Loader's own.

    Args:
        loader: a Loader that has a state: over an ImageDataset, or over a map-style dataset that it plans.
        device: where batches are moved; None: they stay where the Loader puts them.
        asked_by: the function that was given the loader, for messages.
    """

    def __init__(self, loader: Loader, device: Any = None, asked_by: str = "Accelerator.prepare") -> None:
        super().__init__(loader, asked_by)
        self.device = device
        self.gradient_state = GradientState()
        self._drop_last = True  # For Accelerate: its own count of the last batch is not wanted.
        self.num_taken = 0  # Batches, in the latest iteration.

    @property
    def iteration(self) -> int:
        """The epoch that is under way, or comes next: `for epoch in range(loader.iteration, num_epochs)`."""
        return int(self.state_dict()["epoch"])

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        state = LoaderState.from_dict(self.loader.state_dict())
        num_left = state.num_batches - state.batches
        self.num_taken = 0
        self.begin()
        self.remainder = count_last(self.planned.plan(first_example=state.first_example))
        try:
            for number, batch in enumerate(batches, 1):
                self.num_taken, self.end_of_dataloader = number, number == num_left
                yield batch if self.device is None else send_to_device(batch, self.device)
        finally:  # Also where the loop is left.
            self.end()

    def state_dict(self, num_ahead: int = 0) -> dict[str, Any]:
        """Return where training is; at an epoch's end, this is the beginning of the next one.

        Args:
            num_ahead: batches of the latest iteration that have been taken, and not been used yet.
        """
        state = step_back(self.loader.state_dict(), num_ahead)
        if state.batches < state.num_batches or not state.num_batches:
            return state.to_dict()
        return self.planned.state_at(state.epoch + 1, 0, self.loader.num_workers).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where a state was taken; an evaluation that had not begun begins anew."""
        saved = LoaderState.from_dict(state)
        if saved.agrees["is_training"] or saved.agrees["order"]["shuffle"] or saved.batches:
            self.loader.load_state_dict(state)


def _prepare_plain(accelerator: Accelerator, loader: Any, dataset: ImageDataset, device_placement: bool | None) -> Any:
    """Return the loader of `Accelerator.prepare_data_loader` for one process, and register it."""
    if device_placement is None:
        device_placement = accelerator.device_placement and accelerator.distributed_type != DistributedType.XLA
    dataset.is_read_ahead = True  # The prepared loader fetches a batch before it yields the one before.
    prepared = prepare_data_loader(
        loader,
        accelerator.device,
        num_processes=1,
        process_index=0,
        put_on_device=device_placement,
        rng_types=accelerator.rng_types.copy(),
        dispatch_batches=False,
        non_blocking=accelerator.non_blocking,
        use_stateful_dataloader=accelerator.use_stateful_dataloader,
    )
    _count_last_batch(prepared)
    accelerator._dataloaders.append(prepared)
    return prepared


def count_last(plan: EpochPlan, batch_size: int | None = None) -> int:
    """Return how many of the values that `gather_for_metrics` gathers of a last batch are not padding; 0: all.

    In the order of the ranks, padding comes last. Processes that read the same share are counted each.

    Args:
        plan: the plan of the rest of the epoch.
        batch_size: examples of the loader's batch; None: the planned number.
    """
    if plan.remainder not in (Remainder.PAD, Remainder.KEEP):
        return 0
    num_replicas = plan.world.num_replicas
    copies, is_uneven = divmod(PartialState().num_processes, num_replicas)
    return 0 if is_uneven else plan.num_valid % ((batch_size or plan.batch_size) * num_replicas) * copies


def _count_last_batch(prepared: Any) -> None:
    """Let Accelerate's loader over an ImageDataset know how many examples its last batch has."""
    dataset = getattr(prepared, "dataset", None)
    if not isinstance(dataset, ImageDataset) or prepared._drop_last:
        return  # A wrapper around the dataset may leave examples out.
    if dataset.is_batched or prepared.batch_size is not None:
        prepared.begin = functools.partial(_begin, prepared, dataset)


def _begin(prepared: Any, dataset: ImageDataset) -> None:
    DataLoaderStateMixin.begin(prepared)
    first_example = 0 if dataset.has_begun else dataset.start.first_example
    prepared.remainder = count_last(dataset.plan(first_example=first_example), prepared.batch_size)


def check_accelerator(accelerator: Accelerator, dataset: ImageDataset) -> None:
    """Raise ConfigError where the accelerator's settings contradict a dataset that reads its rank's share."""
    for name in ("split_batches", "dispatch_batches"):
        if getattr(accelerator, name):
            raise ConfigError(
                f"Accelerate was asked for {name}=True, and a loader over {_name(dataset)} cannot have it: every "
                f"process reads a share of its own already. Leave {name} out of DataLoaderConfiguration, and let "
                f"batch_size be that of one process ({dataset.parser.batch_size})."
            )
    if dataset.world is not None:
        return
    place, num_places = accelerator.process_index, accelerator.num_processes
    mesh = accelerator.torch_device_mesh
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


def _check_batch_size(loader: Any, dataset: ImageDataset) -> None:
    """Refuse other batches than the planned ones: `gather_for_metrics` would cut valid examples off the last one."""
    planned, several = dataset.parser.batch_size, dataset.find_rank().num_replicas > 1
    if loader.batch_size not in (None, planned) and (planned is not None or several):
        raise ConfigError(
            f"The loader makes batches of {loader.batch_size}, and the parser of {_name(dataset)} plans "
            f"batch_size={planned}: the last batch would come short, and accelerator.gather_for_metrics would drop "
            f"examples from it. Use the same batch_size for both."
        )


def _name(dataset: ImageDataset) -> str:
    return f"{dataset.parser.dataset_name} ({dataset.parser.split})"
