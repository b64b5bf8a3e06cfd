"""Sharded exports that are killed at any moment leave whole shards, and a second run writes only the others."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

FORMATS = ("webdataset", "tfrecord", "array_record")


def kill_exports(
    run_python: Callable[..., Any], root: Path, folder: Path, file_format: str, rounds: int
) -> dict[str, int]:
    script = Path(__file__).with_name("killed_shards.py")
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = run_python(str(script), str(root), str(folder), file_format, str(rounds), "1", env=path)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts


def check(counts: dict[str, int]) -> None:
    assert (counts["broken"], counts["rewritten"], counts["incomplete"], counts["orphans"]) == (0, 0, 0, 0)
    assert counts["workers_seen"] > 0 < counts["kept"]
    assert counts["with_shards"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "file_format", ["webdataset", *(pytest.param(name, marks=pytest.mark.campaign) for name in FORMATS[1:])]
)
def test_killed_exports_leave_whole_shards_that_a_second_run_keeps(
    run_python: Callable[..., Any], exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    counts = kill_exports(run_python, exported_root, tmp_path, file_format, 30)
    check(counts)
    assert counts["before_rename"] >= 22


@pytest.mark.campaign
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("file_format", FORMATS)
def test_two_hundred_killed_exports_leave_whole_shards_that_a_second_run_keeps(
    run_python: Callable[..., Any], exported_root: Path, tmp_path: Path, file_format: str
) -> None:
    counts = kill_exports(run_python, exported_root, tmp_path, file_format, 200)
    check(counts)
    assert counts["before_rename"] >= 150
