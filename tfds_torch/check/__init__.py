"""`python -m tfds_torch.check` reads a dataset with real worker processes and proves what came.

`check_parser` does so with a parser that a script makes.
"""

from typing import TYPE_CHECKING

from tfds_torch.runtime.lazy_names import import_at_first_use

if TYPE_CHECKING:
    from tfds_torch.check.parser_check import check_parser

__all__ = ["check_parser"]

# The command reads its flags before torch and TFDS are loaded.
__getattr__ = import_at_first_use(__name__, {"check_parser": "tfds_torch.check.parser_check"})
