"""Finds the rank of this training process, also in the workers of a dataset."""

import os
from collections.abc import Mapping
from multiprocessing import parent_process
from multiprocessing.context import get_spawning_popen
from typing import Any

import torch.distributed
import torch.utils.data

from tfds_torch.errors import ConfigError
from tfds_torch.plan.world import World


def is_distributed() -> bool:
    """Return whether torch.distributed has been initialised in this process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def find_rank(environ: Mapping[str, str]) -> World:
    """Return the rank by torch.distributed when that is initialised, else by the environment, else one replica.

    ConfigError: the two contradict each other, or the environment makes no sense.
    """
    if not is_distributed():
        return World.from_environ(environ)
    world = World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    for name, value in (("RANK", world.rank), ("WORLD_SIZE", world.num_replicas)):
        # Launchers may set one of the two (Lightning sets no RANK): those that are set must agree.
        if environ.get(name, str(value)).strip() != str(value):
            raise ConfigError(
                f"torch.distributed reports rank {world.rank} of {world.num_replicas}, and the environment has "
                f"RANK={environ.get('RANK')}, WORLD_SIZE={environ.get('WORLD_SIZE')}. Which share is to be read? Pass "
                f"world=World(rank=..., num_replicas=...), or make the two agree."
            )
    return world


class RankFinder:
    """Finds the rank that a dataset reads as, each time anew: it may become known after the dataset was made.

    A worker of spawn or forkserver inherits no process group: the rank that its parent found travels with it.
    """

    def __init__(self, world: World | None) -> None:
        self.world = world
        self._of_parent: tuple[int, World] | None = None  # The process that resolved it, and what it found.

    def find(self) -> World:
        """Return the rank, and the number of ranks; the same in a training process and in its workers."""
        if self.world is not None:
            return self.world
        if self._of_parent is not None and torch.utils.data.get_worker_info() is not None:
            resolver, world = self._of_parent
            # A dataset may first have been handed to a training process, which then starts the workers.
            if (parent := parent_process()) is not None and parent.pid == resolver:
                return world
        return find_rank(os.environ)

    def find_now(self) -> World | None:
        """Return the rank as far as it is known; None: the environment makes no sense so far."""
        try:
            return self.find()
        except ConfigError:  # It may become known later, and is reported where it is needed.
            return None

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        if get_spawning_popen() is not None:
            try:
                state["_of_parent"] = (os.getpid(), self.find())
            except ConfigError:
                if is_distributed():
                    raise
                # Half an environment: a training process that is being started may yet learn its rank.
        return state
