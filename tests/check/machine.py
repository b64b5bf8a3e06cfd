"""The machine that a check runs on, and what a check left behind there."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfds_torch.storage.tfrecord.framing import read_records

PLANTED_CHECK = Path(__file__).with_name("planted_check.py")
ROOT = Path(__file__).parents[2]


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

    def table(self, title: str) -> list[dict[str, str]]:
        """Returns the rows of a section's table, by heading."""
        after = re.search(rf"^{title}: .*?^┃(.*?)┃$(.*?)^└", self.output, re.MULTILINE | re.DOTALL)
        assert after, self.output
        headings = [cell.strip() for cell in after[1].split("┃")]
        lines = [line for line in after[2].splitlines() if line.startswith("│")]
        cells = [[cell.strip().replace(",", "") for cell in line.strip("│").split("│")] for line in lines]
        return [dict(zip(headings, row, strict=True)) for row in cells]

    @property
    def plan(self) -> list[dict[str, str]]:
        return self.table("Plan")

    @property
    def ledger(self) -> list[dict[str, str]]:
        """The epochs that came, without what was planned."""
        return self.table("Ledger")[1:]

    @property
    def throughput(self) -> list[dict[str, str]]:
        return self.table("Speed")


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
    """A process of planted_check.py that checks again and again."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def check_planted(self, fault: str, arguments: Sequence[object], is_terminal: bool = False) -> Checked:
        """Returns what a check with a fault left behind, on such a terminal."""
        assert self.process.stdin
        assert self.process.stdout
        call = [fault, list(map(str, arguments)), is_terminal]
        self.process.stdin.write(json.dumps(call) + "\n")
        self.process.stdin.flush()
        return Checked(*json.loads(self.process.stdout.readline()))


def row(**figures: object) -> dict[str, str]:
    return {name: str(value) for name, value in figures.items()}


def no_control_characters(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def cut(shard: Path, num_records: int, num_bytes: int = 0) -> None:
    """Leaves some records, and some bytes of the next."""
    size = sum(16 + len(record) for record, _ in zip(read_records(shard), range(num_records), strict=False))
    os.truncate(shard, size + num_bytes)
