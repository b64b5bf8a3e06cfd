"""Prepared datasets, a process that reads with tensorflow, and scripts that must leave nothing behind."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet_fixtures import fleet
from tfds_fixtures import cache_home, write_numbered

from tfds_torch import demo
from torch_data import reading, scenarios

__all__ = ["cache_home", "fleet"]

NUM_PHOTOS, NUM_SHARDS = 61, 8
NUMBERED_SHARDS = (4, 0, 3, 5, 1, 6, 2, 11, 9)
_DEADLINE_S = 60.0  # For what a script started to end after it.


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `photos` (61 JPEG files in 8 shards) and `digits` (PNG, gray). Shared: copy before damaging anything."""
    root = tmp_path_factory.mktemp("data")
    demo.prepare("photos", root=root, num_examples=NUM_PHOTOS, num_shards=NUM_SHARDS, progress=False)
    demo.prepare("digits", root=root, progress=False)
    return root


@pytest.fixture(scope="session")
def numbered_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Holds `numbered` (41 tiny JPEG files in 9 shards, split `train`), whose labels are the examples' indices."""
    root = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": NUMBERED_SHARDS})
    return str(root)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests names no rank."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def in_reader() -> Iterator[Callable[..., Any]]:
    """`in_reader(function, *args)`: calls an importable function in a process that may load tensorflow.

    One process serves all tests, as tensorflow takes seconds to load. pytest's own process must not load it: other
    tests fork workers from it.
    """
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=reading.serve, args=(theirs,), daemon=True)
    process.start()
    theirs.close()

    def call(function: Callable[..., Any], *args: Any) -> Any:
        ours.send((function, args))
        is_error, result = ours.recv()
        if is_error:
            raise result
        return result

    yield call
    ours.send(None)
    process.join()


@pytest.fixture
def run_scenario(root: Path, run_python: Callable[..., Any]) -> Callable[..., Any]:
    """`run_scenario(function, *args)`: runs a function of scenarios.py as a script and returns its JSON result.

    The script must succeed, complain about nothing (unclosed resources, leaked semaphores), and leave no process.
    """

    def run(function: Callable[..., Any], *args: object) -> Any:
        mark = uuid.uuid4().hex
        path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
        done = run_python(
            *("-W", "always::ResourceWarning", scenarios.__file__, function.__name__, *map(str, args)),
            env={"PYTHONPATH": path, reading.MARK: mark},
        )
        assert done.returncode == 0, done.stderr
        for complaint in ("leaked", "ResourceWarning", "resource_tracker", "Traceback", "Exception ignored"):
            assert complaint not in done.stderr, done.stderr
        _, alive = psutil.wait_procs(reading.marked_processes(mark), timeout=_DEADLINE_S)
        assert alive == []
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture
def run_ranks(root: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """`run_ranks(function, num_replicas, *args)`: runs a function of scenarios.py on ranks started as torchrun does.

    Each gets the path of a file store before the arguments. Returns their JSON results, rank by rank; all must succeed
    and leave no process.
    """

    def run(function: Callable[..., Any], num_replicas: int, *args: object) -> list[Any]:
        mark, store = uuid.uuid4().hex, tmp_path / f"store-{uuid.uuid4().hex}"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(num_replicas),
            reading.MARK: mark,
        }
        command = [sys.executable, scenarios.__file__, function.__name__, str(store), *map(str, args)]
        ranks = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**environment, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(num_replicas)
        ]
        outputs = [process.communicate() for process in ranks]
        assert [process.returncode for process in ranks] == [0] * num_replicas, outputs
        assert psutil.wait_procs(reading.marked_processes(mark), timeout=_DEADLINE_S)[1] == []
        return [json.loads(output.splitlines()[-1]) for output, _ in outputs]

    return run
