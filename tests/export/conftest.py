"""Datasets to export, built once."""

from pathlib import Path

import pytest
from parsers.robot_episodes import robots
from storage.unsynced import unsynced
from tfds_fixtures import cache_home, datasets
from zygote import forked_instead_of_fresh, tensorflow_zygote

from tfds_torch import demo

__all__ = ["cache_home", "datasets", "robots", "unsynced"]

FAKES = ("oxford_iiit_pet", "coco/2017")


@pytest.fixture(scope="session")
def exported_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `digits`, `photos` (37 of them), and 23 examples each of FAKES."""
    root = tmp_path_factory.mktemp("exported")
    with forked_instead_of_fresh(tensorflow_zygote):
        demo.prepare("digits", root=root, num_shards=3, progress=False)
        demo.prepare("photos", root=root, num_examples=37, num_shards=5, progress=False)
        for name in FAKES:
            demo.prepare_fake(name, root=root, num_examples=23, num_shards=4, splits=("train",), progress=False)
    return root
