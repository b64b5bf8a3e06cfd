"""tfds_torch: any TFDS dataset on disk, into a PyTorch training loop.

Importing this package loads neither tensorflow nor torch; each name is imported from its room when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfds_torch import demo, errors
    from tfds_torch.engines.batch import Batch
    from tfds_torch.engines.options import ReadOptions
    from tfds_torch.engines.transforms import Transform
    from tfds_torch.export.api import export_dataset
    from tfds_torch.images.preprocess import EvalPreprocess, TrainPreprocess
    from tfds_torch.images.views import Views
    from tfds_torch.loaders.feeder import Feeder
    from tfds_torch.loaders.multi_loader import MultiLoader
    from tfds_torch.parsers.beton import ParserBeton
    from tfds_torch.parsers.cache import DecodedCache
    from tfds_torch.parsers.mixture import ParserMixture
    from tfds_torch.parsers.own import ParserMapStyle
    from tfds_torch.parsers.protocol import Parser
    from tfds_torch.parsers.tfds.parser import ParserTfds
    from tfds_torch.parsers.webdataset import ParserWebDataset
    from tfds_torch.plan.epoch import EpochPlan, Remainder
    from tfds_torch.plan.windows import Windows
    from tfds_torch.plan.world import World
    from tfds_torch.storage.remote.options import RemoteOptions
    from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher
    from tfds_torch.torch_data.exact_metrics import MaskedMean
    from tfds_torch.torch_data.image_dataset import ImageDataset, IterableImageDataset
    from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
    from tfds_torch.torch_data.loader import Loader, create_loader

__version__ = "0.2.0"

_MODULES = ("demo", "errors")
_ROOMS = {
    "Batch": "engines.batch",
    "DecodedCache": "parsers.cache",
    "DevicePrefetcher": "torch_data.device_prefetcher",
    "EpochPlan": "plan.epoch",
    "EvalPreprocess": "images.preprocess",
    "Feeder": "loaders.feeder",
    "ImageDataset": "torch_data.image_dataset",
    "IndexedImageDataset": "torch_data.indexed_image_dataset",
    "IterableImageDataset": "torch_data.image_dataset",
    "Loader": "torch_data.loader",
    "MaskedMean": "torch_data.exact_metrics",
    "MultiLoader": "loaders.multi_loader",
    "Parser": "parsers.protocol",
    "ParserBeton": "parsers.beton",
    "ParserMapStyle": "parsers.own",
    "ParserMixture": "parsers.mixture",
    "ParserTfds": "parsers.tfds.parser",
    "ParserWebDataset": "parsers.webdataset",
    "ReadOptions": "engines.options",
    "Remainder": "plan.epoch",
    "RemoteOptions": "storage.remote.options",
    "TrainPreprocess": "images.preprocess",
    "Transform": "engines.transforms",
    "Views": "images.views",
    "Windows": "plan.windows",
    "World": "plan.world",
    "create_loader": "torch_data.loader",
    "export_dataset": "export.api",
}

__all__ = [
    "Batch",
    "DecodedCache",
    "DevicePrefetcher",
    "EpochPlan",
    "EvalPreprocess",
    "Feeder",
    "ImageDataset",
    "IndexedImageDataset",
    "IterableImageDataset",
    "Loader",
    "MaskedMean",
    "MultiLoader",
    "Parser",
    "ParserBeton",
    "ParserMapStyle",
    "ParserMixture",
    "ParserTfds",
    "ParserWebDataset",
    "ReadOptions",
    "Remainder",
    "RemoteOptions",
    "TrainPreprocess",
    "Transform",
    "Views",
    "Windows",
    "World",
    "__version__",
    "create_loader",
    "demo",
    "errors",
    "export_dataset",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tfds_torch.{name}")
    if name in _ROOMS:
        return getattr(importlib.import_module(f"tfds_torch.{_ROOMS[name]}"), name)
    raise AttributeError(f"module 'tfds_torch' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
