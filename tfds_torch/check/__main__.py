"""Entry point of `python -m tfds_torch.check`."""

import sys

from tfds_torch.check.command import main

if __name__ == "__main__":
    sys.exit(main())
