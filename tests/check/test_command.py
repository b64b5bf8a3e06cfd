"""`python -m tfds_torch.check`, end to end: what it prints, and its exit code."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tfds_torch import demo
from tfds_torch.records.tfrecord import read_records

PLANTED_CHECK = Path(__file__).with_name("planted_check.py")
ROOT = Path(__file__).parents[2]
NUM_PHOTOS, NUM_SHARDS = 100, 8
DEADLINE_S = 120


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
        """The plan and the ledger: rows, by heading."""
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

    def start(self, *command: str | Path, stderr: int = subprocess.PIPE) -> "subprocess.Popen[str]":
        """Starts this interpreter in a session of its own."""
        return subprocess.Popen(
            [sys.executable, *command],
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

    def check(self, *arguments: str | Path) -> Checked:
        process = self.start("-m", "tfds_torch.check", *arguments)
        output, errors = process.communicate()
        return Checked(process.returncode, output, errors)


@dataclass(frozen=True)
class Checker:
    """A process that checks without workers, again and again: tensorflow is loaded once."""

    process: "subprocess.Popen[str]"

    def check_planted(self, fault: str, arguments: Sequence[str | Path], width: int = 200) -> Checked:
        """Returns what a check with a fault of planted_check.py left behind."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps([fault, list(map(str, arguments)), width]) + "\n")
        self.process.stdin.flush()
        return Checked(*json.loads(self.process.stdout.readline()))

    def check(self, *arguments: str | Path) -> Checked:
        return self.check_planted("none", arguments)


@pytest.fixture(scope="session")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    home = tmp_path_factory.mktemp("home")
    (home / "data").mkdir()
    return Machine(home)


@pytest.fixture(scope="session")
def checker(machine: Machine, digits: Path) -> Iterator[Checker]:
    with machine.start(PLANTED_CHECK, stderr=subprocess.DEVNULL) as process:
        yield Checker(process)
        process.stdin.close()


@pytest.fixture(scope="session")
def first_check(machine: Machine) -> Checked:
    """`python -m tfds_torch.check` on a machine that has never seen it."""
    return machine.check()


@pytest.fixture(scope="session")
def digits(machine: Machine, first_check: Checked) -> Path:
    (info,) = (machine.home / "cache").glob("tfds_torch/demo/*/digits/*/dataset_info.json")
    return info.parent


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    return demo.prepare("photos", root=root, num_examples=NUM_PHOTOS, num_shards=NUM_SHARDS, progress=False)


@pytest.fixture
def own_digits(digits: Path, tmp_path: Path) -> Path:
    """A copy of the digits to be damaged: its version directory."""
    return Path(shutil.copytree(digits, tmp_path / "digits" / "1.0.0"))


def row(**figures: object) -> dict[str, str]:
    return {name: str(value) for name, value in figures.items()}


def no_control_characters(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def test_the_digits_are_checked_from_nothing(first_check: Checked) -> None:
    assert first_check.code == 0, first_check.errors
    lines = first_check.errors.split("\n")
    assert lines[0].startswith("tfds_torch: building the demo dataset 'digits'")
    assert not any(lines[1:]), first_check.errors
    assert "1,437 examples in 1 shard" in first_check.output
    assert first_check.plan == [
        row(rank=0, worker=0, batches=23, examples=733, fill=3),
        row(rank=0, worker=1, batches=22, examples=704, fill=0),
    ]
    assert first_check.ledger == [
        row(epoch=epoch, batches=45, valid=1440, padded=0, missing=0, twice=3, unknown=0) for epoch in range(2)
    ]
    assert len(first_check.promises) == 7
    assert first_check.broken == {}
    assert "All 7 promises kept." in first_check.output
    assert no_control_characters(first_check.output)
    assert no_control_characters(first_check.errors)


def test_the_digits_are_checked_without_workers(checker: Checker) -> None:
    checked = checker.check("--workers", "0", "--eval", "--epochs", "1")
    assert (checked.code, checked.errors.strip()) == (0, "")
    assert checked.plan == [row(rank=0, worker="-", batches=12, examples=360, fill=0)]
    assert checked.ledger == [row(epoch=0, batches=12, valid=360, padded=0, missing=0, twice=0, unknown=0)]
    assert checked.promises["every batch full"] == (True, "batches of 32, the last of 8")


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_good_check_writes_nothing_to_standard_error(machine: Machine, digits: Path, num_workers: int) -> None:
    """Nothing of tensorflow, in whatever process it runs; no empty lines."""
    checked = machine.check("--workers", str(num_workers), "--eval", "--epochs", "1")
    assert (checked.code, checked.errors) == (0, "")


@pytest.mark.slow
def test_three_ranks_and_two_workers_in_evaluation(machine: Machine, digits: Path) -> None:
    checked = machine.check("--replicas", "3", "--workers", "2", "--eval")
    assert checked.code == 0, checked.errors
    examples = {(0, 0): 64, (0, 1): 64, (1, 0): 64, (1, 1): 64, (2, 0): 64, (2, 1): 40}
    assert checked.plan == [
        row(rank=rank, worker=worker, batches=2, examples=number, fill=64 - number)
        for (rank, worker), number in examples.items()
    ]
    figures = {"valid": 360, "padded": 24, "missing": 0, "twice": 0, "unknown": 0}
    assert checked.ledger == [row(epoch=epoch, batches="4 on each of 3", **figures) for epoch in range(2)]
    assert checked.broken == {}


@pytest.mark.slow
@pytest.mark.parametrize("num_replicas", [1, 2])
@pytest.mark.parametrize("mode", ["files", "examples"])
def test_photos_in_eight_shards_over_three_epochs(machine: Machine, photos: Path, mode: str, num_replicas: int) -> None:
    arguments = ["--name", "photos", "--root", photos, "--epochs", "3", "--batch-size", "8", "--read-mode", mode]
    checked = machine.check(*arguments, "--replicas", str(num_replicas))
    assert checked.code == 0, checked.errors
    assert f"{NUM_PHOTOS} examples in {NUM_SHARDS} shards" in checked.output
    num_batches = -(-NUM_PHOTOS // (8 * num_replicas))
    num_slots = num_batches * 8 * num_replicas
    assert sum(int(row["batches"]) for row in checked.plan) == num_batches * num_replicas
    assert sum(int(row["examples"]) + int(row["fill"]) for row in checked.plan) == num_slots
    if mode == "files":
        assert sum(int(row["in its files"]) for row in checked.plan) == NUM_PHOTOS
    assert len(checked.ledger) == 3
    for line in checked.ledger:
        assert line["batches"].split()[0] == str(num_batches)
        assert (line["valid"], line["padded"], line["unknown"]) == (str(num_slots), "0", "0")
        num_copies = num_slots - (NUM_PHOTOS - int(line["missing"]))
        assert 0 < int(line["twice"]) <= num_copies
        if mode == "examples":
            assert (line["missing"], line["twice"]) == ("0", str(num_slots - NUM_PHOTOS))
    assert checked.broken == {}
    assert len(checked.promises) == 7


def digits_ids(split: str, *records: int) -> list[str]:
    return [f"digits-{split}.tfrecord-00000-of-00001__{record}" for record in records]


def test_planted_faults_break_their_promises(checker: Checker) -> None:
    evaluation = ["--eval", "--workers", "0", "--epochs", "1"]
    two_ranks = [*evaluation, "--replicas", "2"]
    none = checker.check(*two_ranks)
    duplicate = checker.check_planted("duplicate", evaluation)
    loss = checker.check_planted("loss", evaluation)
    replacement = checker.check_planted("replacement", evaluation)
    unknown = checker.check_planted("unknown id", evaluation)
    swapped = checker.check_planted("swapped ranks", two_ranks)
    same = checker.check_planted("same epoch", ["--workers", "0"])
    padding = checker.check_planted("valid padding", two_ranks)
    assert (none.code, none.broken) == (0, {})
    for checked in (duplicate, loss, replacement, unknown, swapped, same, padding):
        assert checked.code == 1, checked.errors
        assert f"{len(checked.broken)} of {len(checked.promises)} promises broken." in checked.output
    (first,) = digits_ids("test", 0)
    (second,) = digits_ids("test", 1)
    assert duplicate.ledger == [row(epoch=0, batches=12, valid=361, padded=0, missing=0, twice=1, unknown=0)]
    assert f"1 twice (allowed 0); twice: {first}" in duplicate.detail("exactly once")
    assert loss.ledger == [row(epoch=0, batches=12, valid=359, padded=0, missing=1, twice=0, unknown=0)]
    assert f"missing: {first}" in loss.detail("exactly once")
    assert replacement.ledger == [row(epoch=0, batches=12, valid=360, padded=0, missing=1, twice=1, unknown=0)]
    assert f"missing: {second}; twice: {first}" in replacement.detail("exactly once")
    assert unknown.ledger[0]["unknown"] == "1"
    assert "[bold]no-such-shard__0" in unknown.detail("ids")
    assert "rank 0, epoch 0: " in swapped.detail("own share")
    assert "rank 1, epoch 0: " in swapped.detail("own share")
    # The wrapped few differ from epoch to epoch, so the share tells, too.
    assert list(same.broken) == ["every rank reads its own share", "another order in every epoch"]
    assert padding.ledger == [
        row(epoch=0, batches="6 on each of 2", valid=384, padded=0, missing=0, twice=24, unknown=0)
    ]
    assert padding.detail("padding") == "epoch 0: 0 padded"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "promise", "reason"),
    [
        ("duplicate", "exactly once", "1 twice (allowed 0); twice: photos-train.tfrecord-"),
        ("loss", "exactly once", "1 missing (allowed 0), 0 twice (allowed 0); missing: photos-train.tfrecord-"),
        ("replacement", "exactly once", "1 missing (allowed 0), 1 twice (allowed 0); missing: photos-train.tfrecord-"),
        ("swapped ranks", "own share", "rank 1, epoch 0: "),
    ],
    ids=["duplicate", "loss", "replacement", "swapped ranks"],
)
def test_faults_planted_into_real_workers_break_their_promises(
    machine: Machine, photos: Path, fault: str, promise: str, reason: str
) -> None:
    arguments = ["--name", "photos", "--root", photos, "--batch-size", "5", "--eval", "--epochs", "1"]
    with machine.start(PLANTED_CHECK) as process:  # Of its own: its workers are forked before it loads tensorflow.
        checked = Checker(process).check_planted(fault, [*arguments, "--replicas", "2"])
        process.communicate()
    assert checked.code == 1, checked.errors
    assert reason in checked.detail(promise)


def test_a_reason_is_printed_whole_in_a_narrow_terminal(checker: Checker, digits: Path) -> None:
    arguments = ["--eval", "--workers", "0", "--epochs", "1"]
    checked = checker.check_planted("replacement", arguments, width=60)
    assert checked.code == 1
    assert "…" not in checked.output
    everything = re.sub(r"[│\s]", "", checked.output)
    assert str(digits) in everything


# Damage.


def cut(shard: Path, num_records: int, num_bytes: int = 0) -> None:
    """Leaves some records, and some bytes of the next."""
    size = sum(16 + len(record) for record, _ in zip(read_records(shard), range(num_records), strict=False))
    os.truncate(shard, size + num_bytes)


def flip(shard: Path) -> None:
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


DAMAGES = {
    "cut on a record boundary": (lambda shard: cut(shard, 300), "holds 300 of 360 examples"),
    "cut inside a record": (lambda shard: cut(shard, 300, 20), "inside record 300"),
    "cut to nothing": (lambda shard: cut(shard, 0), "holds 0 of 360 examples"),
    "missing": (Path.unlink, "missing"),
    "flipped byte": (flip, "checksum"),
    "a folder": (lambda shard: (shard.unlink(), shard.mkdir()), "cannot be read"),
}


@pytest.mark.parametrize("mode", ["--eval", "--read-mode examples", "--read-mode files"])
def test_a_damaged_shard_is_named(checker: Checker, digits: Path, tmp_path: Path, mode: str) -> None:
    for name, (damage, reason) in DAMAGES.items():
        directory = Path(shutil.copytree(digits, tmp_path / name / "digits" / "1.0.0"))
        (shard,) = directory.glob("digits-test*")
        damage(shard)
        checked = checker.check("--root", tmp_path / name, "--split", "test", "--workers", "0", *mode.split())
        assert_names_the_damage(checked, shard, reason)


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_a_shard_that_a_worker_finds_damaged_is_named(machine: Machine, own_digits: Path, name: str) -> None:
    damage, reason = DAMAGES[name]
    (shard,) = own_digits.glob("digits-test*")
    damage(shard)
    checked = machine.check("--root", own_digits.parents[1], "--eval", "--workers", "2")
    assert_names_the_damage(checked, shard, reason)


def assert_names_the_damage(checked: Checked, shard: Path, reason: str) -> None:
    assert checked.code == 1, checked.errors
    message = checked.errors.strip()
    assert message.startswith("BROKEN: ")
    assert len(message.splitlines()) == 1
    assert str(shard) in message
    assert reason in message


def test_damaged_metadata_are_one_message(checker: Checker, digits: Path, tmp_path: Path) -> None:
    failures = []
    for file in ("dataset_info.json", "features.json"):
        for name, content in {"empty": "", "bad": "{bad", "list": "[]", "missing": None}.items():
            root = tmp_path / f"{file} is {name}"
            directory = Path(shutil.copytree(digits, root / "digits" / "1.0.0"))
            (directory / file).unlink() if content is None else (directory / file).write_text(content)
            checked = checker.check("--root", root, "--workers", "0")
            is_one_message = len(checked.errors.strip().splitlines()) == 1 and str(root) in checked.errors
            if checked.code not in (1, 2) or not is_one_message:
                failures.append((root.name, str(checked.code)[-200:], checked.errors[-200:]))
    assert failures == []


# Wrong usage.

TYPOS = {
    "--name digit": "digits",
    "--name nothing_like_it": "'nothing_like_it'",
    "--name digits:9.9.9": "'digits:9.9.9'",
    "--name mnist": "tfds build mnist",
    "--name [bold]x": "'[bold]x'",
    "--name x:smile:": "'x:smile:'",
    "--name /": "'/'",
    "--name=": "''",
    "--root /nowhere": "The root /nowhere of dataset 'digits' does not exist",
    "--root /dev/null": "The root /dev/null of dataset 'digits' does not exist",
    "--split trian": "Did you mean 'train'?",
    "--split train[:0]": "no examples",
    "--split train[5000:]": "train (1437 examples)",
    "--split train[": "'train['",
    "--split train+": "'train+'",
    "--split=": "''",
    "--batch-size 0": "batch_size=0",
    "--batch-size -3": "batch_size=-3",
    "--workers -1": "--workers -1: must be at least 0",
    "--replicas 0": "--replicas 0: must be at least 1",
    "--epochs 0": "--epochs 0: must be at least 1",
    "--read-mode index": "auto, files, examples",
    "--read-mode file": "Did you mean 'files'?",
    "--read-mode files": "1 non-empty file",
    "--read-mode files --eval": "evaluation takes 'examples' or 'auto'",
}
MISUSE = {
    "--batch-size many": "invalid int value: 'many'",
    "--workers 2.5": "invalid int value: '2.5'",
    "--epochs": "expected one argument",
    "--shards 8": "unrecognized arguments: --shards 8",
    "photos": "unrecognized arguments: photos",
}


@pytest.mark.parametrize("line", [*TYPOS, *MISUSE])
def test_a_typo_is_one_message_and_exit_code_2(checker: Checker, line: str) -> None:
    checked = checker.check(*line.split(" "))
    assert (checked.code, checked.output) == (2, "")
    assert (TYPOS | MISUSE)[line] in checked.errors
    if line in TYPOS:
        assert checked.errors.startswith("error: ")
        assert len(checked.errors.strip().splitlines()) == 1


def test_a_typo_says_nothing_else(machine: Machine, digits: Path) -> None:
    """As a command of its own: nothing of tensorflow, nothing of the interpreter."""
    checked = machine.check("--split", "trian")
    assert (checked.code, checked.output) == (2, "")
    assert checked.errors.startswith("error: ")
    assert checked.errors.count("\n") == 1


def test_help_names_every_argument(checker: Checker) -> None:
    checked = checker.check("--help")
    assert checked.code == 0
    for argument in ("name", "root", "split", "batch-size", "workers", "replicas", "eval", "read-mode", "epochs"):
        assert f"--{argument}" in checked.output


# Odd datasets.


def test_markup_in_names_is_printed_as_it_is(checker: Checker, own_digits: Path, tmp_path: Path) -> None:
    names = ["[bold]zero", "[/]", "[/red]one", ":smile:", "[link=x]y[/link]", "\\", "back\\", "[[", "\x1b[31mred", "9"]
    (own_digits / "label.labels.txt").write_text("\n".join(names) + "\n")
    root = tmp_path / "[blue]:smile:"
    shutil.move(own_digits.parents[0], root / "digits")
    arguments = ["--root", root, "--workers", "0", "--epochs", "1", "--eval"]
    good = checker.check(*arguments)
    bad = checker.check(*arguments, "--split", "[red]:smile:")
    assert good.code == 0, good.errors
    assert ", ".join(names[:8]) in good.output
    assert str(root) in good.output
    assert no_control_characters(good.output)
    assert bad.code == 2
    assert "'[red]:smile:'" in bad.errors


ODD = (
    "--split train+train --eval",
    "--split train[:50%]+train[25%:] --eval",
    "--split train+test --eval",
    "--split all --eval",
    "--split test[:0] --eval",
    "--split test[:1] --eval --replicas 3",
    "--split test[:1] --epochs 3",
    "--split test[:2] --batch-size 1 --epochs 4",
    "--split test[:3] --batch-size 2 --replicas 2 --epochs 4",
    "--split test[-5:] --batch-size 1 --epochs 1",
    "--split test[:100] --batch-size 1 --epochs 1",
    "--split test[:10] --batch-size 64 --epochs 1",
)


@pytest.mark.parametrize("line", ODD)
def test_an_odd_split_keeps_every_promise(checker: Checker, line: str) -> None:
    checked = checker.check("--workers", "0", *line.split(" "))
    assert (checked.code, checked.broken, checked.errors.strip()) == (0, {}, "")


# Interruptions.


def assert_interrupted(process: "subprocess.Popen[str]", family: Sequence[psutil.Process]) -> None:
    _, errors = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, errors
    assert errors.startswith("Interrupted.")
    assert "Traceback" not in errors
    group = [other for other in psutil.process_iter() if is_in_group(other, process.pid)]
    _, alive = psutil.wait_procs([*family, *group], timeout=DEADLINE_S)
    assert alive == []


def is_in_group(process: psutil.Process, group: int) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and os.getpgid(process.pid) == group
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False


def test_ctrl_c_among_batches_ends_everything(machine: Machine, digits: Path) -> None:
    process = machine.start(PLANTED_CHECK, "--interrupt", "--epochs", "100")
    assert_interrupted(process, [])


@pytest.mark.slow
def test_ctrl_c_while_workers_start_ends_everything(machine: Machine, digits: Path) -> None:
    process = machine.start("-m", "tfds_torch.check", "--epochs", "100")
    assert process.stdout
    while not process.stdout.readline().startswith("└"):  # The end of the plan.
        assert process.poll() is None
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    assert_interrupted(process, family)


def test_workers_that_cannot_be_ended_do_not_hold_up_an_interrupted_check(machine: Machine) -> None:
    code = """
import threading
from tfds_torch.check import command

class Stuck:
    def __del__(self):
        threading.Event().wait()

def read():
    stuck = Stuck()
    raise KeyboardInterrupt

command._GRACE_S = 0.1
try:
    read()
except KeyboardInterrupt as interrupt:
    command._release_workers(interrupt)
"""
    process = machine.start("-c", code)
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_traceback(machine: Machine, digits: Path) -> None:
    with machine.start("-m", "tfds_torch.check", "--workers", "0", "--epochs", "1") as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        process.stdin.close()
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
