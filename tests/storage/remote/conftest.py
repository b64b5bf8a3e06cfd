"""Servers of objects, and stores that read them into a cache folder of the test's own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.s3_server import NEEDS_MOTO, find_moto
from storage.remote.forked_fetchers import forked_fetchers
from storage.remote.moto_server import MotoServer, moto_server
from storage.remote.object_server import ObjectServer, object_server

from tfds_torch import RemoteOptions
from tfds_torch.storage.remote.store import ObjectStore

__all__ = ["forked_fetchers"]


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with object_server() as found:
        yield found


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    if (python := find_moto()) is None:
        pytest.skip(NEEDS_MOTO)
    with moto_server(python) as found:
        yield found


@pytest.fixture
def make_store(tmp_path: Path) -> Iterator[Callable[..., ObjectStore]]:
    """Makes stores that are closed after the test."""
    made: list[ObjectStore] = []

    def make(**options: Any) -> ObjectStore:
        own: dict[str, Any] = {"cache_dir": tmp_path / "cache", "timeout_s": 10.0}
        made.append(ObjectStore(RemoteOptions(**(own | options))))
        return made[-1]

    yield make
    for store in made:
        store.close()
