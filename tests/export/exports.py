"""Helpers for tests of exports: a short call, the contents of folders, and scripts in processes of their own."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import ROOT

from export.made_sources import FORMATS, contents
from tfds_torch.export.api import export_dataset

__all__ = ["FORMATS", "PATHS", "contents", "export", "run_script"]

PATHS = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}


def export(source: Any, out: Path, **options: Any) -> Any:
    """Exports by one worker, to five tars unless the options say otherwise."""
    return export_dataset(source, out, **{"format": "webdataset", "num_shards": 5, "num_workers": 1, **options})


def run_script(run_python: Callable[..., Any], name: str, *arguments: object) -> dict[str, int]:
    """Returns the counts that a script of this folder prints as JSON."""
    done = run_python(str(Path(__file__).with_name(name)), *map(str, arguments), env=PATHS)
    assert done.returncode == 0, done.stderr
    counts: dict[str, int] = json.loads(done.stdout)
    return counts
