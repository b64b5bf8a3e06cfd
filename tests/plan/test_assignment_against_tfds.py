"""Assignments of streams against those of TFDS and tf.data: in a process of its own that may run tensorflow."""

import os
from pathlib import Path

import pytest
from zygote import Script, tensorflow_zygote

PYTEST = str(Path(pytest.__file__).with_name("__main__.py"))
TESTS = Path(__file__).with_name("assignment_against_tfds.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("marked", "at_least"),
    [
        pytest.param("not slow and not campaign", 30, id="quick"),
        pytest.param("slow", 6, marks=pytest.mark.campaign, id="slow"),
        pytest.param("campaign", 2, marks=pytest.mark.campaign, id="campaign"),
    ],
)
def test_assignments_are_those_of_tfds_where_they_can_be(tmp_path: Path, marked: str, at_least: int) -> None:
    options = ["-q", "-m", marked, "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'own'}"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = Script(tensorflow_zygote(), [PYTEST, str(TESTS), *options], environ, TESTS.parents[2]).finish()
    assert done.returncode == 0, done.stdout + done.stderr
    num_passed = next(word for word in done.stdout.splitlines()[-1].split() if word.isdigit())
    assert int(num_passed) >= at_least, done.stdout
