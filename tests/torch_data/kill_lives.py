"""A training script that is killed over and over: `kill_lives.py`, a life for every line of JSON on standard input.

A life is a forked process, so that torch is imported once. Its pid is printed when it begins, its exit code at its end.
"""

import json
import os
import pickle
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

if __name__ == "__main__":
    # As a script, this folder is on the path; the package of the tests is one up.
    sys.path[0] = str(Path(__file__).parents[1])

from conformance import Step

from tfds_torch import MultiLoader, ReadOptions, RemoteOptions, World
from torch_data.rank_lives import RankProcesses
from torch_data.resuming import (
    ChosenSetup,
    ClassesSetup,
    CountedLoader,
    MapStyleSetup,
    PlainLoader,
    Ranks,
    RowsLoader,
    RowsSetup,
    Setup,
    StatefulLoader,
)
from torch_data.windowed import MixedWindowsSetup, WindowsSetup


class MultiRank(CountedLoader):
    """A MultiLoader, which counts by itself: one rank."""

    def __init__(self, setup: Setup, rank: int = 0) -> None:
        self.check_batch = setup.check_batch
        self.loader: Any = MultiLoader(
            setup.make_parser(),
            setup.num_workers,
            world=World(rank, setup.num_replicas),
            fields=setup.content_fields,
            persistent_workers=setup.persistent,
        )

    def __iter__(self) -> Iterator[Step]:
        for batch in self.loader:
            self.check_batch(batch)
            yield Step(batch.epoch, batch.batch, tuple(batch.index.tolist()), tuple(batch.valid.tolist()))


KINDS: dict[str, Any] = {
    "Loader": CountedLoader,
    "MultiLoader": MultiRank,
    "DataLoader": PlainLoader,
    "StatefulDataLoader": StatefulLoader,
    "create_loader(rows)": RowsLoader,
}
"""Loaders of one rank."""
SETUPS: dict[str, type[Setup]] = {
    "numbered": Setup,
    "own dataset": MapStyleSetup,
    "numbered, chosen": ChosenSetup,
    "own dataset, chosen": ClassesSetup,
    "rows": RowsSetup,
    "windows": WindowsSetup,
    "windows, chosen": WindowsSetup,
    "mixture of windows": MixedWindowsSetup,
}
"""What is read."""


OPTIONS: dict[str, Any] = {"read": ReadOptions, "remote": RemoteOptions}
"""Arguments of parsers that come as the fields of an object."""


def make_loader(kind: str, setup: Setup, *, is_spread: bool) -> Any:
    """Returns a loader of all ranks, which are in this process, or each in one of its own."""
    if is_spread:
        return RankProcesses(setup, KINDS[kind])
    return KINDS[kind](setup) if kind == "StatefulDataLoader" else Ranks(setup, KINDS[kind])


def train(
    kind: str,
    reads: str,
    setup: dict[str, Any],
    folder: str,
    is_seeded: bool,
    last_epoch: int | None,
    is_spread: bool = False,
) -> None:
    """Reads on from the state in a folder, if there is one; logs every global batch, then saves the state after it.

    Args:
        kind: of the loader.
        reads: a key of SETUPS.
        setup: its arguments.
        folder: of log and state.
        is_seeded: whether torch is seeded first, as scripts do.
        last_epoch: at whose end it ends; None: never.
        is_spread: whether each rank is a process of its own.
    """
    if is_seeded:
        torch.manual_seed(5)
    arguments = setup["arguments"]
    arguments |= {name: make(**arguments[name]) for name, make in OPTIONS.items() if name in arguments}
    loader = make_loader(kind, SETUPS[reads](**setup), is_spread=is_spread)
    saved, new = Path(folder, "state"), Path(folder, "state.new")
    if saved.exists():
        loader.load(pickle.loads(saved.read_bytes()))
    log = os.open(Path(folder, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    epoch = -1
    while last_epoch is None or epoch < last_epoch:
        for number, step in enumerate(loader, 1):
            epoch = step.epoch
            os.write(log, (json.dumps([step.epoch, step.batch, step.index]) + "\n").encode())
            new.write_bytes(pickle.dumps(loader.state(number)))
            new.replace(saved)
            time.sleep(0.004)
    loader.close()


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                train(**json.loads(line))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
