"""Datasets that need no network, written by TFDS as real TFDS datasets.

`prepare("digits")`, `prepare("photos")` or `prepare("episodes")` returns the folder to give to `ParserTfds`;
`prepare_fake("cifar10", num_examples=5000)` does so for most datasets that TFDS knows, with the real features and label
names and made-up content. Importing this room loads neither tensorflow nor torch nor tensorflow_datasets: TFDS builds
in another process.
"""

from typing import TYPE_CHECKING

from tfds_torch.runtime.lazy_names import import_at_first_use

if TYPE_CHECKING:
    from tfds_torch.demo.preparation import prepare, prepare_fake
    from tfds_torch.demo.spec import DEMO_NAMES, is_fake

__all__ = ["DEMO_NAMES", "is_fake", "prepare", "prepare_fake"]

__getattr__ = import_at_first_use(
    __name__,
    {
        "DEMO_NAMES": "tfds_torch.demo.spec",
        "is_fake": "tfds_torch.demo.spec",
        "prepare": "tfds_torch.demo.preparation",
        "prepare_fake": "tfds_torch.demo.preparation",
    },
)


def __dir__() -> list[str]:
    return __all__
