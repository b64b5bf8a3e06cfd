"""Lightning: a Loader whose epochs are the Trainer's, and whose position its checkpoints carry.

    trainer.fit(model, resumable(train_loader), val_loader)

A Trainer takes loaders over an ImageDataset as they are, on any number of ranks: nothing is to be replaced, and
`use_distributed_sampler` has no effect on them. Its checkpoints hold the `state_dict()` of a training loader that has
one, but it begins an iteration of every loader just to try it, and where a checkpoint was saved at an epoch's end it
restores no loader at all, or lets it go through an epoch that is over.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.loader import Loader


def resumable(loader: Loader) -> "ResumableLoader":
    """Returns a training loader that goes on exactly where a Trainer's checkpoint was saved.

    That is in the middle of an epoch or at its end, on as many ranks or on others (with the same global batch). A
    Trainer's epoch e reads the Loader's epoch e.

    Args:
        loader: what `create_loader` returned for an ImageDataset, or for a map-style dataset that it plans.

    Raises:
        ConfigError: it is another loader.
    """
    if not isinstance(loader, Loader) or not loader.has_state:
        raise ConfigError(
            f"resumable({loader!r}): only a Loader of create_loader over an ImageDataset, or over a map-style dataset "
            f"with batch_size and without sampler, batch_sampler and collate_fn, has a position."
        )
    return ResumableLoader(loader)


class ResumableLoader(Iterable[Any]):
    """A Loader that begins an iteration when its first batch is asked for; all else is the Loader's own."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    @property
    def sampler(self) -> "ResumableLoader":
        """What a Trainer tells its epochs: this loader, by `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come; a loaded state goes on where it is of this epoch."""
        self.loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        yield from self.loader

    def state_dict(self) -> dict[str, Any]:
        """Returns where training is."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration go on where a state was taken."""
        self.loader.load_state_dict(state)

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # While it is being copied or unpickled.
            raise AttributeError(name)
        return getattr(self.loader, name)
