"""What the processes of one run of the tests share: what the first one builds, the others find."""

import hashlib
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

import filelock
import pytest

T = TypeVar("T")

kept: Path | None = None
"""Holds the datasets that the next run finds; None: each run builds its own (`-p no:cacheprovider`)."""
_CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
_WRITERS = ("tensorflow-datasets", "array-record", "numpy", "pillow")


def run_folder(factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of this run: the same one in every process of xdist."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def computed_once(factory: pytest.TempPathFactory, name: str, compute: Callable[[], T]) -> T:
    """Returns the value that the run's first process computes; it is pickled."""
    folder = built_once(factory, name, lambda folder: (folder / "value").write_bytes(pickle.dumps(compute())))
    value: T = pickle.loads((folder / "value").read_bytes())
    return value


def built_once(
    factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object], *, sources: Sequence[Path] = ()
) -> Path:
    """Returns a folder of this run, which its first process builds. Shared: copy before damaging anything.

    Args:
        factory: the session's.
        name: the folder's.
        build: fills the folder, which exists.
        sources: the files whose code writes it. The next run gets a copy as long as they and the versions of what they
            call are the same. None: each run builds its own.
    """
    shared = run_folder(factory) / "shared"
    shared.mkdir(exist_ok=True)
    folder, built = shared / name, shared / f"{name}.built"
    with filelock.FileLock(shared / f"{name}.lock"):
        if not built.exists():
            copy = kept / f"{name}-{_hash_of(sources)}" if kept is not None and sources else None
            if copy is not None and copy.exists():
                shutil.copytree(copy, folder)
            else:
                # A build that failed has left it: the first process says why, the others that it is there.
                folder.mkdir()
                build(folder)
                if copy is not None:
                    _keep(folder, copy)
            built.touch()
    return folder


def _hash_of(sources: Sequence[Path]) -> str:
    versions = repr([sys.version, *map(version, _WRITERS)]).encode()
    return hashlib.sha256(b"".join([*map(Path.read_bytes, [_CONSTRAINTS, *sources]), versions])).hexdigest()[:16]


def _keep(folder: Path, copy: Path) -> None:
    """Replaces what earlier sources have written."""
    for old in copy.parent.glob(f"{folder.name}-*"):
        shutil.rmtree(old, ignore_errors=True)
    unfinished = copy.with_name(f"unfinished-{os.getpid()}")
    shutil.copytree(folder, unfinished)
    unfinished.rename(copy)
