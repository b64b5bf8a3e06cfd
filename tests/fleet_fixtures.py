"""Processes for the tests of several ranks."""

from collections.abc import Iterator

import pytest
from grids.fleet import Fleet


@pytest.fixture(scope="package")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Rank processes that have imported tensorflow and torch: loaders and their workers begin at once."""
    with Fleet(tmp_path_factory.mktemp("fleet")) as ranks:
        yield ranks
