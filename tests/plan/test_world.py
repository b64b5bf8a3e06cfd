"""World: the grid of ranks and workers."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfds_torch.errors import ConfigError
from tfds_torch.plan.world import World


def test_the_default_world_is_one_rank_with_one_worker() -> None:
    assert World() == World(rank=0, num_replicas=1, worker=0, num_workers=1)
    assert World().num_pipelines == 1


def test_every_pipeline_has_a_number_of_its_own() -> None:
    grid = [World(rank, 3, worker, 4) for rank in range(3) for worker in range(4)]
    assert [world.pipeline for world in grid] == list(range(12))
    assert {world.num_pipelines for world in grid} == {12}


def test_at_worker_keeps_the_rank_and_replaces_the_worker() -> None:
    assert World(2, 3, 0, 1).at_worker(1, 5) == World(2, 3, 1, 5)


def test_at_worker_refuses_a_worker_out_of_range() -> None:
    with pytest.raises(ConfigError, match=r"World\(worker=5, num_workers=5\): worker must be in 0\.\.4\."):
        World().at_worker(5, 5)


def test_a_world_is_a_frozen_value() -> None:
    world = World(1, 2)
    assert hash(world) == hash(World(1, 2))
    with pytest.raises(AttributeError):
        world.rank = 0  # type: ignore[misc]


def test_numpy_integers_are_integers() -> None:
    assert World(np.int64(1), np.int32(2)).pipeline == 1  # type: ignore[arg-type]
    small = World(np.int8(100), np.int8(127), np.int8(1), np.int8(2))  # type: ignore[arg-type]
    assert (small.pipeline, small.num_pipelines) == (201, 254)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_replicas": 0}, "num_replicas=0 must be an integer >= 1."),
        ({"num_workers": 0}, "num_workers=0 must be an integer >= 1."),
        ({"num_replicas": -3}, "num_replicas=-3 must be an integer >= 1."),
        ({"rank": 2, "num_replicas": 2}, "World(rank=2, num_replicas=2): rank must be in 0..1."),
        ({"rank": -1, "num_replicas": 2}, "rank=-1 must be an integer >= 0."),
        ({"worker": 1}, "World(worker=1, num_workers=1): worker must be in 0..0."),
        ({"worker": -1}, "worker=-1 must be an integer >= 0."),
        ({"rank": 0.0}, "rank=0.0 must be an integer >= 0."),
        ({"rank": "0"}, "rank='0' must be an integer >= 0."),
        ({"num_replicas": True}, "num_replicas=True must be an integer >= 1."),
        ({"num_workers": None}, "num_workers=None must be an integer >= 1."),
    ],
)
def test_a_place_outside_the_grid_is_a_config_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        World(**fields)
    assert str(caught.value) == message


def test_torchruns_environment_gives_rank_and_replicas() -> None:
    assert World.from_environ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}) == World(3, 8)


def test_an_empty_environment_is_one_replica() -> None:
    assert World.from_environ({"PATH": "/bin"}) == World()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"RANK": "1"}, "The environment sets RANK=1 but not WORLD_SIZE. Start the script with torchrun"),
        ({"WORLD_SIZE": "4"}, "The environment sets WORLD_SIZE=4 but not RANK. Start the script with torchrun"),
        ({"RANK": "one", "WORLD_SIZE": "4"}, "The environment has RANK='one' and WORLD_SIZE='4': "),
        ({"RANK": "", "WORLD_SIZE": ""}, "The environment has RANK='' and WORLD_SIZE='': "),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "World(rank=4, num_replicas=4): rank must be in 0..3."),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "num_replicas=0 must be an integer >= 1."),
    ],
)
def test_half_or_broken_environments_are_config_errors(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        World.from_environ(environ)
    assert message in str(caught.value)


def test_a_grid_lists_every_place_rank_by_rank() -> None:
    assert World.grid(2, 3) == [World(r, 2, w, 3) for r in range(2) for w in range(3)]
    assert [world.pipeline for world in World.grid(2, 3)] == list(range(6))


MESH = """
import sys

import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tfds_torch import World
from tfds_torch.errors import ConfigError

rank, path = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
assert World.from_mesh(mesh["dp"]) == World(rank // 2, 2), World.from_mesh(mesh["dp"])
assert World.from_mesh(mesh["tp"]) == World(rank % 2, 2)
try:
    World.from_mesh(mesh)
except ConfigError as error:
    assert "the mesh has 2 axes, ('dp', 'tp'): choose the one along which" in str(error), error
else:
    raise AssertionError("two axes were taken")
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_an_axis_of_a_mesh_of_torch_is_a_world(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MESH]
    environ = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True, env=environ)
        for rank in range(4)
    ]
    assert [(rank.communicate(timeout=120)[1], rank.returncode)[1] for rank in ranks] == [0] * 4


class Mesh:
    """What is asked of a mesh of one axis."""

    ndim = 1

    def __init__(self, rank: int | None) -> None:
        self._rank = rank

    def get_local_rank(self) -> int | None:
        return self._rank

    def size(self) -> int:
        return 3


def test_a_mesh_must_have_one_axis_that_holds_this_process() -> None:
    assert World.from_mesh(Mesh(2)) == World(2, 3)
    with pytest.raises(ConfigError, match=r"must be a torch DeviceMesh of one axis, such as mesh\['dp'\]"):
        World.from_mesh("dp")
    with pytest.raises(ConfigError, match=r"rank=None must be an integer"):
        World.from_mesh(Mesh(None))
