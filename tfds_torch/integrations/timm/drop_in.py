"""Put our parser, and exact metrics, where timm looks for its own."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch.utils.data

from tfds_torch.errors import ConfigError
from tfds_torch.integrations.timm.fusing import CollateRows, fuse_reader, hand_on_batches
from tfds_torch.integrations.timm.metrics import (
    EvaluationLoader,
    make_accuracy,
    make_average_meter,
    make_reduce_tensor,
)
from tfds_torch.integrations.timm.reader import TfdsReader
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.torch_data.fused_transform import AUTO, check_fuse
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.rank_check import check_ranks
from tfds_torch.torch_data.rank_world import is_distributed
from tfds_torch.torch_data.wrapped_datasets import unwrap

TESTED_VERSION = "1.0.31"
"""Of timm."""

_MARK = "__tfds_torch__"
_TIMEOUT_S = 60.0  # Of the comparison of ranks.


class _Settings:
    """The arguments of the last `install`."""

    fuse: bool | str = AUTO


def install(fuse: bool | str = AUTO) -> None:
    """Replace timm's functions, as `tfds_torch.timm.install` describes it."""
    _Settings.fuse = check_fuse(fuse)
    _import_module("timm")
    originals = {name: _find(name, places, parameters) for name, (places, parameters, _) in _REPLACED.items()}
    if all(hasattr(original, _MARK) for original in originals.values()):
        return
    _check_is_early(originals)
    for name, (places, _, make) in _REPLACED.items():
        replacement = make(originals[name])
        setattr(replacement, _MARK, True)
        for place in places:
            setattr(_import_module(place), name, replacement)


def _find(name: str, places: Sequence[str], parameters: Collection[str]) -> Any:
    """Return timm's function or class of a name, which must be the same wherever timm looks it up."""
    home, *others = places
    original = getattr(_import_module(home), name, None)
    for place in others:
        if getattr(_import_module(place), name, None) is not original:
            raise _other_version(f"one and the same {home}.{name} and {place}.{name}")
    if original is None:
        raise _other_version(f"{home}.{name}")
    missing = set(parameters) - inspect.signature(original).parameters.keys()
    if missing:
        raise _other_version(f"the parameters {', '.join(sorted(missing))} of {home}.{name}")
    return original


def _import_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # A package that timm itself needs.
            raise
        if name == "timm":
            raise ConfigError("timm is not installed: pip install 'tfds-torch[timm]'.") from None
        raise _other_version(f"a module {name}") from None


def _other_version(missing: str) -> ConfigError:
    version = getattr(sys.modules["timm"], "__version__", "of an unknown version")
    return ConfigError(
        f"timm {version} does not have {missing}, which tfds_torch.timm replaces. It was tested with timm "
        f"{TESTED_VERSION}. Install that one, or build the dataset yourself: tfds_torch.ImageDataset also goes "
        f"into timm's create_loader."
    )


def _check_is_early(originals: dict[str, Any]) -> None:
    """Refuse to come too late: names that others have imported from timm cannot be replaced."""
    names = {id(original): name for name, original in originals.items()}
    for place, module in list(sys.modules.items()):
        held = () if place.partition(".")[0] == "timm" else list(getattr(module, "__dict__", {}).values())
        late = sorted({names[id(value)] for value in held if id(value) in names})
        if late:
            raise ConfigError(
                f"install() comes too late: {place} already holds timm's own {', '.join(late)}. Call it before "
                f"importing names from timm."
            )


def _make_create_reader(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def create_reader(name: str, root: str | None = None, split: str = "train", **arguments: Any) -> Any:
        prefix, separator, rest = name.partition("/")
        if separator and prefix.lower() == "tfds":
            return TfdsReader(rest, root, split, **arguments)
        return original(name, root=root, split=split, **arguments)

    return create_reader


def _make_create_loader(original: Callable[..., Any], *, can_fuse: bool = True) -> Callable[..., Any]:
    signature = inspect.signature(original)
    collations = {True: "fast_collate", False: "default_collate"}  # By timm's `use_prefetcher`.

    @functools.wraps(original)
    def create_loader(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        source = find_source(call.arguments["dataset"])
        if source is None:
            return original(*args, **kwargs)
        if call.arguments.get("use_multi_epochs_loader"):
            raise ConfigError(
                "use_multi_epochs_loader=True needs a dataset with a sampler, and a TFDS dataset is a stream. Do "
                "without it: persistent_workers, timm's default, keep the workers alive as well."
            )
        of_source = {name: call.arguments[name] for name in ("batch_size", "is_training", "num_workers")}
        plan, call.arguments["num_workers"] = prepare_source(call.arguments["dataset"], source, **of_source)
        is_fused = can_fuse and _Settings.fuse is not False
        collate = getattr(original, "__globals__", {}).get(collations[bool(call.arguments.get("use_prefetcher", True))])
        if is_fused and collate is not None and call.arguments.get("collate_fn", collate) is None:
            call.arguments["collate_fn"] = CollateRows(collate)
            hand_on_batches(source)
        loader = original(*call.args, **call.kwargs)
        if is_fused and isinstance(source, TfdsReader):
            source.dataset.fuse = _Settings.fuse
            fuse_reader(call.arguments["dataset"], source)
        is_padded = plan.remainder is Remainder.PAD and not plan.is_training and is_distributed()
        return EvaluationLoader(loader, plan) if is_padded else loader

    return create_loader


def find_source(dataset: Any) -> TfdsReader | ImageDataset | None:
    """Return our reader or dataset within a dataset of timm's or another wrapper; None where there is none."""
    return next((layer for layer in unwrap(dataset) if isinstance(layer, TfdsReader | ImageDataset)), None)


def prepare_source(
    dataset: Any, source: TfdsReader | ImageDataset, batch_size: int, is_training: bool, num_workers: int
) -> tuple[EpochPlan, int]:
    """Make a dataset fit the loader that is going to read it; return this rank's plan, and the workers to use.

    Raises:
        ConfigError: the loader and the dataset contradict each other, the ranks do, or this rank is alone.
    """
    if not isinstance(dataset, torch.utils.data.IterableDataset):
        raise ConfigError(
            f"{type(dataset).__name__} takes examples by number, and the TFDS dataset in it is a stream (timm's own "
            f"TFDS reader is, too). Do without it: --aug-splits, for example, cannot be used."
        )
    if isinstance(source, TfdsReader):
        num_workers = source.use_loader(batch_size, num_workers)
        images = source.dataset
    else:
        images = source
        _check_batch_size(images, batch_size, num_workers)
    plan = images.plan()
    if plan.world.num_replicas > 1 and not is_distributed() and images.world is None:
        raise ConfigError(
            f"This process is rank {plan.world.rank} of {plan.world.num_replicas}, and torch.distributed is not "
            f"initialised: each rank would read its share only, and nothing would bring the results together. Start a "
            f"script that does not use several ranks, such as timm's validate.py, without torchrun; else call "
            f"torch.distributed.init_process_group() before create_loader()."
        )
    if is_training and not plan.is_training and plan.remainder is not Remainder.DROP:
        raise ConfigError(
            f"create_loader(is_training=True) drops a short last batch, and the dataset was made with "
            f"is_training=False: all of its {plan.num_examples} examples are to be read. Use the same is_training for "
            f"both."
        )
    if plan.is_training and not is_training and plan.num_batches * plan.global_batch_size > plan.num_valid:
        raise ConfigError(
            f"create_loader(is_training=False) is an evaluation, and the dataset was made with is_training=True: it "
            f"would deliver some of its {plan.num_examples} examples twice. Use the same is_training for both."
        )
    images.parser.read_mode(plan.world.at_worker(0, max(1, num_workers)))
    if is_distributed():
        check_ranks(images.parser, images.find_rank, _TIMEOUT_S, {"num_workers": num_workers})
    return plan, num_workers


def _check_batch_size(images: ImageDataset, batch_size: int, num_workers: int) -> None:
    planned = images.parser.batch_size
    if planned is not None and planned != batch_size:
        raise ConfigError(
            f"create_loader(batch_size={batch_size}) contradicts the dataset, which plans batches of {planned}. Use "
            f"the same batch_size for the parser and the loader."
        )
    num_replicas = images.find_rank().num_replicas
    if planned is None and (num_workers > 1 or num_replicas > 1):
        raise ConfigError(
            f"Evaluation with {num_workers} workers on {num_replicas} rank(s) needs a parser with "
            f"batch_size={batch_size}: a worker must know which batches are its own."
        )


_DATA, _UTILS, _READERS = "timm.data", "timm.utils", "timm.data.readers"
_OF_LOADERS = ("dataset", "batch_size", "is_training", "num_workers")
_REPLACED: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Any], Any]]] = {
    "create_reader": (
        (f"{_READERS}.reader_factory", _READERS, f"{_DATA}.dataset", _DATA),
        ("name", "root", "split"),
        _make_create_reader,
    ),
    "create_loader": ((f"{_DATA}.loader", _DATA), _OF_LOADERS, _make_create_loader),
    "create_naflex_loader": (
        (f"{_DATA}.naflex_loader", _DATA),
        _OF_LOADERS,
        functools.partial(_make_create_loader, can_fuse=False),
    ),
    "accuracy": ((f"{_UTILS}.metrics", _UTILS), ("output", "target", "topk"), make_accuracy),
    "reduce_tensor": ((f"{_UTILS}.distributed", _UTILS), ("tensor", "n"), make_reduce_tensor),
    "AverageMeter": ((f"{_UTILS}.metrics", _UTILS), (), make_average_meter),
}
"""Name -> modules of timm in which it is looked up (the first one defines it), parameters it has, replacement."""
