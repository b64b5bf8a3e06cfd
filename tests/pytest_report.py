"""Sections of the summary at the end of a run, also where xdist runs the tests in several processes."""

from collections.abc import Callable, Sequence

import pytest

Lines = Callable[[], Sequence[str]]


class Sections:
    """A plugin of pytest: a section of the summary for each title."""

    def __init__(self, config: pytest.Config) -> None:
        self.own: dict[str, tuple[Lines, bool]] = {}
        self._config = config
        self._sections: list[tuple[str, list[str], bool]] = []

    def pytest_sessionfinish(self) -> None:
        self._sections += [(title, list(lines()), is_fact) for title, (lines, is_fact) in self.own.items()]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["sections"] = self._sections

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._sections += getattr(node, "workeroutput", {}).get("sections", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown: list[tuple[str, list[str]]] = []
        for title, lines, is_fact in sorted(self._sections):
            if not lines or (is_fact and (title, lines) in shown):
                continue
            shown.append((title, lines))
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.line(line)


_SECTIONS = pytest.StashKey[Sections]()


def install(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.stash[_SECTIONS] = Sections(config)
    config.pluginmanager.register(config.stash[_SECTIONS])


def add_section(config: pytest.Config, title: str, lines: Lines, *, is_fact: bool = False) -> None:
    """Adds a section to the summary of the run.

    Args:
        config: of the run.
        title: of the section.
        lines: called at the end of the run; without any lines the section is left out.
        is_fact: whether equal sections of several processes are one. False: each process counts its own.
    """
    config.stash[_SECTIONS].own[title] = lines, is_fact
