"""A script in the shape of timm's train.py, unmodified, trains a timm model through `python -m tfds_torch.timm`."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torchvision_build

SCRIPT = Path(__file__).with_name("timm_train.py")
NUM_TRAIN = 300


def train(root: Path, data: Path, folder: Path, num_replicas: int, *options: str) -> list[dict[str, Any]]:
    """Returns what every rank printed."""
    torchvision_build.write_startup(folder)  # Before timm is imported, in the training process and in spawned workers.
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), str(root)]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    ranks = [{"RANK": str(rank), "WORLD_SIZE": str(num_replicas)} for rank in range(num_replicas)]
    command = [
        *(sys.executable, "-m", "tfds_torch.timm", str(SCRIPT)),
        *("--dataset", "tfds/digits", "--data-dir", str(data), "--train-split", f"train[:{NUM_TRAIN}]", *options),
    ]
    processes = [
        subprocess.Popen(
            command,
            cwd=folder,
            env={**environment, **(rank if num_replicas > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ranks
    ]
    outputs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * num_replicas, outputs
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.slow
def test_a_timm_model_trains_on_two_ranks_and_evaluates_as_one_process_does(
    root: Path, data_root: Path, tmp_path: Path
) -> None:
    options = "--batch-size", "25", "--validation-batch-size", "32", "--val-split", "test[:75]"
    first, second = train(root, data_root, tmp_path, 2, *options)
    # The last global batch of the evaluation: 11 examples on rank 0, and nothing but padding on rank 1.
    assert first["batches"] == second["batches"] == [6, 2]
    for ours, theirs in zip(first["epochs"], second["epochs"], strict=True):
        assert [ours[name] for name in ("loss", "top1", "top5")] == [theirs[name] for name in ("loss", "top1", "top5")]
    last = first["epochs"][-1]
    for name in ("top1", "top5"):
        assert last[name] == pytest.approx(first["alone"][name], rel=1e-6)
        assert last[name] * 75 / 100 == pytest.approx(round(last[name] * 75 / 100), abs=1e-4)
    assert last["loss"] == pytest.approx(first["alone"]["loss"], abs=1e-6)
    assert last["train_loss"] < first["epochs"][0]["train_loss"]
    assert first["learning rate"] < 1e-5  # The schedule ended where len(loader) said it would.
    assert first["tensorflow"] == second["tensorflow"] == []


@pytest.mark.slow
def test_spawned_workers_find_the_main_module_of_the_script(root: Path, data_root: Path, tmp_path: Path) -> None:
    (result,) = train(root, data_root, tmp_path, 1, "--start-method", "spawn", "--epochs", "1")
    assert result["batches"] == [5, 6]
    assert result["epochs"][0]["top1"] == pytest.approx(result["alone"]["top1"], rel=1e-6)
    assert result["tensorflow"] == []
