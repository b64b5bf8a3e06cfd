"""What ranks do with Hugging Face's Trainer and Loaders; the model is made by hand."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.nn import functional as F
from transformers import Trainer, TrainingArguments

from tfds_torch import ImageDataset, Loader, ParserTfds, create_loader
from tfds_torch.integrations.huggingface import use_loaders

BATCH_SIZE, NUM_EPOCHS = 8, 2
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


def make_loader(root: str, is_training: bool, batch_size: int = BATCH_SIZE, num_workers: int = 0) -> Loader:
    parser = ParserTfds(root, "photos", is_training=is_training, batch_size=batch_size)
    return create_loader(ImageDataset(parser, fields=FIELDS), num_workers, collate_fn=make_inputs)


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

    ways: dict[str, Callable[[], Any]] = {
        "skips": lambda: use(make_trainer(folder, loader, ignore_data_skip=False)),
        "batch size": lambda: use(make_trainer(folder, loader, 5)),
        "steps": lambda: use(make_trainer(folder, loader, gradient_accumulation_steps=3)),
        "other": lambda: use(make_trainer(folder, loader), create_loader([1, 2])),
        "no position": resume,
    }
    said = {}
    for name, way in ways.items():
        try:
            way()
        except Exception as error:
            said[name] = f"{type(error).__name__}: {error}"
    return said
