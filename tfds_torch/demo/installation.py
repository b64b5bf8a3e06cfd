"""A dataset brought into a data dir at most once, whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from tfds_torch.demo.spec import DemoSpec
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.own_folder import cache_folder


def choose_data_dir(spec: DemoSpec, root: str | os.PathLike[str] | None) -> Path:
    """Returns root, or without one the spec's own folder in the user's cache."""
    if root is not None:
        return Path(root).expanduser()
    return cache_folder("demo") / spec.folder_name


def install(spec: DemoSpec, data_dir: Path, *, is_installed: Callable[[], bool], build: Callable[[Path], Path]) -> None:
    """Builds a dataset unless it is there.

    The build runs under a lock, in a temporary folder that is renamed when it is complete: other processes see all of
    the dataset or nothing, and only one of them builds.

    Args:
        spec: what to build.
        data_dir: where its folder is to lie.
        is_installed: whether it is there; raises where something else is.
        build: writes it into the data dir it is given, and returns the version directory, relative to the data dir
            (`photos/1.0.0`). It may write nothing where that directory already is in `data_dir`.

    Raises:
        ConfigError: data_dir cannot be written, or what is_installed and build raise.
    """
    try:
        if is_installed():
            return
        data_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(data_dir / f".{spec.name}.lock"):
            if not is_installed():  # Another process may have built it meanwhile.
                _build_in_place(spec, data_dir, build)
    except OSError as error:
        raise ConfigError(
            f"The demo dataset {spec} cannot be prepared under root={os.fspath(data_dir)!r}: {error}. Give a "
            f"root that can be written to."
        ) from error


def describe_conflict(spec: DemoSpec, folder: Path, found: object) -> str:
    """Returns a message: another dataset lies where this one belongs; None: one that was not built here."""
    there = found or "a dataset that tfds_torch.demo did not write"
    remedy = ", or delete that folder" if found else ""
    return (
        f"Asked for the demo dataset {spec}, but {folder} already holds {there}. "
        f"Choose another root (root=None keeps a folder for each combination){remedy}."
    )


def _build_in_place(spec: DemoSpec, data_dir: Path, build: Callable[[Path], Path]) -> None:
    """Builds beside the target and renames. The caller holds the lock, so any other build here is a dead one."""
    prefix = f".{spec.name}.building-"
    for leftover in data_dir.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    workplace = Path(tempfile.mkdtemp(prefix=prefix, dir=data_dir))
    try:
        version_dir = build(workplace)
        built, target = workplace / version_dir, data_dir / version_dir
        if not built.exists():
            return
        for path in [*built.iterdir(), built]:
            _flush_to_disk(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        _keep_default_config(workplace / spec.name, data_dir / spec.name)
        built.rename(target)
        _flush_to_disk(target.parent)
    finally:
        shutil.rmtree(workplace, ignore_errors=True)


def _keep_default_config(built: Path, target: Path) -> None:
    """TFDS keeps the name of a dataset's default config beside the configs, for reading without its code."""
    if (built / ".config").is_dir():
        shutil.copytree(built / ".config", target / ".config", dirs_exist_ok=True)


def _flush_to_disk(path: Path) -> None:
    """After a power cut, too, a renamed dataset has its bytes."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders.
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
