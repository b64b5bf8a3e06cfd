"""`python -m tfds_torch.check --torchrun R`: the ledger from real processes of torch.distributed."""

import re
from pathlib import Path

import pytest

from check.machine import PLANTED_CHECK, Checked, Checker, Machine, cut, row
from check.report_file import load


def check_without_tensorflow(machine: Machine, *line: str | Path) -> Checked:
    """Returns what a check left behind whose own process is asked at its end whether it loaded tensorflow."""
    code = "import sys; from tfds_torch.check.command import main; code = main()"
    process = machine.start("-c", f"{code}; sys.exit('tensorflow!' if 'tensorflow' in sys.modules else code)", *line)
    output, errors = process.communicate()
    return Checked(process.returncode, output, errors)


@pytest.mark.slow
def test_two_ranks_of_torchrun_keep_every_promise(machine: Machine, digits: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    checked = check_without_tensorflow(machine, "--torchrun", "2", "--workers", "1", "--json", path)
    assert (checked.code, checked.errors, checked.broken) == (0, "", {})  # Nothing of gloo, nothing of tensorflow.
    assert checked.promises["the order does not depend on workers or ranks"][1].endswith("with 1 rank of 2 workers")
    assert len(checked.promises) == 11
    assert checked.plan == [
        row(rank=0, worker=0, batches=23, examples=733, fill=3),
        row(rank=1, worker=0, batches=23, examples=704, fill=32),
    ]
    figures = {"batches": "23 on each of 2", "delivered": 1472, "valid": 1472, "padded": 0, "missing": 0, "twice": 35}
    assert checked.ledger == [row(epoch=epoch, **figures, unknown=0) for epoch in range(2)]
    assert "2 ranks of torch.distributed at the same time on this machine" in checked.output
    assert "alone on this machine" not in checked.output
    assert [rank["rank"] for rank in checked.throughput] == ["0", "1"]
    assert re.search(r" All ranks together: [\d,]+\s+examples/s\.$", checked.output, re.MULTILINE)
    assert re.search(r"^Memory: .* All ranks: [\d.]+ [MG]B\.$", checked.output, re.MULTILINE)
    report = load(path)
    assert (report["is_torchrun"], report["plan"]["num_replicas"], report["exit_code"]) == (True, 2, 0)
    pids = [{process["pid"] for process in rank["processes"]} for rank in report["throughput"]]
    assert all(len(of_rank) >= 2 for of_rank in pids)
    assert pids[0].isdisjoint(pids[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_replicas", "num_workers", "line"),
    [
        (1, 0, ""),
        pytest.param(1, 2, "--eval --read-mode examples", marks=pytest.mark.campaign),
        pytest.param(3, 0, "--eval --read-mode examples", marks=pytest.mark.campaign),
        pytest.param(3, 2, "", marks=pytest.mark.campaign),
        pytest.param(4, 1, "--eval --split test[:3] --read-mode examples", marks=pytest.mark.campaign),
    ],
)
def test_any_number_of_ranks_and_workers_keeps_every_promise(
    machine: Machine, digits: Path, num_replicas: int, num_workers: int, line: str
) -> None:
    arguments = ["--workers", str(num_workers), *line.split()]
    checked = machine.check("--torchrun", str(num_replicas), *arguments)
    assert (checked.code, checked.errors, checked.broken) == (0, "", {})
    one_by_one = machine.check("--replicas", str(num_replicas), *arguments)
    assert (checked.plan, checked.ledger) == (one_by_one.plan, one_by_one.ledger)
    assert checked.promises == one_by_one.promises
    assert ("at the same time" in " ".join(checked.output.split())) is (num_replicas > 1)


@pytest.mark.slow
def test_a_bar_counts_the_batches_of_all_ranks(checker: Checker, digits: Path) -> None:
    line = ["--torchrun", "2", "--workers", "0", "--eval", "--epochs", "1", "--batch-size", "1"]
    shown = checker.check_planted("none", line, is_terminal=True)
    assert (shown.code, shown.broken) == (0, {})
    assert "all ranks" in shown.errors
    assert re.search(r"\d+/360", shown.errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [pytest.param([], id="workers"), pytest.param(["--workers", "0"], id="no workers", marks=pytest.mark.campaign)],
)
def test_a_damaged_shard_is_one_message_with_the_ranks_number(
    machine: Machine, own_digits: Path, line: list[str]
) -> None:
    (shard,) = own_digits.glob("digits-test*")
    cut(shard, 300, 20)
    checked = machine.check("--root", own_digits, "--torchrun", "2", "--eval", *line)
    assert checked.code == 1
    assert re.fullmatch(r"BROKEN: Rank [01] of 2: .*\n", checked.errors)
    assert str(shard) in checked.errors
    assert "inside record 300" in checked.errors


def check_planted(machine: Machine, fault: str, *line: str) -> Checked:
    """Returns what a check in a process of its own left behind: its ranks, too, leave nothing on standard error."""
    with machine.start(PLANTED_CHECK) as process:
        checked = Checker(process).check_planted(fault, ["--torchrun", "2", "--eval", "--epochs", "1", *line])
        _, errors = process.communicate()
    assert errors == ""
    return checked


@pytest.mark.slow
def test_ranks_that_read_the_same_share_break_promises(machine: Machine, digits: Path) -> None:
    checked = check_planted(machine, "share of rank 0", "--workers", "1")
    assert checked.code == 1, checked.errors
    assert checked.ledger == [
        row(epoch=0, batches="6 on each of 2", delivered=384, valid=384, padded=0, missing=168, twice=192, unknown=0)
    ]
    assert "168 missing (allowed 0), 192 twice (allowed 0)" in checked.detail("exactly once")
    assert "rank 1, epoch 0: 168 not of its share" in checked.detail("own share")


@pytest.mark.slow
def test_a_rank_that_says_nothing_breaks_promises(machine: Machine, digits: Path) -> None:
    checked = check_planted(machine, "missing rank", "--workers", "0")
    assert checked.code == 1, checked.errors
    assert "rank 1, epoch 0: came 0 times" in checked.detail("equal")
    assert "168 missing" in checked.detail("exactly once")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "line", "code", "message"),
    [
        ("another seed", "--workers 0", 2, r"error: Rank [01] of 2: .*seed is 42 on rank 0, 43 on rank 1.*"),
        pytest.param(
            "dead rank",
            "--workers 0",
            1,
            r"BROKEN: Rank 1 of 2: The process .* was killed by SIGKILL .*",
            marks=pytest.mark.campaign,
        ),
        ("dead rank among batches", "--workers 2", 1, r"BROKEN: Rank 1 of 2: The process .* was killed by SIGKILL .*"),
        pytest.param(
            "stalled rank",
            "--workers 1",
            1,
            r"BROKEN: For 30 s nothing came from .* \(1 of 2\)\. .*",
            marks=pytest.mark.campaign,
        ),
    ],
)
def test_a_rank_that_fails_is_one_message_and_ends_the_check(
    machine: Machine, digits: Path, fault: str, line: str, code: int, message: str
) -> None:
    checked = check_planted(machine, fault, *line.split())
    assert checked.code == code, checked.errors
    assert re.fullmatch(message, checked.errors.strip()), checked.errors
