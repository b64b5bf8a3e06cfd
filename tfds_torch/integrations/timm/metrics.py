"""Make timm's distributed evaluation exact: padding weighs nothing, and a short last batch weighs its examples.

timm's train.py evaluates like this: on every batch `accuracy` and a mean loss; `reduce_tensor(x, num_replicas)` of
each, the mean over the ranks; `AverageMeter.update(x, batch_size)`, the mean over the batches. Only the last batch of
the world can hold padding. With v_r valid examples on rank r in it, V on all ranks, B per rank and R ranks, the mean
over its valid examples is the mean over the ranks weighted by v_r * R / V, and among the batches it weighs V / R where
a full one weighs B. So the three functions look up v_r and V, which the plan knows without asking the other ranks or
the device, and are timm's own for every other batch.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tfds_torch.integrations.wrapped_loader import Delegating
from tfds_torch.plan.epoch import PAD_LABEL, EpochPlan


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """The batch of an evaluation in which some rank has padding.

    `num_valid` (v_r) of this rank's examples are not padding, `num_valid_of_world` (V >= 1) of all ranks together.
    """

    num_valid: int
    num_valid_of_world: int
    batch_size: int
    num_replicas: int


def find_padding(plan: EpochPlan, number: int) -> PaddedBatch | None:
    """Return the padding in a rank's batch of an epoch; None when no rank has any in its batch of that number."""
    first = number * plan.global_batch_size
    num_valid_of_world = min(plan.num_valid - first, plan.global_batch_size)
    if num_valid_of_world == plan.global_batch_size:
        return None
    num_valid = min(max(num_valid_of_world - plan.world.rank * plan.batch_size, 0), plan.batch_size)
    return PaddedBatch(num_valid, num_valid_of_world, plan.batch_size, plan.world.num_replicas)


class CurrentBatch:
    """The padded batch that is being evaluated in this process; None nearly always. For the thread that evaluates."""

    padded: PaddedBatch | None = None


CURRENT = CurrentBatch()
"""The one that timm's functions look at once the shim is installed."""


class EvaluationLoader(Delegating):
    """A loader that tells `current` which padded batch is being evaluated; all else is the loader's own."""

    def __init__(self, loader: Any, plan: EpochPlan, current: CurrentBatch = CURRENT) -> None:
        super().__init__(loader)
        vars(self).update(_plan=plan, _current=current)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self._inner):
            self._current.padded = padded = find_padding(self._plan, number)
            try:
                yield batch
            finally:  # Also when the loop over it is left.
                if self._current.padded is padded:  # Else another iteration has begun.
                    self._current.padded = None

    def __len__(self) -> int:
        return len(self._inner)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


def make_accuracy(original: Callable[..., list[torch.Tensor]]) -> Callable[..., list[torch.Tensor]]:
    """Return timm's `accuracy`, with padding left out of the count that it divides by; 0 when all is padding."""

    @functools.wraps(original)
    def accuracy(output: torch.Tensor, target: torch.Tensor, topk: Sequence[int] = (1,)) -> list[torch.Tensor]:
        # Padding is never counted as correct. On the device: no value is waited for. Without padding the factor is 1.
        share = target.size(0) / (target != PAD_LABEL).sum().clamp(min=1)
        return [value * share for value in original(output, target, topk)]

    return accuracy


def make_reduce_tensor(
    original: Callable[..., torch.Tensor], current: CurrentBatch = CURRENT
) -> Callable[..., torch.Tensor]:
    """Return timm's `reduce_tensor`, with the ranks of a padded batch weighted by their valid examples."""

    @functools.wraps(original)
    def reduce_tensor(tensor: torch.Tensor, n: int) -> torch.Tensor:
        padded = current.padded
        if padded is not None and n == padded.num_replicas:  # Else it is not a mean over the ranks.
            weight = padded.num_valid * padded.num_replicas / padded.num_valid_of_world
            # The mean loss of nothing but padding is NaN, and stays NaN times 0.
            tensor = tensor * weight if padded.num_valid else torch.zeros_like(tensor)
        return original(tensor, n)

    return reduce_tensor


def make_average_meter(original: Any, current: CurrentBatch = CURRENT) -> Any:
    """Return timm's `AverageMeter`, with a padded batch weighted by its valid examples."""

    class AverageMeter(original):  # type: ignore[misc]
        __doc__ = original.__doc__
        __module__ = original.__module__  # A pickled meter can be loaded without the shim.
        __qualname__ = original.__qualname__

        def update(self, val: Any, n: float = 1) -> None:
            padded = current.padded
            if padded is not None and n == padded.batch_size:  # Else it does not count examples, as durations do not.
                n = padded.num_valid_of_world / padded.num_replicas
            super().update(val, n)

    return AverageMeter
