"""Entry point of `python -m tfds_torch.check`."""

import sys

from tfds_torch.check.arguments import parse_arguments

if __name__ == "__main__":
    flags = parse_arguments(None)
    try:
        from tfds_torch.check.command import run  # Only now: torch and TFDS take seconds.
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(flags, sys.argv[1:]))
