"""`python -m tfds_torch.demo photos --num-examples 4096`: prepares a demo dataset and says how to open it."""

import argparse
import sys
from collections.abc import Sequence

from tfds_torch.demo.preparation import prepare
from tfds_torch.errors import ConfigError, DatasetNotFoundError, TfdsTorchError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: what follows the command's name; None means those of this process.

    Returns:
        The exit code: 0 prepared, 1 failed, 2 wrong usage, 130 interrupted.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tfds_torch.demo", description="Prepares a TFDS dataset that needs no network."
    )
    parser.add_argument("name", help="digits (real handwriting, PNG) or photos (ImageNet-like JPEG files)")
    parser.add_argument("--num-examples", type=int, metavar="N", help="examples of train (photos only; default 512)")
    parser.add_argument("--num-shards", type=int, metavar="K", help="shards of train (default: digits 1, photos 8)")
    parser.add_argument("--root", metavar="DIR", help="the data dir (default: a folder in the user's cache)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="another seed, other photographs (default 0)")
    options = parser.parse_args(arguments)
    try:
        root = prepare(**vars(options))
    except (ConfigError, DatasetNotFoundError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except TfdsTorchError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted; nothing was left behind", file=sys.stderr)
        return 130
    print(f"{options.name} is in {root}; this opens it:")
    print(f"  parser = tfds_torch.ParserTfds({str(root)!r}, {options.name!r})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
