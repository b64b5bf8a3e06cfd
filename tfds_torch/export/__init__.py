"""Datasets in other formats: `export_dataset` and `python -m tfds_torch.export`.

`BetonWriter` writes a `.beton` file sample by sample; each of its fields has a subclass of `BetonField`. `verify` (of a
`.beton` file) and `verify_shards` (of a folder) read every byte that was written.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfds_torch.export.api import export_dataset
    from tfds_torch.export.folder import verify_shards
    from tfds_torch.storage.beton.fields import (
        BetonArray,
        BetonBytes,
        BetonCustom,
        BetonField,
        BetonFloat,
        BetonInt,
        BetonJson,
        BetonTensor,
    )
    from tfds_torch.storage.beton.image_field import BetonImage
    from tfds_torch.storage.beton.verify import verify
    from tfds_torch.storage.beton.writer import BetonWriter

__all__ = [
    "BetonArray",
    "BetonBytes",
    "BetonCustom",
    "BetonField",
    "BetonFloat",
    "BetonImage",
    "BetonInt",
    "BetonJson",
    "BetonTensor",
    "BetonWriter",
    "export_dataset",
    "verify",
    "verify_shards",
]

_HOMES = {
    "BetonImage": "storage.beton.image_field",
    "BetonWriter": "storage.beton.writer",
    "export_dataset": "export.api",
    "verify": "storage.beton.verify",
    "verify_shards": "export.folder",
}


def __getattr__(name: str) -> Any:
    # Not before: the command reads its flags before anything that takes time.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"tfds_torch.{_HOMES.get(name, 'storage.beton.fields')}"), name)
