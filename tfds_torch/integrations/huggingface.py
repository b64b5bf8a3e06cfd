"""Hugging Face's Trainer: it trains with a Loader, and goes on from a checkpoint without reading anything twice.

    arguments = TrainingArguments(..., ignore_data_skip=True)
    trainer = Trainer(model, arguments, train_dataset=train_loader.dataset)
    use_loaders(trainer, train_loader)
    trainer.train(resume_from_checkpoint=...)

A Trainer makes a DataLoader of its own of its dataset, which would deal out a rank's share once more, and finds its
place in an epoch by reading batches and throwing them away.
"""

from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState, TrainerCallback

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.integrations.accelerate import PreparedLoader, check_accelerator
from tfds_torch.torch_data.loader import Loader

if TYPE_CHECKING:  # They load all of transformers, and torchvision.
    from transformers import Trainer, TrainingArguments


def use_loaders(trainer: "Trainer", train_loader: Loader, eval_loader: Loader | None = None) -> None:
    """Lets a Trainer read Loaders in place of DataLoaders of its own. Call it before `train`.

    Its checkpoints hold the training loader's position, and `train(resume_from_checkpoint=...)` goes on exactly there,
    also in another number of processes (with the same global batch). A Loader yields what the model takes: give
    `create_loader` a `collate_fn` that returns a dictionary. `evaluate` on several processes sees padding, with the
    label -100 (floats: NaN), which `compute_metrics` has to leave out.

    Nothing but this trainer is changed.

    Args:
        trainer: which one. Its `train_dataset` and `eval_dataset` are not read.
        train_loader: what `create_loader` returned for an ImageDataset, or for a map-style dataset that it plans.
        eval_loader: likewise; None: the trainer evaluates as it would.

    Raises:
        ConfigError: a loader over another dataset; its batch_size is not that of the TrainingArguments, or an epoch is
            not a whole number of updates; ignore_data_skip is not set, so that the Trainer would throw batches away;
            or the Trainer counts other processes than the dataset.
    """
    args = trainer.args
    for loader, name in ((train_loader, "train_batch_size"), (eval_loader, "eval_batch_size")):
        if loader is not None:
            _check_loader(trainer, loader, getattr(args, name), f"per_device_{name}")
    if not args.ignore_data_skip:
        raise ConfigError(
            "The Trainer would read and throw away the batches of an epoch that it has seen, after the Loader has gone "
            "on behind them. Give it TrainingArguments(ignore_data_skip=True)."
        )
    num_batches, num_steps = len(train_loader), args.gradient_accumulation_steps
    if num_batches % num_steps:
        raise ConfigError(
            f"An epoch has {num_batches} batches, which is not a multiple of gradient_accumulation_steps={num_steps}: "
            f"after a resume within an epoch the Trainer would leave out its last update. Choose a number that divides "
            f"{num_batches}, or another batch_size."
        )
    prepared = PreparedLoader(train_loader)
    vars(trainer)["get_train_dataloader"] = lambda: prepared
    if eval_loader is not None:
        evaluated, make = PreparedLoader(eval_loader), trainer.get_eval_dataloader
        vars(trainer)["get_eval_dataloader"] = lambda dataset=None: (
            evaluated if dataset is None or dataset is trainer.eval_dataset else make(dataset)
        )
    trainer.remove_callback(LoaderPosition)
    trainer.add_callback(LoaderPosition())


class LoaderPosition(TrainerCallback, ExportableState):  # type: ignore[misc] # Of a package without types.
    """Saves the training loader's position with every checkpoint, and restores it. `use_loaders` adds it."""

    def __init__(self) -> None:
        self._loader: PreparedLoader | None = None

    def state(self) -> dict[str, Any]:
        """Returns the content of a checkpoint: the position of training, in the Trainer's format."""
        return {"args": {}, "attributes": {"position": None if self._loader is None else self._loader.state_dict()}}

    def on_train_begin(self, args: "TrainingArguments", state: Any, control: Any, **kwargs: Any) -> None:
        """Restores the position of the checkpoint that training goes on from."""
        self._loader = kwargs["train_dataloader"]
        if not state.global_step:
            return
        # The Trainer restores callbacks from their states only on request.
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("position")
        if saved is None:
            raise StateMismatchError(
                f"The checkpoint of step {state.global_step} holds no position of a Loader: it was saved without "
                f"use_loaders(trainer, ...). Begin anew, or go on with the Trainer's own data loading."
            )
        self._loader.load_state_dict(saved)

    def on_step_end(self, args: "TrainingArguments", state: Any, control: Any, **kwargs: Any) -> None:
        """Says how many epochs have passed; the Trainer counts from where it went on."""
        if self._loader is not None:
            state.epoch = state.global_step * args.gradient_accumulation_steps / len(self._loader)


def _check_loader(trainer: "Trainer", loader: Loader, batch_size: int, name: str) -> None:
    planned = loader.options.planned if isinstance(loader, Loader) else None
    if planned is None:
        raise ConfigError(
            f"use_loaders takes Loaders of create_loader over an ImageDataset, or over a map-style dataset with "
            f"batch_size and without sampler, batch_sampler and collate_fn, not {loader!r}."
        )
    check_accelerator(trainer.accelerator, planned)
    if planned.parser.batch_size != batch_size:
        raise ConfigError(
            f"The Trainer counts with {name}={batch_size}, and {planned!r} plans other batches. Use the same "
            f"batch_size for both."
        )
