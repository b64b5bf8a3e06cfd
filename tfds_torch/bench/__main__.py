"""Entry point of `python -m tfds_torch.bench`."""

import sys

from tfds_torch.bench.command import main

if __name__ == "__main__":
    sys.exit(main())
