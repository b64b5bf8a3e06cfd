"""What ranks do with Hugging Face's Trainer and Loaders; the model is made by hand."""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from tfds_torch import ImageDataset, Loader, ParserTfds, World, create_loader
from tfds_torch.integrations.huggingface import use_loaders

NUM_PHOTOS, BATCH_SIZE, NUM_EPOCHS = 61, 8, 2
FIELDS = ("index", "label")


class Recorder(torch.nn.Module):
    """A model that remembers what it is trained with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 10)
        self.seen: list[list[int]] = []

    def forward(self, index: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen.append(index.tolist())
        logits = self.layer(index[:, None].float() / 61)
        return {"loss": F.cross_entropy(logits, labels), "logits": torch.stack([index, labels], 1)}


def make_inputs(examples: list[tuple[int, int]]) -> dict[str, torch.Tensor]:
    index, label = torch.tensor(examples).T
    return {"index": index, "labels": label}


def make_loader(
    root: str,
    is_training: bool,
    batch_size: int = BATCH_SIZE,
    num_workers: int = 0,
    split: str = "train",
    world: World | None = None,
) -> Loader:
    parser = ParserTfds(root, "photos", split, is_training=is_training, batch_size=batch_size)
    return create_loader(ImageDataset(parser, fields=FIELDS, world=world), num_workers, collate_fn=make_inputs)


def make_own() -> Loader:
    """A Loader over 64 examples of a dataset of one's own."""
    examples = [{"index": index, "labels": index % 10} for index in range(64)]
    return create_loader(examples, batch_size=BATCH_SIZE, shuffle=True, seed=0)


def make_trainer(folder: str, train_loader: Loader, batch_size: int = BATCH_SIZE, **arguments: Any) -> Trainer:
    transformers.logging.set_verbosity_error()
    arguments = {
        "num_train_epochs": NUM_EPOCHS,
        "save_steps": 1,
        "ignore_data_skip": True,
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "logging_strategy": "no",
        **arguments,
    }
    args = TrainingArguments(
        folder, per_device_train_batch_size=batch_size, per_device_eval_batch_size=batch_size, **arguments
    )
    return Trainer(Recorder(), args, train_dataset=train_loader.dataset, eval_dataset=train_loader.dataset)


def train(
    root: str, folder: str, resume_from: str | None, batch_size: int, num_workers: int, restores_callbacks: bool
) -> dict[str, Any]:
    """Two epochs with a checkpoint after every step, or what is left of them after one; and an evaluation."""
    loaders = [make_loader(root, is_training, batch_size, num_workers) for is_training in (True, False)]
    trainer = make_trainer(
        folder,
        loaders[0],
        batch_size,
        gradient_accumulation_steps=2,
        restore_callback_states_from_checkpoint=restores_callbacks,
    )
    trainer.compute_metrics = lambda predicted: {"seen": predicted.predictions.tolist()}
    use_loaders(trainer, *loaders)
    trainer.train(resume_from_checkpoint=resume_from)
    evaluated = trainer.evaluate()["eval_seen"]
    return {
        "seen": trainer.model.seen,
        "epoch": trainer.state.epoch,
        "step": trainer.state.global_step,
        "evaluated": sorted(index for index, label in evaluated if label != -100),
        "ranks": trainer.args.world_size,
        "weight": trainer.model.layer.weight.sum().item(),
    }


def train_on_own(folder: str, resume_from: str | None, batch_size: int) -> list[list[int]]:
    """An epoch of 64 examples of a dataset of one's own, or what is left of it after a checkpoint."""
    examples = [{"index": index, "labels": index % 10} for index in range(64)]
    loader = create_loader(examples, 1, batch_size=batch_size, shuffle=True, seed=0)
    trainer = make_trainer(folder, loader, batch_size, num_train_epochs=1)
    use_loaders(trainer, loader)
    trainer.train(resume_from_checkpoint=resume_from)
    seen: list[list[int]] = trainer.model.seen
    return seen


def evaluate_everywhere(root: str, folder: str) -> dict[str, Any]:
    """The losses of evaluations by their ways and options, each beside the mean over its examples, taken by hand."""
    train_loader, eval_loader = make_loader(root, True), make_loader(root, False)
    losses: dict[str, list[float]] = {}
    metrics: dict[str, list[int]] = {}

    def by_hand(split: str = "train") -> float:
        total, num_examples = 0.0, 0
        for batch in make_loader(root, False, split=split, world=World()):
            with torch.no_grad():
                logits = model.layer(batch["index"][:, None].float() / 61)
            total += F.cross_entropy(logits, batch["labels"], reduction="sum").item()
            num_examples += len(batch["labels"])
        return total / num_examples

    class Beside(transformers.TrainerCallback):
        def on_evaluate(self, *args: Any, metrics: dict[str, float], **kwargs: Any) -> None:
            losses[f"evaluation {len(losses)}"] = [metrics["eval_loss"], by_hand()]

    def seen(predicted: Any, compute_result: bool | None = None) -> dict[str, Any]:
        parts = predicted.predictions if isinstance(predicted.predictions, list) else [predicted.predictions]
        found.extend(index for part in parts for index, _ in part.tolist())
        return {"seen": sorted(found)} if compute_result in (None, True) else {}

    trainer = make_trainer(
        folder,
        train_loader,
        learning_rate=0.1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        eval_on_start=True,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        gradient_accumulation_steps=2,
    )
    model, beside = trainer.model, Beside()
    use_loaders(trainer, train_loader, eval_loader)
    trainer.add_callback(beside)
    trainer.train()
    trainer.remove_callback(beside)
    best = [trainer.state.best_metric, min(loss for loss, _ in list(losses.values())[1:])]
    expected, options = by_hand(), {"eval_accumulation_steps": 1, "eval_do_concat_batches": False}
    trainer.compute_metrics = seen
    for name, value in {"": None, **options, "batch_eval_metrics": True}.items():
        before, found = getattr(trainer.args, name, None), []
        setattr(trainer.args, name or "unchanged", value)
        evaluated = trainer.evaluate()
        setattr(trainer.args, name or "unchanged", before)
        losses[f"evaluate {name}"] = [evaluated["eval_loss"], expected]
        metrics[f"evaluate {name}"] = evaluated["eval_seen"]
    trainer.compute_metrics = None
    few = make_loader(root, False, split="train[:11]")
    for name, test in {"predict": eval_loader, "predict few": few}.items():
        predicted = trainer.predict(test)
        losses[name] = [predicted.metrics["test_loss"], by_hand("train[:11]" if test is few else "train")]
        metrics[name] = sorted(index for index, _ in predicted.predictions.tolist())
    own = [{"index": index, "labels": index % 10} for index in range(NUM_PHOTOS)]
    metrics["predict what is no Loader"] = sorted(index for index, _ in trainer.predict(own).predictions.tolist())
    losses["evaluate few"] = [trainer.evaluate(few)["eval_loss"], by_hand("train[:11]")]
    num_samples = trainer.evaluation_loop(trainer.get_eval_dataloader(few), "few").num_samples
    use_loaders(trainer, train_loader, {"all": eval_loader, "few": few})
    several = trainer.evaluate()
    losses["several: all"] = [several["eval_all_loss"], expected]
    losses["several: few"] = [several["eval_few_loss"], by_hand("train[:11]")]
    return {
        "losses": losses,
        "metrics": metrics,
        "best": best,
        "counted": [num_samples, trainer.num_examples(trainer.get_train_dataloader())],
        "trained": model.seen,
    }


def save_within_an_update(folder: str, step: int) -> dict[str, Any]:
    """Saves when an update's batches have been read, as `enable_jit_checkpoint` does; and goes on from there."""
    lives = {"whole": {}, "saved": {"enable_jit_checkpoint": True}, "resumed": {}}
    result: dict[str, Any] = {}
    for life, arguments in lives.items():
        loader = make_own()
        trainer = make_trainer(f"{folder}/{life}", loader, gradient_accumulation_steps=2, **arguments)
        use_loaders(trainer, loader)
        if life == "saved":
            _ask_within_update(trainer, step)
        trainer.train(resume_from_checkpoint=f"{folder}/saved/checkpoint-{step}" if life == "resumed" else None)
        result[life] = [trainer.model.seen, trainer.model.layer.weight.sum().item()]
    return result


def _ask_within_update(trainer: Trainer, step: int) -> None:
    """Asks for a checkpoint, as SIGTERM does, when the batches of the update after a step have been read."""
    (callback,) = (each for each in trainer.callback_handler.callbacks if hasattr(each, "jit_manager"))
    read = trainer.get_batch_samples

    def read_and_ask(*args: Any) -> Any:
        batches = read(*args)
        if trainer.state.global_step == step:
            callback.jit_manager.is_checkpoint_requested = True
        return batches

    trainer.get_batch_samples = read_and_ask


def train_twice() -> list[list[list[int]]]:
    """What two trainings of one trainer see, the first of which ends within an epoch."""
    loader, seen = make_own(), []
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(folder, loader, save_strategy="no", max_steps=11)
        use_loaders(trainer, loader)
        for trainer.args.max_steps in (11, 16):
            trainer.model.seen = []
            trainer.train()
            seen.append(trainer.model.seen)
    return seen


def be_refused(root: str, folder: str) -> dict[str, str]:
    """What `use_loaders` says, and a checkpoint that was saved without it."""
    loader = make_loader(root, True)

    def use(trainer: Trainer, loader: Any = loader) -> None:
        use_loaders(trainer, loader)

    def resume() -> None:
        trainer = make_trainer(folder, loader, max_steps=1)
        use_loaders(trainer, loader)
        trainer.train()
        path = Path(folder) / "checkpoint-1" / "trainer_state.json"
        state = json.loads(path.read_text())
        del state["stateful_callbacks"]["LoaderPosition"]
        path.write_text(json.dumps(state))
        trainer = make_trainer(folder, loader)
        use_loaders(trainer, loader)
        trainer.train(resume_from_checkpoint=str(path.parent))

    def using() -> Trainer:
        trainer = make_trainer(folder, loader)
        use_loaders(trainer, loader, make_loader(root, False))
        return trainer

    def use_with(given: dict[str, Any]) -> None:
        use_loaders(make_trainer(folder, loader, **given), loader, make_loader(root, False))

    def use_and_change(name: str, value: Any) -> None:
        trainer = using()
        setattr(trainer.args, name, value)  # As a search of hyperparameters does.
        trainer.train()

    def drop_last() -> None:
        dropping = create_loader([1] * 9, batch_size=BATCH_SIZE, drop_last=True)
        use(make_trainer(folder, dropping, dataloader_drop_last=True), dropping)

    arguments: dict[str, dict[str, Any]] = {
        "auto_find_batch_size": {"auto_find_batch_size": True},
        "group_by_length": {"train_sampling_strategy": "group_by_length"},
        "sequential": {"train_sampling_strategy": "sequential"},
        "data_seed": {"data_seed": 7},
        "split_batches": {"accelerator_config": {"split_batches": True}},
        "dispatch_batches": {"accelerator_config": {"dispatch_batches": True}},
        "dataloader_drop_last": {"dataloader_drop_last": True},
        "dataloader_num_workers": {"dataloader_num_workers": 2},
        "dataloader_persistent_workers": {"dataloader_persistent_workers": True},
        "dataloader_prefetch_factor": {"dataloader_num_workers": 1, "dataloader_prefetch_factor": 2},
        "dataloader_multiprocessing_context": {"dataloader_multiprocessing_context": "spawn"},
    }
    changes = {"auto_find_batch_size": True, "per_device_train_batch_size": 5, "gradient_accumulation_steps": 3}
    ways: dict[str, Callable[[], Any]] = {
        "skips": lambda: use(make_trainer(folder, loader, ignore_data_skip=False)),
        "batch size": lambda: use(make_trainer(folder, loader, 5)),
        "steps": lambda: use(make_trainer(folder, loader, gradient_accumulation_steps=3)),
        "other": lambda: use(make_trainer(folder, loader), create_loader([1, 2])),
        "training loader": lambda: use_loaders(make_trainer(folder, loader), loader, create_loader(loader.dataset)),
        "another for training": lambda: use_loaders(make_trainer(folder, loader), loader, make_loader(root, True)),
        "eval batch size": lambda: use_loaders(make_trainer(folder, loader), loader, make_loader(root, False, 5)),
        "one of several": lambda: use_loaders(
            make_trainer(folder, loader), loader, {"a": make_loader(root, False), "b": make_loader(root, False, 5)}
        ),
        "predict": lambda: using().predict(loader),
        "evaluate": lambda: using().evaluate(make_loader(root, False, 5)),
        "no position": resume,
        "allowed: workers of its own evaluation": lambda: use(make_trainer(folder, loader, dataloader_num_workers=1)),
        "allowed: drop_last": drop_last,
    }
    for name, given in arguments.items():
        ways[name] = partial(use_with, given)
    for name, value in changes.items():
        ways[f"{name} changed"] = partial(use_and_change, name, value)
    said = {}
    for name, way in ways.items():
        try:
            way()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said
