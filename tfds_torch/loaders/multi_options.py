"""MultiOptions: how a MultiLoader reads, checked before anything is started."""

import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.zmq_transport import check_socket_folder, import_zmq
from tfds_torch.plan.arguments import check_integer, did_you_mean
from tfds_torch.plan.world import World

_MOST_WORKERS, _MOST_PREFETCHED = 1024, 1024
_TRANSPORTS = ("auto", "shared", "zmq")


@dataclass(frozen=True)
class MultiOptions:
    """The arguments of a `MultiLoader`, which describes them, without the source.

    Raises:
        ConfigError: a value that cannot be meant.
    """

    num_workers: int = 4
    in_order: bool = True
    timeout_s: float | None = 300.0
    world: World | None = None
    persistent_workers: bool = False
    concurrent: bool = False
    start_method: str | None = None
    socket_dir: str | os.PathLike[str] | None = None
    transport: str = "auto"
    prefetch_batches: int = 2
    verbose: bool = False
    fields: Sequence[str] | None = None

    def __post_init__(self) -> None:
        self._check_count("num_workers", _MOST_WORKERS)
        self._check_count("prefetch_batches", _MOST_PREFETCHED)
        for name in ("in_order", "persistent_workers", "concurrent", "verbose"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"MultiLoader: {name}={getattr(self, name)!r} must be True or False.")
        limit_s = self.timeout_s
        is_number = isinstance(limit_s, int | float) and not isinstance(limit_s, bool)
        if limit_s is not None and not (is_number and 0 < limit_s < math.inf):
            raise ConfigError(
                f"MultiLoader: timeout_s={limit_s!r} must be a number of seconds > 0, or None (for ever)."
            )
        if not isinstance(self.world, World | None):
            raise ConfigError(
                f"MultiLoader: world={self.world!r} must be a World(rank=..., num_replicas=...), or None."
            )
        self._check_name("transport", self.transport, _TRANSPORTS)
        if self.start_method is not None:
            self._check_name("start_method", self.start_method, tuple(get_all_start_methods()))
        if self.concurrent and self.persistent_workers:
            raise ConfigError(
                "MultiLoader: concurrent=True and persistent_workers=True exclude each other: iterations that live "
                "side by side have workers of their own."
            )
        self._check_sockets()

    @property
    def log_level(self) -> int:
        """Of what is told of workers and epochs."""
        return logging.INFO if self.verbose else logging.DEBUG

    def _check_sockets(self) -> None:
        if self.transport == "zmq":
            import_zmq()
        if self.socket_dir is None:
            return
        if not isinstance(self.socket_dir, str | os.PathLike):
            raise ConfigError(f"MultiLoader: socket_dir={self.socket_dir!r} must be the path of a folder, or None.")
        if self.transport == "shared":
            raise ConfigError("MultiLoader: socket_dir has no effect with transport='shared', which has no sockets.")
        check_socket_folder(Path(self.socket_dir))

    def _check_count(self, name: str, most: int) -> None:
        value = getattr(self, name)
        try:
            number = check_integer(name, value, 1)
        except ConfigError:
            number = 0
        if not 1 <= number <= most:
            raise ConfigError(f"MultiLoader: {name}={value!r} must be an integer in 1..{most}.")
        object.__setattr__(self, name, number)

    def _check_name(self, name: str, value: object, allowed: Sequence[str]) -> None:
        if value not in allowed:
            raise ConfigError(
                f"MultiLoader: {name}={value!r} must be one of {', '.join(map(repr, allowed))}."
                f"{did_you_mean(value, allowed)}"
            )
