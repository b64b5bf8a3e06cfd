"""Entry point of `python -m tfds_torch.timm`."""

import sys

from tfds_torch.timm.command import main

if __name__ == "__main__":
    sys.exit(main())
