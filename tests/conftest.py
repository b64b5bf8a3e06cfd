"""What every test may use, and the gate that fails a run with an unexplained skip."""

import os

# Read by tensorflow's C++ when it loads, in this process and in the ones that tests start.
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import gc
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
import pytest_report
import run_folder
import time_limit
import torchvision_build
import without_tensorflow

ROOT = Path(__file__).parents[1]
INTERRUPTED = (130, -signal.SIGINT)
"""What a command that Ctrl-C ends leaves to its parent; a shell calls both 130. The latter is Python's own choice where
the signal came while code was run that was compiled from a text, as methods of dataclasses are."""
ALLOWED_SKIPS = Path(__file__).with_name("allowed_skips.txt")

# A shell's background job ignores Ctrl-C, and so would every process that the tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("untimed", deadline=None)  # A busy machine is not a failure.
hypothesis.settings.load_profile("untimed")

RunPython = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout's root."""
    return ROOT


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps the demo datasets and caches of the tests out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True)
def _no_tensorflow_here() -> Iterator[None]:
    """Other tests prove in this very process that no tensorflow is loaded: what needs it runs in another one."""
    before = "tensorflow" in sys.modules
    yield
    assert before or "tensorflow" not in sys.modules, "This test left tensorflow in the process of the tests."


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """`run_python("-c", code)`: runs this interpreter outside the checkout and returns the completed process.

    `cwd=` and `env=` (added to ours) may be given. The exit code is the caller's to check.
    """

    def run(*args: str, cwd: Path = tmp_path, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, *args], cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True
        )

    return run


class SkipGate:
    """Fails the session when a test was skipped that `allowed_skips.txt` does not name with its reason."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = allowed
        self.refused: list[str] = []

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._judge(report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not hasattr(report, "wasxfail"):  # pytest reports an expected failure as a skip.
            self._judge(report)

    def _judge(self, report: pytest.CollectReport | pytest.TestReport) -> None:
        if not report.skipped:
            return
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = reason.removeprefix("Skipped: ")
        line = f"{report.nodeid}: {reason}"
        if line not in self.allowed and f"*: {reason}" not in self.allowed:
            self.refused.append(line)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.refused and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.refused:
            terminalreporter.section("skips that tests/allowed_skips.txt does not name", red=True, bold=True)
            for line in self.refused:
                terminalreporter.line(line)


def pytest_addoption(parser: pytest.Parser) -> None:
    time_limit.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    lines = [line.strip() for line in ALLOWED_SKIPS.read_text(encoding="utf-8").splitlines()]
    without_tensorflow.install(config)
    config.pluginmanager.register(SkipGate({line for line in lines if line and not line.startswith("#")}))
    if config.pluginmanager.hasplugin("cacheprovider"):
        run_folder.kept = config.cache.mkdir("datasets")
    pytest_report.install(config)
    time_limit.install(config)
    pytest_report.add_section(config, "torchvision", torchvision_build.describe, is_fact=True)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # A collection would walk all tests, in processes that are forked, too, and copy them there.


def pytest_unconfigure() -> None:
    if (zygote := sys.modules.get("zygote")) is not None:  # Many runs need none.
        zygote.close_all()
