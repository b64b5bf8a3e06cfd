"""`python -m tfds_torch.demo photos --examples 4096` or `... cifar10 --fake 5000`: prepare a demo dataset."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tfds_torch.demo.preparation import prepare, prepare_fake
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError
from tfds_torch.runtime.printable import printable


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code: 0 prepared, 1 failed, 2 wrong usage, 130 interrupted."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        root = _prepare(options)
    except (ConfigError, DatasetNotFoundError) as error:
        print(f"{parser.prog}: {printable(str(error))}", file=sys.stderr)
        return 2
    except TfdsTorchError as error:
        print(f"{parser.prog}: {printable(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    print(f"{printable(options.name)} is in {printable(str(root))}; this opens it:")
    split = f", split={options.split[0]!r}" if options.split else ""
    print(f"  parser = tfds_torch.ParserTfds({str(root)!r}, {options.name!r}{split})")
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tfds_torch.demo",
        description="Prepares a TFDS dataset that needs no network, and prints how to open it.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "name",
        help="digits (real handwriting, PNG), photos (ImageNet-like JPEG files), episodes/bridge, /droid or "
        "/libero (a made-up robot), or with --fake any dataset of TFDS: name, name/config, name:version",
    )
    parser.add_argument(
        "--fake",
        type=int,
        metavar="N",
        help="write the dataset's own features and label names with made-up content: N examples of each split",
    )
    parser.add_argument(
        "--split",
        action="append",
        metavar="S",
        help="with --fake: a split to write; may be repeated (default: all of its splits)",
    )
    parser.add_argument("--examples", type=int, metavar="N", help="examples of train (photos 512, episodes 64)")
    parser.add_argument(
        "--shards", type=int, metavar="K", help="shards of train, or of each fake split (default 8; digits 1)"
    )
    parser.add_argument("--root", metavar="DIR", help="the data dir (default: a folder in the user's cache)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed, other content (default 0)")
    return parser


def _prepare(options: argparse.Namespace) -> Path:
    if options.fake is None:
        if options.split is not None:
            raise ConfigError("--split chooses what --fake writes; embedded datasets have their own splits.")
        return prepare(
            options.name,
            root=options.root,
            num_examples=options.examples,
            num_shards=options.shards,
            seed=options.seed,
        )
    if options.examples is not None:
        raise ConfigError(
            f"--examples {options.examples} is for embedded datasets; --fake {options.fake} already says how many."
        )
    return prepare_fake(
        options.name,
        num_examples=options.fake,
        num_shards=options.shards,
        splits=options.split,
        root=options.root,
        seed=options.seed,
    )


if __name__ == "__main__":
    sys.exit(main())
