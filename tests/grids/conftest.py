"""The fleet of rank processes, what it reads, and the count at the end of the run."""

import pytest
from fleet_fixtures import fleet
from pytest_report import add_section
from tfds_fixtures import Datasets, cache_home, datasets

from grids.counts import GridCounts
from grids.fleet import Fleet
from grids.splits import Split, Truth, list_splits, make_splits

__all__ = ["cache_home", "datasets", "fleet"]


@pytest.fixture(scope="package")
def splits(datasets: Datasets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Split]:
    """Name -> split."""
    return make_splits(datasets, tmp_path_factory.mktemp("splits"))


@pytest.fixture(scope="package")
def truths(fleet: Fleet, splits: dict[str, Split]) -> dict[str, Truth]:
    """Name -> what TFDS's own reader says is in the split."""
    (truths,) = fleet.call(list_splits, splits, reads=True)
    return truths


@pytest.fixture(scope="session")
def counts(request: pytest.FixtureRequest) -> GridCounts:
    """The count of the grids that ran."""
    counted = GridCounts()
    add_section(request.config, "grids of ranks and workers", lambda: counted.lines() if counted.verdicts else [])
    return counted
