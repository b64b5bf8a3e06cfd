"""Lightning: a Loader whose epochs are the Trainer's, and whose position its checkpoints carry.

    trainer.fit(model, resumable(train_loader), val_loader)

A Trainer takes loaders over an ImageDataset as they are, on any number of ranks: it replaces nothing, and
`use_distributed_sampler` has no effect on them. Its checkpoints hold the `state_dict()` of a training loader that has
one. But it begins an iteration of every loader just to try it, does not restore a loader that it had asked for before
it read the checkpoint, and writes that an epoch is over wherever it stopped. An ExactCheckpoints among the Trainer's
callbacks corrects this; nothing else of Lightning is changed.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from torch.utils._pytree import tree_leaves
from torch.utils.data import SequentialSampler

from tfds_torch.errors import ConfigError
from tfds_torch.integrations.wrapped_loader import WrappedLoader, step_back
from tfds_torch.torch_data.loader import Loader

_PACKAGES = "lightning.pytorch", "pytorch_lightning"  # One Lightning under two names.


def resumable(loader: Loader) -> "ResumableLoader":
    """Return a training loader that continues exactly where a Trainer's checkpoint was saved.

    The checkpoint may be from the middle of an epoch or its end, from any number of ranks (with the same global batch);
    `max_steps`, `max_time` or `should_stop` may have ended training within an epoch. A Trainer's epoch e reads the
    Loader's epoch e. Where a shorter one of several loaders is read n times in an epoch, it reads its epochs from
    n * e on. With `overfit_batches` every epoch is epoch 0.

    Args:
        loader: the Loader that `create_loader` returned for an ImageDataset, or for a map-style dataset that it plans.

    Raises:
        ConfigError: it is another loader. By `Trainer.fit`, before the first step: two loaders of the Trainer read one
            Loader or one ImageDataset; a loader beside it has no length; or Lightning would leave out an epoch, as it
            does after older checkpoints with `max_steps`.
    """
    return ResumableLoader(loader, "resumable")


class ResumableLoader(WrappedLoader, Iterable[Any]):
    """A Loader that begins an iteration when its first batch is asked for; all else is the Loader's own."""

    def __init__(self, loader: Loader, asked_by: str) -> None:
        super().__init__(loader, asked_by)
        self.has_ended = False  # The latest pass: it was asked for a batch that it does not have.
        self._passes: int | None = None  # Begun in the epoch that was set; None: none was set.
        self._loaded_epoch: int | None = None  # Of a state that no iteration has continued yet.

    @property
    def sampler(self) -> "Epochs":
        """The receiver of a Trainer's epochs."""
        return Epochs(self)

    @property
    def batch_sampler(self) -> None:
        """None: a Trainer asks every loader that has a sampler for it."""
        return None

    def set_epoch(self, epoch: int) -> None:
        """Fix the epoch of the iteration to come; further ones are its further passes.

        A loaded state continues where it is of this epoch, or where the Trainer had stopped within its epoch.
        """
        trainer, num_passes, was_stopped = find_trainer(), 1, False
        if trainer is not None:
            _refuse_what_cannot_work(trainer)
            _add_callback(trainer)
            was_stopped = _was_stopped(trainer)
            _load_states(trainer, was_stopped)
            num_passes = max(1, -(-int(trainer.num_training_batches) // max(1, len(self))))
            epoch = 0 if trainer.overfit_batches else epoch
        first, loaded = epoch * num_passes, self._loaded_epoch
        if loaded is not None and (was_stopped or first <= loaded < first + num_passes):
            first = loaded
        self.loader.set_epoch(first)
        self._passes, self.has_ended = 0, False

    def __iter__(self) -> Iterator[Any]:
        trainer = find_trainer()
        if trainer is not None:
            _add_callback(trainer)
        return self._read()

    def _read(self) -> Iterator[Any]:
        self.has_ended, self._loaded_epoch = False, None
        if self._passes is not None:
            if self._passes:  # A Trainer begins a shorter loader again and again within an epoch.
                self.loader.set_epoch(self.loader.state_dict()["epoch"] + 1)
            self._passes += 1
        yield from self.loader
        self.has_ended = True

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration continue where a state was taken."""
        super().load_state_dict(state)
        self._loaded_epoch, self._passes = self.loader.state_dict()["epoch"], None


class Epochs(SequentialSampler):
    """Hand a Trainer's epochs on to a ResumableLoader.

    It is a SequentialSampler for `overfit_batches`, which replaces any other sampler, and the loader with it.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        super().__init__(loader)
        self.set_epoch = loader.set_epoch


class ExactCheckpoints:
    """A Trainer's callback: its checkpoints count the batches that were trained, not those that were only fetched.

    A Trainer that stops within an epoch counts it as done: with this callback, its checkpoint says that the epoch is
    not done. A checkpoint between two epochs says that the next one has not begun; without this callback, a Trainer
    with `max_steps` would leave that epoch out. A checkpoint during the training of a batch (by an exception, or a hook
    before the step) says that the batch is still to come.
    """

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Correct a checkpoint's counts of epochs and batches, and its positions."""
        loader = trainer.fit_loop._combined_loader
        if loader is None or not any(isinstance(one, ResumableLoader) for one in loader.flattened):
            return
        saved = checkpoint["loops"]["fit_loop"]
        epochs, batches = saved["epoch_progress"], saved["epoch_loop.batch_progress"]
        epoch, batch = epochs["current"], batches["current"]
        was_stopped = 0 < batch["completed"] < trainer.num_training_batches and not batches["is_last_batch"]
        num_untrained = batch["ready"] - batch["processed"]
        if num_untrained:
            _step_back(trainer, saved["state_dict"].get("combined_loader", []), num_untrained)
            for counts in (batches["total"], batch):
                _count(counts, counts["processed"])
            batches["is_last_batch"] = False
        is_between = epoch["processed"] == epoch["started"] or epoch["started"] < epoch["ready"]
        if epoch["processed"] == epoch["started"] == epoch["ready"] and was_stopped:
            for counts in (epochs["total"], epoch):
                counts["processed"] = counts["completed"] = counts["started"] - 1
        elif is_between or (num_untrained and not batch["processed"]):
            for counts in (epochs["total"], epoch):
                _count(counts, counts["processed"])
            _count(batch, 0)
            batches["is_last_batch"] = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_callback, (type(self).__mro__[2],)


def find_trainer() -> Any:
    """Return the Trainer that trains and calls this, None where none does: it does not tell a loader who it is."""
    classes = tuple(sys.modules[name].Trainer for name in _PACKAGES if name in sys.modules)
    frame: FrameType | None = sys._getframe(1) if classes else None
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, classes):
            return owner if owner.state.fn == "fit" and owner.training else None
        frame = frame.f_back
    return None


def _make_callback(base: type) -> Any:
    return type(ExactCheckpoints.__name__, (ExactCheckpoints, base), {})()


def _add_callback(trainer: Any) -> None:
    if not any(isinstance(callback, ExactCheckpoints) for callback in trainer.callbacks):
        package = next(name for name in _PACKAGES if isinstance(trainer, sys.modules[name].Trainer))
        trainer.callbacks.append(_make_callback(sys.modules[package].Callback))


def _load_states(trainer: Any, was_stopped: bool) -> None:
    """Load the positions of a checkpoint that a Trainer has read after it had asked for its loaders."""
    loop = trainer.fit_loop
    if loop._combined_loader_states_to_load and (loop.restarting or was_stopped):
        loop._combined_loader._load_state_dicts(loop._combined_loader_states_to_load)
        loop._combined_loader_states_to_load = []


def _was_stopped(trainer: Any) -> bool:
    """Return whether a Trainer that resumes had stopped within its epoch, whatever its checkpoint says."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    return bool(0 < progress.current.completed < trainer.num_training_batches and not progress.is_last_batch)


def _step_back(trainer: Any, states: list[dict[str, Any]], num_batches: int) -> None:
    """Take back batches that were fetched and not trained, in the states of the loaders that they came from."""
    if hasattr(trainer.fit_loop._data_fetcher, "iterator_wrapper"):
        return  # The step takes batches itself, and only it knows how many.
    loaders = trainer.fit_loop._combined_loader.flattened
    stateful = [loader for loader in loaders if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")]
    for number, loader in enumerate(stateful):
        if isinstance(loader, ResumableLoader) and not loader.has_ended:
            states[number] = step_back(states[number], num_batches).to_dict()


def _count(counts: dict[str, int], number: int) -> None:
    counts.update(dict.fromkeys(("ready", "started", "processed", "completed"), number))


def _refuse_what_cannot_work(trainer: Any) -> None:
    """Raise ConfigError where batches would never come, before the first step."""
    if trainer.fit_loop.restarted_on_epoch_end:  # No checkpoint of ExactCheckpoints resumes there.
        raise ConfigError(
            f"The checkpoint is one of an epoch's end, saved without resumable(loader) or by an earlier release, and "
            f"with max_steps={trainer.max_steps} Lightning would leave out the epoch that follows. Go on without "
            f"max_steps until the next checkpoint."
        )
    if trainer.num_training_batches == float("inf"):
        raise ConfigError(
            "A loader beside resumable(loader) has no length, and Lightning would read a batch ahead that its "
            "checkpoints count as trained. Give it a __len__, or the Trainer limit_train_batches=N."
        )
    validation = trainer.val_dataloaders
    is_within = trainer.check_val_every_n_epoch is None or trainer.val_check_batch is None
    is_within = is_within or trainer.val_check_batch < trainer.num_training_batches
    others = tree_leaves(validation) if validation is not None and is_within else []
    seen: list[Any] = []
    for loader in (*trainer.fit_loop._combined_loader.flattened, *others):
        inner = loader.loader if isinstance(loader, ResumableLoader) else loader
        if not isinstance(inner, Loader) or not inner.has_state:
            continue
        if any(inner.options.planned is other for other in seen):
            raise ConfigError(
                f"Two of the Trainer's loaders read one Loader, or one ImageDataset, which has one iteration at a "
                f"time: the second would break off the first. Give each its own: {inner!r}."
            )
        seen.append(inner.options.planned)
