"""Trains a small CNN on a TFDS dataset, on the CPU.

    python examples/train.py --name digits
    torchrun --nproc-per-node 2 examples/train.py --name digits

With --state FILE it goes on where it was stopped, to the very batch.
Everything that concerns the data is the public API of tfds_torch; the rest is a plain PyTorch loop.
"""

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from rich.progress import track
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    Loader,
    MaskedMean,
    ParserTfds,
    TrainPreprocess,
    create_loader,
    demo,
)


def make_loader(args, root, split: str, is_training: bool) -> Loader:
    """Batches float32 [B, 3, size, size] in -1..1, with labels and which of them are valid."""
    train = TrainPreprocess(args.size, scale=(0.7, 1.0), hflip=0)  # Digits are not to be mirrored.
    preprocess = train if is_training else EvalPreprocess(args.size, crop_pct=1, crop_mode="squash")
    kind = {"is_training": is_training, "batch_size": args.batch_size, "seed": args.seed, "preprocess": preprocess}
    parser = ParserTfds(root, args.name, split, **kind)
    dataset = ImageDataset(parser, fields=("image", "label", "valid"))
    return create_loader(dataset, args.workers, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def make_model(num_classes: int) -> nn.Module:
    def block(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)
        )

    head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.1), nn.Linear(4 * 64, num_classes))
    return nn.Sequential(block(3, 32), block(32, 64), *head)


def train_epoch(model: nn.Module, loader: Loader, optimizer, scheduler, epoch: int, save) -> float | None:
    """Returns the mean loss of the batches that were left of the epoch; None: there were none."""
    model.train()
    losses = []
    for images, labels, _ in track(loader, f"epoch {epoch}", transient=True, disable=not sys.stdout.isatty()):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
        if len(losses) % 10 == 0:
            save()
    save()
    return sum(losses) / len(losses) if losses else None


@torch.inference_mode()
def evaluate(model: nn.Module, loader: Loader) -> tuple[int, int]:
    """Returns (correct, examples) over all ranks: every example of the split counts exactly once, padding never."""
    model.eval()
    accuracy = MaskedMean()
    for images, labels, valid in loader:
        accuracy.update(model(images).argmax(dim=1) == labels, valid)
    correct, examples = accuracy.sums()
    return int(correct), examples


def save_state(path: Path, parts: dict) -> None:
    new = path.with_suffix(".new")
    torch.save({name: part.state_dict() for name, part in parts.items()}, new)
    new.replace(path)  # Whole, whenever this process ends.


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--name", default="digits", help="any prepared TFDS dataset with an image and a label")
    options.add_argument("--root", help="TFDS data directory (TFDS's default; embedded datasets bring their own)")
    options.add_argument("--train-split", default="train")
    options.add_argument("--test-split", default="test")
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--batch-size", type=int, default=64)
    options.add_argument("--size", type=int, default=16, help="images are resized to size x size")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--lr", type=float, default=0.01)
    options.add_argument("--seed", type=int, default=42)
    options.add_argument("--state", type=Path, help="file to go on from, and to keep the state in")
    args = options.parse_args()

    is_distributed = "RANK" in os.environ  # Started by torchrun.
    if is_distributed:
        dist.init_process_group("gloo")
    say = print if not is_distributed or dist.get_rank() == 0 else lambda *_: None
    started = time.monotonic()
    torch.manual_seed(args.seed)
    root = demo.prepare(args.name) if args.root is None and args.name in demo.DEMO_NAMES else args.root
    train_loader = make_loader(args, root, args.train_split, is_training=True)
    test_loader = make_loader(args, root, args.test_split, is_training=False)
    model = make_model(num_classes=len(train_loader.dataset.parser.class_names))
    trained = DistributedDataParallel(model) if is_distributed else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(train_loader))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": train_loader}
    state = torch.load(args.state) if args.state and args.state.exists() else {}
    for name in state:
        parts[name].load_state_dict(state[name])
    # One rank saves for all: the loader's state says how far every rank is.
    save = partial(save_state, args.state, parts) if args.state and say is print else lambda: None
    for epoch in range(state["loader"]["epoch"] if state else 0, args.epochs):
        loss = train_epoch(trained, train_loader, optimizer, scheduler, epoch, save)
        if loss is not None:
            say(f"epoch {epoch}: loss {loss:.3f}")
    correct, examples = evaluate(trained, test_loader)
    say(f"test accuracy {correct / examples:.1%} ({correct} of {examples}) after {time.monotonic() - started:.0f} s")
    if is_distributed:
        del trained  # torch 2.13 may hang where the gloo group goes before what uses it.
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
