"""The example script does what the README says."""

import re
from pathlib import Path

import pytest

TRAIN = Path(__file__).parents[1] / "examples" / "train.py"


@pytest.mark.slow
def test_train_reaches_95_percent_on_digits_with_an_exact_evaluation(run_python):
    result = run_python(str(TRAIN), "--name", "digits")
    assert result.returncode == 0, result.stderr
    percent, examples = re.search(r"test accuracy ([\d.]+)% \(\d+ of (\d+)\)", result.stdout).groups()
    assert int(examples) == 360
    assert float(percent) >= 95


def test_train_is_short_and_uses_the_public_api_only():
    source = TRAIN.read_text()
    assert len(source.splitlines()) <= 120
    assert re.findall(r"^(?:from|import) (tfds_torch\S*)", source, re.MULTILINE) == ["tfds_torch"]
