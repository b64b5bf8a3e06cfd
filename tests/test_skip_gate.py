"""The gate in conftest.py: a skip passes only when allowed_skips.txt names it with its reason."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from zygote import Script, torch_zygote

PYTEST = str(Path(pytest.__file__).with_name("__main__.py"))
PLUGINS = (
    "conftest.py",
    "pytest_report.py",
    "run_folder.py",
    "time_limit.py",
    "torchvision_build.py",
    "without_tensorflow.py",
)

SKIPS = {
    "mark": '@pytest.mark.skip(reason="no luck")\ndef test_it(): pass',
    "call": 'def test_it(): pytest.skip("no luck")',
    "condition": '@pytest.mark.skipif(True, reason="no luck")\ndef test_it(): pass',
    "fixture": '@pytest.fixture\ndef luck(): pytest.skip("no luck")\ndef test_it(luck): pass',
    "module": 'pytest.skip("no luck", allow_module_level=True)',
}
"""How a test, or all tests of a file, are skipped."""
LINES = {f"tests/test_{name}.py{'::test_it' if name != 'module' else ''}: no luck" for name in SKIPS}


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\n")
    for name in PLUGINS:
        shutil.copy(root / "tests" / name, tmp_path / "tests")
    return tmp_path


def run_pytest(checkout: Path, codes: Mapping[str, str], allowed: str, *options: str) -> tuple[int, str]:
    (checkout / "tests" / "allowed_skips.txt").write_text(f"# the header\n\n{allowed}\n")
    for name, code in codes.items():
        (checkout / "tests" / f"test_{name}.py").write_text(f"import pytest\n\n{code}\n\ndef test_other(): pass\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = Script(torch_zygote(), [PYTEST, "-p", "no:cacheprovider", *options, "tests"], environ, checkout).finish()
    return done.returncode, done.stdout


def test_every_unnamed_skip_is_shown_and_fails_the_run(checkout: Path) -> None:
    code, output = run_pytest(checkout, SKIPS, allowed="")
    assert code == 1
    refused = output.partition("allowed_skips.txt does not name")[2]
    assert set(refused.splitlines()) >= LINES, output


def test_named_skips_and_expected_failures_pass(checkout: Path) -> None:
    codes = {**SKIPS, "xfail": "@pytest.mark.xfail\ndef test_it(): assert False"}
    code, output = run_pytest(checkout, codes, "\n".join(LINES))
    assert code == 0, output


def test_a_reason_may_be_named_for_all_tests(checkout: Path) -> None:
    assert run_pytest(checkout, SKIPS, allowed="*: no luck")[0] == 0


def test_a_named_skip_with_another_reason_fails_the_run(checkout: Path) -> None:
    allowed = "tests/test_mark.py::test_it: no GPU"
    assert run_pytest(checkout, {"mark": SKIPS["mark"]}, allowed)[0] == 1


def test_a_run_whose_time_is_over_names_what_it_leaves_out_and_passes(checkout: Path) -> None:
    allowed = "*: left out: the run's time was over"
    code, output = run_pytest(checkout, {"one": "def test_it(): assert False"}, allowed, "--start-until=0")
    assert code == 0, output
    left_out = output.partition("tests that were left out")[2].splitlines()
    assert {"tests/test_one.py::test_it", "tests/test_one.py::test_other"} <= set(left_out)
    assert run_pytest(checkout, {"one": ""}, allowed, "--start-until=9e9")[1].count("1 passed") == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["call", "module"])
def test_an_unnamed_skip_fails_a_run_in_several_processes(checkout: Path, name: str) -> None:
    code, output = run_pytest(checkout, {name: SKIPS[name]}, "", "-n", "2", "--dist", "loadfile")
    assert code == 1
    assert "allowed_skips.txt does not name" in output


@pytest.mark.slow
def test_sections_are_in_the_summary_also_of_several_processes(checkout: Path) -> None:
    call = "pytest_report.add_section(request.config, 'the count', lambda: ['17 of 17'])"
    test = f"import pytest_report\ndef test_it(request): {call}"
    for options in ((), ("-n", "2", "--dist", "loadfile")):
        code, output = run_pytest(checkout, {"report": test}, "", *options)
        assert code == 0, output
        assert output.count("the count") == output.count("17 of 17") == 1
