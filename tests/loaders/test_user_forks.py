"""What a process that the user's own code forks does with a loader that it inherits: its parent loses nothing."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from tfds_fixtures import write_numbered

from loaders.sources import NUM_ITEMS

MAKE = {
    "Loader": "create_loader(dataset, num_workers=2, persistent_workers={persistent})",
    "Loader over a list": "create_loader(numbers, num_workers=2, batch_size=1, persistent_workers={persistent})",
    "MultiLoader shared": "MultiLoader(sources.numbers, 2, transport='shared', persistent_workers={persistent})",
    "MultiLoader zmq": "MultiLoader(sources.numbers, 2, transport='zmq', persistent_workers={persistent})",
}
"""Expressions for loaders with two workers, whose batches are numbered from 0 to `NUM_ITEMS` - 1."""

QUICK = ((False, "MultiLoader shared"),)
"""Whether workers live from epoch to epoch, and which loader; tests/faults has a quick one of a Loader."""
SLOW = ((True, "Loader"), (False, "MultiLoader zmq"))

CHILD_DOES = {
    "reach the end of the script": "pass",
    "exit": "sys.exit(0)",
    "fail": "sys.exit(3)",
    "close the iteration": "iteration.close()",
    "close the loader": "loader.close()",
    "kill": "getattr(loader, 'kill', loader.close)()",
    "drop all": "del loader, iteration, items; gc.collect()",
    "fork again": "os.waitpid(os.fork() or sys.exit(0), 0)",
    "begin an iteration of its own": "list(map(number_of, loader)) == list(range(NUM_ITEMS)) or sys.exit(4)",
}

PARENT = """
import gc, json, os, sys
from loaders import sources
from loaders.sources import NUM_ITEMS
from tfds_torch import {front_door}
from tfds_torch.errors import ConfigError

def number_of(item):
    return item if isinstance(item, int) else int(item[-1])

numbers = list(range(NUM_ITEMS))
dataset = {dataset}
loader = {make}
for what, code in {child_does!r}.items():
    iteration = iter(loader)
    items = [next(iteration)]
    pids = loader.worker_pids
    pid = os.fork()
    if pid == 0:
        exec(code)
        break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(json.dumps([what, status, list(map(number_of, [*items, *iteration])), pids]), flush=True)
"""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An expression for an ImageDataset of `NUM_ITEMS` examples."""
    root = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": (NUM_ITEMS,)})
    return f"ImageDataset(ParserTfds({str(root)!r}, 'numbered', batch_size=1, preprocess=EvalPreprocess(size=4)))"


def marks_of(persistent: bool, loader: str) -> Any:
    chosen = persistent, loader
    return () if chosen in QUICK else pytest.mark.slow if chosen in SLOW else pytest.mark.campaign


def read_beside_forks(make: str, dataset: str, child_does: dict[str, str]) -> list[list[Any]]:
    """Returns what the child did, its exit code, the items that came, and the pids of workers, of every iteration."""
    # A child that has imported torch takes a second to end.
    front_door = "MultiLoader" if "MultiLoader" in make else "EvalPreprocess, ImageDataset, ParserTfds, create_loader"
    dataset = dataset if "dataset" in make else "None"
    script = PARENT.format(front_door=front_door, make=make, dataset=dataset, child_does=child_does)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=250, env=environ)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("persistent", "loader"),
    [
        pytest.param(persistent, loader, marks=marks_of(persistent, loader))
        for persistent in (False, True)
        for loader in MAKE
    ],
)
def test_a_forked_process_ends_no_worker_of_its_parent_and_takes_no_item(
    loader: str, persistent: bool, dataset: str
) -> None:
    found = read_beside_forks(MAKE[loader].format(persistent=persistent), dataset, CHILD_DOES)
    codes = {what: 3 if what == "fail" else 0 for what in CHILD_DOES}
    assert [(what, code, items) for what, code, items, _ in found] == [
        (what, code, list(range(NUM_ITEMS))) for what, code in codes.items()
    ]
    assert len({pid for *_, pids in found for pid in pids}) == (2 if persistent else 2 * len(CHILD_DOES))


GO_ON = """
try:
    next(iteration)
except ConfigError as error:
    message = f"This iteration belongs to the process that began it (pid {os.getppid()}), and this one (pid "
    sys.exit(0 if str(error).startswith(message) and "iter(loader)" in str(error) else str(error))
"""


@pytest.mark.parametrize(
    "loader", [pytest.param(name, marks=() if (False, name) in QUICK else pytest.mark.slow) for name in MAKE]
)
def test_a_forked_process_that_goes_on_with_an_iteration_gets_an_error(loader: str, dataset: str) -> None:
    found = read_beside_forks(MAKE[loader].format(persistent=False), dataset, {"go on": GO_ON})
    assert [one[:3] for one in found] == [["go on", 0, list(range(NUM_ITEMS))]]
