"""LoaderOptions: how a Loader reads, checked before anything is started."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from multiprocessing.context import BaseContext
from typing import Any

import torch

from tfds_torch.errors import ConfigError
from tfds_torch.plan.arguments import check_flag, check_integer, check_seconds

_MOST_WORKERS, _MOST_PREFETCHED = 1024, 1024


@dataclass(frozen=True)
class LoaderOptions:
    """The arguments of `create_loader`, which describes them, without the dataset.

    Raises:
        ConfigError: a value that cannot be meant.
    """

    num_workers: int | str = 0
    device: str | torch.device | None = None
    mean: Iterable[float] | None = None
    std: Iterable[float] | None = None
    dtype: torch.dtype | str | None = None
    prefetch_batches: int = 2
    timeout_s: float | None = 300.0
    batch_size: int | None = None
    shuffle: bool = False
    sampler: Any = None
    batch_sampler: Any = None
    drop_last: bool = False
    collate_fn: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    persistent_workers: bool = True
    multiprocessing_context: Any = None
    in_order: bool = True
    seed: int | None = None
    check_ranks: bool = True
    log_every: int | None = None
    channels_last: bool = True

    def __post_init__(self) -> None:
        if self.num_workers != "auto":
            self._check_count("num_workers", 0, _MOST_WORKERS, " or 'auto'")
        self._check_count("prefetch_batches", 1, _MOST_PREFETCHED)
        for name in ("batch_size", "log_every"):
            if getattr(self, name) is not None:
                self._check_count(name, 1)
        if self.seed is not None:
            self._check_count("seed", 0)
        for name in ("mean", "std"):
            if isinstance(getattr(self, name), Iterator):  # It is read again in every epoch.
                object.__setattr__(self, name, tuple(getattr(self, name)))
        check_seconds("create_loader: timeout_s", self.timeout_s, can_be_none=True)
        for name in ("shuffle", "drop_last", "persistent_workers", "in_order", "check_ranks", "channels_last"):
            check_flag(f"create_loader: {name}", getattr(self, name))
        for name in ("collate_fn", "worker_init_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"create_loader: {name}={getattr(self, name)!r} must be a function, or None.")
        self._check_combinations()

    @property
    def has_device_stage(self) -> bool:
        """Whether batches are moved, normalised or cast."""
        return any(value is not None for value in (self.device, self.mean, self.std, self.dtype))

    def _check_count(self, name: str, least: int, most: int | None = None, also: str = "") -> None:
        value = getattr(self, name)
        try:
            number = check_integer(name, value, least)
        except ConfigError:
            number = None
        if number is None or (most is not None and number > most):
            allowed = f">= {least}" if most is None else f"in {least}..{most}"
            raise ConfigError(f"create_loader: {name}={value!r} must be an integer {allowed}{also}.")
        object.__setattr__(self, name, number)

    def _check_combinations(self) -> None:
        if not self.in_order:
            raise ConfigError(
                "create_loader: in_order=False would deliver batches as they come: the order would differ from run to "
                "run, and a state could not say which batches were delivered. Use more workers, or a larger "
                "prefetch_batches, where some batches take long."
            )
        if self.sampler is not None and not isinstance(self.sampler, Iterable):
            raise ConfigError(f"create_loader: sampler={self.sampler!r} must be a Sampler, or other indices in order.")
        if self.batch_sampler is not None and not isinstance(self.batch_sampler, Iterable):
            raise ConfigError(
                f"create_loader: batch_sampler={self.batch_sampler!r} must be a BatchSampler, or other lists of "
                f"indices in order."
            )
        methods = get_all_start_methods()
        context = self.multiprocessing_context
        if not isinstance(context, BaseContext | None) and context not in methods:
            raise ConfigError(
                f"create_loader: multiprocessing_context={self.multiprocessing_context!r} must be one of "
                f"{', '.join(map(repr, methods))}, or a context of multiprocessing."
            )
