"""A dataset whose labels number its examples, a process that is no rank, and processes that must end."""

from collections.abc import Callable

import psutil
import pytest
from numbered_episodes import write_numbered_episodes
from tfds_fixtures import write_numbered

NUMBERED_SHARDS = (4, 0, 3, 5, 1, 6, 2, 11, 9)
NUM_EXAMPLES = sum(NUMBERED_SHARDS)
GRACE_S = 30.0


@pytest.fixture(scope="session")
def numbered_root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Holds `numbered`: 41 tiny JPEG files in 9 shards, split `train`, whose labels are their indices.

    Beside it there is `numbered_episodes`: 10 episodes of 41 steps, which hold their numbers.
    """
    root = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": NUMBERED_SHARDS})
    write_numbered_episodes(root)
    return str(root)


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the rank that the environment of the tests may name."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def are_gone() -> Callable[[list[int]], bool]:
    """`are_gone(pids)`: whether processes end within GRACE_S."""

    def are_gone(pids: list[int]) -> bool:
        found = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
        return psutil.wait_procs(found, GRACE_S)[1] == []

    return are_gone
