"""Which rank this training process is."""

from collections.abc import Mapping

import torch.distributed

from tfds_torch.errors import ConfigError
from tfds_torch.plan.world import World


def is_distributed() -> bool:
    """Whether torch.distributed has been initialised in this process."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def find_rank(environ: Mapping[str, str]) -> World:
    """Returns the rank by torch.distributed when that is initialised, else by the environment, else one replica.

    Args:
        environ: of this process; `RANK` and `WORLD_SIZE` are looked at.

    Raises:
        ConfigError: torch.distributed and the environment contradict each other, or, without torch.distributed, the
            environment makes no sense.
    """
    if not is_distributed():
        return World.from_environ(environ)
    world = World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    for name, value in (("RANK", world.rank), ("WORLD_SIZE", world.num_replicas)):
        # Launchers may set one of the two (Lightning sets no RANK): what is there must agree.
        if environ.get(name, str(value)).strip() != str(value):
            raise ConfigError(
                f"torch.distributed says rank {world.rank} of {world.num_replicas}, and the environment says "
                f"RANK={environ.get('RANK')}, WORLD_SIZE={environ.get('WORLD_SIZE')}. Which share is to be read? Pass "
                f"world=World(rank=..., num_replicas=...), or make the two agree."
            )
    return world
