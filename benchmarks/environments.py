"""Environment: where a competitor's process runs: here, with an older revision of this package, or with other packages.

An older revision comes from the git repository of a checkout. The same interpreter imports it in front of this one,
beside the same packages; it has a cache folder of its own, since its files may be laid out otherwise. Packages that may
clash with ours are installed into an environment of their own, once, in the user's cache folder.
"""

import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from benchmarks import machine
from benchmarks.task import BASELINE, DALI, STREAMS, Peer
from tfds_torch.errors import ConfigError

DALI_REQUIREMENTS = ("nvidia-dali-cuda120>=1.50", "numpy", "pillow")
"""The latter two are imported by the competitor's own modules."""

STREAMS_REQUIREMENTS = (
    "mosaicml-streaming==0.13.0",
    "litdata==0.2.76",
    "webdataset==1.0.2",
    "torch==2.13.0",
    "torchvision==0.28.0",
    "pillow",
)
"""Streaming asks for a numpy, a protobuf and a transformers that are older than ours."""

_ROOT = Path(__file__).parents[1]
_INSTALL_S = 1800
_STAMP = "packages.json"
_LIST_VERSIONS = """
import json, sys
from importlib.metadata import version
versions = {name: version(name) for name in sys.argv[1:]}
print(json.dumps({"path": [entry for entry in sys.path if entry], "versions": versions}))
"""


@dataclass(frozen=True)
class Environment:
    """An interpreter, its `sys.path`, more environment variables, and distribution -> version of its own packages."""

    executable: str
    path: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def environment_of(peer: Peer, baseline: str, cache_dir: Path | None = None) -> Environment:
    """Returns the environment of a competitor, which is made on first use and kept in the cache folder.

    Raises:
        ConfigError: there is no repository or no such revision, or packages cannot be installed.
    """
    if not peer.environment:
        return this_environment()
    make: dict[str, Callable[[Path], Environment]] = {
        BASELINE: lambda folder: revision_environment(baseline, folder),
        DALI: lambda folder: own_environment(DALI_REQUIREMENTS, folder),
        STREAMS: lambda folder: own_environment(STREAMS_REQUIREMENTS, folder, num_reported=3),
    }
    return make[peer.environment](cache_dir or machine.cache_dir())


def this_environment() -> Environment:
    """Returns the environment of this process."""
    return Environment(sys.executable, [os.path.abspath(entry or ".") for entry in sys.path])


def revision_environment(revision: str, cache_dir: Path, repository: Path = _ROOT) -> Environment:
    """Returns this environment with another git revision of this package, which is written into a folder of the cache.

    Raises:
        ConfigError: there is no git, no repository or no such revision, or the folder cannot be written.
    """
    commit = _git(repository, revision, "rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()
    folder = cache_dir / "revisions" / commit
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not folder.exists():
                files = _git(repository, revision, "archive", "--format=tar", commit, "tfds_torch")
                with tempfile.TemporaryDirectory(dir=folder.parent) as workplace:
                    with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                        archive.extractall(Path(workplace) / commit, filter="data")
                    (Path(workplace) / commit).rename(folder)
    except (OSError, TypeError) as error:  # TypeError: an early patch version of Python, whose tarfile has no filters.
        raise ConfigError(f"Revision {revision} cannot be written to {folder}: {error}.") from error
    here = this_environment()
    return Environment(
        here.executable,
        [str(folder), *here.path],
        {"XDG_CACHE_HOME": str(folder / "cache")},
        {"tfds-torch at the baseline": commit[:10]},
    )


def own_environment(requirements: Sequence[str], cache_dir: Path, num_reported: int = 1) -> Environment:
    """Returns an environment of its own in a folder of the cache: some packages and this one, and no others.

    The versions of the first `num_reported` packages are reported.

    Raises:
        ConfigError: the packages cannot be installed, or the folder cannot be written.
    """
    key = hashlib.blake2b(repr((platform.python_version(), requirements)).encode(), digest_size=4).hexdigest()
    names = [re.split(r"[^\w.-]", requirement)[0] for requirement in requirements[:num_reported]]
    name = names[0]
    folder = cache_dir / "environments" / f"{name}-{key}"
    executable = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_suffix(".lock")):
            if not (folder / _STAMP).exists():
                shutil.rmtree(folder, ignore_errors=True)  # What an interrupted installation left.
                _run([sys.executable, "-m", "venv", str(folder)], f"An environment for {name}")
                pip = [str(executable), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                _run([*pip, *requirements], name)
                (folder / _STAMP).write_bytes(_run([str(executable), "-c", _LIST_VERSIONS, *names], name))
        found = json.loads((folder / _STAMP).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name} cannot be installed into {folder}: {error}.") from error
    # This package comes last: where it is installed, other packages lie beside it.
    return Environment(str(executable), [*found["path"], str(_ROOT)], versions=found["versions"])


def _run(command: Sequence[str], what: str) -> bytes:
    """Returns a command's output.

    Raises:
        ConfigError: it failed, or took too long.
    """
    try:
        # A list, no shell: this interpreter, or the one that it has just made.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_INSTALL_S)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{what} could not be installed within {_INSTALL_S} s.") from None
    if done.returncode:
        raise ConfigError(f"{what} could not be installed: {_last_line(done.stderr)}")
    return done.stdout


def _git(repository: Path, revision: str, *arguments: str) -> bytes:
    git = shutil.which("git")
    if git is None:
        raise ConfigError(f"Revision {revision} is unavailable: git is not installed.")
    # A list, no shell; the message holds what git prints about an unknown revision.
    done = subprocess.run([git, "-C", str(repository), *arguments], capture_output=True)  # noqa: S603
    if done.returncode:
        raise ConfigError(
            f"Revision {revision} is not in {repository} ({_last_line(done.stderr)}): run the benchmark in a whole "
            f"clone, or name another revision with --baseline."
        )
    return done.stdout


def _last_line(output: bytes) -> str:
    """Returns the last line that names an error, else the last line."""
    lines = output.decode(errors="replace").strip().splitlines() or [""]
    return next((line for line in reversed(lines) if "error" in line.lower()), lines[-1]).strip()[:300]
