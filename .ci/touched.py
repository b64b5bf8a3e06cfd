"""Prints which slow tests a change asks for, and what they need: what `.ci/run` runs after the quick ones.

The change is what the commits of the last twelve hours before HEAD's own date touched: a clean clone knows no base.
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLE: dict[str, Any] = tomllib.loads((ROOT / ".ci" / "slow_tests.toml").read_text(encoding="utf-8"))
ALL = "tests"
WITHOUT_TENSORFLOW = "without tensorflow"
"""Stands for `make test-slim` among the folders of tests."""
HOURS = 12


def git(*words: str) -> str:
    """Returns what a command of git prints."""
    command = ["git", *words]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout  # noqa: S603


def changed_paths() -> tuple[list[str], bool]:
    """Returns the paths of the change, and whether it changes what is installed: [project] of pyproject.toml."""
    since = int(git("log", "-1", "--format=%ct")) - HOURS * 3600
    commits = git("rev-list", f"--since={since}", "HEAD").split()
    paths = {path for one in commits for path in git("show", "--format=", "--name-only", "-m", one).splitlines()}
    before = git("rev-list", "-1", f"--before={since}", "HEAD").strip()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return sorted(paths), not before or tomllib.loads(git("show", f"{before}:pyproject.toml"))["project"] != project


def slow_tests_of(paths: Iterable[str]) -> list[str]:
    """Returns the folders and files below tests/ whose slow tests a change of these paths asks for."""
    found: set[str] = set()
    for path in paths:
        found.update(_tests_of(path))
    if ALL in found:
        return [ALL]
    return sorted(one for one in found if found.isdisjoint(map(str, Path(one).parents)))


def _tests_of(path: str) -> Sequence[str]:
    if path.startswith(tuple(TABLE["everything"])):
        return [ALL]
    if path.startswith("tests/"):
        _, *folders, name = path.split("/")
        # A room's test, or a helper of them; a helper that lies in tests/ itself may be anybody's.
        return ["/".join(folders) if folders else name if name.startswith("test_") else ALL]
    begins = [one for one in TABLE["tests"] if path.startswith(one)]
    if not begins:
        return [] if path.startswith(tuple(TABLE["nothing"])) else [ALL]
    tests: Sequence[str] = TABLE["tests"][max(begins, key=len)]
    return tests


def needs_of(tests: Sequence[str]) -> list[str]:
    """Returns what is installed for the slow tests of these folders."""
    return [
        name
        for name, folders in TABLE["needs"].items()
        if tests == [ALL] or any(one.split("/")[0] in folders for one in tests)
    ]


if __name__ == "__main__":
    touched, installs_other = changed_paths()
    chosen = [ALL] if installs_other else slow_tests_of(touched)
    places = [one if one == ALL else f"tests/{one}" for one in chosen if one != WITHOUT_TENSORFLOW]
    sys.stdout.write(
        # A change may remove a file of tests, and pytest refuses what is not there.
        f"slow_tests=({' '.join(place for place in places if (ROOT / place).exists())})\n"
        f"needs=({' '.join(needs_of(chosen))})\n"
        f"without_tensorflow={int(chosen == [ALL] or WITHOUT_TENSORFLOW in chosen)}\n"
    )
