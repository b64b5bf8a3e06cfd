"""Trains with several processes, and evaluates exactly: every example counts once, on however many ranks.

    torchrun --nproc-per-node 2 examples/train_ddp.py --name digits

Model, options and loaders are those of train.py. A loader finds its rank by itself and reads its own share; there is no
DistributedSampler. The last batches of the evaluation are padded, so that all ranks have equally many; `valid` says
which examples are padding, and MaskedMean adds up the others over all ranks.
"""

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from train import make_loader, make_model, make_options

from tfds_torch import MaskedMean


@torch.inference_mode()
def evaluate(model: torch.nn.Module, loader) -> str:
    """Every rank calls it, and gets the same result."""
    model.eval()
    accuracy, mean_loss, seen = MaskedMean(), MaskedMean(), []
    for images, labels, valid, ids in loader:
        logits = model(images)
        accuracy.update(logits.argmax(dim=1) == labels, valid)
        mean_loss.update(F.cross_entropy(logits, labels, reduction="none"), valid)
        seen += [id for id, is_valid in zip(ids, valid, strict=True) if is_valid]
    of_ranks = [None] * dist.get_world_size()
    dist.all_gather_object(of_ranks, seen)
    ids = [id for of_rank in of_ranks for id in of_rank]
    if not len(ids) == len(set(ids)) == loader.dataset.parser.num_examples:
        raise RuntimeError(f"{len(ids)} examples, {len(set(ids))} different ones: not every example exactly once")
    correct, examples = accuracy.sums()
    shares = " + ".join(str(len(of_rank)) for of_rank in of_ranks)
    return f"loss {mean_loss.compute():.3f}, accuracy {correct / examples:.1%} ({correct:.0f} of {examples} = {shares})"


def main() -> None:
    args = make_options(__doc__).parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # The same weights at first on every rank.
    torch.set_num_threads(1)
    train_loader = make_loader(args, args.train_split, is_training=True)
    test_loader = make_loader(args, args.test_split, is_training=False)
    model = make_model(num_classes=len(train_loader.dataset.parser.class_names))
    trained = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(train_loader))
    for epoch in range(args.epochs):
        trained.train()
        for images, labels, *_ in train_loader:
            loss = F.cross_entropy(trained(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
        figures = evaluate(model, test_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}, {len(train_loader)} batches on each of {dist.get_world_size()} ranks: {figures}")
    del trained  # torch 2.13 may hang where the gloo group goes before what uses it.
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
