"""One machine for all checks: the datasets that they read are built once."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from numbered_fixtures import numbered_root
from zygote import tensorflow_zygote

from check.machine import (
    NUM_PHOTOS,
    NUM_SHARDS,
    Checked,
    Checker,
    FakeCheck,
    Machine,
    Reported,
    cut,
    forked_checker,
)
from tfds_torch import demo

__all__ = ["numbered_root"]


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    home = tmp_path_factory.mktemp("home")
    (home / "data").mkdir()
    return Machine(home)


@pytest.fixture(scope="session")
def checker(machine: Machine, digits: Path) -> Iterator[Checker]:
    """A check needs tensorflow once, and not in a fresh process for each that asks TFDS."""
    with forked_checker(machine, tensorflow_zygote()) as found:
        yield found


@pytest.fixture(scope="session")
def first_check(machine: Machine) -> Checked:
    """`python -m tfds_torch.check` on a machine that has never seen it."""
    return machine.check()


@pytest.fixture(scope="session")
def report(checker: Checker, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Reported]:
    """Checks once, with both reports, what several tests then read."""

    def check(arguments: str, fault: str = "none") -> Reported:
        folder = tmp_path_factory.mktemp("reported")
        html, json = folder / "r.html", folder / "r.json"
        line = [*arguments.split(), "--html", str(html), "--json", str(json)]
        return Reported(checker.check_planted(fault, line), html, json, line)

    return check


@pytest.fixture(scope="session")
def two_ranks(report: Callable[..., Reported]) -> Reported:
    return report("--workers 0 --replicas 2")


@pytest.fixture(scope="session")
def evaluation(report: Callable[..., Reported]) -> Reported:
    return report("--workers 0 --eval --epochs 1")


@pytest.fixture(scope="session")
def broken(report: Callable[..., Reported]) -> Reported:
    """An example comes twice in the place of another one."""
    return report("--workers 0 --eval --epochs 1 --read-mode examples", "replacement")


@pytest.fixture(scope="session")
def damaged(report: Callable[..., Reported], digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Reported:
    """A shard of the split is cut after 300 of 360 records."""
    copy = Path(shutil.copytree(digits, tmp_path_factory.mktemp("damaged") / "digits" / "1.0.0"))
    (shard,) = copy.glob("digits-test*")
    cut(shard, 300)
    return report(f"--root {copy} --eval --workers 0")


@pytest.fixture(scope="session")
def digits(machine: Machine, first_check: Checked) -> Path:
    (info,) = (machine.home / "cache").glob("tfds_torch/demo/*/digits/*/dataset_info.json")
    return info.parent


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    return demo.prepare("photos", root=root, num_examples=NUM_PHOTOS, num_shards=NUM_SHARDS, progress=False)


@pytest.fixture
def own_digits(digits: Path, tmp_path: Path) -> Path:
    """A copy of the digits to be damaged: its version directory."""
    return Path(shutil.copytree(digits, tmp_path / "digits" / "1.0.0"))


@pytest.fixture(scope="session")
def fake(machine: Machine, checker: Checker) -> FakeCheck:
    """CIFAR-10, made up: 60 examples in 4 shards on 3 ranks, with every output."""
    report, images = machine.home / "fake.json", machine.home / "fake.png"
    line = f"--name cifar10 --fake 60 --shards 4 --replicas 3 --workers 0 --eval --batch-size 8 --json {report}"
    checked = checker.check_line(f"{line} --images {images}")
    (root,) = (machine.home / "cache" / "tfds_torch" / "demo").glob("fake-cifar10-60x4-*")
    return FakeCheck(checked, root, report, images)
