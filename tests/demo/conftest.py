"""One folder with both demo datasets, and what TFDS reads from it."""

from pathlib import Path
from typing import Any

import pytest
from zygote import forked_instead_of_fresh, tensorflow_zygote

from demo.reading import read_with_tfds
from tfds_torch.demo import prepare

DIGITS: dict[str, Any] = {"num_shards": 3}
PHOTOS: dict[str, Any] = {"num_examples": 37, "num_shards": 5, "seed": 1}


@pytest.fixture(scope="session")
def demo_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds `digits` and `photos` with the parameters above. Shared: copy before damaging anything."""
    root = tmp_path_factory.mktemp("demo")
    with forked_instead_of_fresh():
        assert prepare("digits", root=root, progress=False, **DIGITS) == root
        assert prepare("photos", root=root, progress=False, **PHOTOS) == root
    return root


@pytest.fixture(scope="session")
def examples(demo_root: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """(name, split) -> examples as TFDS reads them from the files alone."""
    splits = [("digits", "train"), ("digits", "test"), ("photos", "train")]
    return tensorflow_zygote().call(read_with_tfds, str(demo_root), splits)
