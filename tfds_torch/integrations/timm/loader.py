"""What stands before timm's `create_loader`: our dataset learns of the loader, and contradictions are errors."""

from collections.abc import Iterator
from typing import Any

import torch.utils.data

from tfds_torch.errors import ConfigError
from tfds_torch.integrations.timm.metrics import CurrentBatch, find_padding
from tfds_torch.integrations.timm.reader import TfdsReader
from tfds_torch.plan.epoch import EpochPlan, Remainder
from tfds_torch.torch_data.image_dataset import ImageDataset
from tfds_torch.torch_data.rank_check import check_ranks
from tfds_torch.torch_data.rank_world import is_distributed
from tfds_torch.torch_data.wrapped_datasets import unwrap

_TIMEOUT_S = 60.0


def find_source(dataset: Any) -> TfdsReader | ImageDataset | None:
    """Returns what of ours a dataset reads from, through timm's datasets and other wrappers; None: nothing of ours."""
    return next((layer for layer in unwrap(dataset) if isinstance(layer, TfdsReader | ImageDataset)), None)


def prepare_source(
    dataset: Any, source: TfdsReader | ImageDataset, batch_size: int, is_training: bool, num_workers: int
) -> tuple[EpochPlan, int]:
    """Makes a dataset fit the loader that is going to read it; returns this rank's plan, and the workers to use.

    Raises ConfigError where the loader and the dataset contradict each other, the ranks do, or this rank is alone.
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


class EvaluationLoader:
    """A loader that tells `current` which padded batch is being evaluated; all else is the loader's own."""

    def __init__(self, loader: Any, plan: EpochPlan, current: CurrentBatch) -> None:
        own = {"_loader": loader, "_plan": plan, "_current": current}
        self.__dict__.update(own)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._loader):
            padded = find_padding(self._plan, number)
            self._current.padded = padded
            try:
                yield batch
            finally:  # Also when the loop over it is left.
                self._current.leave(padded)

    def __len__(self) -> int:
        return len(self._loader)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._loader, name, value)

    def __getattr__(self, name: str) -> Any:
        if name in ("_loader", "_plan", "_current"):  # While it is being copied or unpickled.
            raise AttributeError(name)
        return getattr(self._loader, name)
