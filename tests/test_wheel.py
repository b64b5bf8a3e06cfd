"""What is published is what was tested: the wheel works in a clean environment, away from the checkout."""

import ast
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest


def run(*command: str | Path, cwd: Path, **env: str) -> str:
    # The checkout must not be importable from the new environment.
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(command, cwd=cwd, env={**inherited, **env}, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def source(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is built from."""
    source = tmp_path_factory.mktemp("source") / "tfds_torch"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".gitignore"):
        shutil.copy(root / name, source)
    for name in ("tfds_torch", "benchmarks"):
        shutil.copytree(root / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    return source


def build(source: Path, kind: str, pattern: str) -> Path:
    # Without isolation nothing is downloaded.
    run(sys.executable, "-m", "build", kind, "--no-isolation", "--outdir", source.parent, source, cwd=source)
    (built,) = source.parent.glob(pattern)
    return built


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    return build(source, "--wheel", "*.whl")


def test_the_wheel_holds_the_package_its_types_its_data_and_its_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "tfds_torch/py.typed" in names
    assert "tfds_torch/check/page.html.jinja" in names
    assert any(name.startswith("tfds_torch/demo/data/") for name in names)
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert all(name.startswith(("tfds_torch/", "tfds_torch-")) for name in names)


def test_bench_is_in_the_source_distribution_and_not_in_the_wheel(wheel: Path, source: Path) -> None:
    assert [name for name in zipfile.ZipFile(wheel).namelist() if "bench" in name] == []
    with tarfile.open(build(source, "--sdist", "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    kept = {path.relative_to(source).as_posix() for path in (source / "benchmarks").rglob("*") if path.is_file()}
    assert {name for name in names if name.startswith("benchmarks/")} == kept
    assert {"benchmarks/suites/epochs.py", "benchmarks/__main__.py", "benchmarks/results/jpeg.json"} <= kept


IMPORTED = """
import sys

sys.path.insert(0, sys.argv[1])
import tfds_torch
from tfds_torch import ImageDataset, ParserTfds, create_loader, demo

assert set(tfds_torch.__all__) <= set(dir(tfds_torch))
for name in tfds_torch.__all__:
    getattr(tfds_torch, name)
print(sorted({module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "tfds_torch"}))
"""


def test_everything_of_the_front_door_is_imported_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "wheel")
    # -I: neither the current folder nor PYTHONPATH; the wheel's folder comes before the checkout's.
    output = run(sys.executable, "-I", "-c", IMPORTED, str(tmp_path / "wheel"), cwd=tmp_path)
    files = ast.literal_eval(output)
    assert len(files) > 50
    assert [file for file in files if not Path(file).is_relative_to(tmp_path / "wheel" / "tfds_torch")] == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_checks_the_digits_in_a_clean_environment(wheel: Path, root: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "clean", cwd=tmp_path)
    python = next((tmp_path / "clean").glob("*/python"))
    # Most modules of what it needs are never imported: Python compiles those that are.
    options = ["--quiet", "--no-compile", "-c", str(root / "constraints.txt")]
    run(python, "-m", "pip", "install", *options, wheel, cwd=tmp_path)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    origin = run(python, "-c", "import tfds_torch; print(tfds_torch.__file__)", cwd=elsewhere)
    assert Path(origin.strip()).is_relative_to(tmp_path / "clean")
    run(python, "-m", "tfds_torch.check", cwd=elsewhere, XDG_CACHE_HOME=str(tmp_path / "cache"))
    export = ["--name", "digits", "--format", "beton", "--field", "image=raw", "--verify", "digits.beton"]
    run(python, "-m", "tfds_torch.export", *export, cwd=elsewhere, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (elsewhere / "digits.beton").is_file()
