"""The entry for timm: `from tfds_torch.timm import install`, and `python -m tfds_torch.timm SCRIPT`."""

import sys

from tfds_torch.integrations.timm import install
from tfds_torch.integrations.timm.__main__ import main

__all__ = ["install"]

if __name__ == "__main__":
    sys.exit(main())
