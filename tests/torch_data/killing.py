"""Trainings that are killed at random moments and go on in other worlds, and what must come of them together."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from cached_content import empty_cache
from chosen import PROMISES
from pytest_report import add_section
from resume_counts import Count, Outcome, count_outcomes
from runtime.ended import wait_until_ended

from tfds_torch import ReadOptions, World
from tfds_torch.plan.epoch import EpochPlan
from tfds_torch.storage.remote.fetcher_process import MODULE
from torch_data import kill_lives, reading

GLOBAL_BATCH = 12
WATCHDOG_S, GRACE_S = 120.0, 60.0
VICTIMS = ("training", "rank", "worker", "fetcher")
MOST_PREFETCHED = 24
"""Batches that may still come of a loader that has lost a worker."""
BLOCKS = {"block_records": 2, "shuffle_buffer": 4}
"""ReadOptions of trainings that read from a store."""


@dataclass(frozen=True)
class Kill:
    """A SIGKILL.

    Attributes:
        num_batches: that come first.
        delay_s: after them.
        victim: one of VICTIMS.
        seed: by which it is chosen of several.
    """

    num_batches: int
    delay_s: float
    victim: str = "training"
    seed: int = 0

    def draw(self, victims: dict[str, list[int]]) -> str:
        """Kills a victim, where there is none the training, and returns what it was."""
        victim = self.victim if victims[self.victim] else "training"
        with suppress(ProcessLookupError):  # It has ended meanwhile.
            os.kill(random.Random(self.seed).choice(victims[victim]), signal.SIGKILL)
        return victim


def find_victims(pid: int) -> dict[str, list[int]]:
    """Returns the processes of a life, whose ranks may be processes of their own."""
    found: dict[str, list[int]] = {name: [] for name in VICTIMS}
    found["training"] = [pid]
    script = str(Path(kill_lives.__file__))
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):  # It has ended.
            line, parent = process.cmdline(), process.ppid()
            if MODULE in line:
                found["fetcher"].append(process.pid)
            elif script in line:  # Forked.
                found["rank" if parent == pid else "worker"].append(process.pid)
    return found


class Training:
    """A script whose lives end by SIGKILL, but for the last one."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder = folder
        self.ends: list[int] = []  # How many batches there were at the end of each life.
        self.killed: Counter[str] = Counter()  # What was killed, and how often.
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

    def live(self, life: dict[str, Any], kills: Sequence["Kill"] = ()) -> int:
        """Returns the exit code of a life that is killed at its kills; none: it ends by itself.

        A fetcher that is killed ends no life: the next kill follows. A worker that has done its work may be killed in
        vain: then the training is killed, too.
        """
        stdin, stdout = self.process.stdin, self.process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps({"folder": str(self.folder), **life}), file=stdin, flush=True)
        pid = int(stdout.readline())
        for kill in kills:
            assert self._wait_for_batches(pid, kill.num_batches), self.complaints()
            time.sleep(kill.delay_s)
            victim = kill.draw(find_victims(pid))
            self.killed[victim] += 1
            if victim == "fetcher":
                continue
            if victim != "training" and self._wait_for_batches(pid, MOST_PREFETCHED):
                os.kill(pid, signal.SIGKILL)
            break
        exit_code = int(stdout.readline())
        self.ends.append(len(self.log()))
        return exit_code

    def _wait_for_batches(self, pid: int, num_batches: int) -> bool:
        """Returns whether so many more batches came, and not the end of a life."""
        num_before, ends_at = len(self.log()), time.monotonic() + WATCHDOG_S
        while len(self.log()) < num_before + num_batches:
            assert time.monotonic() < ends_at, "no batch came"
            if not psutil.pid_exists(pid):
                return False
            time.sleep(0.005)
        return True

    def log(self) -> list[tuple[int, int, list[int]]]:
        """The global batches so far: epoch, number, and the examples' indices."""
        path = self.folder / "log"
        text = path.read_text() if path.exists() else ""
        return [
            tuple(json.loads(line)) for line in text.splitlines(True) if line.endswith("\n")
        ]  # Others are under way.

    def delivered(self) -> list[tuple[int, int, list[int]]]:
        """The global batches, without those that were logged right before a kill, and were not saved yet."""
        log = self.log()
        is_unsaved = {end - 1 for end in self.ends if end < len(log) and log[end][:2] == log[end - 1][:2]}
        return [batch for number, batch in enumerate(log) if number not in is_unsaved]

    def complaints(self) -> str:
        return (self.folder / "complaints").read_text()


@dataclass(frozen=True)
class Place:
    """Where the examples lie.

    Attributes:
        root: of a local copy.
        url: of the store, where the training reads from one; None: it does not.
        cache: folder of its cache.
        max_bytes: of the cache; None: it holds everything.
    """

    root: str
    url: str | None = None
    cache: Path | None = None
    max_bytes: int | None = None

    def arguments(self, *, is_far: bool) -> dict[str, Any]:
        """Returns arguments of parsers, as plain values, that read from the store or from the local copy."""
        if self.url is None:
            return {"root": self.root, "name": "numbered"}
        # A web server does not list versions.
        near = {"root": self.root, "name": "numbered:1.0.0", "read": BLOCKS}
        remote = {"cache_dir": str(self.cache), "max_bytes": self.max_bytes, "connections": 2}
        return {**near, "root": self.url, "remote": remote} if is_far else near


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
        num_kills: SIGKILLs.
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

    def arguments(self, place: Place, *, is_far: bool) -> dict[str, Any]:
        """Returns the arguments of the setup's parser, as plain values."""
        chosen = {"chosen": self.chosen} if self.reads.endswith("chosen") else {}
        return {**place.arguments(is_far=is_far), "is_training": True, **chosen}

    def random_life(self, place: Place, numbers: random.Random, last_epoch: int | None = None) -> dict[str, Any]:
        """Returns a life in a world of its own.

        A StatefulDataLoader goes on with as many workers only, and a MultiLoader has some. Of the lives of a training
        that reads from a store, one of six reads the local copy; its ranks have processes of their own.
        """
        kind = numbers.choice(STATES_ALIKE) if self.kind == "any" else self.kind
        is_bound = kind == "StatefulDataLoader"
        num_workers = 2 if is_bound else numbers.randrange(kind == "MultiLoader", 4)
        is_far = place.url is not None and numbers.randrange(6) > 0
        setup = {
            "arguments": self.arguments(place, is_far=is_far),
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
            "is_spread": place.url is not None,
        }

    def random_kills(self, place: Place, numbers: random.Random, most: int) -> list[Kill]:
        """Returns what is killed in a life, and when: some fetchers first, where there are any."""
        kills: list[Kill] = []
        while len(kills) < most and (not kills or kills[-1].victim == "fetcher"):
            victim = "training" if place.url is None else numbers.choice(VICTIMS)
            kills.append(Kill(numbers.randrange(1, 10), numbers.random() * 0.02, victim, numbers.randrange(99)))
        return kills

    def plan(self, place: Place) -> EpochPlan:
        """Returns the plan of one rank that reads the local copy."""
        arguments = self.arguments(place, is_far=False)
        arguments |= {"read": ReadOptions(**arguments["read"])} if "read" in arguments else {}
        return kill_lives.SETUPS[self.reads](arguments, GLOBAL_BATCH).make_parser().plan(World())


STATES_ALIKE = ("Loader", "MultiLoader", "DataLoader")


def kill_and_compare(campaign: Campaign, place: Place, folder: Path, config: pytest.Config) -> "Counter[str]":
    """Kills a training as often as a campaign says, lets it end, and compares what came with the plan.

    Args:
        campaign: the kills.
        place: what is read.
        folder: for the training's log and state.
        config: where the count is noted.

    Returns:
        What was killed, and how often.
    """
    numbers, mark = random.Random(str(campaign)), uuid.uuid4().hex
    training = Training(folder, mark)
    with training.process:
        while (num_left := campaign.num_kills - training.killed.total()) > 0:
            life, kills = campaign.random_life(place, numbers), campaign.random_kills(place, numbers, num_left)
            if place.cache is not None and numbers.randrange(2):
                empty_cache(place.cache)  # So that much is fetched; what a killed life has left may still run.
            if kills[-1].victim == "fetcher":  # Something must end it.
                kills[-1] = replace(kills[-1], victim="training")
            code = training.live(life, kills)
            is_error = place.url is not None and code == 1  # A rank, or a worker, was killed.
            assert code == -signal.SIGKILL or is_error, training.complaints()
        last_epoch = training.log()[-1][0] + 1
        assert training.live(campaign.random_life(place, numbers, last_epoch)) == 0, training.complaints()
    assert wait_until_ended(reading.marked_processes(mark), GRACE_S) == []

    plan = campaign.plan(place)
    places = list(itertools.product(range(last_epoch + 1), range(plan.num_batches)))
    planned = [(epoch, number, plan.batch(epoch, number).index.tolist()) for epoch, number in places]
    delivered = training.delivered()
    count = count_outcomes([Outcome(examples_of(delivered), [], examples_of(planned))])
    add_kills(config, replace(count, num_stops=training.killed.total()))
    assert delivered == planned
    assert count == Count(1, 0, 0, 0)
    promise = PROMISES[campaign.chosen]
    own = [index for epoch in range(last_epoch + 1) for index in own_examples(delivered, epoch, promise.epoch_size)]
    assert len(own) == (last_epoch + 1) * promise.epoch_size
    assert promise.count(own) == (0, 0)
    assert promise.distance(own) < 1
    return training.killed


def own_examples(batches: list[tuple[int, int, list[int]]], epoch: int, epoch_size: int) -> list[int]:
    """Returns the examples of an epoch without those that fill its last batch."""
    return examples_of([batch for batch in batches if batch[0] == epoch])[:epoch_size]


def examples_of(batches: list[tuple[int, int, list[int]]]) -> list[int]:
    return [index for *_, indices in batches for index in indices]
