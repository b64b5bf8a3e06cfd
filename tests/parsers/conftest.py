from pathlib import Path

import pytest
from image_folder_fixtures import folder, own_folder
from tfds_fixtures import cache_home, datasets, ledgers

from parsers.cached_pictures import write_small
from parsers.robot_episodes import robots
from tfds_torch import DecodedCache

__all__ = ["cache_home", "datasets", "folder", "ledgers", "own_folder", "robots"]


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 PNG images of 32 x 32 pixels; shared."""
    return write_small(tmp_path_factory.mktemp("small"))


@pytest.fixture
def cache(tmp_path: Path) -> DecodedCache:
    return DecodedCache(tmp_path / "caches")
