"""Entry point of `python -m tfds_torch.export`."""

import sys
from importlib import import_module

from tfds_torch.export.arguments import parse_arguments

if __name__ == "__main__":
    if sys.argv[1:2] == ["cache"]:
        sys.exit(import_module("tfds_torch.export.cache_command").run(sys.argv[2:]))
    flags = parse_arguments(None)
    try:
        from tfds_torch.export.command import run  # Only now: TFDS takes a second.
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        sys.exit(130)
    sys.exit(run(flags))
