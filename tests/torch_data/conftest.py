"""Prepared datasets, a process that reads with tensorflow, and scripts that must leave nothing behind."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
from fleet_fixtures import fleet
from numbered_fixtures import no_ranks, numbered_root
from parsers.robot_episodes import robots
from run_folder import built_once
from runtime.ended import wait_until_ended
from server_fixtures import certificates, faulty_server, nginx_server, no_credentials, publish, s3_server
from tfds_fixtures import cache_home
from zygote import Answering, Script, forked_instead_of_fresh, last_line_of, tensorflow_zygote, torch_zygote

from tfds_torch import demo
from tfds_torch.runtime import watchdog
from tfds_torch.torch_data.foreign import ForeignWorkers
from torch_data import scenarios

__all__ = [
    "cache_home",
    "certificates",
    "faulty_server",
    "fleet",
    "nginx_server",
    "no_credentials",
    "no_ranks",
    "numbered_root",
    "publish",
    "robots",
    "s3_server",
]

NUM_PHOTOS, NUM_SHARDS = 61, 8
_DEADLINE_S = 60.0  # For what a script started to end after it.


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `photos` (61 JPEG files in 8 shards) and `digits` (PNG, gray). Shared: copy before damaging anything."""

    def build(root: Path) -> None:
        with forked_instead_of_fresh():
            demo.prepare("photos", root=root, num_examples=NUM_PHOTOS, num_shards=NUM_SHARDS, progress=False)
            demo.prepare("digits", root=root, progress=False)

    return built_once(tmp_path_factory, "photos and digits", build)


@pytest.fixture(scope="package", autouse=True)
def _failed_workers_end_soon() -> Iterator[None]:
    """A Loader looks every second whether a worker has failed, which has another one to end; torch waits five."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        patch.setattr(watchdog, "_LOOK_S", 0.2)
        patch.setattr(ForeignWorkers.end, "__defaults__", (0.2,))
        yield


@pytest.fixture(scope="session")
def in_reader() -> Iterator[Callable[..., Any]]:
    """`in_reader(function, *args)`: calls an importable function in a process that may load tensorflow.

    One process serves all tests. pytest's own process must not load tensorflow: other tests fork workers from it.
    """
    with Answering(tensorflow_zygote()) as answering:
        yield answering.ask


@pytest.fixture
def run_scenario(root: Path, tmp_path: Path) -> Callable[..., Any]:
    """`run_scenario(function, *args)`: runs a function of scenarios.py as a script and returns its JSON result.

    The script must succeed, complain about nothing (unclosed resources, leaked semaphores), and leave no process.
    """

    def run(function: Callable[..., Any], *args: object) -> Any:
        script = _start(root, tmp_path, {}, function, *args)
        done = script.finish()
        result = last_line_of(done)
        for complaint in ("leaked", "ResourceWarning", "resource_tracker", "Traceback", "Exception ignored"):
            assert complaint not in done.stderr, done.stderr
        assert wait_until_ended(script.left(), _DEADLINE_S) == []
        return result

    return run


def _start(
    root: Path, folder: Path, environment: dict[str, str], function: Callable[..., Any], *args: object
) -> Script:
    """Starts a function of scenarios.py as a script."""
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    command = [scenarios.__file__, function.__name__, *map(str, args)]
    return Script(torch_zygote(), command, {**os.environ, "PYTHONPATH": path, **environment}, folder)


@pytest.fixture
def run_ranks(root: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """`run_ranks(function, num_replicas, *args)`: runs a function of scenarios.py on ranks started as torchrun does.

    Each gets the path of a file store before the arguments. Returns their JSON results, rank by rank; all must succeed
    and leave no process.
    """

    def run(function: Callable[..., Any], num_replicas: int, *args: object) -> list[Any]:
        store = tmp_path / f"store-{uuid.uuid4().hex}"
        environment = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "WORLD_SIZE": str(num_replicas)}
        ranks = [
            _start(root, tmp_path, {**environment, "RANK": str(rank)}, function, store, *args)
            for rank in range(num_replicas)
        ]
        ends = [rank.finish() for rank in ranks]
        assert [done.returncode for done in ends] == [0] * num_replicas, ends
        for rank in ranks:
            assert wait_until_ended(rank.left(), _DEADLINE_S) == []
        return [last_line_of(done) for done in ends]

    return run
