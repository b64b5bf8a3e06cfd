"""The example script does what the README says."""

import re
import subprocess
import sys
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


@pytest.mark.slow
def test_train_that_was_killed_goes_on_where_its_state_is(tmp_path, run_python):
    arguments = [str(TRAIN), "--name", "digits", "--epochs", "4", "--state", str(tmp_path / "state.pt")]
    with subprocess.Popen([sys.executable, "-u", *arguments], stdout=subprocess.PIPE, text=True) as killed:
        assert next(line for line in killed.stdout if line.startswith("epoch 1:"))
        killed.kill()
    result = run_python(*arguments)
    assert result.returncode == 0, result.stderr
    epochs = [int(number) for number in re.findall(r"^epoch (\d):", result.stdout, re.MULTILINE)]
    assert epochs in ([2, 3], [3])  # It may have gone on before it was killed.
    assert float(re.search(r"test accuracy ([\d.]+)%", result.stdout).group(1)) >= 90


def test_train_is_short_and_uses_the_public_api_only():
    source = TRAIN.read_text()
    assert len(source.splitlines()) <= 140
    assert re.findall(r"^(?:from|import) (tfds_torch\S*)", source, re.MULTILINE) == ["tfds_torch"]
