"""tfds_torch: any TFDS dataset on disk, into a PyTorch training loop.

Importing this package loads neither tensorflow nor torch; each name is imported from its room when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from tfds_torch.runtime.lazy_names import import_at_first_use

if TYPE_CHECKING:
    from tfds_torch import demo, errors
    from tfds_torch.engines.batch import Batch
    from tfds_torch.engines.options import ReadOptions
    from tfds_torch.engines.padding import Padded
    from tfds_torch.engines.transforms import Transform
    from tfds_torch.export.api import export_dataset
    from tfds_torch.images.crops import Crops
    from tfds_torch.images.preprocess import EvalPreprocess, Preprocess, TrainPreprocess
    from tfds_torch.images.views import Views
    from tfds_torch.loaders.feeder import Feeder
    from tfds_torch.loaders.multi_loader import MultiLoader
    from tfds_torch.parsers.beton import ParserBeton
    from tfds_torch.parsers.cache import DecodedCache
    from tfds_torch.parsers.mixture import ParserMixture
    from tfds_torch.parsers.own import ParserMapStyle
    from tfds_torch.parsers.protocol import Parser
    from tfds_torch.parsers.recipe_file import load_config
    from tfds_torch.parsers.statistics import FieldStatistics, MemberStatistics, Statistics
    from tfds_torch.parsers.tfds.parser import ParserTfds
    from tfds_torch.parsers.webdataset import ParserWebDataset
    from tfds_torch.plan.epoch import EpochPlan, Remainder
    from tfds_torch.plan.windows import Windows
    from tfds_torch.plan.world import World
    from tfds_torch.runtime.feed_metrics import FeederStats, FetcherStats, SourceStats
    from tfds_torch.runtime.metrics import LoaderStats, WorkerStats
    from tfds_torch.storage.remote.options import RemoteOptions
    from tfds_torch.torch_data.device_prefetcher import DevicePrefetcher
    from tfds_torch.torch_data.exact_metrics import MaskedMean
    from tfds_torch.torch_data.image_dataset import ImageDataset, IterableImageDataset
    from tfds_torch.torch_data.indexed_image_dataset import IndexedImageDataset
    from tfds_torch.torch_data.loader import Loader, create_loader

__version__ = "0.3.0"

_MODULES = ("demo", "errors")
_ROOMS = {
    "Batch": "engines.batch",
    "Crops": "images.crops",
    "DecodedCache": "parsers.cache",
    "DevicePrefetcher": "torch_data.device_prefetcher",
    "EpochPlan": "plan.epoch",
    "EvalPreprocess": "images.preprocess",
    "Feeder": "loaders.feeder",
    "FeederStats": "runtime.feed_metrics",
    "FetcherStats": "runtime.feed_metrics",
    "FieldStatistics": "parsers.statistics",
    "ImageDataset": "torch_data.image_dataset",
    "IndexedImageDataset": "torch_data.indexed_image_dataset",
    "IterableImageDataset": "torch_data.image_dataset",
    "Loader": "torch_data.loader",
    "LoaderStats": "runtime.metrics",
    "MaskedMean": "torch_data.exact_metrics",
    "MemberStatistics": "parsers.statistics",
    "MultiLoader": "loaders.multi_loader",
    "Padded": "engines.padding",
    "Parser": "parsers.protocol",
    "ParserBeton": "parsers.beton",
    "ParserMapStyle": "parsers.own",
    "ParserMixture": "parsers.mixture",
    "ParserTfds": "parsers.tfds.parser",
    "ParserWebDataset": "parsers.webdataset",
    "Preprocess": "images.preprocess",
    "ReadOptions": "engines.options",
    "Remainder": "plan.epoch",
    "RemoteOptions": "storage.remote.options",
    "SourceStats": "runtime.feed_metrics",
    "Statistics": "parsers.statistics",
    "TrainPreprocess": "images.preprocess",
    "Transform": "engines.transforms",
    "Views": "images.views",
    "Windows": "plan.windows",
    "WorkerStats": "runtime.metrics",
    "World": "plan.world",
    "create_loader": "torch_data.loader",
    "export_dataset": "export.api",
    "load_config": "parsers.recipe_file",
}

__all__ = [
    "Batch",
    "Crops",
    "DecodedCache",
    "DevicePrefetcher",
    "EpochPlan",
    "EvalPreprocess",
    "Feeder",
    "FeederStats",
    "FetcherStats",
    "FieldStatistics",
    "ImageDataset",
    "IndexedImageDataset",
    "IterableImageDataset",
    "Loader",
    "LoaderStats",
    "MaskedMean",
    "MemberStatistics",
    "MultiLoader",
    "Padded",
    "Parser",
    "ParserBeton",
    "ParserMapStyle",
    "ParserMixture",
    "ParserTfds",
    "ParserWebDataset",
    "Preprocess",
    "ReadOptions",
    "Remainder",
    "RemoteOptions",
    "SourceStats",
    "Statistics",
    "TrainPreprocess",
    "Transform",
    "Views",
    "Windows",
    "WorkerStats",
    "World",
    "__version__",
    "create_loader",
    "demo",
    "errors",
    "export_dataset",
    "load_config",
]


_get_name = import_at_first_use(__name__, {name: f"tfds_torch.{room}" for name, room in _ROOMS.items()})


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"tfds_torch.{name}") if name in _MODULES else _get_name(name)


def __dir__() -> list[str]:
    return __all__
