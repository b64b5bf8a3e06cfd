"""What ranks do with a Lightning Trainer and Loaders; `forked_ranks` has declared torchvision's operators."""

import logging
import warnings
from typing import Any

import lightning
import torch
from torch_data.reading import LEDGER, rows_of

from tfds_torch import ImageDataset, ParserTfds, create_loader
from tfds_torch.integrations.lightning import resumable

BATCH_SIZE, NUM_EPOCHS = 8, 2
QUIET = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0}


class Recorder(lightning.LightningModule):
    """A model that remembers what it sees: lists of batches by epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 10)
        self.trained: dict[int, list[Any]] = {}
        self.validated: dict[int, list[Any]] = {}

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.trained.setdefault(self.current_epoch, []).extend(rows_of([batch]))
        return self.layer(batch[0][:, None].float() / 61).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.validated.setdefault(self.current_epoch, []).extend(rows_of([batch]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def fit(
    root: str,
    folder: str,
    num_ranks: int,
    batch_size: int,
    num_workers: int,
    resume_from: str | None,
    save_at: int,
    max_steps: int = -1,
) -> dict[str, Any]:
    """Two epochs of training and validation, or the rest of them; saved after every `save_at` steps, or each epoch."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")  # Lightning has advice about a progress bar, folders, workers and checkpoints.
    loaders = []
    for is_training in (True, False):
        parser = ParserTfds(root, "photos", is_training=is_training, batch_size=batch_size)
        loaders.append(create_loader(ImageDataset(parser, fields=LEDGER), num_workers if is_training else 0))
    when = {"every_n_train_steps": save_at, "save_on_train_epoch_end": False} if save_at else {"every_n_epochs": 1}
    keep = lightning.pytorch.callbacks.ModelCheckpoint(folder, "{step}", save_top_k=-1, **when)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=num_ranks,
        strategy="ddp" if num_ranks > 1 else "auto",
        max_epochs=NUM_EPOCHS,
        max_steps=max_steps,
        log_every_n_steps=1,
        callbacks=[keep],
        **QUIET,
    )
    model = Recorder()
    trainer.fit(model, resumable(loaders[0]), loaders[1], ckpt_path=resume_from, weights_only=False)
    return {"world": trainer.world_size, "trained": model.trained, "validated": model.validated}
