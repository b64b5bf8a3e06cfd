"""Two machines, each with a cache of its own, share a split by groups of blocks."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from conftest import RunPython
from tfds_fixtures import write_numbered

from benchmarks.server_process import free_port
from remote import machine_rank
from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World

READ: dict[str, Any] = {"block_records": 6, "shuffle_buffer": 24, "block_groups": 2}
SHARDS = (50, 70, 61, 59, 60, 57)


@pytest.mark.slow
@pytest.mark.parametrize("ranks_of_each", [1, pytest.param(2, marks=pytest.mark.campaign)])
def test_each_of_two_machines_fetches_half_of_the_split(
    ranks_of_each: int, publish: Callable[[str, Path | str], str], tmp_path: Path, root: Path, run_python: RunPython
) -> None:
    write_numbered(tmp_path / "tfds", {"train": SHARDS})
    url = publish("s3", tmp_path / "tfds")
    indexed = run_python("-m", "tfds_torch.remote", "index", f"{url}/numbered/1.0.0", env={"PYTHONPATH": str(root)})
    assert indexed.returncode == 0, indexed.stderr
    setup = {"root": url, "batch_size": 6 // ranks_of_each, "read": READ}
    rendezvous = ["--nnodes=2", f"--nproc-per-node={ranks_of_each}", "--master-addr=127.0.0.1"]
    rendezvous.append(f"--master-port={free_port()}")

    def start(machine: int) -> "subprocess.Popen[str]":
        own = {"XDG_CACHE_HOME": str(tmp_path / f"cache of {machine}"), "GLOO_SOCKET_IFNAME": "lo"}
        own |= {"PYTHONPATH": os.pathsep.join([str(root), str(root / "tests")]), "OMP_NUM_THREADS": "1"}
        command = ["-m", "torch.distributed.run", *rendezvous, f"--node-rank={machine}", machine_rank.__file__]
        return subprocess.Popen(
            [sys.executable, *command, json.dumps(setup)],
            env={**os.environ, **own},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    ranks: list[Any] = []
    split_bytes = sum(path.stat().st_size for path in (tmp_path / "tfds").rglob("*.tfrecord-*"))
    machines = [start(machine) for machine in range(2)]
    for machine in machines:
        output, errors = machine.communicate()
        assert machine.returncode == 0, errors
        of_machine = [json.loads(line) for line in output.splitlines()]
        assert len(of_machine) == ranks_of_each
        assert sum(fetched for *_, fetched in of_machine) <= 0.55 * split_bytes
        ranks += of_machine
    near = ParserTfds(tmp_path / "tfds", "numbered", is_training=True, batch_size=12, read=ReadOptions(**READ))
    plan = near.plan(World())
    of_ranks = [batches for _, batches, _ in sorted(ranks)]
    came = [list(chain.from_iterable(parts)) for parts in zip(*of_ranks, strict=True)]
    assert came == [plan.batch(0, number).index.tolist() for number in range(plan.num_batches)]
