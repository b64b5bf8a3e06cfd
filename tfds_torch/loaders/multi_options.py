"""MultiOptions: how a MultiLoader reads, checked before anything is started."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import get_all_start_methods
from pathlib import Path

from tfds_torch.errors import ConfigError
from tfds_torch.loaders.zmq_transport import check_socket_folder, import_zmq
from tfds_torch.plan.arguments import check_choice, check_flag, check_integer, check_seconds
from tfds_torch.plan.world import World

_MOST_WORKERS, _MOST_PREFETCHED = 1024, 1024


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
        for name, most in (("num_workers", _MOST_WORKERS), ("prefetch_batches", _MOST_PREFETCHED)):
            object.__setattr__(self, name, check_integer(f"MultiLoader: {name}", getattr(self, name), 1, most))
        for name in ("in_order", "persistent_workers", "concurrent", "verbose"):
            check_flag(f"MultiLoader: {name}", getattr(self, name))
        check_seconds("MultiLoader: timeout_s", self.timeout_s, can_be_none=True)
        if not isinstance(self.world, World | None):
            raise ConfigError(
                f"MultiLoader: world={self.world!r} must be a World(rank=..., num_replicas=...), or None."
            )
        check_choice("MultiLoader: transport", self.transport, ("auto", "shared", "zmq"))
        if self.start_method is not None:
            check_choice("MultiLoader: start_method", self.start_method, get_all_start_methods())
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
