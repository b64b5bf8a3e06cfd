"""A Loader in other people's training loops: they take it as it is, and save its position."""

from collections.abc import Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.plan.state import LoaderState
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import Loader


class Delegating:
    """Stands for another object: attributes that a subclass does not define are the other one's."""

    def __init__(self, inner: Any) -> None:
        vars(self)["_inner"] = inner

    def __getattr__(self, name: str) -> Any:
        if name == "_inner":  # While it is being copied or unpickled.
            raise AttributeError(name)
        return getattr(self._inner, name)


class WrappedLoader(Delegating):
    """A Loader with a position, for a loop that reads it and saves and restores its state.

    Args:
        loader: the Loader that `create_loader` returned for an ImageDataset, or for a map-style dataset that it plans.
        asked_by: the function that was given it, for the message.

    Raises:
        ConfigError: it is another loader.
    """

    def __init__(self, loader: Loader, asked_by: str) -> None:
        super().__init__(loader)
        self.loader, self.planned = loader, planned_of(loader, asked_by)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def state_dict(self) -> dict[str, Any]:
        """Return where training is."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where a state was taken."""
        self.loader.load_state_dict(state)


def planned_of(loader: Any, asked_by: str) -> ImageDataset:
    """Return the planned dataset of a Loader, which has its position; raise ConfigError where there is none."""
    planned = loader.options.planned if isinstance(loader, Loader) else None
    if planned is None:
        raise ConfigError(
            f"{asked_by} takes Loaders of create_loader over an ImageDataset, or over a map-style dataset with "
            f"batch_size and without sampler, batch_sampler and collate_fn, not {loader!r}."
        )
    return planned


def step_back(state: Mapping[str, Any], num_batches: int) -> LoaderState:
    """Return a state without the last batches before it, which were fetched and not used."""
    saved = LoaderState.from_dict(state)
    return saved.at(max(0, saved.batches - num_batches)) if num_batches else saved
