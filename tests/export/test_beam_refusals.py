"""What an export on Apache Beam refuses without Beam: before it is loaded, on a worker, and when a runner has ended."""

import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from export.made_sources import Numbered
from tfds_torch.errors import ConfigError, ExportError
from tfds_torch.export import beam_export
from tfds_torch.export.api import export_dataset
from tfds_torch.export.arguments import parse_arguments
from tfds_torch.export.command import main

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"format": "beton"}, r"beam_runner='FnApiRunner' \(--beam-runner\) writes folders of shards, and beton is one"),
    ({"beam_runner": None, "beam_options": ["a=b"]}, r"beam_options \(--beam-options\) are for a runner: name one"),
    ({"beam_runner": ""}, "beam_runner='' must be the name of a runner, such as DirectRunner"),
    ({"beam_runner": 3}, "beam_runner=3 must be the name"),
    ({"beam_options": "a=1"}, "beam_options='a=1' must be a sequence of texts NAME=VALUE"),
    ({"beam_options": [1]}, r"beam_options=\[1\] must be a sequence"),
    ({"beam_options": None}, "beam_options=None must be a sequence"),
    ({"beam_options": iter(["a=1"])}, "must be a sequence of texts"),
    ({"out": "gs://bucket/out"}, "gs://bucket/out is on another machine: files are written to file systems that are"),
    ({"out": "s3://bucket/out"}, "s3://bucket/out is on another machine"),
    ({}, r"Apache Beam is not installed: `pip install 'tfds-torch\[beam\]'"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "apache_beam", None)  # Also where it is installed.
    given = {"out": tmp_path / "out", "format": "webdataset", "beam_runner": "FnApiRunner", **options}
    with pytest.raises(ConfigError, match=message):
        export_dataset(Numbered(), **given)
    assert os.listdir(tmp_path) == []


def test_options_with_unclosed_quotes_are_refused_before_a_dataset_is_built(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ["--name", "mnist", "--root", str(tmp_path / "none"), "--fake", "3", "--format", "webdataset"]
    words = [*flags, "--beam-runner", "FnApiRunner", "--beam-options", "a='b", str(tmp_path / "out")]
    assert main(words) == 2
    assert '--beam-options "a=\'b" cannot be read: No closing quotation.' in capfd.readouterr().err
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "options", ["--direct_num_workers=2", "direct_num_workers=2", "--streaming", "--a=1 --b=2", "--shards_of_mine=3"]
)
def test_options_of_beam_may_begin_with_dashes(options: str) -> None:
    flags = parse_arguments(["--format", "webdataset", "--beam-options", options, "--shards", "3", "out"])
    assert (flags.beam_options, flags.shards, flags.out) == (options, 3, "out")


@pytest.mark.parametrize("words", [["--shards", "3", "out"], ["--shards=3", "out"], []])
def test_a_flag_of_this_command_is_not_an_option_of_beam(capfd: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--format", "webdataset", "--beam-options", *words])
    assert "argument --beam-options: expected one argument" in capfd.readouterr().err


def test_a_worker_that_has_not_mounted_the_folder_says_so_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".export-all-0123456789abcdef.job"
    message = f"{path} cannot be read on {socket.gethostname()} .No such file or directory.: mount the folder of the"
    with pytest.raises(ExportError, match=message):
        beam_export._WriteShard(str(path))(3)
    assert os.listdir(tmp_path) == []


def test_a_worker_of_another_version_loads_nothing(tmp_path: Path) -> None:
    path = tmp_path / ".export-all-0123456789abcdef.job"
    path.write_bytes(b"tfds_torch 0.0.1 on Python 3.9\nnot a pickle")
    with pytest.raises(
        ExportError, match=r"and this export is of tfds_torch 0.0.1 on Python 3.9: install the same on every worker"
    ):
        beam_export.write_by_job(str(path), 3)


def test_shards_that_a_runner_has_put_elsewhere_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beam_export, "make_pipeline", lambda name, options: None)
    monkeypatch.setattr(beam_export, "_pickle", lambda job: b"")
    monkeypatch.setattr(beam_export.BeamRunner, "_run", lambda self, *arguments: None)
    with pytest.raises(
        ExportError, match=r"FarRunner has ended, and 8 of 8 shards are not here, such as Numbered-all-000000.tar. Is"
    ):
        export_dataset(Numbered(), tmp_path / "out", format="webdataset", num_shards=8, beam_runner="FarRunner")
    assert os.listdir(tmp_path / "out") == ["export-all.json"]
