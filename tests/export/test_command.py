"""`python -m tfds_torch.export`: what it prints, and its exit code."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from tfds_torch.export import command
from tfds_torch.export.api import export_dataset
from tfds_torch.parsers.beton import ParserBeton
from tfds_torch.storage.beton import verify as verifying

DEADLINE_S = 120

MIXTURE = Path(__file__).parents[2] / "configs" / "digits_mixture.toml"


@pytest.fixture
def run(
    exported_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`run("photos", ...)`: exit code, standard output and standard error of an export in this process."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> tuple[int, str, str]:
        words = ["--name", name, "--root", str(exported_root), "--format", "beton", *arguments]
        code = command.main(words)
        return code, *capsys.readouterr()

    return run


def test_a_dataset_is_written_and_reported(run: Callable[..., Any], tmp_path: Path) -> None:
    code, output, errors = run("photos", "a.beton", "--workers", "1", "--verify")
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith(f"a.beton: 37 samples, {os.path.getsize('a.beton'):,} bytes, in ")
    assert lines[0].endswith(" samples/s, 1 process)")
    assert lines[1:] == [
        "  image: BetonImage(mode='passthrough')",
        "  label: BetonInt()",
        "  file_name: BetonJson()",
        "Verified: everything is as it was written.",
        "Of JPEG files the headers were read; their pixels were not decoded.",
    ]
    assert ParserBeton("a.beton").num_examples == 37


def test_a_home_that_no_shell_has_named_is_found(
    run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert run("photos", "~/a.beton", "--workers", "1")[0] == 0
    assert os.listdir(tmp_path / "home") == ["a.beton"]
    assert "--overwrite replaces it" in run("photos", "~/a.beton")[2].replace("\n", " ")


def test_the_report_for_machines_is_one_value(run: Callable[..., Any], exported_root: Path) -> None:
    fields = ["--field", "image=raw", "--field", "file_name=skip", "--rename", "label=class"]
    code, output, errors = run("photos", "a.beton", *fields, "--json", "--split", "train[:9]", "--shuffle-seed", "3")
    assert (code, errors) == (0, "")
    report = json.loads(output)
    assert report["fields"] == {"image": "BetonImage(mode='raw')", "class": "BetonInt()"}
    assert (report["num_samples"], report["verified"], report["path"]) == (9, None, "a.beton")
    assert ParserBeton("a.beton", target_key="class").class_names == ["china", "flower"]


def test_images_that_were_encoded_anew_are_reported(run: Callable[..., Any]) -> None:
    code, output, _ = run("digits", "a.beton", "--split", "test[:5]")
    assert code == 0
    assert "  5 samples have an image that FFCV cannot read as it was: it is encoded as JPEG" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("there.beton", "there.beton is there already: --overwrite replaces it."),
        ("no/a.beton", "The folder of no/a.beton does not exist"),
        (".", "is a folder"),
        ("a.beton --format tar", "format='tar' cannot be written: choose 'beton', 'webdataset'"),
        ("a.beton --field image", "--field 'image': must have the form NAME=VALUE."),
        ("a.beton --field image=raw --field image=jpg", "--field names 'image' twice."),
        ("a.beton --field imag=raw", "Did you mean 'image'?"),
        ("a.beton --field image=rew", "Did you mean 'raw'?"),
        ("a.beton --rename image=label", "another field has the name 'label' already"),
        ("a.beton --workers -1", "--workers -1: must be at least 0."),
        ("a.beton --fake 0", "--fake 0: must be at least 1."),
        ("a.beton --shuffle-seed -1", "--shuffle-seed -1: must be at least 0."),
        ("a.beton --page-size 7", "page_size=7 must be a power of two"),
        ("a.beton --split tain", "Did you mean 'train'?"),
        ("a.beton --name phots", "The nearest names are: photos"),
        ("a.beton --config no.toml", "no.toml"),
        (f"a.beton --config {MIXTURE}", "it is the recipe of a mixture, and one dataset is exported at a time"),
    ],
)
def test_wrong_usage_is_code_two_and_says_what_to_do(
    run: Callable[..., Any], tmp_path: Path, arguments: str, message: str
) -> None:
    (tmp_path / "there.beton").write_bytes(b"old")
    code, output, errors = run("photos", *arguments.split())
    assert (code, output) == (2, "")
    assert message in errors
    assert errors.startswith("error: ")
    assert os.listdir(tmp_path) == ["there.beton"]
    assert (tmp_path / "there.beton").read_bytes() == b"old"


def test_an_error_is_for_machines_too(run: Callable[..., Any]) -> None:
    code, output, errors = run("photos", "no/a.beton", "--json")
    assert code == 2
    assert json.loads(output)["type"] == "ConfigError"
    assert json.loads(output)["error"] in errors


def test_which_dataset_must_be_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--format", "beton", str(tmp_path / "a.beton")]) == 2
    assert "Which dataset? Give --name, or --config with a recipe." in capsys.readouterr().err


def test_a_recipe_names_the_dataset_and_what_it_says_of_training_is_left_out(
    run: Callable[..., Any], tmp_path: Path, exported_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "photos.toml").write_text(
        'name = "photos"\nsplit = "train[:7]"\nis_training = true\nbatch_size = 4\n[read]\nmode = "files"\n'
    )
    words = ["--config", "photos.toml", "--root", str(exported_root), "--format", "beton", "a.beton"]
    assert command.main(words) == 0, capsys.readouterr().err
    assert ParserBeton("a.beton").num_examples == 7


def test_a_recipe_of_a_dataset_of_ones_own_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "rows_of_mine.py").write_text("def make():\n    return [{'x': float(n)} for n in range(9)]\n")
    (tmp_path / "own.toml").write_text('source = "rows_of_mine:make"\n')
    assert command.main(["--config", "own.toml", "--format", "beton", "a.beton"]) == 0, capsys.readouterr().err
    assert ParserBeton("a.beton", image_key=None, target_key=None).num_examples == 9


def test_what_does_not_verify_is_code_one(run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def damage(*arguments: Any, **options: Any) -> Any:
        report = export_dataset(*arguments, **options)
        with open(report.path, "r+b") as file:
            file.seek(report.num_bytes // 2)
            byte = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte[0] ^ 1]))
        return report

    monkeypatch.setattr(command, "export_dataset", damage)
    code, output, errors = run("photos", "a.beton", "--verify", "--json")
    assert code == 1
    assert json.loads(output)["verified"] is False
    assert "do not have their checksum" in errors


@pytest.mark.parametrize(("at", "state"), [("export_dataset", "is as it was"), ("verify", "is written, and was not")])
def test_ctrl_c_is_code_130_and_says_what_is_there(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, at: str, state: str
) -> None:
    def press(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("not reached")

    monkeypatch.setattr(command, at, press)
    code, output, errors = run("photos", "a.beton", "--verify")
    assert (code, output) == (130, "")
    assert errors.startswith(f"Interrupted: a.beton {state}")
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ctrl_c_after_the_file_was_put_in_its_place_does_not_deny_it(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish_and_press(*arguments: Any, **options: Any) -> Any:
        export_dataset(*arguments, **options)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(command, "export_dataset", finish_and_press)
    code, _, errors = run("photos", "a.beton")
    assert code == 130
    assert errors.startswith("Interrupted: a.beton is written, and was not verified")


def start(exported_root: Path, folder: Path, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
    words = ["--name", "photos", "--root", str(exported_root), "--format", "beton", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    command = [sys.executable, "-m", "tfds_torch.export", *words]
    return subprocess.Popen(command, cwd=folder, **{**pipes, **options})


@pytest.mark.slow
def test_the_command_runs_as_a_process_and_imports_neither_tensorflow_nor_torch(
    exported_root: Path, tmp_path: Path
) -> None:
    for name in ("tensorflow", "torch"):  # In its workers, too.
        (tmp_path / "refused" / name).mkdir(parents=True)
        (tmp_path / "refused" / name / "__init__.py").write_text(f"raise SystemExit('{name} was imported')")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path / 'refused'}{os.pathsep}{ROOT}"}
    with start(exported_root, tmp_path, "a.beton", "--verify", "--workers", "2", env=environment) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, errors) == (0, "")
    assert "a.beton: 37 samples" in output


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_undo_the_export(exported_root: Path, tmp_path: Path) -> None:
    with start(exported_root, tmp_path, "a.beton") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        errors = process.stderr.read()
        process.wait(DEADLINE_S)
    assert (process.returncode, errors) == (0, "")
    assert verifying.verify(tmp_path / "a.beton").num_samples == 37


PRESS = """
import atexit, os, signal, sys

def press():
    os.kill(os.getpid(), signal.{signal})
    exec("sum(range(10))")

class Pressing:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}" and not pressed:
            pressed.append(name)
            exec("press()")

pressed = []
sys.meta_path.insert(0, Pressing())
if "{module}" == "none":
    atexit.register(press)
"""


@pytest.mark.parametrize(
    ("module", "code", "name"),
    [
        pytest.param("tfds_torch.export.command", 130, "SIGINT", marks=pytest.mark.slow),
        pytest.param("tfds_torch.storage.tfrecord.shard_counts", 130, "SIGTERM", marks=pytest.mark.slow),
        pytest.param("none", 0, "SIGINT", marks=pytest.mark.slow),
        pytest.param("tfds_torch.export.command", 130, "SIGTERM", marks=pytest.mark.campaign),
        pytest.param("tfds_torch.storage.tfrecord.shard_counts", 130, "SIGINT", marks=pytest.mark.campaign),
        pytest.param("none", 0, "SIGTERM", marks=pytest.mark.campaign),
    ],
)
def test_ctrl_c_at_the_beginning_and_the_end_is_no_death_by_a_signal(
    exported_root: Path, tmp_path: Path, name: str, module: str, code: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(PRESS.format(module=module, signal=name))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    with start(exported_root, tmp_path, "a.beton", env=environment) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == code, errors
    assert "Traceback" not in errors
    assert (tmp_path / "a.beton").exists() == (code == 0)


@pytest.mark.slow
def test_a_report_that_cannot_be_written_does_not_undo_the_export(exported_root: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full, start(exported_root, tmp_path, "a.beton", stdout=full) as process:
        _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 1
    assert errors == "error: the report cannot be written: No space left on device. a.beton is written.\n"
    assert verifying.verify(tmp_path / "a.beton").num_samples == 37


def test_a_folder_of_shards_is_written_reported_and_gone_on_with(run: Callable[..., Any], tmp_path: Path) -> None:
    words = ["out", "--format", "tfrecord", "--shards", "5", "--workers", "2", "--verify"]
    code, output, errors = run("photos", *words)
    assert (code, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0].startswith("out: 37 samples, 5 shards, ")
    assert lines[1:] == ["  record: as it is stored", "Verified: everything is as it was written."]
    (tmp_path / "out" / "photos-train.tfrecord-00001-of-00005").unlink()
    code, output, _ = run("photos", *words, "--json")
    report = json.loads(output)
    assert (code, report["num_shards"], report["num_kept"], report["verified"]) == (0, 5, 4, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--shards 0", "--shards 0: must be at least 1."),
        ("--shards 38", "num_shards=38 (--shards) is more than the 37 examples"),
        ("--max-count 0", "--max-count 0: must be at least 1."),
        ("--max-bytes 0", "--max-bytes 0: must be at least 1."),
        ("--max-bytes 20000", "alone takes"),
        ("--shards 2 --max-count 3", "give the one or the others"),
        ("--key nmae", "key='nmae' (--key) must be 'number' or 'id'."),
        ("--field image=raw", "only None (skip) can be asked for"),
        ("--field imag=skip", "Did you mean 'image'?"),
        ("--format webdatset", "Did you mean 'webdataset'?"),
        ("--format tfrecord --key id", "is for members of tar files"),
        ("--format beton --shards 2", "are for folders of shards, and beton is one file"),
        ("--page-size 2097152", "page_size is of format='beton'"),
    ],
)
def test_wrong_usage_of_shards_is_code_two_and_says_what_to_do(
    run: Callable[..., Any], tmp_path: Path, arguments: str, message: str
) -> None:
    code, output, errors = run("photos", "out", "--format", "webdataset", *arguments.split())
    assert (code, output) == (2, "")
    assert message in errors
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("has_begun", "state"),
    [
        (False, "is as it was."),
        (True, "has the shards that were complete, which stay: the same command goes on with the others."),
    ],
)
def test_shards_that_are_interrupted_stay_and_the_message_says_so(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, has_begun: bool, state: str
) -> None:
    def interrupt(parser: Any, out: Path, **options: Any) -> Any:
        if has_begun:
            out.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "export_dataset", interrupt)
    assert run("photos", "out", "--format", "tfrecord") == (130, "", f"Interrupted: out {state}\n")
