"""ProgressBar, shown_progress, and which process may show a bar."""

import io
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from tfds_torch.runtime import progress
from tfds_torch.runtime.terminal import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    yield terminal
    assert not progress.shown


def test_a_line_below_the_bar_is_asked_for_whenever_it_is_drawn(terminal: Terminal) -> None:
    notes = iter(["", "network: 1.0 MB/s"])
    bar = ProgressBar(Console(file=terminal, width=60, color_system=None), lambda: next(notes, "network: 2.0 MB/s"))
    bar.add_task("rank 0", total=10, rate="5 examples/s")
    with bar:
        bar.refresh()
        bar.refresh()
    shown = terminal.getvalue()
    assert "rank 0" in shown
    assert shown.index("network: 1.0 MB/s") < shown.index("network: 2.0 MB/s")


def test_a_line_that_is_too_long_is_cut(terminal: Terminal) -> None:
    bar = ProgressBar(Console(file=terminal, width=20, color_system=None), lambda: "network: " + "9" * 50)
    with bar:
        bar.refresh()
    assert "9…" in terminal.getvalue()


def test_beside_a_bar_no_other_one_is_shown(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    assert progress.can_show_bar()
    with ProgressBar(Console(file=terminal)):
        assert not progress.can_show_bar()
    assert progress.can_show_bar()
    with ThreadPoolExecutor(1) as threads:
        assert not threads.submit(progress.can_show_bar).result()


def test_what_is_no_terminal_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with ProgressBar(Console(file=file)) as bar:
        bar.add_task("rank 0", total=10, rate="")
        assert not progress.shown
    assert file.getvalue() == ""
    assert not progress.can_show_bar()


def test_work_that_takes_long_shows_how_far_it_is(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    asked = threading.Event()

    def done() -> int:
        asked.set()
        return 10

    with progress.shown_progress("indexing", 10, done, patience_s=0.0):
        assert not progress.can_show_bar()
        assert asked.wait(30)
    assert "10/10" in terminal.getvalue()
    assert "\x1b[?25l" not in terminal.getvalue(), "the cursor was hidden"


def test_work_that_is_soon_over_or_nobody_looks_at_shows_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.shown_progress("indexing", 10, lambda: 10):
        pass
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with progress.shown_progress("indexing", 10, lambda: 10, patience_s=0.0):
        assert not progress.shown
        assert "tfds_torch-progress" not in {thread.name for thread in threading.enumerate()}
    assert terminal.getvalue() == file.getvalue() == ""
