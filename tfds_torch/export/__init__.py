"""Datasets in other formats: `export_dataset` and `python -m tfds_torch.export`.

`BetonWriter` writes a `.beton` file sample by sample; each of its fields has a subclass of `BetonField`. `verify` (of a
`.beton` file) and `verify_shards` (of a folder) read every byte that was written.
"""

from typing import TYPE_CHECKING

from tfds_torch.runtime.lazy_names import import_at_first_use

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

_FIELDS = "tfds_torch.storage.beton.fields"
# The command reads its flags before anything that takes time.
__getattr__ = import_at_first_use(
    __name__,
    {
        "BetonArray": _FIELDS,
        "BetonBytes": _FIELDS,
        "BetonCustom": _FIELDS,
        "BetonField": _FIELDS,
        "BetonFloat": _FIELDS,
        "BetonImage": "tfds_torch.storage.beton.image_field",
        "BetonInt": _FIELDS,
        "BetonJson": _FIELDS,
        "BetonTensor": _FIELDS,
        "BetonWriter": "tfds_torch.storage.beton.writer",
        "export_dataset": "tfds_torch.export.api",
        "verify": "tfds_torch.storage.beton.verify",
        "verify_shards": "tfds_torch.export.folder",
    },
)
