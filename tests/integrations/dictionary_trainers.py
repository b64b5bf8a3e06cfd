"""Trainings over batches that are dictionaries: `dictionary_trainers.py accelerate|lightning FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch

from tfds_torch import EvalPreprocess, ImageDataset, Loader, ParserTfds, create_loader, demo

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])  # The package of the tests.

import torchvision_build

OPERATORS = torchvision_build.declare_where_needed()  # Lightning imports torchvision, through its metrics.
import lightning  # noqa: E402
from accelerate import Accelerator  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402

from tfds_torch.integrations.accelerate import keep_own_shards  # noqa: E402
from tfds_torch.integrations.lightning import resumable  # noqa: E402

NAMES = {"pixel_values": "image", "which": "index"}


def make_loader() -> Loader:
    preprocess = EvalPreprocess(8, crop_pct=1)
    parser = ParserTfds(demo.prepare("digits"), "digits", "train[:200]", None, True, 16, preprocess=preprocess)
    return create_loader(ImageDataset(parser, fields=NAMES))


def whole() -> list[list[int]]:
    with make_loader() as loader:
        return [batch["which"].tolist() for batch in loader]


def accelerate(folder: Path) -> None:
    """Stop after five batches, and continue with another Accelerator."""
    seen: list[list[int]] = []
    for part in ("first", "second"):
        accelerator = Accelerator(cpu=True)
        keep_own_shards(accelerator)
        loader = accelerator.prepare(make_loader())
        if part == "second":
            accelerator.load_state(str(folder / "state"))
        for number, batch in enumerate(loader, 1):
            assert list(batch) == list(NAMES)
            seen.append(batch["which"].tolist())
            if part == "first" and number == 5:
                accelerator.save_state(str(folder / "state"))
                break
    assert seen == whole()


class Model(lightning.LightningModule):
    """Notes which examples it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3 * 64, 1)
        self.seen: list[list[int]] = []

    def training_step(self, batch: dict[str, Any]) -> Any:
        self.seen.append(batch["which"].tolist())
        return self.layer(batch["pixel_values"].flatten(1) / 255).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def train_with_lightning(folder: Path) -> None:
    """Stop after five batches, and continue with another Trainer."""
    seen: list[list[int]] = []
    for steps, checkpoint in ((5, None), (13, str(folder / "last.ckpt"))):
        saves = ModelCheckpoint(folder, save_last=True, every_n_train_steps=5)
        trainer = lightning.Trainer(
            accelerator="cpu", max_steps=steps, logger=False, callbacks=[saves], enable_progress_bar=False
        )
        model = Model()
        trainer.fit(model, resumable(make_loader()), ckpt_path=checkpoint)
        seen += model.seen
    assert seen == whole()


if __name__ == "__main__":
    {"accelerate": accelerate, "lightning": train_with_lightning}[sys.argv[1]](Path(sys.argv[2]))
