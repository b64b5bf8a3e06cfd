"""Hugging Face's Trainer: it trains with a Loader, and resumes from a checkpoint without reading anything twice.

    arguments = TrainingArguments(..., ignore_data_skip=True)
    trainer = Trainer(model, arguments, train_dataset=train_loader.dataset)
    use_loaders(trainer, train_loader)
    trainer.train(resume_from_checkpoint=...)

A Trainer makes a DataLoader of its dataset, which would deal out a rank's share once more, and finds its
place in an epoch by reading batches and throwing them away.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from transformers.trainer_callback import ExportableState, TrainerCallback

from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.integrations.accelerate import PreparedLoader, check_accelerator
from tfds_torch.integrations.wrapped_loader import Delegating, planned_of
from tfds_torch.parsers.advice import num_padded
from tfds_torch.parsers.protocol import dataset_of
from tfds_torch.plan.epoch import Remainder
from tfds_torch.runtime.printable import quoted
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.loader import Loader

if TYPE_CHECKING:  # They load all of transformers, and torchvision.
    from transformers import Trainer, TrainingArguments


_OF_DATALOADERS = {
    "dataloader_drop_last": "the parser remainder='drop', or create_loader drop_last=True for a dataset of your own",
    "dataloader_num_workers": "create_loader num_workers=",
    "dataloader_persistent_workers": "create_loader persistent_workers=, which is True by default",
    "dataloader_prefetch_factor": "create_loader prefetch_batches=",
    "dataloader_multiprocessing_context": "create_loader multiprocessing_context=",
}
"""Arguments of DataLoaders that the Trainer makes, and their replacements."""


def use_loaders(
    trainer: "Trainer", train_loader: Loader, eval_loader: Loader | Mapping[str, Loader] | None = None
) -> None:
    """Let a Trainer read Loaders in place of its own DataLoaders. Call it before `train`.

    Its checkpoints hold the training loader's position, and `train(resume_from_checkpoint=...)` continues there, also
    in another number of processes (with the same global batch). A Loader must yield the model's arguments: give
    `create_loader` a `collate_fn` that returns a dictionary.

    `evaluate` and `predict` take Loaders, too. Their predictions and metrics count each example once, also on several
    processes. So does their loss where each label is one integer: padding has the label -100. With other labels the
    mean loss includes padding, and a warning says so.

    Only this trainer is changed.

    Args:
        trainer: the Trainer to change. Its `train_dataset` is not read.
        train_loader: the Loader that `create_loader` returned for an ImageDataset, or for a map-style dataset that it
            plans.
        eval_loader: likewise, or several by name, whose metrics are `eval_<name>_loss` etc.: they become the trainer's
            `eval_dataset`. None: the trainer's evaluation stays as it is.

    Raises:
        ConfigError: a loader over another dataset, or the training loader's to evaluate with; its batch_size is not
            that of the TrainingArguments, or an epoch is not a whole number of updates; ignore_data_skip is not set, so
            that the Trainer would throw batches away; other TrainingArguments that are for DataLoaders or samplers of
            the Trainer; or the Trainer counts other processes than the dataset.
    """
    of_trainer = trainer.eval_dataset
    evaluated: Any = of_trainer if eval_loader is None else eval_loader
    if isinstance(evaluated, Mapping):
        evaluated = dict(evaluated)  # The Trainer knows several by this type alone.
    if eval_loader is not None:
        for loader in _several(evaluated):
            _check_eval_loader(trainer, loader, train_loader)
    _check_loader(trainer, train_loader, trainer.args.train_batch_size, "per_device_train_batch_size")
    _check_arguments(trainer.args, train_loader)
    _check_dataloader_arguments(trainer.args, train_loader, evaluated)
    prepared = TrainerLoader(train_loader)
    own_eval_dataloader, own_test_dataloader = trainer.get_eval_dataloader, trainer.get_test_dataloader

    def loader_of(dataset: Any) -> TrainerLoader | None:
        """Return the loader of a dataset that the trainer is asked for; None where it makes its own."""
        if dataset is None or (dataset is of_trainer and not isinstance(dataset, dict)):
            dataset = trainer.eval_dataset
        elif isinstance(dataset, str):
            dataset = trainer.eval_dataset[dataset]
        if not isinstance(dataset, Loader):
            return None
        _check_eval_loader(trainer, dataset, train_loader)
        return TrainerLoader(dataset)

    def get_eval_dataloader(eval_dataset: Any = None) -> Any:
        loader = loader_of(eval_dataset)
        return own_eval_dataloader(eval_dataset) if loader is None else loader

    def get_test_dataloader(test_dataset: Any) -> Any:
        loader = loader_of(test_dataset)
        return own_test_dataloader(test_dataset) if loader is None else loader

    trainer.eval_dataset = evaluated
    vars(trainer).update(
        get_train_dataloader=lambda: prepared,
        get_eval_dataloader=get_eval_dataloader,
        get_test_dataloader=get_test_dataloader,
    )
    trainer.remove_callback(LoaderPosition)
    trainer.add_callback(LoaderPosition())


class TrainerLoader(PreparedLoader):
    """A Loader as a Trainer reads it, which takes `len(loader.dataset)` for the number of examples."""

    @property
    def dataset(self) -> "CountedDataset":
        """The Loader's dataset."""
        return CountedDataset(self.loader.dataset, self.planned)


class CountedDataset(Delegating):
    """The dataset of a Loader, with the length that a Trainer wants: examples of an epoch, of all processes."""

    def __init__(self, dataset: Any, planned: ImageDataset) -> None:
        super().__init__(dataset)
        self._planned = planned

    def __len__(self) -> int:
        return self._planned.plan().num_valid


class LoaderPosition(TrainerCallback, ExportableState):  # type: ignore[misc] # Of a package without types.
    """A callback that saves the training loader's position with every checkpoint, and restores it."""

    def __init__(self) -> None:
        self._loader: PreparedLoader | None = None
        self._trainer_state: Any = None
        self._num_steps = 1  # Batches of an update.
        self._first_step = 0  # Of this epoch.

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint: the position of training, in the Trainer's format."""
        position = None
        if self._loader is not None:
            num_used = (self._trainer_state.global_step - self._first_step) * self._num_steps
            position = self._loader.state_dict(num_ahead=max(0, self._loader.num_taken - num_used))
        return {"args": {}, "attributes": {"position": position}}

    def on_train_begin(self, args: "TrainingArguments", state: Any, control: Any, **kwargs: Any) -> None:
        """Restore the position of the checkpoint that training resumes from."""
        loader: PreparedLoader = kwargs["train_dataloader"]
        _check_arguments(args, loader.loader)  # They may have been changed meanwhile: by a search, or by hand.
        self._loader, self._trainer_state = loader, state
        self._num_steps, self._first_step = args.gradient_accumulation_steps, state.global_step
        loader.num_taken = 0
        if not state.global_step:
            return
        # The Trainer restores callbacks from their states only on request.
        saved = state.stateful_callbacks.get(type(self).__name__, {}).get("attributes", {}).get("position")
        if saved is None:
            raise StateMismatchError(
                f"The checkpoint of step {state.global_step} holds no position of a Loader: it was saved without "
                f"use_loaders(trainer, ...). Begin anew, or go on with the Trainer's own data loading."
            )
        loader.load_state_dict(saved)

    def on_epoch_begin(self, args: "TrainingArguments", state: Any, control: Any, **kwargs: Any) -> None:
        """Note where the epoch begins: an update's batches are read before it, and a checkpoint may come between."""
        self._first_step = state.global_step
        if self._loader is not None:
            self._loader.num_taken = 0

    def on_step_end(self, args: "TrainingArguments", state: Any, control: Any, **kwargs: Any) -> None:
        """Tell how many epochs have passed; the Trainer counts from where it resumed."""
        if self._loader is not None:
            state.epoch = state.global_step * args.gradient_accumulation_steps / len(self._loader)


def _several(evaluated: Any) -> Sequence[Any]:
    """Return what a Trainer evaluates with, one or several by name, as a sequence."""
    return list(evaluated.values()) if isinstance(evaluated, dict) else [evaluated]


def _planned(loader: Any) -> ImageDataset:
    return planned_of(loader, "use_loaders")


def _check_loader(trainer: "Trainer", loader: Any, batch_size: int, name: str) -> None:
    check_accelerator(trainer.accelerator, _planned(loader))
    _check_batch_size(_planned(loader), batch_size, name)


def _check_eval_loader(trainer: "Trainer", loader: Any, train_loader: Loader) -> None:
    _check_loader(trainer, loader, trainer.args.eval_batch_size, "per_device_eval_batch_size")
    planned = _planned(loader)
    if planned is _planned(train_loader):
        raise ConfigError(
            "The loader to evaluate with reads the dataset that the training loader reads, whose epoch it would end. "
            "Make another ImageDataset and Loader for evaluation, of a parser with is_training=False."
        )
    if planned.plan().is_training:
        raise ConfigError(
            f"The loader to evaluate with is one for training ({planned.parser!r}): its last batch is filled "
            f"with examples of the next pass, which would count twice. Give its parser is_training=False."
        )
    warn_of_loss(planned)


def warn_of_loss(planned: ImageDataset) -> None:
    """Warn where the Trainer's evaluation loss has padding in it, or leaves out whole batches that have some."""
    plan, dataset = planned.plan(), dataset_of(planned.parser)
    has_integers, num_more = dataset is None or dataset.has_one_label, num_padded(plan)
    if has_integers or "label" not in planned.fields or not num_more:
        return
    warnings.warn(
        f"{planned.parser.dataset_name}, split {quoted(planned.parser.split)}: {num_more} examples pad the last "
        f"batches, and only labels that are one integer are marked so that a loss leaves them out. The Trainer's "
        f"eval_loss is not exact: it has padding in it or, where padding is NaN, leaves out those batches. Its "
        f"predictions and compute_metrics are exact: compute the loss there, or choose a batch_size that "
        f"{plan.num_own_slots} examples fill on {plan.world.num_replicas} ranks.",
        UserWarning,
        stacklevel=4,
    )


def _check_batch_size(planned: ImageDataset, batch_size: int, name: str) -> None:
    if planned.parser.batch_size != batch_size:
        raise ConfigError(
            f"The Trainer counts with {name}={batch_size}, and {planned!r} plans other batches. Use the same "
            f"batch_size for both."
        )


def _check_arguments(args: "TrainingArguments", train_loader: Loader) -> None:
    """Refuse TrainingArguments that the training loader contradicts; raise ConfigError."""
    if not args.ignore_data_skip:
        raise ConfigError(
            "The Trainer would read and throw away the batches of an epoch that it has seen, after the Loader has gone "
            "on behind them. Give it TrainingArguments(ignore_data_skip=True)."
        )
    if args.auto_find_batch_size:
        raise ConfigError(
            "auto_find_batch_size=True makes smaller batches when memory runs out, and a Loader's batches are planned "
            "by its parser. Leave it out; for smaller batches with the same updates, give parser and Trainer a smaller "
            "batch_size and the Trainer more gradient_accumulation_steps."
        )
    planned = _planned(train_loader)
    _check_batch_size(planned, args.train_batch_size, "per_device_train_batch_size")
    if args.train_sampling_strategy != "random":
        raise ConfigError(
            f"train_sampling_strategy={args.train_sampling_strategy!r} chooses a sampler for the Trainer's own "
            f"DataLoader, and a Loader reads in the order that its parser plans. Leave it out; shuffle=False of the "
            f"parser (or of create_loader) reads in the order of the dataset."
        )
    seed = planned.plan().seed
    if args.data_seed not in (None, seed):
        raise ConfigError(
            f"data_seed={args.data_seed} is the seed of the Trainer's own sampler, and the Loader's order has "
            f"seed={seed}. Leave out data_seed, and give the parser (or create_loader) seed={args.data_seed}."
        )
    num_batches, num_steps = len(train_loader), args.gradient_accumulation_steps
    if num_batches % num_steps:
        raise ConfigError(
            f"An epoch has {num_batches} batches, which is not a multiple of gradient_accumulation_steps={num_steps}: "
            f"after a resume within an epoch the Trainer would leave out its last update. Choose a number that divides "
            f"{num_batches}, or another batch_size."
        )


def _check_dataloader_arguments(args: "TrainingArguments", train_loader: Loader, evaluated: Any) -> None:
    """Refuse arguments of DataLoaders that have no effect here, unless the Trainer reads a dataset itself.

    Args:
        args: the Trainer's.
        train_loader: the Loader to train with.
        evaluated: what the Trainer evaluates with, one or several by name: Loaders, its own datasets, or None.
    """
    reads_datasets = any(not isinstance(source, Loader | None) for source in _several(evaluated))
    drops_last = _planned(train_loader).plan().remainder is Remainder.DROP
    for name, instead in _OF_DATALOADERS.items():
        is_followed = drops_last if name == "dataloader_drop_last" else reads_datasets
        value = getattr(args, name)
        if value and not is_followed:
            raise ConfigError(
                f"{name}={value!r} is for DataLoaders that the Trainer makes, and here it reads Loaders. Leave it out, "
                f"and give {instead}."
            )
