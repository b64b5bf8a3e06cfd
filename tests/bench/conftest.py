"""What the tests of bench share."""

from pathlib import Path

import pytest
from run_folder import built_once
from zygote import forked_instead_of_fresh

from tfds_torch import demo


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data dir of 64 photographs in 2 shards."""

    def build(root: Path) -> None:
        with forked_instead_of_fresh():
            demo.prepare("photos", root=root, num_examples=64, num_shards=2, progress=False)

    return built_once(tmp_path_factory, "photos of bench", build)
