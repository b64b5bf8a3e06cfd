"""Trains a small ResNet on a TFDS dataset, on the CPU, and goes on where it was stopped.

    python examples/train.py --name digits --state digits.pt

Stop it with Ctrl-C, or kill it, and run the same line again: it goes on from the last batch that was saved, and the
weights at the end are those of a run that was never stopped. `train_ddp.py` trains with several processes.
"""

import argparse
import signal
import sys
from pathlib import Path

import torch
from rich.progress import track
from torch import nn
from torch.nn import functional as F

from tfds_torch import EvalPreprocess, ImageDataset, MaskedMean, ParserTfds, TrainPreprocess, create_loader, demo


class Block(nn.Module):
    """Two convolutions and a shortcut around them; halves height and width."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Sequential(nn.AvgPool2d(2, ceil_mode=True), nn.Conv2d(inputs, outputs, 1, bias=False))
        self.norms = nn.ModuleList(nn.BatchNorm2d(outputs) for _ in range(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        inner = F.relu(self.norms[0](self.first(images)))
        return F.relu(self.norms[1](self.second(inner)) + self.shortcut(images))


def make_model(num_classes: int) -> nn.Module:
    """Takes images float32 [B, 3, H, W]; returns logits float32 [B, num_classes]."""
    blocks = Block(3, 32), Block(32, 64), Block(64, 128)
    model = nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, num_classes))
    return model.to(memory_format=torch.channels_last)  # As the batches are.


def make_loader(args: argparse.Namespace, split: str, is_training: bool):
    """Yields images float32 [B, 3, size, size] in -1..1, labels, which of the examples are valid, and their ids."""
    root = demo.prepare(args.name) if args.root is None and args.name in demo.DEMO_NAMES else args.root
    train = TrainPreprocess(args.size, scale=(0.7, 1.0), hflip=0)  # Digits are not to be mirrored.
    preprocess = train if is_training else EvalPreprocess(args.size, crop_pct=1, crop_mode="squash")
    kind = {"is_training": is_training, "batch_size": args.batch_size, "preprocess": preprocess}
    dataset = ImageDataset(ParserTfds(root, args.name, split, **kind), fields=("image", "label", "valid", "id"))
    return create_loader(dataset, args.workers, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))


def make_options(description: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--name", default="digits", help="any prepared TFDS dataset with an image and a label")
    options.add_argument("--root", help="TFDS data directory or URL (TFDS's default; embedded datasets bring theirs)")
    options.add_argument("--train-split", default="train")
    options.add_argument("--test-split", default="test")
    options.add_argument("--epochs", type=int, default=8)
    options.add_argument("--batch-size", type=int, default=64, help="of each process")
    options.add_argument("--size", type=int, default=16, help="images are resized to size x size")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--lr", type=float, default=0.01)
    return options


def main() -> None:
    options = make_options(__doc__)
    options.add_argument("--state", type=Path, help="file to go on from, and to save to")
    args = options.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)  # More would only wait for each other, so small is the model.
    train_loader = make_loader(args, args.train_split, is_training=True)
    model = make_model(num_classes=len(train_loader.dataset.parser.class_names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(train_loader))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": train_loader}
    state = torch.load(args.state) if args.state and args.state.exists() else {}
    for name in state:
        parts[name].load_state_dict(state[name])

    def save() -> None:
        if args.state:
            torch.save({name: part.state_dict() for name, part in parts.items()}, new := args.state.with_suffix(".new"))
            new.replace(args.state)  # Whole, whenever this process is killed.

    stops = []  # After Ctrl-C the step is finished first: all parts then speak of the same batch.
    signal.signal(signal.SIGINT, lambda *_: stops.append("Ctrl-C"))
    for epoch in range(state["loader"]["epoch"] if state else 0, args.epochs):
        model.train()
        losses = []
        for images, labels, *_ in track(train_loader, f"epoch {epoch}", disable=not sys.stdout.isatty()):
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.item())
            if stops or len(losses) % 10 == 0:
                save()
            if stops:
                print(f"stopped in epoch {epoch}" + ("; the same command goes on" if args.state else ""))
                sys.exit(130)
        save()
        if losses:  # None where the state was that of an epoch's end.
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")

    model.eval()
    accuracy = MaskedMean()
    for images, labels, valid, _ in make_loader(args, args.test_split, is_training=False):
        with torch.inference_mode():
            accuracy.update(model(images).argmax(dim=1) == labels, valid)
    correct, examples = accuracy.sums()
    print(f"test accuracy {correct / examples:.1%} ({correct:.0f} of {examples})")


if __name__ == "__main__":
    main()
