"""Datasets that need no network, written by TFDS as real TFDS datasets.

`prepare("digits")` or `prepare("photos")` returns the folder to give to `ParserTfds`. Importing this room loads
neither tensorflow nor torch nor tensorflow_datasets, and neither does preparing: TFDS runs in a process of its own.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfds_torch.demo.preparation import prepare
    from tfds_torch.demo.recipe import DEMO_NAMES

__all__ = ["DEMO_NAMES", "prepare"]


def __getattr__(name: str) -> Any:
    if name == "prepare":
        from tfds_torch.demo.preparation import prepare

        return prepare
    if name == "DEMO_NAMES":
        from tfds_torch.demo.recipe import DEMO_NAMES

        return DEMO_NAMES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
