"""Shards that Apache Beam writes, with its runners for one machine: the bytes, dead workers, and what is refused.

Beam wants older versions of what others want newer, so it has an environment of its own: the Makefile makes it.
"""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import INTERRUPTED, ROOT

from export.beam_lives import FORMATS, NUM_SHARDS, Dying, Waiting, identities
from export.exports import PATHS, contents
from export.made_sources import Numbered
from tfds_torch.export.api import export_dataset
from tfds_torch.export.folder import ShardFolder, verify_shards
from tfds_torch.export.manifest import Shard
from tfds_torch.parsers.tfds.parser import ParserTfds

PYTHON = Path(os.environ.get("BEAM_PYTHON", ROOT / ".venv" / "beam" / "bin" / "python"))


LIVES = str(Path(__file__).with_name("beam_lives.py"))
DEADLINE_S = 120
DIGIT_SHARDS = 300


@pytest.fixture
def start_with_beam(tmp_path: Path) -> Any:
    """`start_with_beam(*arguments)`: a process of Python in Beam's environment, with a process group of its own."""
    if not PYTHON.exists():
        pytest.skip("needs the environment of Apache Beam, which was not installed")

    def start(*arguments: object) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [PYTHON, *map(str, arguments)],
            cwd=tmp_path,
            env={**os.environ, **PATHS},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


@pytest.fixture
def run_with_beam(start_with_beam: Any) -> Any:
    """`run_with_beam(function, *arguments)`: what a function of beam_lives returns, in Beam's environment."""

    def run(function: str, *arguments: object) -> Any:
        process = start_with_beam(LIVES, function, *arguments)
        output, errors = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0, errors
        return json.loads(output.splitlines()[-1])

    return run


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            pytest.fail(process.communicate()[1])
        time.sleep(0.01)


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


@pytest.mark.campaign
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


@pytest.mark.campaign
def test_a_beam_export_whose_process_is_killed_is_gone_on_with_and_no_complete_shard_is_written_again(
    start_with_beam: Any, run_with_beam: Any, tmp_path: Path
) -> None:
    process = start_with_beam(LIVES, "wait", tmp_path)
    wait_for((tmp_path / "waits").exists, process)
    process.kill()
    process.communicate()
    out, local = tmp_path / "out", tmp_path / "local"
    before = identities(out)
    assert 2 <= len(before) < NUM_SHARDS
    (tmp_path / "go").touch()
    assert run_with_beam("wait", tmp_path) == len(before)
    assert before.items() <= identities(out).items()
    export_dataset(Waiting(tmp_path, local), local, format="webdataset", num_shards=NUM_SHARDS, num_workers=2)
    assert contents(out) == contents(local)


INTERRUPTS = [
    pytest.param("FnApiRunner", "", os.killpg, id="the terminal"),
    pytest.param("BundleBasedDirectRunner", "", os.kill, id="the process alone", marks=pytest.mark.campaign),
    pytest.param("FnApiRunner", "direct_num_workers=2 direct_running_mode=multi_processing", os.kill, id="processes"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "options", "kill"), INTERRUPTS)
def test_ctrl_c_ends_beam_with_130_and_the_shards_that_are_complete_stay(
    start_with_beam: Any, exported_root: Path, tmp_path: Path, runner: str, options: str, kill: Any
) -> None:
    out = tmp_path / "out"
    flags = ["--name", "digits", "--root", exported_root, "--format", "webdataset", "--shards", DIGIT_SHARDS]
    process = start_with_beam(
        "-m", "tfds_torch.export", *flags, "--beam-runner", runner, "--beam-options", options, out
    )
    wait_for(lambda: len(identities(out)) >= 2, process)
    kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode in INTERRUPTED, errors
    assert "has the shards that were complete, which stay" in errors
    assert [path.name for path in out.iterdir() if path.suffix in (".tmp", ".job")] == []
    before = identities(out)
    assert 2 <= len(before) < DIGIT_SHARDS
    parser = ParserTfds(exported_root, "digits")
    report = export_dataset(parser, out, format="webdataset", num_shards=DIGIT_SHARDS, num_workers=2)
    assert report.num_kept == len(before)
    assert before.items() <= identities(out).items()


@pytest.mark.slow
def test_what_beam_cannot_do_is_said_before_anything_is_written(run_with_beam: Any, tmp_path: Path) -> None:
    runner, class_name, value, name, second, form, unsuited, unpicklable = run_with_beam("refuse", tmp_path)
    assert "'DirektRunner' (--beam-runner) is not a runner of Beam's: choose DirectRunner, " in runner
    assert "Did you mean 'DirectRunner'?" in runner
    assert "No module named 'no'" in class_name
    assert "'direct_num_workers=many': Beam refuses them: argument --direct_num_workers: invalid int value" in value
    assert "'direct_num_worker' has no effect on a runner of this machine" in name
    assert "Did you mean 'direct_num_workers'?" in name
    assert "the runner is named by beam_runner" in second
    assert "'2' must have the form NAME=VALUE" in form
    assert "do not suit DataflowRunner: Pipeline has validations errors: Missing GCS path option" in unsuited
    assert (
        "The dataset cannot be sent to Beam's workers (TypeError: cannot pickle '_thread.lock' object)" in unpicklable
    )
    assert not list((tmp_path / "refused").glob("*.tar"))


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


def test_a_dataset_dies_as_often_as_asked(tmp_path: Path) -> None:
    """Without a file to take it is as any other: the tests of Beam compare it with one."""
    assert Dying(tmp_path)[13][1] == Numbered()[13][1]
