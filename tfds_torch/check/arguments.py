"""The flags of `python -m tfds_torch.check`; nothing that takes time is imported for them."""

import argparse
from collections.abc import Sequence
from pathlib import Path

_DESCRIPTION = """Reads a TFDS dataset as a training script that follows the README does, with every rank and real
worker processes: through create_loader, in whole batches where there are images, preprocessed while they are decoded
(by the recipe's preprocess, else by TrainPreprocess or, in evaluation, EvalPreprocess). It proves from the ids of the
examples what came, compares the pixels of some with Pillow's, and measures the speed. Without --root, the names digits
and photos stand for the embedded datasets, which are built at their first use; --fake builds made-up content for any
other name. With --torchrun the ranks are processes of torch.distributed, started as torchrun starts them, and read at
the same time; else they read one after the other. In read mode index, another number of workers must give the same
order, a saved state the same tail, and TFDS's own reader the same examples (of TFDS's file formats). check starts its
ranks itself: do not start it with torchrun.
Exit code: 0 all promises kept, 1 one broken, 2 wrong usage or no such dataset, 130 interrupted."""


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the flags, None where one was not given; end the process with code 2 for a misuse that argparse sees."""
    parser = argparse.ArgumentParser(prog="python -m tfds_torch.check", description=_DESCRIPTION, allow_abbrev=False)
    what, how, output = map(parser.add_argument_group, ("what is read", "how it is read", "what is written"))
    what.add_argument(
        "--name",
        help="dataset: name, name/config, name:version; or the path of a .beton file or of WebDataset's tars, "
        "several with braces: 'train-{000..099}.tar' (digits)",
    )
    what.add_argument("--root", help="TFDS data directory, or a version directory (TFDS's default)")
    what.add_argument(
        "--split",
        help="TFDS split expression, such as train[:10%%] (train; with --eval: test, validation, val or train)",
    )
    what.add_argument("--config", metavar="FILE.toml", help="a recipe, such as those in configs/; flags beat it")
    what.add_argument("--fake", type=int, metavar="N", help="build the dataset with N made-up examples per split")
    what.add_argument("--shards", type=int, metavar="K", help="shards of a split that is built here")
    how.add_argument("--batch-size", type=int, metavar="B", help="per rank (32)")
    how.add_argument("--workers", type=int, metavar="W", help="loader processes per rank (2)")
    how.add_argument("--replicas", type=int, metavar="R", help="ranks, one after the other (1)")
    how.add_argument("--torchrun", type=int, metavar="R", help="ranks, processes of torch.distributed at the same time")
    how.add_argument("--eval", action="store_true", help="evaluation: every example exactly once")
    how.add_argument("--read-mode", metavar="M", help="auto, index, files or examples (auto)")
    how.add_argument("--plain-loader", action="store_true", help="read by torch's DataLoader, not create_loader")
    how.add_argument("--single-examples", action="store_true", help="read single examples, whole and unpreprocessed")
    how.add_argument("--epochs", type=int, default=2, metavar="E", help="epochs to read (%(default)s)")
    output.add_argument("--json", type=Path, metavar="FILE", help="everything that is printed, for machines")
    output.add_argument("--html", type=Path, metavar="FILE.html", help="the same as a page with pictures, for people")
    output.add_argument("--images", type=Path, metavar="FILE.png", help="a contact sheet of decoded images")
    return parser.parse_args(arguments)
