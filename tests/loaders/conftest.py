"""A dataset of tiny images whose labels are their indices, and processes that must be gone."""

import multiprocessing
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from fleet_fixtures import fleet
from numbered_fixtures import are_gone, no_ranks, numbered_root
from tfds_fixtures import cache_home

__all__ = ["are_gone", "cache_home", "fleet", "no_ranks", "numbered_root"]


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Path]:
    """A folder for sockets, which is empty again at the end."""
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def new_children() -> Callable[[], set[BaseProcess]]:
    """`new_children()`: what multiprocessing has started since the test began, and has not ended."""
    before = set(multiprocessing.active_children())
    return lambda: set(multiprocessing.active_children()) - before
