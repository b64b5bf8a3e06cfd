"""Programs that train with Lightning: `lightning_scenarios.py FUNCTION ARGUMENTS...`; rank r writes `<r>.json`.

The first two arguments are the folder of the results and the data directory. Lightning starts the further ranks itself.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, ParserTfds, create_loader, errors

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up. Spawned workers inherit the path.
    sys.path[0] = str(Path(__file__).parents[1])

import torchvision_build

OPERATORS = torchvision_build.declare_where_needed()  # Lightning imports torchvision, through its metrics.
import lightning  # noqa: E402
from torch_data.reading import LEDGER, rows_of  # noqa: E402

BATCH_SIZE, NUM_EPOCHS, SEED = 8, 2, 7
QUIET = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}


def make_loader(root: str, is_training: bool, num_workers: int = 0, kind: str = "DataLoader") -> Any:
    parser = ParserTfds(root, "photos", is_training=is_training, batch_size=BATCH_SIZE)
    dataset = ImageDataset(parser, fields=LEDGER)
    if kind == "Loader":
        return create_loader(dataset, num_workers)
    return DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, persistent_workers=num_workers > 0)


class Recorder(lightning.LightningModule):
    """A model that writes down what it sees: lists of batches by stage and epoch."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 10)
        self.folder = Path(folder)
        self.seen: dict[str, list[list[Any]]] = {}

    def see(self, stage: str, batch: Any) -> torch.Tensor:
        self.seen[stage][-1] += rows_of([batch])
        index, label, _, _ = batch
        logits = self.layer(index[:, None].float() / 61)
        return torch.nn.functional.cross_entropy(logits, label, reduction="sum") / len(label)

    def begin(self, stage: str) -> None:
        self.seen.setdefault(stage, []).append([])

    def on_train_epoch_start(self) -> None:
        self.begin("train")

    def on_validation_epoch_start(self) -> None:
        self.begin("sanity" if self.trainer.sanity_checking else "validate")

    def on_test_epoch_start(self) -> None:
        self.begin("test")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.see("train", batch)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.see("sanity" if self.trainer.sanity_checking else "validate", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.see("test", batch)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)

    def on_train_end(self) -> None:
        loaders = [self.trainer.train_dataloader, self.trainer.val_dataloaders]
        self.write(lengths=[len(loader) for loader in loaders], in_fit="tensorflow" in sys.modules)

    def write(self, **facts: Any) -> None:
        """Writes down what this rank has seen so far; from inside, as spawned ranks do not come back."""
        path = self.folder / f"{self.trainer.global_rank}.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(before | facts | {"seen": self.seen}))


def fit(folder: str, root: str, strategy: str, num_workers: str = "0", kind: str = "DataLoader") -> None:
    """Two epochs of training, each followed by validation, after the sanity check; the loaders as they are."""
    train_loader, eval_loader = (
        make_loader(root, is_training, int(num_workers), kind) for is_training in (True, False)
    )
    lightning.seed_everything(SEED, workers=True)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy=strategy, max_epochs=NUM_EPOCHS, log_every_n_steps=1, **QUIET
    )
    model = Recorder(folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.fit(model, train_loader, eval_loader)
    if strategy == "ddp":  # Other strategies start their ranks anew.
        trainer.validate(model, make_loader(root, False))
        trainer.test(model, make_loader(root, False))
        model.write(warnings=sorted({str(warning.message) for warning in caught}))


def use_fabric(folder: str, root: str) -> None:
    """Two epochs of training and of evaluation, by hand."""
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    plain = make_loader(root, True), make_loader(root, False)
    train_loader, eval_loader = fabric.setup_dataloaders(*plain)
    facts = {
        "epochs": [rows_of(train_loader), rows_of(train_loader)],
        "evaluated": [rows_of(eval_loader), rows_of(eval_loader)],
        "lengths": [[len(loader) for loader in plain], [len(train_loader), len(eval_loader)]],
    }
    (Path(folder) / f"{fabric.global_rank}.json").write_text(json.dumps(facts))


def ask_for_len_too_early(folder: str, root: str) -> None:
    """A script that asks for a length at its top, and that Lightning runs once more for rank 1."""
    try:
        said = str(len(make_loader(root, False)))
    except errors.ConfigError as error:
        said = str(error)
    fabric = lightning.Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    facts = {"said": said, "len": len(make_loader(root, False))}
    (Path(folder) / f"{fabric.global_rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
