"""What `.ci/run` chooses of the slow tests: those of the rooms that a change touches."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CHOSEN = {
    "a room": (["tfds_torch/check/prove.py"], ["check"]),
    "a format of a room": (["tfds_torch/storage/beton/writer.py"], ["export", "storage/beton"]),
    "a folder and one within it": (
        ["tfds_torch/storage/source.py", "tests/storage/beton/test_writer.py"],
        ["parsers", "storage", "without tensorflow"],
    ),
    "tests": (["tests/parsers/test_views.py", "tests/test_docs.py"], ["parsers", "test_docs.py"]),
    "what slow tests do not read": (["CHANGELOG.md", "pyproject.toml"], []),
    "a helper of all tests": (["tests/tfds_fixtures.py", "docs/index.md"], ["tests"]),
    "what tests run in": (["constraints.txt"], ["tests"]),
    "this table": ([".ci/slow_tests.toml"], ["tests"]),
    "what no line names": (["another/file"], ["tests"]),
}


@pytest.fixture(scope="module")
def touched(root: Path) -> dict[str, Any]:
    return runpy.run_path(str(root / ".ci" / "touched.py"))


@pytest.mark.parametrize("case", CHOSEN)
def test_a_change_runs_the_slow_tests_of_its_rooms(case: str, touched: dict[str, Any]) -> None:
    paths, tests = CHOSEN[case]
    assert touched["slow_tests_of"](paths) == tests


def test_every_line_of_the_table_names_what_is_there(root: Path, touched: dict[str, Any]) -> None:
    table = touched["TABLE"]
    named = {one for tests in [*table["tests"].values(), *table["needs"].values()] for one in tests}
    assert [one for one in named if not (root / "tests" / one).exists()] == [touched["WITHOUT_TENSORFLOW"]]
    assert [path for path in [*table["tests"], *table["everything"]] if not (root / path).exists()] == []


def test_every_room_has_a_line(root: Path, touched: dict[str, Any]) -> None:
    rooms = [path.name for path in (root / "tfds_torch").iterdir() if (path / "__init__.py").exists()]
    assert [room for room in rooms if f"tfds_torch/{room}/" not in touched["TABLE"]["tests"]] == []


def test_what_is_installed_follows_the_tests(touched: dict[str, Any]) -> None:
    assert touched["needs_of"](["remote", "storage/beton"]) == ["azurite", "nginx-light"]
    assert touched["needs_of"](["plan"]) == []
    assert touched["needs_of"](["tests"]) == ["azurite", "chromium", "nginx-light"]


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    """A repository with an old commit."""
    shutil.copytree(root / ".ci", tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "it"\n[tool.ruff]\n')
    for name in ("parsers", "plan", "torch_data"):
        (tmp_path / "tests" / name).mkdir(parents=True)
    for name in ("test_examples.py", "torch_data/test_kills.py"):
        (tmp_path / "tests" / name).touch()
    git(tmp_path, "init", "-q")
    commit(tmp_path, "2026-01-01T00:00:00Z")
    return tmp_path


def git(checkout: Path, *words: str, date: str = "") -> None:
    names = {f"GIT_{who}_{what}": "it" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    subprocess.run(["git", *words], cwd=checkout, check=True, env={**os.environ, **names, "GIT_COMMITTER_DATE": date})


def commit(checkout: Path, date: str) -> None:
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "one", date=date)


def chosen(checkout: Path) -> list[str]:
    done = subprocess.run([sys.executable, ".ci/touched.py"], cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def change(checkout: Path, name: str, date: str) -> None:
    (checkout / name).parent.mkdir(parents=True, exist_ok=True)
    (checkout / name).write_text(date)
    commit(checkout, date)


def test_the_change_is_of_twelve_hours_before_the_last_commit(checkout: Path) -> None:
    change(checkout, "tfds_torch/check/prove.py", "2026-02-01T00:00:00Z")
    change(checkout, "examples/train.py", "2026-02-02T06:00:00Z")
    change(checkout, "tfds_torch/plan/order.py", "2026-02-02T17:00:00Z")
    assert chosen(checkout) == [
        "slow_tests=(tests/parsers tests/plan tests/test_examples.py tests/torch_data/test_kills.py)",
        "needs=(nginx-light)",
        "without_tensorflow=1",
    ]


def test_tests_that_the_change_removes_are_not_asked_for(checkout: Path) -> None:
    change(checkout, "tests/test_examples.py", "2026-02-01T00:00:00Z")
    (checkout / "tests" / "test_examples.py").unlink()
    change(checkout, "tests/plan/test_order.py", "2026-02-02T17:00:00Z")
    assert chosen(checkout)[0] == "slow_tests=(tests/plan)"


@pytest.mark.parametrize(
    ("text", "is_everything"), [('[project]\nname = "it"\n', False), ('[project]\nname = "other"\n[tool.ruff]\n', True)]
)
def test_what_is_installed_is_compared_as_toml(checkout: Path, text: str, is_everything: bool) -> None:
    (checkout / "pyproject.toml").write_text(text)
    change(checkout, "README.md", "2026-02-02T17:00:00Z")
    assert (chosen(checkout)[0] == "slow_tests=(tests)") == is_everything


def test_a_history_without_a_base_runs_everything(checkout: Path) -> None:
    assert chosen(checkout)[0] == "slow_tests=(tests)"
