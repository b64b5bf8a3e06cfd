"""A dataset of tiny images whose labels are their indices, scripts that read it, and processes that must be gone."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from numbered_fixtures import GRACE_S, are_gone, no_ranks, numbered_root
from runtime.ended import wait_until_ended
from tfds_fixtures import cache_home
from zygote import Script, last_line_of, torch_zygote

from faults import pool_lives
from tfds_torch.loaders import base_loader

__all__ = ["are_gone", "cache_home", "no_ranks", "numbered_root"]

_UNLINKED = re.compile(
    r".*resource_tracker: There appear to be 1 leaked semaphore objects.*\n.*\n"
    r".*resource_tracker: '/mp-\w+': \[Errno 2\] No such file or directory\n.*\n"
)
"""Of a worker that was ended while it removed what tensorflow's imports had made: it was removed, and not yet said."""


@pytest.fixture(autouse=True)
def _stuck_workers_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have a second to end by themselves, before they are killed."""
    monkeypatch.setattr(base_loader, "GRACE_S", 0.2)


@pytest.fixture
def start_life(root: Path, numbered_root: str, tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """`start_life(function, cell, *args)`: starts a function of pool_lives.py as a script.

    None of its processes may be left, nor a file of theirs in /dev/shm.
    """
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    lives, before = [], set(os.listdir("/dev/shm"))

    def start(function: Callable[..., Any], cell: Any, *args: str) -> Script:
        words = [cell.kind, cell.method, str(cell.persistent), numbered_root, str(tmp_path), *args]
        command = [pool_lives.__file__, function.__name__, *words]
        lives.append(Script(torch_zygote(), command, {**os.environ, "PYTHONPATH": path}, tmp_path))
        return lives[-1]

    yield start
    alive = wait_until_ended([process for life in lives for process in life.left()], GRACE_S)
    for process in alive:
        process.kill()
    assert alive == []
    # Other tests may have files there at the same time, of processes that live.
    left = [name for name in set(os.listdir("/dev/shm")) - before if name.startswith("torch_")]
    assert [name for name in left if not psutil.pid_exists(int(name.split("_")[1]))] == []


@pytest.fixture
def run_life(start_life: Callable[..., Script]) -> Callable[..., Any]:
    """`run_life(function, cell, *args)`: runs a function of pool_lives.py as a script; returns its JSON result.

    It must complain about nothing.
    """

    def run(function: Callable[..., Any], cell: Any, *args: str) -> Any:
        done = start_life(function, cell, *args).finish()
        result = last_line_of(done)
        complaints = _UNLINKED.sub("", done.stderr)
        for complaint in ("leaked", "Traceback", "Exception ignored", "ResourceWarning"):
            assert complaint not in complaints, done.stderr
        return result

    return run
