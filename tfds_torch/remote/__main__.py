"""Entry point of `python -m tfds_torch.remote`."""

import sys

from tfds_torch.remote.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
