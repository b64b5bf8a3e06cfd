"""Exports that are killed at any moment leave no file or a whole one, and whole shards that a second run keeps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.exports import FORMATS, run_script

CAMPAIGN = pytest.mark.campaign


@pytest.mark.parametrize(
    ("num_kills", "least"), [pytest.param(40, 30, marks=pytest.mark.slow), pytest.param(200, 150, marks=CAMPAIGN)]
)
def test_exports_that_are_killed_leave_no_file_or_a_whole_one(
    run_python: Callable[..., Any], tmp_path: Path, num_kills: int, least: int
) -> None:
    counts = run_script(run_python, "killed_export.py", tmp_path, num_kills, 1)
    assert counts["broken"] == 0
    assert counts["orphans"] == 0 < counts["workers_seen"]
    assert counts["absent"] > 0 < counts["whole"]
    assert counts["before_rename"] >= least


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("file_format", "num_kills", "least"),
    [
        pytest.param("webdataset", 30, 22, marks=pytest.mark.slow),
        *(pytest.param(file_format, 200, 150, marks=CAMPAIGN) for file_format in FORMATS),
    ],
)
def test_killed_exports_leave_whole_shards_that_a_second_run_keeps(
    run_python: Callable[..., Any], exported_root: Path, tmp_path: Path, file_format: str, num_kills: int, least: int
) -> None:
    counts = run_script(run_python, "killed_shards.py", exported_root, tmp_path, file_format, num_kills, 1)
    assert (counts["broken"], counts["rewritten"], counts["incomplete"], counts["orphans"]) == (0, 0, 0, 0)
    assert counts["workers_seen"] > 0 < counts["kept"]
    assert counts["with_shards"] > 0
    assert counts["before_rename"] >= least
