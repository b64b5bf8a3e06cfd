"""What the processes of one run of the tests share: what the first one builds, the others find."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import filelock
import pytest

T = TypeVar("T")


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of this run: the same one in every process of xdist."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def computed_once(factory: pytest.TempPathFactory, name: str, compute: Callable[[], T]) -> T:
    """Returns what whoever asks first has computed; it is pickled.

    Args:
        factory: of the session.
        name: of the value.
        compute: returns it.
    """
    folder = built_once(factory, name, lambda folder: (folder / "value").write_bytes(pickle.dumps(compute())))
    value: T = pickle.loads((folder / "value").read_bytes())
    return value


def built_once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """Returns a folder of this run, which whoever asks first has built. Shared: copy before damaging anything.

    Args:
        factory: of the session.
        name: of the folder.
        build: fills it; it exists.
    """
    shared = run_folder(factory) / "shared"
    shared.mkdir(exist_ok=True)
    folder, built = shared / name, shared / f"{name}.built"
    with filelock.FileLock(shared / f"{name}.lock"):
        if not built.exists():
            folder.mkdir()  # A build that failed has left it: the first process says why, the others that it is there.
            build(folder)
            built.touch()
    return folder
