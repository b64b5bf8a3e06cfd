"""The grid of ranks x workers, and our place in it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.keyword_hints import explain_keywords
from tfds_torch.runtime.printable import quoted


@explain_keywords
@dataclass(frozen=True)
class World:
    """The grid of training processes and their loader workers, and one place in it.

    Attributes:
        rank: this training process, 0 <= rank < num_replicas.
        num_replicas: number of training processes.
        worker: this loader process of the rank, 0 <= worker < num_workers.
        num_workers: number of loader processes per rank; 1 when the rank reads by itself.

    Raises:
        ConfigError: a value is not an integer or lies outside its range.
    """

    rank: int = 0
    num_replicas: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        for position, size in (("rank", "num_replicas"), ("worker", "num_workers")):
            at, count = check_integer(position, getattr(self, position), 0), check_integer(size, getattr(self, size), 1)
            if at >= count:
                raise ConfigError(f"World({position}={at}, {size}={count}): {position} must be in 0..{count - 1}.")
            object.__setattr__(self, position, at)
            object.__setattr__(self, size, count)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "World":
        """Return the world that torchrun describes in `RANK` and `WORLD_SIZE`, else one replica.

        Args:
            environ: the environment variables, as `os.environ` has them.

        Raises:
            ConfigError: only one of the two is set, or one is not a number in range.
        """
        rank, size = environ.get("RANK"), environ.get("WORLD_SIZE")
        if rank is None and size is None:
            return cls()
        if rank is None or size is None:
            there, missing = ("WORLD_SIZE", "RANK") if rank is None else ("RANK", "WORLD_SIZE")
            raise ConfigError(
                f"The environment sets {there}={environ[there]} but not {missing}. Start the script with torchrun, "
                f"set both or none, or pass world=World(rank=..., num_replicas=...). Lightning sets no RANK: ask for "
                f"the length inside one of its hooks, when torch.distributed is initialised."
            )
        try:
            return cls(rank=int(rank), num_replicas=int(size))
        except ValueError as error:
            raise ConfigError(
                f"The environment has RANK={quoted(rank)} and WORLD_SIZE={quoted(size)}: {error}"
            ) from None

    @classmethod
    def from_mesh(cls, mesh: Any) -> "World":
        """Return the world of one axis of a torch DeviceMesh, along which the ranks read different examples.

        Ranks that differ in other axes only, like those of tensor parallelism, read the same ones.

        Args:
            mesh: a mesh of one axis: `mesh["dp"]` of `init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))`.

        Raises:
            ConfigError: `mesh` is not a mesh, has several axes, or does not hold this process.
        """
        if not all(callable(getattr(mesh, name, None)) for name in ("get_local_rank", "size")):
            raise ConfigError(
                f"World.from_mesh({quoted(mesh)}): it must be a torch DeviceMesh of one axis, such as mesh['dp']."
            )
        axes = getattr(mesh, "ndim", 1)
        if axes != 1:
            names = getattr(mesh, "mesh_dim_names", None)
            raise ConfigError(
                f"World.from_mesh: the mesh has {axes} axes{f', {names}' if names else ''}: choose the one along which "
                f"ranks read different examples, such as mesh[{quoted(names[0] if names else 'dp')}]."
            )
        try:
            return cls(rank=mesh.get_local_rank(), num_replicas=mesh.size())
        except (RuntimeError, TypeError, AssertionError) as error:
            raise ConfigError(f"World.from_mesh: this process is not in the mesh: {error}") from None

    @classmethod
    def grid(cls, num_replicas: int, num_workers: int) -> "list[World]":
        """Return every place of a grid, rank by rank.

        Args:
            num_replicas: number of training processes.
            num_workers: number of loader processes per rank.
        """
        return [
            cls(rank, num_replicas, worker, num_workers)
            for rank in range(num_replicas)
            for worker in range(num_workers)
        ]

    @property
    def num_pipelines(self) -> int:
        """Number of (rank, worker) pairs."""
        return self.num_replicas * self.num_workers

    @property
    def pipeline(self) -> int:
        """The number of this (rank, worker) pair, 0 <= pipeline < num_pipelines."""
        return self.rank * self.num_workers + self.worker

    def at_worker(self, worker: int, num_workers: int) -> "World":
        """Return the place of one worker of this rank.

        Args:
            worker: number of the worker, 0 <= worker < num_workers.
            num_workers: number of loader processes of the rank, >= 1.
        """
        return replace(self, worker=worker, num_workers=num_workers)
