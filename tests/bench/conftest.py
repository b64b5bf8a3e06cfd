"""What the tests of bench share."""

from pathlib import Path

import pytest

from tfds_torch import demo


@pytest.fixture(scope="session")
def photos() -> Path:
    """The data dir of 64 photographs in 2 shards."""
    return demo.prepare("photos", num_examples=64, num_shards=2, progress=False)
