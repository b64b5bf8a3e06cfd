"""Loaders in Lightning, Accelerate and timm's way of training: every example exactly once, nothing to prepare."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from integrations import test_accelerate, test_lightning

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


@pytest.mark.parametrize(("strategy", "num_workers"), [("ddp", "1"), ("ddp_spawn", "0"), ("ddp_fork", "1")])
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


def test_accelerate_leaves_a_loader_as_it_is(root: Path, data_root: Path, tmp_path: Path) -> None:
    environment = test_accelerate.rank_environment(root)
    command = [sys.executable, str(HERE / "loader_accelerate.py"), "train_and_evaluate", str(data_root)]
    processes = [
        subprocess.Popen(
            command,
            cwd=tmp_path,
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(test_accelerate.NUM_RANKS)
    ]
    try:
        outputs = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], outputs
    ranks: list[Any] = [json.loads(output.splitlines()[-1]) for output, _ in outputs]
    for epoch in range(2):
        test_accelerate.assert_exact_training([rank["epochs"][epoch] for rank in ranks])
        test_accelerate.assert_exact_evaluation([rank["evaluated"][epoch] for rank in ranks])
    for rank in ranks:
        assert rank["same"] == [True, True]
        assert rank["len"] == [test_accelerate.NUM_BATCHES] * 2
        assert rank["epochs"][0] != rank["epochs"][1]
