"""Trainers that are stopped, saved and continued at every moment; `forked_ranks` has declared torchvision's part."""

import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import LearningRateFinder, ModelCheckpoint

from tfds_torch import create_loader
from tfds_torch.integrations.lightning import resumable

NUM_EPOCHS, BATCH_SIZE, NUM_BATCHES = 3, 4, 9
QUIET = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
    "log_every_n_steps": 1,
}

Row = tuple[int, int, Any]  # The Trainer's epoch, its number of the batch, the numbers of the batch's examples.
Tails = list[tuple[str, list[Row], list[Row]]]  # A checkpoint, what came after it, and what came without a stop.


def silence() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Lightning has advice about a progress bar, folders, workers and checkpoints.


def make_loader(num_batches: int = NUM_BATCHES, seed: int = 1, num_workers: int = 0) -> Any:
    numbers = torch.arange(num_batches * BATCH_SIZE)
    return resumable(create_loader(numbers, num_workers, batch_size=BATCH_SIZE, shuffle=True, seed=seed))


def make_validation() -> Any:
    return create_loader(torch.arange(100, 106), batch_size=2)


class Recorder(lightning.LightningModule):
    """A model that remembers what it trains with; it may ask for its number of steps, and do something in a hook."""

    def __init__(self, asks_in: str = "", hook: str = "", do: Callable[["Recorder"], Any] | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.lr = 0.1
        self.rows: list[Row] = []
        self.asks_in, self.hook, self.do = asks_in, hook, do

    def ask(self, hook: str) -> None:
        if self.asks_in == hook:
            assert self.trainer.estimated_stepping_batches

    def act(self, hook: str) -> Any:
        return self.do(self) if self.hook == hook and self.do is not None else None

    def setup(self, stage: str) -> None:
        self.ask("setup")

    def on_fit_start(self) -> None:
        self.ask("on_fit_start")

    def configure_optimizers(self) -> Any:
        self.ask("configure_optimizers")
        optimizer = torch.optim.SGD(self.parameters(), self.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=100)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def on_train_epoch_start(self) -> None:
        self.act("on_train_epoch_start")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
        return self.act("on_train_batch_start")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.act("training_step")
        self.record(batch, batch_idx)
        return self.layer(torch.ones(1, 1)).sum()

    def record(self, batch: Any, batch_idx: int) -> None:
        plain = torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.tolist, batch)
        self.rows.append((self.current_epoch, batch_idx, plain))

    def on_train_batch_end(self, *args: Any) -> None:
        self.act("on_train_batch_end")

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        pass


def fit(loaders: Any, model: Recorder | None = None, path: str | None = None, **options: Any) -> list[Row]:
    """Trains for three epochs, or from a checkpoint on; returns what came."""
    silence()
    model = model or Recorder()
    options = {"enable_checkpointing": False, "max_epochs": NUM_EPOCHS, **QUIET, **options}
    validation = make_validation() if options.pop("validates", False) else None
    trainer = lightning.Trainer(accelerator="cpu", devices=1, **options)
    trainer.fit(model, loaders, validation, ckpt_path=path, weights_only=False)
    return model.rows


def save_and_stop(folder: str, when: dict[str, Any], model: Recorder | None = None, **options: Any) -> list[Row]:
    """Trains until something stops it; what it saves is the only file in the folder."""
    keep = ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)
    return fit(make_loader(), model, enable_checkpointing=True, callbacks=[keep], **options)


# Each of what follows is a test's: it returns what was continued beside what comes without a stop.


def asked_early(folder: str, asks_in: str, steps: list[int]) -> Tails:
    """Continues with a model that asks for the number of steps before the checkpoint's positions are read."""
    whole = save_and_stop(folder, {"every_n_train_steps": 1, "save_on_train_epoch_end": False}, Recorder(asks_in))
    paths = [(f"{folder}/step={step}.ckpt", step) for step in steps]
    return [(str(n), fit(make_loader(), Recorder(asks_in), path), whole[n:]) for path, n in paths]


def overfitted() -> list[list[Any]]:
    """What an overfitting Trainer reads, by its number of batches, without advice to turn shuffling off."""
    return [[batch for *_, batch in fit(make_loader(), overfit_batches=n)] for n in (2, 0.5)]


def found_a_rate(folder: str) -> list[Row]:
    os.chdir(folder)  # The finder keeps its checkpoint there.
    return fit(make_loader(), callbacks=[LearningRateFinder(num_training_steps=5)])


def limited(options: dict[str, Any]) -> list[Row]:
    return fit(make_loader(), **options)
