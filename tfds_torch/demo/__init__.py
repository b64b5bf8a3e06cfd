"""Datasets that need no network, written by TFDS as real TFDS datasets.

`prepare("digits")`, `prepare("photos")` or `prepare("episodes")` returns the folder to give to `ParserTfds`;
`prepare_fake("cifar10", num_examples=5000)` does so for most datasets that TFDS knows, with the real features and label
names and made-up content. Importing this room loads neither tensorflow nor torch nor tensorflow_datasets: TFDS builds
in another process.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfds_torch.demo.preparation import prepare, prepare_fake
    from tfds_torch.demo.spec import DEMO_NAMES, is_fake

__all__ = ["DEMO_NAMES", "is_fake", "prepare", "prepare_fake"]

_HOMES = {
    "DEMO_NAMES": "spec",
    "is_fake": "spec",
    "prepare": "preparation",
    "prepare_fake": "preparation",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
