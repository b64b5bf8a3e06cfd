"""A script in the shape of timm's train.py: it knows nothing of tfds_torch, and imports names from timm."""

import argparse
import json
import multiprocessing
import os
import sys
from typing import Any

import torch
from timm import utils
from timm.data import create_dataset, create_loader
from timm.models import create_model
from timm.scheduler import create_scheduler_v2
from torch import nn

Loader = Any
CPU = torch.device("cpu")


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--train-split", default="train")
    parser.add_argument("--val-split", default="test")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--validation-batch-size", type=int, default=64)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--start-method", default="fork")
    return parser.parse_args()


def load(args: argparse.Namespace, split: str, batch_size: int, is_training: bool, distributed: bool) -> Loader:
    dataset = create_dataset(
        args.dataset,
        root=args.data_dir,
        split=split,
        is_training=is_training,
        batch_size=args.batch_size,
        input_img_mode="L",
        repeats=0.0,
    )
    return create_loader(
        dataset,
        input_size=(1, 32, 32),
        batch_size=batch_size,
        is_training=is_training,
        mean=(0.5,),
        std=(0.5,),
        no_aug=True,
        num_workers=args.workers,
        distributed=distributed,
        device=CPU,
    )


def train_one_epoch(model: nn.Module, loader: Loader, optimizer: Any, scheduler: Any, first_update: int) -> float:
    losses = utils.AverageMeter()
    model.train()
    for number, (images, targets) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(images), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step_update(first_update + number + 1)
        losses.update(loss.item(), images.shape[0])
    assert losses.count == len(loader) * loader.loader.batch_size
    return losses.avg


def validate(model: nn.Module, loader: Loader, num_replicas: int) -> dict[str, float]:
    """As in timm's train.py."""
    losses, top1, top5 = utils.AverageMeter(), utils.AverageMeter(), utils.AverageMeter()
    model.eval()
    with torch.inference_mode():
        for images, targets in loader:
            output = model(images)
            loss = nn.CrossEntropyLoss()(output, targets)
            acc1, acc5 = utils.accuracy(output, targets, topk=(1, 5))
            if num_replicas > 1:
                loss = utils.reduce_tensor(loss.data, num_replicas)
                acc1 = utils.reduce_tensor(acc1, num_replicas)
                acc5 = utils.reduce_tensor(acc5, num_replicas)
            losses.update(loss.item(), output.shape[0])
            top1.update(acc1.item(), output.shape[0])
            top5.update(acc5.item(), output.shape[0])
    return {"loss": losses.avg, "top1": top1.avg, "top5": top5.avg}


def main() -> None:
    args = parse_args()
    multiprocessing.set_start_method(args.start_method, force=True)
    torch.manual_seed(0)
    num_replicas = int(os.environ.get("WORLD_SIZE", "1"))
    if num_replicas > 1:
        torch.distributed.init_process_group("gloo")
    train_loader = load(args, args.train_split, args.batch_size, True, num_replicas > 1)
    eval_loader = load(args, args.val_split, args.validation_batch_size, False, num_replicas > 1)
    model: nn.Module = create_model("test_vit", num_classes=10, in_chans=1, img_size=32)
    trained = nn.parallel.DistributedDataParallel(model) if num_replicas > 1 else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler, _ = create_scheduler_v2(
        optimizer, "cosine", num_epochs=args.epochs, updates_per_epoch=len(train_loader), step_on_epochs=False
    )
    num_batches = [len(train_loader), len(eval_loader)]
    epochs = []
    for epoch in range(args.epochs):
        train_loader.dataset.set_epoch(epoch)
        loss = train_one_epoch(trained, train_loader, optimizer, scheduler, epoch * len(train_loader))
        epochs.append({"train_loss": loss, **validate(trained, eval_loader, num_replicas)})
    rank = torch.distributed.get_rank() if num_replicas > 1 else 0
    # A DDP that outlives destroy_process_group() takes gloo's group down with the GIL held, and may wait for ever for a
    # thread of gloo that needs the GIL to let go of its last tensor (torch 2.13).
    del trained
    if num_replicas > 1:
        torch.distributed.destroy_process_group()
        del os.environ["RANK"], os.environ["WORLD_SIZE"]  # By itself, as validate.py would run.
    result = {
        "epochs": epochs,
        "batches": num_batches,
        "learning rate": optimizer.param_groups[0]["lr"],
        "alone": validate(model, load(args, args.val_split, 50, False, False), 1) if rank == 0 else None,
        "tensorflow": sorted({"tensorflow", "timm.data.readers.reader_tfds"} & set(sys.modules)),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
