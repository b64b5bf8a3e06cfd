"""Ctrl-C at the real command, while it writes shards: they stay, nothing else is left, and the same command goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from conftest import ROOT

from tfds_torch.export.folder import verify_shards

DEADLINE_S = 120.0
NUM_SHARDS = 200  # So many that none of them is the last one when the first is seen.


@pytest.mark.parametrize(
    ("file_format", "name"),
    [
        pytest.param("webdataset", "SIGINT", marks=pytest.mark.slow),
        pytest.param("tfrecord", "SIGTERM", marks=pytest.mark.slow),
        pytest.param("array_record", "SIGINT", marks=pytest.mark.campaign),
    ],
)
def test_an_interrupted_export_keeps_its_shards_and_goes_on(
    exported_root: Path, tmp_path: Path, file_format: str, name: str
) -> None:
    out = tmp_path / "out"
    with start(exported_root, out, file_format) as process:
        children = wait_for_shards(process, out)
        os.killpg(process.pid, getattr(signal, name))  # As a terminal does: the workers get it, too.
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, output) == (130, ""), errors
    assert errors == (
        f"Interrupted: {out} has the shards that were complete, which stay: the same command goes on with the others.\n"
    )
    assert psutil.wait_procs(children, DEADLINE_S)[1] == []
    there = {path.name: path.stat().st_ino for path in shards_in(out)}
    assert 0 < len(there) < NUM_SHARDS
    assert {path.name for path in out.iterdir()} - set(there) == {"export-train.json", ".export-train.log"}
    with start(exported_root, out, file_format) as process:
        output, errors = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, errors) == (0, "")
    shards = "1 shard was" if len(there) == 1 else f"{len(there)} shards were"
    assert f"  {shards} complete already, and as before" in output.splitlines()
    after = {path.name: path.stat().st_ino for path in shards_in(out)}
    assert len(after) == NUM_SHARDS
    assert there.items() <= after.items()
    verify_shards(out)


def start(root: Path, out: Path, file_format: str) -> "subprocess.Popen[str]":
    words = ["--name", "digits", "--root", str(root), "--format", file_format, "--shards", str(NUM_SHARDS)]
    return subprocess.Popen(
        [sys.executable, "-m", "tfds_torch.export", *words, "--workers", "2", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_shards(process: "subprocess.Popen[str]", out: Path) -> list[psutil.Process]:
    """Returns the workers, once a shard lies in its place; more of them are to be written."""
    deadline = time.monotonic() + DEADLINE_S
    while not shards_in(out):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
    return psutil.Process(process.pid).children(recursive=True)


def shards_in(out: Path) -> list[Path]:
    return list(out.glob("digits-*"))
