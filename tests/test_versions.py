"""The places that name a version of the package or of Python agree."""

import re
import tomllib
from pathlib import Path

import tfds_torch

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def python_versions() -> list[str]:
    """The versions of Python that the classifiers name."""
    return re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))


def test_the_newest_entry_of_the_changelog_is_the_version_of_the_package() -> None:
    versions = re.findall(r"^## \[([\d.]+)\](?: - \d{4}-\d\d-\d\d)?$", CHANGELOG, re.MULTILINE)
    assert versions[0] == tfds_torch.__version__
    assert versions == sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    assert f"## [{tfds_torch.__version__}] - " in CHANGELOG


def test_the_oldest_python_of_the_classifiers_is_the_oldest_that_may_install_the_package() -> None:
    versions = python_versions()
    assert len(versions) >= 3
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_the_changelog_says_which_pythons_were_tried() -> None:
    tried, *_ = re.findall(r"Tried with Python ([\d., and]+\d)\.", CHANGELOG)
    assert set(python_versions()) <= set(re.findall(r"3\.\d+", tried))


def test_the_slim_requirements_are_the_packages_own_without_tensorflow() -> None:
    lines = (ROOT / "requirements" / "slim.txt").read_text(encoding="utf-8").splitlines()
    own = [line for line in PROJECT["dependencies"] if not line.startswith(("tensorflow>", "tensorflow-cpu>"))]
    assert len(own) == len(PROJECT["dependencies"]) - 2
    assert [line for line in lines if not line.startswith("#")] == own


def test_who_cites_the_package_cites_this_version() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {tfds_torch.__version__}\n" in citation
