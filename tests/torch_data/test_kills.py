"""Training that is killed at any moment, and goes on in another world, delivers what an uninterrupted one delivers."""

import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
import uuid
import warnings
from dataclasses import astuple, dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from chosen import PROMISES
from pytest_report import add_section
from resume_counts import Count, Outcome, count_outcomes
from torchdata.stateful_dataloader import StatefulDataLoader

from tfds_torch import ImageDataset, ParserTfds, World
from tfds_torch.plan.epoch import EpochPlan
from torch_data import kill_lives, reading

GLOBAL_BATCH = 12
WATCHDOG_S, GRACE_S = 120.0, 60.0


class Training:
    """A script whose lives end by SIGKILL, but for the last one."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.ends: list[int] = []  # How many batches there were at the end of each life.
        root = str(Path(kill_lives.__file__).parents[2])
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *sys.path]), reading.MARK: mark}
        with (folder / "complaints").open("w") as complaints:
            self.process = subprocess.Popen(
                [sys.executable, kill_lives.__file__],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=complaints,
                text=True,
            )

    def live(self, life: dict[str, Any], num_batches: int | None, delay_s: float = 0.0) -> int:
        """Returns the exit code of a life that is killed after some batches, and a delay; None: it ends by itself."""
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        num_before = len(self.log())
        print(json.dumps({"folder": str(self.folder), **life}), file=stdin, flush=True)
        pid = int(stdout.readline())
        if num_batches is not None:
            ends_at = time.monotonic() + WATCHDOG_S
            while len(self.log()) < num_before + num_batches:
                assert time.monotonic() < ends_at, "no batch came"
                assert psutil.pid_exists(pid), self.complaints()
                time.sleep(0.005)
            time.sleep(delay_s)
            os.kill(pid, signal.SIGKILL)
        exit_code = int(stdout.readline())
        self.ends.append(len(self.log()))
        return exit_code

    def log(self) -> list[tuple[int, int, list[int]]]:
        """The global batches so far: epoch, number, and the examples' indices."""
        path = self.folder / "log"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []

    def delivered(self) -> list[tuple[int, int, list[int]]]:
        """The global batches, without those that were logged right before a kill, and were not saved yet."""
        log = self.log()
        is_unsaved = {end - 1 for end in self.ends if end < len(log) and log[end][:2] == log[end - 1][:2]}
        return [batch for number, batch in enumerate(log) if number not in is_unsaved]

    def complaints(self) -> str:
        return (self.folder / "complaints").read_text()


_COUNTS: list[Count] = []


def add_kills(config: pytest.Config, count: Count) -> None:
    """Notes what kills gave; the total is told at the end of the run."""
    _COUNTS.append(count)

    def lines() -> list[str]:
        kills, other, missing, twice = (sum(column) for column in zip(*map(astuple, _COUNTS), strict=True))
        return [f"{kills} kills: {missing} examples lost, {twice} twice; {other} trainings with another sequence"]

    add_section(config, "SIGKILLs of training that went on in other worlds", lines)


@dataclass(frozen=True)
class Campaign:
    """Kills of one training.

    Attributes:
        kind: of its loader; "any": another one in every life, as their states are the same.
        reads: a key of `kill_lives.SETUPS`.
        chosen: which examples, a key of PROMISES.
        is_seeded: whether the script seeds torch first.
        num_kills: lives that end by SIGKILL.
    """

    kind: str
    reads: str = "numbered"
    chosen: str = "all"
    is_seeded: bool = False
    num_kills: int = 11

    def __str__(self) -> str:
        more = [self.chosen] if self.chosen != "all" else []
        return ", ".join([self.kind, self.reads.removesuffix(", chosen"), *more, f"{self.num_kills} kills"]) + (
            ", torch.manual_seed" if self.is_seeded else ""
        )

    def arguments(self, root: str) -> dict[str, Any]:
        """Returns the arguments of the setup's parser."""
        chosen = {"chosen": self.chosen} if self.reads.endswith("chosen") else {}
        return {"root": root, "name": "numbered", "is_training": True, **chosen}

    def random_life(self, root: str, numbers: random.Random, last_epoch: int | None = None) -> dict[str, Any]:
        """Returns a life in a world of its own.

        A StatefulDataLoader goes on with as many workers only, and a MultiLoader has some.
        """
        kind = numbers.choice(STATES_ALIKE) if self.kind == "any" else self.kind
        is_bound = kind == "StatefulDataLoader"
        num_workers = 2 if is_bound else numbers.randrange(kind == "MultiLoader", 4)
        setup = {
            "arguments": self.arguments(root),
            "global_batch": GLOBAL_BATCH,
            "num_replicas": 1 if is_bound else numbers.choice([1, 2, 3]),
            "num_workers": num_workers,
            "persistent": num_workers > 0 and numbers.random() < 0.5,
        }
        return {
            "kind": kind,
            "reads": self.reads,
            "setup": setup,
            "is_seeded": self.is_seeded,
            "last_epoch": last_epoch,
        }

    def plan(self, root: str) -> EpochPlan:
        """Returns the plan of one rank."""
        return kill_lives.SETUPS[self.reads](self.arguments(root), GLOBAL_BATCH).make_parser().plan(World())


STATES_ALIKE = ("Loader", "MultiLoader", "DataLoader")
CHOSEN = [
    *(("own dataset", "all"), ("own dataset, chosen", "subset"), ("own dataset, chosen", "classes")),
    *(("numbered, chosen", "subset"), ("numbered, chosen", "weighted"), ("own dataset, chosen", "weighted")),
    ("own dataset, chosen", "classes of a subset"),
]
WINDOWS = (("windows", "all"), ("mixture of windows", "by weights"))
QUICK = (("own dataset", "all"), ("numbered, chosen", "subset"), ("own dataset, chosen", "classes"))
OVER_PARSERS = ("Loader", "MultiLoader", "DataLoader", "StatefulDataLoader")
CAMPAIGNS = [
    *(Campaign(kind) for kind in OVER_PARSERS),
    Campaign("create_loader(rows)", "rows", "first 24", num_kills=5),
    *(Campaign("any", *reads, num_kills=5) for reads in (*QUICK, ("numbered, chosen", "weighted"), *WINDOWS)),
]
LONG_CAMPAIGNS = [
    *(Campaign(kind, is_seeded=True) for kind in OVER_PARSERS if kind != "MultiLoader"),
    Campaign("create_loader(rows)", "rows", "first 24", num_kills=40),
    *(Campaign("any", *reads, num_kills=40) for reads in (*CHOSEN, *WINDOWS, ("windows, chosen", "subset"))),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "campaign",
    [
        *(pytest.param(campaign, id=str(campaign)) for campaign in CAMPAIGNS),
        *(pytest.param(campaign, id=str(campaign), marks=pytest.mark.campaign) for campaign in LONG_CAMPAIGNS),
    ],
)
def test_killed_training_that_goes_on_in_other_worlds_loses_and_repeats_nothing(
    campaign: Campaign, numbered_root: str, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    numbers, mark = random.Random(str(campaign)), uuid.uuid4().hex
    training = Training(tmp_path, mark)
    with training.process:
        for _ in range(campaign.num_kills):
            life = campaign.random_life(numbered_root, numbers)
            code = training.live(life, numbers.randrange(1, 10), numbers.random() * 0.02)
            assert code == -signal.SIGKILL, training.complaints()
        last_epoch = training.log()[-1][0] + 1
        assert training.live(campaign.random_life(numbered_root, numbers, last_epoch), None) == 0, training.complaints()
    _, alive = psutil.wait_procs(reading.marked_processes(mark), GRACE_S)
    assert alive == []

    plan = campaign.plan(numbered_root)
    places = list(itertools.product(range(last_epoch + 1), range(plan.num_batches)))
    planned = [(epoch, number, plan.batch(epoch, number).index.tolist()) for epoch, number in places]
    delivered = training.delivered()
    count = count_outcomes([Outcome(examples_of(delivered), [], examples_of(planned))])
    add_kills(pytestconfig, replace(count, num_stops=campaign.num_kills))
    assert delivered == planned
    assert count == Count(1, 0, 0, 0)
    promise = PROMISES[campaign.chosen]
    own = [index for epoch in range(last_epoch + 1) for index in own_examples(delivered, epoch, promise.epoch_size)]
    assert len(own) == (last_epoch + 1) * promise.epoch_size
    assert promise.count(own) == (0, 0)
    assert promise.distance(own) < 1


def own_examples(batches: list[tuple[int, int, list[int]]], epoch: int, epoch_size: int) -> list[int]:
    """Returns the examples of an epoch without those that fill its last batch."""
    return examples_of([batch for batch in batches if batch[0] == epoch])[:epoch_size]


def examples_of(batches: list[tuple[int, int, list[int]]]) -> list[int]:
    return [index for *_, indices in batches for index in indices]


def begin_and_hang(link: Connection, root: str) -> None:
    """Starts a worker that does not get to its loop before this process is dead, and has not been given any work."""
    parent = os.getpid()
    warnings.simplefilter("ignore")  # Torchdata calls what torch has deprecated.

    def tell_and_wait(worker: int) -> None:
        link.send(os.getpid())
        while os.getppid() == parent:
            time.sleep(0.01)

    dataset = ImageDataset(ParserTfds(root, "numbered", is_training=True, batch_size=4), fields=("index",))
    # It waits for its worker to say that it is there.
    iter(StatefulDataLoader(dataset, 4, num_workers=1, worker_init_fn=tell_and_wait, multiprocessing_context="fork"))


def test_a_worker_that_begins_after_its_parent_was_killed_ends(numbered_root: str) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    parent = context.Process(target=begin_and_hang, args=(theirs, numbered_root))
    parent.start()
    theirs.close()
    assert ours.poll(GRACE_S)
    worker = psutil.Process(ours.recv())
    parent.kill()
    parent.join()
    assert psutil.wait_procs([worker], GRACE_S)[1] == [] or worker.status() == psutil.STATUS_ZOMBIE
