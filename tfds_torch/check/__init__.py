"""`python -m tfds_torch.check` reads a dataset with real worker processes and proves what came.

`check_parser` does so with a parser that a script makes.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfds_torch.check.parser_check import check_parser

__all__ = ["check_parser"]


def __getattr__(name: str) -> Any:
    # Not before: the command reads its flags before torch and TFDS are loaded.
    if name == "check_parser":
        from tfds_torch.check.parser_check import check_parser

        return check_parser
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
