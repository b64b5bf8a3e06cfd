"""The machine that a check runs on, and what it left behind there."""

import json
import multiprocessing
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import zygote

from tfds_torch.runtime import subprocess_call
from tfds_torch.storage.tfrecord.framing import read_records

PLANTED_CHECK = Path(__file__).with_name("planted_check.py")
ROOT = Path(__file__).parents[2]
NUM_PHOTOS, NUM_SHARDS = 100, 8


@dataclass(frozen=True)
class Checked:
    """What a check left behind."""

    code: object
    output: str
    errors: str

    @property
    def promises(self) -> dict[str, tuple[bool, str]]:
        """Promise -> (kept, detail)."""
        promises: dict[str, tuple[bool, str]] = {}
        panel = self.output.partition("─ Promises ─")[2]
        for line in panel.splitlines():
            if row := re.fullmatch(r"│ (kept|BROKEN) {2,}(\S.*?) {2,}(\S.*?) *│", line):
                promises[row[2]] = (row[1] == "kept", row[3])
            elif goes_on := re.fullmatch(r"│ {8,}(\S.*?) *│", line):
                name, (kept, detail) = list(promises.items())[-1]
                promises[name] = (kept, f"{detail} {goes_on[1]}")
        return promises

    @property
    def broken(self) -> dict[str, str]:
        """Broken promise -> detail."""
        return {name: detail for name, (kept, detail) in self.promises.items() if not kept}

    def detail(self, word: str) -> str:
        """Returns the detail of the one broken promise with this word in its name."""
        (detail,) = [detail for name, detail in self.broken.items() if word in name]
        return detail

    @property
    def tables(self) -> list[list[dict[str, str]]]:
        """The plan, the ledger and the throughput: rows, by heading."""
        tables: list[list[dict[str, str]]] = []
        headings: list[str] = []
        for line in self.output.splitlines():
            if line.startswith("┃"):
                headings = [cell.strip() for cell in line.strip("┃").split("┃")]
                tables.append([])
            elif line.startswith("└"):
                headings = []
            elif headings and line.startswith("│"):
                cells = [cell.strip().replace(",", "") for cell in line.strip("│").split("│")]
                tables[-1].append(dict(zip(headings, cells, strict=True)))
        return tables

    @property
    def plan(self) -> list[dict[str, str]]:
        return self.tables[0]

    @property
    def ledger(self) -> list[dict[str, str]]:
        return self.tables[1]

    @property
    def throughput(self) -> list[dict[str, str]]:
        return self.tables[2]

    def panel(self, title: str) -> list[str]:
        """Returns the lines of a panel, without its frame."""
        _, found, after = self.output.partition(f"╭─ {title} ─")
        assert found, self.output
        lines = after.partition("╰")[0].splitlines()[1:]
        return [line.removeprefix("│ ").removesuffix("│").rstrip() for line in lines]

    @property
    def labels(self) -> dict[str, int]:
        """Name of a label -> how often it came."""
        rows = (re.fullmatch(r"(.*?) +([\d,]+)(?:  [█▏ ]*)?", line) for line in self.panel("Labels"))
        return {row[1]: int(row[2].replace(",", "")) for row in rows if row}

    @property
    def advice(self) -> list[str]:
        """The sentences of advice."""
        if "╭─ Advice ─" not in self.output:
            return []
        items: list[str] = []
        for line in self.panel("Advice"):
            if line.startswith("-  "):
                items.append(line.removeprefix("-  "))
            else:
                items[-1] += f" {line.strip()}"
        return items


@dataclass(frozen=True)
class Machine:
    """A user of their own: an empty cache folder, an empty default data directory, a wide terminal that is a pipe."""

    home: Path

    @property
    def environ(self) -> dict[str, str]:
        ours = {"XDG_CACHE_HOME": self.home / "cache", "TFDS_DATA_DIR": self.home / "data", "COLUMNS": "200"}
        dropped = {"RANK", "WORLD_SIZE", "TF_CPP_MIN_LOG_LEVEL", "FORCE_COLOR", "TTY_COMPATIBLE"}
        inherited = {name: value for name, value in os.environ.items() if name not in dropped}
        return {**inherited, **{name: str(value) for name, value in ours.items()}, "PYTHONPATH": str(ROOT)}

    def start(self, *command: object, stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        """Starts this interpreter in a session of its own."""
        return subprocess.Popen(
            [sys.executable, *map(str, command)],
            cwd=self.home,
            env=self.environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            # A shell's background jobs, CI among them, ignore Ctrl-C, and so would what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def check(self, *arguments: object) -> Checked:
        process = self.start("-m", "tfds_torch.check", *arguments)
        output, errors = process.communicate()
        return Checked(process.returncode, output, errors)


class Checker:
    """A process that checks again and again, with faults of planted_check.py."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process, self.pid = process, process.pid

    def check_planted(
        self,
        fault: str,
        arguments: Sequence[object],
        width: int = 200,
        encoding: str = "utf-8",
        is_terminal: bool = False,
    ) -> Checked:
        """Returns what a check with a fault of planted_check.py left behind, on such a terminal."""
        return Checked(*self._ask([fault, list(map(str, arguments)), width, encoding, is_terminal]))

    def _ask(self, call: list[Any]) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def check(self, *arguments: object) -> Checked:
        return self.check_planted("none", arguments)

    def check_line(self, line: str) -> Checked:
        """Checks with the arguments of a shell's command line."""
        return self.check(*shlex.split(line))


class ForkedChecker(Checker):
    """The same, of a zygote: what that has imported is there at once."""

    def __init__(self, pid: int, link: Connection) -> None:
        self.pid, self.link = pid, link

    def _ask(self, call: list[Any]) -> Any:
        self.link.send(call)
        return self.link.recv()


@contextmanager
def forked_checker(machine: Machine, of: zygote.Zygote) -> Iterator[Checker]:
    """A checker of a machine. Of a zygote with tensorflow, it is for checks without workers."""
    pid, link = of.fork(_answer_checks, machine.environ, str(machine.home))
    try:
        yield ForkedChecker(pid, link)
    finally:
        link.close()
        os.kill(pid, signal.SIGKILL)
        of.wait(pid)


def _answer_checks(link: Connection, environ: Mapping[str, str], home: str) -> None:
    zygote.become_leader(environ, home)
    with open(os.devnull, "r+b") as nowhere:
        for descriptor in range(3):
            os.dup2(nowhere.fileno(), descriptor)
    sys.path.insert(0, str(PLANTED_CHECK.parent))
    import planted_check  # type: ignore[import-not-found]
    from tensorflow_datasets.core import constants

    constants.DATA_DIR = environ["TFDS_DATA_DIR"]  # Read when it was imported.
    multiprocessing.set_start_method("fork", force=True)
    subprocess_call.call = _call_in_a_fork
    while True:
        link.send(planted_check.run(*link.recv()))


def _call_in_a_fork(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Stands for a fresh process, which would import everything again."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(function, *args, **kwargs).result()


@dataclass(frozen=True)
class FakeCheck:
    """A check of made-up content.

    Attributes:
        checked: what it left behind.
        root: the data directory that it built.
        json: its report.
        images: its contact sheet.
    """

    checked: Checked
    root: Path
    json: Path
    images: Path


@dataclass(frozen=True)
class Reported:
    """A check with both reports, in a folder of their own, that several tests read."""

    checked: Checked
    html: Path
    json: Path
    line: Sequence[str]


def row(**figures: object) -> dict[str, str]:
    return {name: str(value) for name, value in figures.items()}


def no_control_characters(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def cut(shard: Path, num_records: int, num_bytes: int = 0) -> None:
    """Leaves some records, and some bytes of the next."""
    size = sum(16 + len(record) for record, _ in zip(read_records(shard), range(num_records), strict=False))
    os.truncate(shard, size + num_bytes)
