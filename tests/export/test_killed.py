"""Exports that are killed at any moment leave no file, or a whole one, and no process."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT


def kill_exports(run_python: Callable[..., Any], folder: Path, rounds: int) -> dict[str, int]:
    script = Path(__file__).with_name("killed_export.py")
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = run_python(str(script), str(folder), str(rounds), "1", env=path)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def check(counts: dict[str, int]) -> None:
    assert counts["broken"] == 0
    assert counts["orphans"] == 0 < counts["workers_seen"]
    assert counts["absent"] > 0 < counts["whole"]


@pytest.mark.slow
def test_exports_that_are_killed_leave_no_file_or_a_whole_one(run_python: Callable[..., Any], tmp_path: Path) -> None:
    counts = kill_exports(run_python, tmp_path, 40)
    check(counts)
    assert counts["before_rename"] >= 30


@pytest.mark.campaign
def test_two_hundred_killed_exports_leave_no_file_or_a_whole_one(
    run_python: Callable[..., Any], tmp_path: Path
) -> None:
    counts = kill_exports(run_python, tmp_path, 200)
    check(counts)
    assert counts["before_rename"] >= 150
