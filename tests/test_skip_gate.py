"""The gate in conftest.py: a skip passes only when allowed_skips.txt names it with its reason."""

import os
import shutil
from pathlib import Path

import pytest
from zygote import Script, torch_zygote

PYTEST = str(Path(pytest.__file__).with_name("__main__.py"))

SKIPS = {
    "by a mark": '@pytest.mark.skip(reason="no luck")\ndef test_it(): pass',
    "by a call": 'def test_it(): pytest.skip("no luck")',
    "by a condition": '@pytest.mark.skipif(True, reason="no luck")\ndef test_it(): pass',
    "in a fixture": '@pytest.fixture\ndef luck(): pytest.skip("no luck")\ndef test_it(luck): pass',
}
WHOLE_MODULE = 'pytest.skip("no luck", allow_module_level=True)'


@pytest.fixture
def checkout(root: Path, tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\n")
    for name in ("conftest.py", "pytest_report.py", "torchvision_build.py"):
        shutil.copy(root / "tests" / name, tmp_path / "tests")
    return tmp_path


def run_pytest(checkout: Path, code: str, allowed: str, *options: str) -> tuple[int, str]:
    (checkout / "tests" / "allowed_skips.txt").write_text(f"# the header\n\n{allowed}\n")
    (checkout / "tests" / "test_luck.py").write_text(f"import pytest\n\n{code}\n\ndef test_other(): pass\n")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = Script(torch_zygote(), [PYTEST, "-p", "no:cacheprovider", *options, "tests"], environ, checkout).finish()
    return done.returncode, done.stdout


@pytest.mark.parametrize("code", SKIPS.values(), ids=SKIPS)
def test_an_unnamed_skip_fails_the_run(checkout: Path, code: str) -> None:
    code_, output = run_pytest(checkout, code, allowed="")
    assert code_ == 1
    assert "allowed_skips.txt does not name" in output
    assert "tests/test_luck.py::test_it: no luck" in output


@pytest.mark.slow
@pytest.mark.parametrize("code", [SKIPS["by a call"], WHOLE_MODULE], ids=["a test", "a module"])
def test_an_unnamed_skip_fails_a_run_in_several_processes(checkout: Path, code: str) -> None:
    code_, output = run_pytest(checkout, code, "", "-n", "2", "--dist", "loadfile")
    assert code_ == 1
    assert "allowed_skips.txt does not name" in output


@pytest.mark.slow
def test_what_tests_tell_is_in_the_summary_also_of_several_processes(checkout: Path) -> None:
    code = (
        "from pytest_report import tell\ndef test_it(request): tell(request.config, 'the count', lambda: ['17 of 17'])"
    )
    for options in ((), ("-n", "2", "--dist", "loadfile")):
        code_, output = run_pytest(checkout, code, "", *options)
        assert code_ == 0, output
        assert output.count("the count") == output.count("17 of 17") == 1


def test_an_unnamed_skip_of_a_whole_module_fails_the_run(checkout: Path) -> None:
    code, output = run_pytest(checkout, WHOLE_MODULE, allowed="")
    assert code == 1
    assert "tests/test_luck.py: no luck" in output


@pytest.mark.parametrize("code", SKIPS.values(), ids=SKIPS)
def test_a_named_skip_passes(checkout: Path, code: str) -> None:
    code_, output = run_pytest(checkout, code, allowed="tests/test_luck.py::test_it: no luck")
    assert code_ == 0, output


def test_a_named_skip_with_another_reason_fails_the_run(checkout: Path) -> None:
    allowed = "tests/test_luck.py::test_it: no GPU"
    assert run_pytest(checkout, SKIPS["by a mark"], allowed)[0] == 1


def test_an_expected_failure_is_no_skip(checkout: Path) -> None:
    code = "@pytest.mark.xfail\ndef test_it(): assert False"
    assert run_pytest(checkout, code, allowed="")[0] == 0
