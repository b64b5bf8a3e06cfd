"""Batches that are dictionaries, through the trainers; the Trainer's are in docs/trainers.md, which runs."""

from pathlib import Path

import pytest
from conftest import RunPython

SCRIPT = Path(__file__).with_name("dictionary_trainers.py")


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["accelerate", "lightning"])
def test_a_trainer_goes_on_exactly_with_dictionaries(run_python: RunPython, tmp_path: Path, trainer: str) -> None:
    done = run_python(str(SCRIPT), trainer, str(tmp_path))
    assert done.returncode == 0, done.stderr
