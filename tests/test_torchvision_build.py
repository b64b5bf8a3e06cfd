"""Whether torchvision is as it is, or its operators are declared, is found by importing it in a fresh process."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torchvision_build
from conftest import RunPython
from test_skip_gate import PLUGINS
from zygote import Script, torch_zygote

from benchmarks.peers import timm_reader

PYTEST = str(Path(pytest.__file__).with_name("__main__.py"))
IN_TRANSFORMERS = "Could not import module 'Trainer'"
INSTALL = Path(__file__).parents[1] / "docs" / "install.md"


def environment_with(folder: Path, content: str) -> dict[str, str]:
    """Returns an environment whose torchvision is a module with this content."""
    (folder / "torchvision").mkdir()
    (folder / "torchvision" / "__init__.py").write_text(content)
    return {**os.environ, "PYTHONPATH": str(folder)}


OF_ANOTHER_BUILD = f"raise RuntimeError({torchvision_build.SYMPTOM!r})"


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("", ""),
        ("import sys; print('a warning', file=sys.stderr)", ""),
        (OF_ANOTHER_BUILD, f"RuntimeError: {torchvision_build.SYMPTOM}"),
        ("import nothing_like_it", "ModuleNotFoundError: No module named 'nothing_like_it'"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_a_fresh_process_imports_it(content: str, error: str, tmp_path: Path) -> None:
    assert torchvision_build.find_error(environment_with(tmp_path, content)) == error


@pytest.mark.parametrize(
    ("found", "needs", "words"),
    [
        ("", False, "imported as it is"),
        (f"RuntimeError: {torchvision_build.SYMPTOM}", True, "ran with declarations of its operators"),
        ("ModuleNotFoundError: No module named 'torchvision'", False, "cannot be imported: ModuleNotFoundError"),
    ],
)
def test_operators_are_declared_only_where_they_are_what_is_missing(
    found: str, needs: bool, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = object()
    monkeypatch.setattr(torchvision_build, "find_error", lambda: found)
    monkeypatch.setattr(timm_reader, "declare_torchvision_operators", lambda: declared)
    monkeypatch.setenv("TFDS_TORCH_TEST_TORCHVISION", "")  # So that it is as before afterwards.
    monkeypatch.delenv("TFDS_TORCH_TEST_TORCHVISION")
    assert torchvision_build.describe() == []
    assert (torchvision_build.declare_where_needed() is declared) is needs
    torchvision_build.write_startup(tmp_path / "site")
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["sitecustomize.py"] * needs
    assert words in " ".join(torchvision_build.describe())


@pytest.mark.slow
@pytest.mark.parametrize(("content", "words"), [("", "imported as it is"), (OF_ANOTHER_BUILD, "with declarations of")])
def test_the_summary_of_a_run_in_several_processes_says_once_which_was_the_case(
    content: str, words: str, root: Path, tmp_path: Path
) -> None:
    environment = environment_with(tmp_path, content)
    environment = {name: value for name, value in environment.items() if not name.startswith(("PYTEST_", "TFDS_TORCH"))}
    (tmp_path / "tests").mkdir()
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = tests\n")
    for name in (*PLUGINS, "allowed_skips.txt"):
        shutil.copy(root / "tests" / name, tmp_path / "tests")
    test = "import torchvision_build\ndef test_it(): torchvision_build.needs_declarations()\n"
    for number in range(2):
        (tmp_path / "tests" / f"test_{number}.py").write_text(test)
    command = [PYTEST, "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile", "tests"]
    done = Script(torch_zygote(), command, environment, tmp_path).finish()
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(words) == 1, done.stdout


@pytest.mark.parametrize("options", ["", "--index-url file:///both"])
def test_make_takes_torch_and_torchvision_with_one_command_where_an_index_is_named(
    options: str, root: Path, tmp_path: Path
) -> None:
    command = ["make", "-n", f"VENV={tmp_path}/venv", f"TORCH_OPTIONS={options}", f"{tmp_path}/venv/.installed"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    installs = [line.partition("constraints.txt ")[2] for line in done.stdout.splitlines() if " install " in line]
    both = [f"--no-deps {options} torch torchvision"] if options else []
    assert installs == [*both, "-e .", "-e '.[dev]'"]


@pytest.mark.slow
def test_the_error_of_two_builds_is_the_one_that_the_page_about_installing_shows() -> None:
    text = INSTALL.read_text()
    assert f"`{torchvision_build.SYMPTOM}`" in text
    assert f"`{IN_TRANSFORMERS}`" in text
    if torchvision_build.needs_declarations():
        assert os.environ["TFDS_TORCH_TEST_TORCHVISION"] == f"RuntimeError: {torchvision_build.SYMPTOM}"


@pytest.mark.slow
def test_lightning_and_transformers_are_imported_or_fail_as_the_page_about_installing_shows(
    run_python: RunPython,
) -> None:
    errors = {}
    for statement in ("import lightning", "from transformers import Trainer"):
        done = run_python("-W", "ignore", "-c", statement)
        errors[statement] = done.stderr.strip().splitlines()[-1] if done.returncode else ""
    if not torchvision_build.needs_declarations():
        assert set(errors.values()) == {""}
        return
    assert torchvision_build.SYMPTOM in errors["import lightning"]
    assert IN_TRANSFORMERS in errors["from transformers import Trainer"]
