"""Where competitors run: older revisions out of a repository, and packages of their own; and why they cannot."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks import environments
from benchmarks.environments import environment_of, own_environment, revision_environment, this_environment
from benchmarks.task import BASELINE, DALI, STREAMS, Peer
from tfds_torch.errors import ConfigError


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=n", "-c", "user.email=e@x", *arguments]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return subprocess.run(command, check=True, env=own, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two commits of a package that says which one it is; the first one is tagged `first`."""
    folder = tmp_path_factory.mktemp("repository")
    git(folder, "init", "--quiet")
    (folder / "tfds_torch").mkdir()
    for word in ("first", "second"):
        (folder / "tfds_torch" / "__init__.py").write_text(f"WORD = {word!r}\n")
        (folder / "README.md").write_text(word)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", word)
        git(folder, "tag", word)
    return folder


def test_usually_a_competitor_runs_where_the_runner_does(tmp_path: Path) -> None:
    found = environment_of(Peer("ours", "ours", "no:where"), "first", tmp_path)
    assert found == this_environment()
    assert found.executable == sys.executable
    assert (dict(found.environ), dict(found.versions)) == ({}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_revision_is_imported_in_front_of_this_one(repository: Path, tmp_path: Path) -> None:
    found = revision_environment("first", tmp_path, repository)
    code = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); import tfds_torch; print(tfds_torch.WORD)"
    done = subprocess.run(
        [found.executable, "-c", code, json.dumps(list(found.path))],
        env={**os.environ, **found.environ},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "first", done.stderr
    assert [path.name for path in Path(found.path[0]).iterdir()] == ["tfds_torch"]
    assert dict(found.versions) == {"tfds-torch at the baseline": git(repository, "rev-parse", "first")[:10]}
    assert Path(found.environ["XDG_CACHE_HOME"]).is_relative_to(tmp_path)


def test_a_revision_is_taken_once(repository: Path, tmp_path: Path) -> None:
    folder = Path(revision_environment("second", tmp_path, repository).path[0])
    (folder / "tfds_torch" / "mark").write_text("")
    again = revision_environment(git(repository, "rev-parse", "HEAD"), tmp_path, repository)
    assert Path(again.path[0]) == folder
    assert (folder / "tfds_torch" / "mark").exists()


@pytest.mark.parametrize("revision", ["no_such_thing", "--help", ""])
def test_an_unknown_revision_is_an_error(revision: str, repository: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        revision_environment(revision, tmp_path, repository)
    assert str(caught.value).startswith(f"Revision {revision} is not in {repository} (")
    assert str(caught.value).endswith(
        "): run the benchmark in a whole clone, or name another revision with --baseline."
    )


def test_a_missing_repository_or_git_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^Revision first is not in .* \(fatal: not a git repository"):
        revision_environment("first", tmp_path, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"^Revision first is unavailable: git is not installed\.$"):
        revision_environment("first", tmp_path, tmp_path)


def test_a_folder_that_cannot_be_written_is_an_error(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"^Revision first cannot be written to .*file"):
        revision_environment("first", tmp_path / "file", repository)
    with pytest.raises(ConfigError, match=r"^thing cannot be installed into .*file"):
        own_environment(["thing>=1"], tmp_path / "file")


def make_wheel(folder: Path, version: str) -> Path:
    """A package that pip installs without an index."""
    path, info = folder / f"a_made_package-{version}-py3-none-any.whl", f"a_made_package-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("a_made_package.py", "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: a-made-package\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.mark.slow
def test_packages_are_installed_into_an_environment_of_their_own_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(tmp_path, "1.5")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    requirement = f"a-made-package @ {wheel.as_uri()}"
    found = own_environment([requirement, "pip"], tmp_path / "cache", num_reported=2)
    assert Path(found.executable).is_relative_to(tmp_path / "cache")
    assert list(found.versions) == ["a-made-package", "pip"]
    assert found.versions["a-made-package"] == "1.5"
    code = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); import a_made_package, tfds_torch; import numpy"
    command = [found.executable, "-c", code, json.dumps(list(found.path))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.strip().endswith("ModuleNotFoundError: No module named 'numpy'")  # What is ours stays ours.
    wheel.unlink()
    assert own_environment([requirement, "pip"], tmp_path / "cache", num_reported=2) == found


def test_the_error_of_pip_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = b"WARNING: a\nERROR: No matching distribution found for thing>=1\n[notice] of no interest\n"

    def run(command: list[str], **_: object) -> "subprocess.CompletedProcess[bytes]":
        return subprocess.CompletedProcess(command, 1 if "pip" in command else 0, b"", output)

    monkeypatch.setattr(environments.subprocess, "run", run)
    with pytest.raises(
        ConfigError, match=r"^thing could not be installed: ERROR: No matching distribution found for thing>=1$"
    ):
        own_environment(["thing>=1"], tmp_path)
    for name, first in ((DALI, "nvidia-dali-cuda120"), (STREAMS, "mosaicml-streaming")):
        with pytest.raises(ConfigError, match=rf"^{first} could not be installed: "):
            environment_of(Peer(name, name, "no:where", environment=name), "first", tmp_path)


def test_an_installation_that_takes_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(environments.subprocess, "run", run)
    with pytest.raises(ConfigError, match=r"^An environment for thing could not be installed within 1800 s\.$"):
        own_environment(["thing"], tmp_path)


def test_the_baseline_is_the_revision_that_is_asked_for(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, Path]] = []
    monkeypatch.setattr(
        environments, "revision_environment", lambda *asking: asked.append(asking) or this_environment()
    )
    environment_of(Peer(BASELINE, "b", "no:where", environment=BASELINE), "some_revision", tmp_path)
    assert asked == [("some_revision", tmp_path)]
