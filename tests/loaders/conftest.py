"""A dataset of tiny images whose labels are their indices, and processes that must be gone."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
from fleet_fixtures import fleet
from tfds_fixtures import cache_home, write_numbered

__all__ = ["cache_home", "fleet"]

NUMBERED_SHARDS = (4, 0, 3, 5, 1, 6, 2, 11, 9)
NUM_EXAMPLES = sum(NUMBERED_SHARDS)
GRACE_S = 30.0


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


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Path]:
    """A folder for sockets, which is empty again at the end."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def are_gone() -> Callable[[list[int]], bool]:
    """`are_gone(pids)`: whether processes have ended, or do so soon."""

    def are_gone(pids: list[int]) -> bool:
        found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        return psutil.wait_procs(found, GRACE_S)[1] == []

    return are_gone


@pytest.fixture
def new_children() -> Callable[[], set[BaseProcess]]:
    """`new_children()`: what multiprocessing has started since the test began, and has not ended."""
    before = set(multiprocessing.active_children())
    return lambda: set(multiprocessing.active_children()) - before
