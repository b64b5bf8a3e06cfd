"""torchdata: a `StatefulDataLoader`'s state is restored in any number of workers.

`load_state(loader, state)` takes the place of `loader.load_state_dict(state)`.
"""

from collections.abc import Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.plan.state import LoaderState
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.wrapped_datasets import find_layer


def load_state(loader: Any, state: Mapping[str, Any], *, allow_batch_change: bool = False) -> None:
    """Let the next iteration of a loader continue where a StatefulDataLoader's state was taken.

    By itself, a StatefulDataLoader continues only with the same number of workers: with none in place of some, or the
    other way round, it fails with an AssertionError before our code is called.

    Args:
        loader: a StatefulDataLoader or DataLoader over an ImageDataset, which has not begun; with any number of
            workers in read mode `index`.
        state: the result of `StatefulDataLoader.state_dict()`.
        allow_batch_change: whether a state of another global batch is accepted, as in `ImageDataset.load_state_dict`.

    Raises:
        ConfigError: the loader does not read an ImageDataset.
        StateMismatchError: it is not such a state, or it does not fit the dataset; or it was taken in the middle of a
            batch, and the loader has other workers.
    """
    dataset = find_layer(getattr(loader, "dataset", None), ImageDataset)
    if dataset is None:
        raise ConfigError(f"load_state: {loader!r} does not read an ImageDataset. Use its own load_state_dict.")
    snapshot = state.get("_snapshot") if isinstance(state, Mapping) else None
    num_workers = len(snapshot.get("_worker_snapshots", ())) if isinstance(snapshot, Mapping) else 0
    does_it_itself = num_workers == loader.num_workers and callable(getattr(loader, "load_state_dict", None))
    if does_it_itself and not allow_batch_change:
        loader.load_state_dict(state)
        return
    dataset.load_state_dict(LoaderState.from_stateful(state).to_dict(), allow_batch_change=allow_batch_change)
