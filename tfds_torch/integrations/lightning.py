"""Lightning: a Loader whose epochs are the Trainer's, and whose position its checkpoints carry.

    trainer.fit(model, resumable(train_loader), val_loader)

A Trainer takes loaders over an ImageDataset as they are, on any number of ranks: nothing is to be replaced, and
`use_distributed_sampler` has no effect on them. Its checkpoints hold the `state_dict()` of a training loader that has
one, but it begins an iteration of every loader just to try it, and restores no loader that it had asked for before it
read the checkpoint.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from torch.utils.data import SequentialSampler

from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.loader import Loader

_PACKAGES = "lightning.pytorch", "pytorch_lightning"  # One Lightning under two names.


def resumable(loader: Loader) -> "ResumableLoader":
    """Returns a training loader that goes on exactly where a Trainer's checkpoint was saved.

    That is in the middle of an epoch or at its end, on as many ranks or on others (with the same global batch). A
    Trainer's epoch e reads the Loader's epoch e. With `overfit_batches` every epoch is epoch 0.

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
    def sampler(self) -> "Epochs":
        """What a Trainer tells its epochs."""
        return Epochs(self)

    @property
    def batch_sampler(self) -> None:
        """A Trainer asks every loader that has a sampler for it."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Fixes the epoch of the iterations to come.

        A loaded state goes on where it is of this epoch.
        """
        trainer = find_trainer()
        if trainer is not None:
            _load_states(trainer)
            epoch = 0 if trainer.overfit_batches else epoch
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


class Epochs(SequentialSampler):
    """Hands a Trainer's epochs on to a ResumableLoader.

    It is a SequentialSampler for `overfit_batches`, which replaces any other sampler, and the loader with it.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        super().__init__(loader)
        self.set_epoch = loader.set_epoch


def find_trainer() -> Any:
    """Returns the Trainer that trains and calls this, None where none does: it does not tell a loader who it is."""
    classes = tuple(sys.modules[name].Trainer for name in _PACKAGES if name in sys.modules)
    frame: FrameType | None = sys._getframe(1) if classes else None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, classes):
            return owner if owner.state.fn == "fit" and owner.training else None
        frame = frame.f_back
    return None


def _load_states(trainer: Any) -> None:
    """Loads the positions of a checkpoint that a Trainer has read after it had asked for its loaders."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and loop.restarting:
        loop._combined_loader._load_state_dicts(loop._combined_loader_states_to_load)
        loop._combined_loader_states_to_load = []
