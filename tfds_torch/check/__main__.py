"""Entry point of `python -m tfds_torch.check`."""

import sys

from tfds_torch.check.arguments import parse_arguments

if __name__ == "__main__":
    flags = parse_arguments(None)
    from tfds_torch.check.command import run  # Only now: torch and TFDS take seconds.

    sys.exit(run(flags, sys.argv[1:]))
