"""Datasets behind URLs, and what of a server they need."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from numbered_fixtures import no_ranks, numbered_root
from parsers.robot_episodes import robots
from server_fixtures import (
    azure_server,
    certificates,
    faulty_s3,
    faulty_server,
    gcs_server,
    nginx_server,
    no_credentials,
    publish,
    s3_server,
)
from servers.faulty_server import FaultyFolder
from storage.remote.forked_fetchers import forked_fetchers
from storage.unsynced import unsynced
from tfds_fixtures import cache_home, datasets

__all__ = [
    "azure_server",
    "cache_home",
    "certificates",
    "datasets",
    "faulty_s3",
    "faulty_server",
    "forked_fetchers",
    "gcs_server",
    "nginx_server",
    "no_credentials",
    "no_ranks",
    "numbered_root",
    "publish",
    "robots",
    "s3_server",
    "unsynced",
]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of one test: nothing is in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own-cache"))
    return tmp_path / "own-cache"


@pytest.fixture
def serve(faulty_server: FaultyFolder, own_cache: Path) -> Callable[[Path | str], str]:
    """`serve(folder)` copies a folder to the server, and returns its URL; a server's folder may be damaged."""

    def serve(folder: Path | str) -> str:
        name = Path(folder).name
        shutil.copytree(folder, faulty_server.folder / "bucket" / name)
        return f"{faulty_server.url}/bucket/{name}"

    return serve
