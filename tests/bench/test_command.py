"""The command, with planted competitors: exit codes, wrong usage, and that it leaves no process behind."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.watching import WATCHDOG_S, assert_all_end, open_pids, read_pids, state_of

from benchmarks.pages import read_reports

TESTS = Path(__file__).parents[1]
SMALL = ("--photos", "8", "--batch-size", "4", "--repeats", "2", "--out", "out")
SUITE_NAMES = (
    "sample, start, index, state, jpeg, jpeg_eval, png32, memory, notebook, ready, multi, feeder, scale, export, "
    "cached, mixture, episodes, remote"
)
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def command_line(names: str, arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "bench.planted_bench", names, *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}", "PYTHONWARNINGS": "error"}


@pytest.fixture
def run_bench(tmp_path: Path) -> Run:
    def run(names: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command_line(names, arguments), cwd=tmp_path, env=environment(), capture_output=True, text=True
        )

    return run


def read_report(folder: Path, suite: str) -> Any:
    return json.loads((folder / "out" / f"{suite}.json").read_text())


def rows(report: Any) -> Any:
    return report["tables"][0]["rows"]


def test_suites_run_and_report_and_a_missed_target_is_exit_code_1(run_bench: Run, tmp_path: Path) -> None:
    done = run_bench("ours=steady,timm=steady,fails_at_once", "sample", "start", *SMALL)
    assert done.returncode == 1, done.stderr  # Nobody is twice as fast as himself.
    sample, start = read_report(tmp_path, "sample"), read_report(tmp_path, "start")
    for report, num_epochs in ((sample, [1, 1, 0]), (start, [2, 1, 0])):
        assert report["command"].endswith("--out out")
        assert [len(competitor["epochs"]) for competitor in rows(report)] == num_epochs
        assert rows(report)[2]["missing"] == "KeyError: 'lost\\nand more lines'"
        assert report["settings"]["num_photos"] == 8
    assert [len(competitor["warm_ups"]) for competitor in rows(sample)] == [1, 1, 0]
    assert [len(competitor["warm_ups"]) for competitor in rows(start)] == [2, 1, 0]
    ours = rows(start)[0]
    assert ours["figures"]["memory_mb"]["median"] > 1
    assert start["took_s"] > 0
    assert ours["warm_ups"][0]["start_s"] > 0
    assert ours["epochs"][0]["num_examples"] == 8
    assert "the fails_at_once one is missing: KeyError" in done.stdout
    assert "MISSED" in done.stdout


@pytest.mark.slow
def test_a_target_that_cannot_be_judged_is_exit_code_1_but_not_with_only(run_bench: Run, tmp_path: Path) -> None:
    without_timm = run_bench("ours=steady,timm=not_installed", "sample", *SMALL)
    assert without_timm.returncode == 1, without_timm.stderr
    target, _ = read_report(tmp_path, "sample")["targets"]
    assert target["found"].startswith("cannot be judged: timm is missing: No module named")
    assert not (tmp_path / "out" / "start.json").exists()
    chosen = run_bench("ours=steady,timm=not_installed", "sample", "--only", "ours", *SMALL)
    assert chosen.returncode == 0, chosen.stderr
    assert [competitor["name"] for competitor in rows(read_report(tmp_path, "sample"))] == ["ours"]


@pytest.mark.slow
def test_waiting_competitors_use_no_processor_time(run_bench: Run, tmp_path: Path) -> None:
    run_bench("busy,steady", "sample", "--only", "busy,steady", *SMALL)
    busy, steady = rows(read_report(tmp_path, "sample"))
    assert busy["missing"] is None
    assert [epoch["waiting_cpu_s"] for epoch in busy["warm_ups"]] == [None]
    # A signal takes effect within a tick or two of the clock; while others had their turns it would be far more.
    assert all(epoch["waiting_cpu_s"] < 0.2 for epoch in busy["epochs"])
    assert len(busy["epochs"]) == len(steady["epochs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["smaple"], f"There is no suite 'smaple': choose from {SUITE_NAMES}. Did you mean 'sample'?"),
        (["pgaes"], f"There is no suite 'pgaes': choose from {SUITE_NAMES}. Did you mean 'pages'?"),
        (["jpeg", "pages"], "pages measures nothing, and stands alone: python -m benchmarks pages."),
        (
            ["sample", "jpeg", "--only", "limit"],
            "None of limit takes part in the suite sample: choose from ours, timm.",
        ),
        (["--only", "our"], "There is no peer 'our': choose from ours, timm, limit. Did you mean 'ours'?"),
        (["--only", ""], "There is no peer '': choose from ours, timm, limit."),
        (["--repeats", "0"], "--repeats 0: must be at least 1."),
        (["--workers", "-1"], "--workers -1: must be at least 0."),
        (["--batch-size", "0"], "--batch-size 0: must be at least 1."),
        (["--photos", "7", "--batch-size", "4"], "--photos 7: 2 workers with batches of 4 need at least 8."),
        (["--timeout", "0"], "--timeout 0: must be a number of seconds, more than 0."),
        (["--timeout", "nan"], "--timeout nan: must be a number of seconds, more than 0."),
        (["--out", "taken"], "The reports cannot be written to taken: "),
    ],
)
def test_wrong_usage_is_an_error_before_anything_is_done(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], in_process: Any
) -> None:
    (tmp_path / "taken").write_text("")
    assert in_process(arguments) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def in_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command in this process, which must not come as far as preparing photographs."""
    from benchmarks import command
    from benchmarks.task import Peer
    from tfds_torch import demo

    monkeypatch.chdir(tmp_path)
    peers = tuple(Peer(name, name, "no:where") for name in ("ours", "timm", "limit"))
    taking_part = {"jpeg": peers, "sample": peers[:2], "start": peers[:2]}
    suites = tuple(replace(suite, peers=taking_part.get(suite.name, ())) for suite in command.SUITES)
    monkeypatch.setattr(command, "SUITES", suites)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setattr(demo, "prepare", None)
    for name in command.QUIET_ENVIRON:
        monkeypatch.setenv(name, os.environ.get(name, ""))
    return command.main


@pytest.mark.parametrize("num_rows", [None, 1])
def test_a_run_of_everything_replaces_the_committed_reports_and_the_pages_unless_a_peer_is_missing(
    num_rows: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    in_process: Any,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from benchmarks import command, pages

    reports = read_reports()
    folders: list[Path] = []
    jpeg = replace(reports["jpeg"], tables=[replace(one, rows=one.rows[:num_rows]) for one in reports["jpeg"].tables])
    monkeypatch.setattr(pages, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command.suites, "run", lambda suite, *_: {**reports, "jpeg": jpeg}[suite.name])
    monkeypatch.setattr(command.output, "write", lambda report, folder: folders.append(folder))
    written: list[list[str]] = []
    if num_rows is None:
        monkeypatch.setattr(pages, "write_pages", lambda found: written.append(list(found)) or [])
    assert in_process([]) == 1
    assert set(folders) == {tmp_path / "results"}
    kept = "README and docs stay as they are. The report of the suite jpeg has no examples_per_s of ffcv: run it with"
    assert (kept in capsys.readouterr().out) == (num_rows == 1)
    assert in_process(["jpeg"]) == int(not all(target.kept for target in reports["jpeg"].targets))
    assert folders[-1] == Path("bench_results")
    assert written == ([SUITE_NAMES.split(", ")] if num_rows is None else [])


def test_the_help_states_the_exit_codes(capsys: pytest.CaptureFixture[str], in_process: Any) -> None:
    with pytest.raises(SystemExit):
        in_process(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "1 when one was missed or could not be judged (never with --only)" in text
    assert "130 interrupted" in text


# Nobody is left behind


def start_bench(folder: Path) -> "subprocess.Popen[bytes]":
    """A run whose first competitor is stopped, with a child of its own, while the second one hangs with a child."""
    return subprocess.Popen(
        command_line("busy,hangs", ["sample", *SMALL]),
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Whoever adopts the competitors must not be of their session: see serving.py.
        # A shell's background jobs, CI among them, ignore Ctrl-C, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGTERM, signal.SIGKILL))],
)
def test_an_interrupted_run_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    with start_bench(tmp_path) as runner:
        try:
            stopped, running = read_pids(tmp_path, "busy"), read_pids(tmp_path, "hangs")
            assert {state_of(pid) for pid in stopped} == {"T"}
            handles = open_pids(stopped + running)
            assert len(handles) == 4
            runner.send_signal(number)
            _, errors = runner.communicate(timeout=WATCHDOG_S)
        finally:
            runner.kill()
    assert_all_end(handles)
    assert runner.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    if number != signal.SIGKILL:
        assert b"Interrupted; all competitors have ended." in errors
        assert b"Traceback" not in errors


@pytest.mark.slow
def test_a_hung_competitor_is_ended_and_reported(run_bench: Run, tmp_path: Path) -> None:
    done = run_bench("hangs,steady", "sample", "--timeout", "12", *SMALL)
    assert done.returncode == 1
    assert "the hangs one is missing: epoch 0 was not over after 12 s" in done.stdout
    assert len(rows(read_report(tmp_path, "sample"))[1]["epochs"]) == 1
    assert_all_end(open_pids(read_pids(tmp_path, "hangs")))
