"""Where the time of a run goes: seconds by room, and by the most expensive thing that a test starts.

A plugin of pytest, for whoever makes the tests faster; see docs/contributing.md:

    .venv/bin/python -m pytest -m "not slow and not campaign" -n 2 --dist worksteal -p time_by_room --durations=0

With TFDS_TORCH_TEST_SECONDS=FILE each test's kind and seconds are written there as well, one line a test.
"""

import multiprocessing.popen_fork
import os
import subprocess
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import zygote

KINDS = ("docs' blocks", "torchrun", "server", "whole command", "interpreter", "spawn", "zygote", "fork", "in process")
"""The most expensive first: a test is counted once, under the first that it starts."""
_SERVERS = ("faulty_server", "untrusted_server", "s3_server", "azure_server", "gcs_server", "nginx_server")


def room_of(nodeid: str) -> str:
    """Returns the room of a test: the folder below `tests/`; of a test that lies in none, `whole package`."""
    parts = nodeid.partition("::")[0].split("/")
    return parts[1] if len(parts) > 2 else "whole package"


def kind_of_command(command: str | Iterable[object]) -> str:
    """Returns the kind of a process that is started with a command line."""
    words = [command] if isinstance(command, str) else [str(word) for word in command]
    if any("torchrun" in word or "torch.distributed.run" in word for word in words):
        return "torchrun"
    modules = [word.partition(".")[0] for before, word in pairwise(words) if before == "-m"]
    return "whole command" if {"tfds_torch", "benchmarks"}.intersection(modules) else "interpreter"


class TimeByRoom:
    """Notes what each test starts, and adds its seconds up."""

    def __init__(self) -> None:
        self._started: set[str] = set()
        self._seconds: dict[str, float] = defaultdict(float)
        self._tests: dict[tuple[str, str], list[float]] = defaultdict(list)
        self._lines: list[str] = []

    def watch(self) -> None:
        """Notes from now on what this process starts."""
        self._note_calls(subprocess.Popen, "__init__", lambda _, args, *rest, **more: kind_of_command(args))
        popen = multiprocessing.popen_fork.Popen  # That of spawned processes derives from it.
        self._note_calls(popen, "__init__", lambda made, _: "fork" if made.method == "fork" else "spawn")
        self._note_calls(zygote.Zygote, "fork", lambda *_: "zygote")

    def _note_calls(self, owner: Any, name: str, kind: Callable[..., str]) -> None:
        original = getattr(owner, name)

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._started.add(kind(*args, **kwargs))
            return original(*args, **kwargs)

        setattr(owner, name, noting)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Hands the kind over to the process that prints the table."""
        report = yield
        if report.when == "teardown":
            if "test_docs.py" in item.nodeid:
                self._started.add("docs' blocks")
            if set(_SERVERS).intersection(getattr(item, "fixturenames", ())):
                self._started.add("server")
            kind = next((kind for kind in KINDS if kind in self._started), KINDS[-1])
            report.user_properties.append(("kind", kind))
            self._started.clear()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Adds up, in the process that prints the table."""
        self._seconds[report.nodeid] += report.duration
        if report.when == "teardown":
            kind = dict(report.user_properties).get("kind", KINDS[-1])
            seconds = self._seconds.pop(report.nodeid)
            self._tests[room_of(report.nodeid), str(kind)].append(seconds)
            self._lines.append(f"{seconds:.3f}\t{kind}\t{report.nodeid}\n")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Prints rooms as lines and kinds as columns."""
        if not self._tests:
            return
        if (file := os.environ.get("TFDS_TORCH_TEST_SECONDS")) is not None:
            Path(file).write_text("".join(self._lines), encoding="utf-8")
        rooms = sorted({room for room, _ in self._tests}, key=lambda room: -self._total(room, None))
        terminalreporter.section("seconds of processes, by room and by what a test starts")
        terminalreporter.line(f"{'room':15}{'tests':>7}{'all':>8}" + "".join(f"{kind:>15}" for kind in KINDS))
        for room in [*rooms, None]:
            num_tests = sum(len(found) for (one, _), found in self._tests.items() if room in (one, None))
            cells = "".join(f"{self._total(room, kind):15.0f}" for kind in KINDS)
            terminalreporter.line(f"{room or 'all':15}{num_tests:7}{self._total(room, None):8.0f}{cells}")

    def _total(self, room: str | None, kind: str | None) -> float:
        return sum(
            sum(found)
            for (one_room, one_kind), found in self._tests.items()
            if room in (one_room, None) and kind in (one_kind, None)
        )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the plugin, in each process of xdist too."""
    plugin = TimeByRoom()
    plugin.watch()
    config.pluginmanager.register(plugin)
