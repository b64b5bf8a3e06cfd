"""Loaders in Lightning: every example exactly once, nothing to prepare."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from integrations import test_lightning

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("strategy", "num_workers"),
    [("ddp", "1"), ("ddp_spawn", "0"), pytest.param("ddp_fork", "1", marks=pytest.mark.campaign)],
)
def test_a_lightning_trainer_takes_a_loader_as_it_is(
    strategy: str, num_workers: str, root: Path, data_root: Path, tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    script = str(HERE / "loader_lightning.py")
    command = [sys.executable, script, "fit", str(tmp_path), str(data_root), strategy, num_workers]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(test_lightning.NUM_RANKS)]
    test_lightning.assert_fit(ranks)
    assert [rank["in_fit"] for rank in ranks] == [False] * 2, "no process loads tensorflow"
