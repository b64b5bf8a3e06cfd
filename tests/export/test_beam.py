"""Shards that Apache Beam writes, with its runners for one machine: the bytes, dead workers, and what is refused.

Beam wants older versions of what others want newer, so it has an environment of its own: the Makefile makes it.
"""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from export.beam_lives import FORMATS, NUM_SHARDS, Dying
from export.made_sources import Numbered
from tfds_torch.errors import ConfigError
from tfds_torch.export.exporting import export_dataset
from tfds_torch.export.shard_folder import Shard, ShardFolder, verify_shards
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds

PYTHON = Path(os.environ.get("BEAM_PYTHON", ROOT / ".venv" / "beam" / "bin" / "python"))


@pytest.fixture
def run_with_beam(tmp_path: Path) -> Any:
    """`run_with_beam(function, *arguments)`: what a function of beam_lives returns, in Beam's environment."""
    if not PYTHON.exists():
        pytest.skip("needs the environment of Apache Beam, which was not installed")

    def run(function: str, *arguments: object) -> Any:
        done = subprocess.run(
            [PYTHON, str(Path(__file__).with_name("beam_lives.py")), function, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_beam_writes_the_very_bytes_that_local_workers_write(
    run_with_beam: Any, exported_root: Path, tmp_path: Path
) -> None:
    found = run_with_beam("write_all_formats", tmp_path, exported_root)
    parser = ParserTfds(exported_root, "photos")
    for file_format in FORMATS:
        local = tmp_path / f"local_{file_format}"
        export_dataset(parser, local, format=file_format, num_shards=NUM_SHARDS, shuffle_seed=3, num_workers=2)
        assert contents(tmp_path / file_format) == contents(local), file_format
        verify_shards(tmp_path / file_format)
        report = found["reports"][file_format]
        assert (report["num_workers"], report["num_shards"], report["num_kept"]) == (0, NUM_SHARDS, 0)
    assert all(0 <= done <= total == len(parser) for done, total in found["progress"])
    assert found["progress"].count([len(parser), len(parser)]) == len(FORMATS)
    assert (found["kept"], found["rewritten"]) == (NUM_SHARDS - 1, [found["lost"]])


@pytest.mark.slow
def test_beam_tries_again_what_a_dead_worker_has_begun_and_no_half_shard_stays(
    run_with_beam: Any, tmp_path: Path
) -> None:
    found = run_with_beam("die", tmp_path)
    assert (found["died"], found["kept"], found["shards"]) == (True, 0, NUM_SHARDS)
    local = tmp_path / "local"
    export_dataset(Numbered(), local, format="webdataset", num_shards=NUM_SHARDS, num_workers=1)
    members = {name: content for name, content in contents(local).items() if name.endswith(".tar")}
    for folder in (tmp_path / "out", tmp_path / "dead"):
        assert {name.partition("-")[2]: content for name, content in contents(folder).items() if ".tar" in name} == {
            name.partition("-")[2]: content for name, content in members.items()
        }
        verify_shards(folder)
    assert found["error"].startswith("ExportError: The export to ")
    assert " failed on BundleBasedDirectRunner: " in found["error"]
    assert "SIGKILL" in found["error"]
    assert found["unfinished"] == found["rewritten"] == []
    assert found["kept after"] == found["complete before"] > 0


@pytest.mark.slow
def test_what_beam_cannot_do_is_said_before_anything_is_written(run_with_beam: Any, tmp_path: Path) -> None:
    runner, class_name, value, form, unpicklable = run_with_beam("refuse", tmp_path)
    assert "'DirektRunner' (--beam-runner) is not a runner of Beam's: choose DirectRunner, " in runner
    assert "Did you mean 'DirectRunner'?" in runner
    assert "No module named 'no'" in class_name
    assert "'direct_num_workers=many': Beam refuses them: argument --direct_num_workers: invalid int value" in value
    assert "must be a sequence of texts NAME=VALUE" in form
    assert (
        "The dataset cannot be sent to Beam's workers (TypeError: cannot pickle '_thread.lock' object)" in unpicklable
    )
    assert not list((tmp_path / "refused").glob("*.tar"))


def test_without_beam_its_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apache_beam", None)
    with pytest.raises(ConfigError, match=r"Apache Beam is not installed: `pip install 'tfds-torch\[beam\]'"):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", beam_runner="DirectRunner")
    with pytest.raises(ConfigError, match=r"beam_options \(--beam-options\) are for a runner: name one"):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", beam_options=["a=b"])
    with pytest.raises(ConfigError, match="beam_runner=3"):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", beam_runner=3)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_shards_that_several_machines_tell_are_known_to_all(tmp_path: Path) -> None:
    first, second = ShardFolder(tmp_path, "train", is_shared=True), ShardFolder(tmp_path, "train", is_shared=True)
    shards = [Shard(number, 10 + number, 7, 3) for number in range(3)]
    first.note(shards[0])
    second.note(shards[1])
    ShardFolder(tmp_path, "train").note(shards[2])
    assert [first.noted(number) for number in range(3)] == [*shards[:2], None]
    assert second.num_noted() == 2
    (tmp_path / ".export-train-000001.note").write_text("{")  # Of a machine that lost its power.
    assert first.noted(1) is None


def test_a_dataset_dies_as_often_as_it_is_told_to(tmp_path: Path) -> None:
    """Without a file to take it is as any other: the tests of Beam compare it with one."""
    assert Dying(tmp_path)[13][1] == Numbered()[13][1]
