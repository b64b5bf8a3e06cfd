"""`python -m tfds_torch.timm SCRIPT`, and what `install` says of a timm that it does not know. timm is made up here."""

import importlib
import inspect
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest
from zygote import Script, torch_zygote

from tfds_torch import ImageDataset, ParserTfds
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.timm.__main__ import main
from tfds_torch.timm import install

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]  # conftest.py's fixture

MADE_UP = {
    "__init__": "__version__ = '9.9.9'",
    "data/__init__": """
        from .loader import create_loader
        from .naflex_loader import create_naflex_loader
        from .readers import create_reader
    """,
    "data/dataset": "from .readers import create_reader",
    "data/readers/__init__": "from .reader_factory import create_reader",
    "data/readers/reader_factory": "def create_reader(name, root=None, split='train', **kwargs): return 'its own'",
    "data/loader": """
        def create_loader(
            dataset, input_size, batch_size, is_training=False, num_workers=1, use_multi_epochs_loader=False
        ):
            return dataset
    """,
    "data/naflex_loader": "def create_naflex_loader(dataset, batch_size=1, is_training=False, num_workers=1): return 1",
    "utils/__init__": """
        from .distributed import reduce_tensor
        from .metrics import AverageMeter, accuracy
    """,
    "utils/distributed": "def reduce_tensor(tensor, n): return tensor",
    "utils/metrics": """
        def accuracy(output, target, topk=(1,)): return []

        class AverageMeter:
            def update(self, val, n=1): pass
    """,
}


def write_timm(folder: Path, **changes: str) -> None:
    """Writes a package `timm` that has what the shim looks for, and changes modules of it; "" leaves one out."""
    changed = {name.replace("__in__", "/"): code for name, code in changes.items()}
    for name, code in (MADE_UP | changed).items():
        path = folder / "timm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        if code:
            path.write_text(dedent(code))


def forget_timm() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def no_timm() -> Iterator[None]:
    """pytest's process has not imported the real one, and keeps none of the made-up ones."""
    assert "timm" not in sys.modules
    yield
    forget_timm()


# Installing


def test_install_replaces_functions_of_a_timm_that_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_timm(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    timm_data, utils = importlib.import_module("timm.data"), importlib.import_module("timm.utils")
    own = timm_data.create_loader
    install()
    assert timm_data.create_loader is not own
    assert inspect.signature(timm_data.create_loader) == inspect.signature(own)
    assert timm_data.create_loader("a dataset", 8, 4) == "a dataset"
    assert timm_data.create_reader("wds/x") == "its own"
    assert type(pickle.loads(pickle.dumps(utils.AverageMeter()))) is utils.AverageMeter
    ours = timm_data.create_loader
    install()
    assert timm_data.create_loader is ours


@pytest.mark.parametrize("place", ["__main__", "engine"])
def test_install_that_comes_too_late_is_an_error_and_changes_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timm(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("timm.data").create_loader
    late = ModuleType(place)
    late.of_timm = own
    monkeypatch.setitem(sys.modules, place, late)
    with pytest.raises(ConfigError, match=rf"too late: {place} already holds timm's own create_loader\. Call"):
        install()
    assert importlib.import_module("timm.data").create_loader is own


def test_a_loader_of_timm_that_cannot_read_a_dataset_of_ours_is_a_config_error(
    data_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timm(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    timm_data = importlib.import_module("timm.data")
    install()
    dataset = ImageDataset(ParserTfds(data_root, "digits", batch_size=8))
    with pytest.raises(ConfigError, match=r"use_multi_epochs_loader=True needs .* persistent_workers"):
        timm_data.create_loader(dataset, 8, 8, use_multi_epochs_loader=True)
    with pytest.raises(ConfigError, match=r"batch_size=4\) contradicts the dataset, which plans batches of 8"):
        timm_data.create_naflex_loader(dataset, batch_size=4)
    with pytest.raises(ConfigError, match="name/config:version"):
        timm_data.create_reader("tfds/", data_root)


UNKNOWN = {
    "a module is missing": ({"data__in__naflex_loader": "", "data__in____init__": ""}, ["timm.data"]),
    "a function is missing": (
        {"utils__in__metrics": "class AverageMeter: pass\naccuracy = None"},
        ["metrics.accuracy"],
    ),
    "a parameter is missing": (
        {"utils__in__distributed": "def reduce_tensor(tensor, world_size): pass"},
        ["parameters n of timm.utils.distributed.reduce_tensor"],
    ),
    "it lies somewhere else": (
        {"data__in__dataset": "def create_reader(name, root=None, split='train'): pass"},
        ["timm.data.readers.reader_factory.create_reader and timm.data.dataset.create_reader"],
    ),
    "it is not where it is looked up": ({"data__in__dataset": "other = 1"}, ["timm.data.dataset.create_reader"]),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_a_timm_with_other_functions_is_a_config_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    changes, facts = UNKNOWN[case]
    write_timm(tmp_path, **changes)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError) as caught:
        install()
    for fact in ("timm 9.9.9", "tested with timm 1.0.31", "tfds_torch.ImageDataset", *facts):
        assert fact in str(caught.value)


def test_a_missing_dependency_of_timm_is_not_reported_as_a_missing_timm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_timm(tmp_path, __init__="import a_package_that_timm_needs")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_timm_needs"):
        install()


# The command


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ([], ["no script was given", "usage: python -m tfds_torch.timm [-h] SCRIPT"]),
        (["--lr", "train.py"], ["'--lr'", "follow the script", "usage:"]),
        (["nowhere.py", "--lr"], ["no script 'nowhere.py'"]),
        (["."], ["no script '.'"]),
        (["no\x1bwhere.py"], [r"\x1bwhere"]),
        (["script.py"], ["timm is not installed", "pip install 'tfds-torch[timm]'"]),
    ],
)
def test_what_cannot_be_run_is_one_message_and_exit_code_2(
    arguments: list[str],
    facts: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    (tmp_path / "script.py").write_text("raise ValueError('it ran')")
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("python -m tfds_torch.timm: ")
    for fact in facts:
        assert fact in said.err


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_shows_how_to_run_a_script_on_several_ranks(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([option]) == 0
    assert "torchrun --nproc-per-node 2 -m tfds_torch.timm train.py" in capsys.readouterr().out


def test_help_loads_no_torch(run_python: RunPython, root: Path) -> None:
    said = "main(['-h']); print('torch' in sys.modules)"
    code = f"import sys; from tfds_torch.integrations.timm.__main__ import main; {said}"
    assert run_python("-c", code, env={"PYTHONPATH": str(root)}).stdout.endswith("\nFalse\n")


SCRIPT = """
from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys

import neighbour
from timm.data import create_loader


def describe():
    return os.getpid()


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.apply(describe)
    found = {
        "argv": sys.argv,
        "path": sys.path[0],
        "file": __file__,
        "spec": [repr(__spec__), repr(__package__)],
        "main": sys.modules["__main__"].describe is describe,
        "neighbour": neighbour.__file__,
        "spawned": spawned != os.getpid(),
        "shim": hasattr(create_loader, "__wrapped__"),
    }
    print(json.dumps(found))
    atexit.register(lambda: print(describe() == os.getpid()))
    sys.exit(7)
"""


def run(root: Path, folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(root), str(folder / "packages")])
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )


def test_a_script_runs_as_python_runs_it(root: Path, tmp_path: Path) -> None:
    write_timm(tmp_path / "packages")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "neighbour.py").touch()
    (tmp_path / "scripts" / "train.py").write_text(SCRIPT)
    (tmp_path / "train.py").symlink_to(tmp_path / "scripts" / "train.py")
    arguments = "train.py", "--lr", "-h"
    by_python = run(root, tmp_path, *arguments)
    by_us = run(root, tmp_path, "-m", "tfds_torch.timm", *arguments)
    assert by_us.returncode == by_python.returncode == 7, by_us.stderr
    assert by_us.stderr == by_python.stderr == ""
    assert by_us.stdout == by_python.stdout.replace('"shim": false', '"shim": true')
    assert '"spawned": true' in by_us.stdout
    assert '"shim": true' in by_us.stdout


def test_an_error_of_the_script_passes_through(root: Path, tmp_path: Path) -> None:
    write_timm(tmp_path / "packages")
    (tmp_path / "fail.py").write_text("\n\nraise ValueError('in the script')\n")
    command = tmp_path / "command.py"
    command.write_text("import runpy\nrunpy.run_module('tfds_torch.timm', run_name='__main__', alter_sys=True)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), str(tmp_path / "packages")])}
    done = Script(torch_zygote(), [str(command), "fail.py"], environment, tmp_path).finish()
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert f'File "{tmp_path}/fail.py", line 3' in done.stderr
    assert done.stderr.endswith("ValueError: in the script\n")
