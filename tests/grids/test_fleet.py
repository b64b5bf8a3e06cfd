"""The harness itself: real processes, and no test that waits for ever."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grids import rank, scenarios
from grids.cell import FORK, TRAIN_EXAMPLES, Cell, Split
from grids.fleet import TORCHRUN, Failure, Fleet, Task

FAILING = {
    "rank hangs": Task(scenarios.hang, num_replicas=2, deadline_s=3),
    "worker hangs": Task(scenarios.hang_in_a_worker, deadline_s=6),
    "rank raises": Task(
        rank.read_cell, (Cell("nothing", 1, 1, TRAIN_EXAMPLES, FORK), Split("nowhere", "nothing", "train"))
    ),
    "rank dies": Task(scenarios.die, num_replicas=2),
}


@pytest.fixture(scope="module")
def failures(fleet: Fleet) -> dict[str, str]:
    """What is told of tasks that fail."""
    told = {}
    for number, result in fleet.run(list(FAILING.values())):
        assert isinstance(result, Failure), result
        told[list(FAILING)[number]] = result.text
    return told


def test_every_rank_has_a_process_and_the_environment_that_torchrun_gives(fleet: Fleet) -> None:
    results = fleet.call(scenarios.tell_place, num_replicas=4)
    assert len({pid for pid, _, _ in results}) == 4
    ports = {environment.pop("MASTER_PORT") for _, _, environment in results}
    assert len(ports) == 1
    for at, (_, place, environment) in enumerate(results):
        assert place == at
        assert environment == {
            "RANK": str(at),
            "WORLD_SIZE": "4",
            "LOCAL_RANK": str(at),
            "LOCAL_WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1",
        }


def test_a_rank_forgets_the_environment_of_the_last_task(fleet: Fleet) -> None:
    fleet.call(scenarios.tell_place, num_replicas=4)
    assert {len(environment) for _, _, environment in fleet.call(scenarios.tell_place, environment={})} == {0}


def test_ranks_that_fork_workers_have_not_run_tensorflow(fleet: Fleet) -> None:
    assert fleet.call(rank.has_run_tensorflow, num_replicas=4) == [False] * 4


def test_a_rank_that_hangs_is_ended_with_its_stack_and_the_others_are_told(failures: dict[str, str]) -> None:
    first, _, second = failures["rank hangs"].partition("rank 1")
    assert "completed" in first
    assert "did not end in time" in second
    assert "in wait_for_ever" in second


def test_a_worker_that_hangs_is_ended_with_its_stack(failures: dict[str, str]) -> None:
    assert "in _wait_in_worker" in failures["worker hangs"]
    assert "in hang_in_a_worker" in failures["worker hangs"]


def test_a_rank_that_dies_is_reported_with_its_exit_code(failures: dict[str, str]) -> None:
    assert "ended with exit code 7" in failures["rank dies"]


def test_a_rank_that_raises_is_reported_with_its_traceback(failures: dict[str, str]) -> None:
    assert "in read_cell" in failures["rank raises"]
    assert "DatasetNotFoundError" in failures["rank raises"]


@pytest.mark.usefixtures("failures")
def test_a_fleet_goes_on_after_failures(fleet: Fleet) -> None:
    assert len(fleet.call(scenarios.tell_place, num_replicas=4)) == 4


@pytest.mark.slow
def test_torchrun_sets_what_the_fleet_sets(tmp_path: Path, run_python: Callable[..., Any]) -> None:
    script = tmp_path / "tell.py"
    code = f"open({str(tmp_path)!r} + '/' + os.environ['RANK'] + '.json', 'w').write(json.dumps(dict(os.environ)))"
    script.write_text(f"import json, os\n\n{code}\n")
    done = run_python("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script))
    assert done.returncode == 0, done.stderr
    for at in range(2):
        environment = json.loads((tmp_path / f"{at}.json").read_text())
        ours = {name: text.format(rank=at, num_replicas=2, port="PORT") for name, text in TORCHRUN.items()}
        for name in ("MASTER_ADDR", "MASTER_PORT"):  # Any address of this machine will do.
            assert environment[name]
            del ours[name]
        assert ours.items() <= environment.items()
