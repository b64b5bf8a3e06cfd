"""ProgressBar, and which process may show a bar."""

import io
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from tfds_torch.runtime import shown_bars
from tfds_torch.runtime.terminal import ProgressBar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    yield terminal
    assert not shown_bars.shown


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
    assert shown_bars.can_show_bar()
    with ProgressBar(Console(file=terminal)):
        assert not shown_bars.can_show_bar()
    assert shown_bars.can_show_bar()
    with ThreadPoolExecutor(1) as threads:
        assert not threads.submit(shown_bars.can_show_bar).result()


def test_what_is_no_terminal_gets_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", file := io.StringIO())
    with ProgressBar(Console(file=file)) as bar:
        bar.add_task("rank 0", total=10, rate="")
        assert not shown_bars.shown
    assert file.getvalue() == ""
    assert not shown_bars.can_show_bar()
