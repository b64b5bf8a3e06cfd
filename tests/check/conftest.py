"""One machine for all checks: the datasets that they read are built once."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from numbered_fixtures import no_ranks, numbered_root
from zygote import forked_instead_of_fresh, tensorflow_zygote

from check.machine import PLANTED_CHECK, Checked, Checker, Machine
from tfds_torch import demo

__all__ = ["no_ranks", "numbered_root"]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    home = tmp_path_factory.mktemp("home")
    (home / "data").mkdir()
    return Machine(home)


@pytest.fixture(scope="session")
def checker(machine: Machine, digits: Path) -> Iterator[Checker]:
    with machine.start(PLANTED_CHECK) as process:
        yield Checker(process)
        process.communicate()


@pytest.fixture(scope="session")
def first_check(machine: Machine) -> Checked:
    """`python -m tfds_torch.check` on a machine that has never seen it, with both reports."""
    return machine.check("--json", machine.home / "first.json", "--html", machine.home / "first.html")


@pytest.fixture
def forked() -> Iterator[None]:
    """Forks the processes that build datasets and ask TFDS: a check's own are those of `first_check`."""
    with forked_instead_of_fresh(tensorflow_zygote):
        yield


@pytest.fixture(scope="session")
def digits(machine: Machine, first_check: Checked) -> Path:
    """The version directory of the digits; shared: copy before changing anything."""
    (info,) = (machine.home / "cache").glob("tfds_torch/demo/*/digits/*/dataset_info.json")
    return info.parent


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 photographs in 8 shards."""
    root = tmp_path_factory.mktemp("photos")
    return demo.prepare("photos", root=root, num_examples=100, num_shards=8, progress=False)


@pytest.fixture
def own_digits(digits: Path, tmp_path: Path) -> Path:
    """A copy of the digits to be damaged: its version directory."""
    return Path(shutil.copytree(digits, tmp_path / "digits" / "1.0.0"))
