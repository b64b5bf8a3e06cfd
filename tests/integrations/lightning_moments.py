"""Trainers that are stopped, saved and continued at every moment; `forked_ranks` has declared torchvision's part."""

import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import Callback, LearningRateFinder, ModelCheckpoint
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.exceptions import SIGTERMException
from torch.utils.data import DataLoader, IterableDataset
from torch_data.reading import LEDGER, rows_of

from tfds_torch import ImageDataset, ParserTfds, create_loader, errors
from tfds_torch.integrations import lightning as ours
from tfds_torch.integrations.lightning import resumable

NUM_EPOCHS, BATCH_SIZE, NUM_BATCHES = 3, 4, 9
MANY_STEPS: dict[str, Any] = {"max_steps": 1000}
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


class FromTheIterator(Recorder):
    def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:  # type: ignore[override] # By name.
        batch, batch_idx, _ = next(dataloader_iter)
        return super().training_step(batch, batch_idx)


class Manual(Recorder):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        loss, optimizer = super().training_step(batch, batch_idx), self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()


class OwnLoaders(Recorder):
    def train_dataloader(self) -> Any:
        return [make_loader(), make_loader(5, 2)]


class OnRanks(Recorder):
    """Remembers the rows of its batches by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.trained: dict[int, list[Any]] = {}
        self.validated: dict[int, list[Any]] = {}

    def record(self, batch: Any, batch_idx: int) -> None:
        self.trained.setdefault(self.current_epoch, []).extend(rows_of([batch]))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.setdefault(self.current_epoch, []).extend(rows_of([batch]))


class Saver(Callback):
    """Saves a checkpoint at every moment that has a hook, and knows how many batches were trained by then."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.saved: dict[str, int] = {}

    def save(self, trainer: Any, moment: str) -> None:
        path = f"{self.folder}/{trainer.global_step}-{moment}.ckpt"
        if path not in self.saved and not trainer.sanity_checking:
            trainer.save_checkpoint(path)
            self.saved[path] = len(trainer.lightning_module.rows)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        self.save(trainer, "epoch_start")

    def on_train_batch_start(self, trainer: Any, *args: Any) -> None:
        self.save(trainer, "batch_start")

    def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
        self.save(trainer, "batch_end")

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.save(trainer, "validation_start")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self.save(trainer, "validation_end")

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.save(trainer, "epoch_end")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.save(trainer, "train_end")


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


def at_every_moment(
    folder: str, options: dict[str, Any], kind: str = "Recorder", resume_with: dict[str, Any] | None = None
) -> Tails:
    """Continues from a checkpoint of every moment."""
    make_model = {"Recorder": Recorder, "FromTheIterator": FromTheIterator, "Manual": Manual, "OwnLoaders": OwnLoaders}
    asks_in = options.pop("asks_in", "")

    def train(**more: Any) -> list[Row]:
        model = make_model[kind]()
        model.asks_in = asks_in
        return fit(None if kind == "OwnLoaders" else make_loader(), model, **options, **more)

    saver = Saver(folder)
    whole = train(callbacks=[saver])
    return [(Path(path).stem, train(path=path, **resume_with or {}), whole[n:]) for path, n in saver.saved.items()]


def asked_early(folder: str, asks_in: str, steps: list[int]) -> Tails:
    """Continues with a model that asks for the number of steps before the checkpoint's positions are read."""
    whole = save_and_stop(folder, {"every_n_train_steps": 1, "save_on_train_epoch_end": False}, Recorder(asks_in))
    paths = [(f"{folder}/step={step}.ckpt", step) for step in steps]
    return [(str(n), fit(make_loader(), Recorder(asks_in), path), whole[n:]) for path, n in paths]


def stopped_within(folder: str, how: str, at: int, asks_in: str, num_workers: int = 0, is_old: bool = False) -> Tails:
    """Continues after a stop within an epoch, with and without max_steps."""

    def stop(model: Recorder) -> None:
        if len(model.rows) == at:
            model.trainer.should_stop = True

    def outlive(model: Recorder) -> None:
        if len(model.rows) == at:
            time.sleep(1.1)  # The Trainer's clock has to pass max_time.

    def end(model: Recorder) -> None:
        if len(model.rows) == at:
            os.kill(os.getpid(), signal.SIGTERM)

    do = {"should_stop": stop, "max_time": outlive, "sigterm": end}.get(how)
    limits: dict[str, dict[str, Any]] = {"max_steps": {"max_steps": at}, "max_time": {"max_time": {"seconds": 1}}}
    model, add = Recorder(asks_in, "on_train_batch_end", do), ours._add_callback
    if is_old:
        ours._add_callback = lambda trainer: None
    with suppress(SIGTERMException):
        save_and_stop(folder, {"save_on_exception": True}, model, **limits.get(how, {}))
    ours._add_callback, first = add, model.rows
    whole, path = fit(make_loader()), max(Path(folder).iterdir(), key=os.path.getmtime)
    tails = []
    for more in ({}, MANY_STEPS):
        try:
            rest = fit(make_loader(num_workers=num_workers), Recorder(asks_in), str(path), **more)
        except errors.ConfigError as error:
            rest = [(0, 0, str(error))]
        tails.append((str(more), [*first, *rest], whole))
    return tails


def stopped_again_and_again(folder: str) -> Tails:
    rows, path, whole = [], None, fit(make_loader(), validates=True)
    for number, at in enumerate((4, 7, 9, 13, 14, 1000)):
        keep = ModelCheckpoint(f"{folder}/{number}", "last", save_last=False, save_on_train_epoch_end=True)
        options: dict[str, Any] = {"callbacks": [keep], "enable_checkpointing": True, "num_sanity_val_steps": 2}
        model = Recorder("configure_optimizers")
        rows += fit(make_loader(), model, path, max_steps=at, validates=True, **options)
        path = f"{folder}/{number}/last.ckpt"
    return [("all", rows, whole)]


def failed(folder: str, hook: str, at: list[int]) -> Tails:
    """Continues after a failure and Ctrl-C: a batch whose training failed is still to come."""
    whole, tails = fit(make_loader()), []
    for number in at:
        for error in (RuntimeError("failed"), KeyboardInterrupt()):

            def fail(model: Recorder, number: int = number, error: BaseException = error) -> None:
                if len(model.rows) >= number:
                    raise error

            own = f"{folder}/{number}-{type(error).__name__}"
            when = {"save_on_exception": True, "every_n_epochs": 100}
            try:
                save_and_stop(own, when, Recorder(hook=hook, do=fail))
            except (RuntimeError, KeyboardInterrupt, SystemExit):
                (path,) = Path(own).iterdir()
            tails.append((str(path), fit(make_loader(), path=str(path)), whole[int(path.stem.split("=")[1]) :]))
    return tails


def by_time(folder: str) -> Tails:
    whole = save_and_stop(folder, {"train_time_interval": timedelta(0)})
    paths = sorted(Path(folder).iterdir())
    assert len(paths) == len(whole)
    return [(path.stem, fit(make_loader(), path=str(path)), whole[int(path.stem[5:]) :]) for path in paths]


def skipped_rest(folder: str) -> Tails:
    """Of each epoch, everything after five batches is left out by the model."""

    def skip(model: Recorder) -> int | None:
        return -1 if model.trainer.fit_loop.batch_idx == 5 else None

    def make_model() -> Recorder:
        return Recorder(hook="on_train_batch_start", do=skip)

    whole = save_and_stop(folder, {}, make_model())
    tails = []
    for path in Path(folder).iterdir():
        for more in ({}, MANY_STEPS):
            rest = whole[int(path.stem.split("=")[1]) :]
            tails.append((path.stem, fit(make_loader(), make_model(), str(path), **more), rest))
    return tails


def combined(folder: str, mode: str, sizes: list[int]) -> tuple[list[Any], Tails]:
    """Loaders of several lengths; returns each one's batches, and what is continued from every moment."""
    silence()

    def make() -> CombinedLoader:
        return CombinedLoader([make_loader(size, seed) for seed, size in enumerate(sizes)], mode)

    saver = Saver(folder)
    whole = fit(make(), callbacks=[saver])
    tails = []
    for path, number in saver.saved.items():
        tails += [(path, fit(make(), path=path, **more), whole[number:]) for more in ({}, MANY_STEPS)]
    return [list(column) for column in zip(*(batches for _, _, batches in whole), strict=True)], tails


def overfitted() -> list[list[Any]]:
    """What an overfitting Trainer reads, by its number of batches, without advice to turn shuffling off."""
    return [[batch for *_, batch in fit(make_loader(), overfit_batches=n)] for n in (2, 0.5)]


def found_a_rate(folder: str) -> list[Row]:
    os.chdir(folder)  # The finder keeps its checkpoint there.
    return fit(make_loader(), callbacks=[LearningRateFinder(num_training_steps=5)])


def limited(options: dict[str, Any]) -> list[Row]:
    return fit(make_loader(), **options)


class Unsized(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def refused(which: str) -> str:
    """What a Trainer says of loaders that cannot work beside each other, before the first step."""
    silence()
    loader, model = make_loader(), Recorder()
    loaders = {"twice": [loader, loader], "one Loader": [loader, resumable(loader.loader)], "validation": loader}
    loaders["unsized"] = [DataLoader(Unsized()), loader]
    trainer = lightning.Trainer(
        accelerator="cpu", max_epochs=2, val_check_interval=3, enable_checkpointing=False, **QUIET
    )
    try:
        trainer.fit(model, loaders[which], loader if which == "validation" else None)
    except errors.ConfigError as error:
        return f"{len(model.rows)}: {error}"
    return ""


def validated_with_the_training_loader() -> tuple[list[Row], list[Row]]:
    """At an epoch's end nothing is broken off."""
    whole, model, loader = fit(make_loader()), Recorder(), make_loader()
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=NUM_EPOCHS, enable_checkpointing=False, **QUIET)
    trainer.fit(model, loader, resumable(loader.loader))
    return model.rows, whole


def fit_on_ranks(
    root: str,
    folder: str,
    num_ranks: int,
    batch_size: int,
    num_workers: int,
    resume_from: str | None,
    save_at: int,
    max_steps: int = -1,
) -> dict[str, Any]:
    """Two epochs of photos, or the rest of them; saved after every `save_at` steps, or each epoch where that is 0."""
    loaders = []
    for is_training in (True, False):
        parser = ParserTfds(root, "photos", is_training=is_training, batch_size=batch_size)
        loaders.append(create_loader(ImageDataset(parser, fields=LEDGER), num_workers if is_training else 0))
    when = {"every_n_train_steps": save_at, "save_on_train_epoch_end": False} if save_at else {"every_n_epochs": 1}
    silence()
    keep = ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)
    strategy, devices = ("ddp", num_ranks) if num_ranks > 1 else ("auto", 1)
    limits = {"max_epochs": 2, "max_steps": max_steps}
    trainer = lightning.Trainer(
        accelerator="cpu", devices=devices, strategy=strategy, callbacks=[keep], **limits, **QUIET
    )
    model = OnRanks()
    trainer.fit(model, resumable(loaders[0]), loaders[1], ckpt_path=resume_from, weights_only=False)
    return {"world": trainer.world_size, "trained": model.trained, "validated": model.validated}
