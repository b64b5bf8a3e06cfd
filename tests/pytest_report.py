"""What tests have to tell at the end of a run, also where xdist runs them in processes of their own."""

from collections.abc import Callable, Sequence

import pytest

Lines = Callable[[], Sequence[str]]


class Told:
    """A plugin of pytest: a section of the summary for each title."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._own: dict[str, tuple[Lines, bool]] = {}
        self._sections: list[tuple[str, list[str], bool]] = []

    def tell(self, title: str, lines: Lines, is_fact: bool) -> None:
        """Adds a section, whose lines are asked for at the end."""
        self._own[title] = lines, is_fact

    def pytest_sessionfinish(self) -> None:
        self._sections += [(title, list(lines()), is_fact) for title, (lines, is_fact) in self._own.items()]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["told"] = self._sections

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._sections += getattr(node, "workeroutput", {}).get("told", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        shown: list[tuple[str, list[str]]] = []
        for title, lines, is_fact in sorted(self._sections):
            if not lines or (is_fact and (title, lines) in shown):
                continue
            shown.append((title, lines))
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.line(line)


_TOLD = pytest.StashKey[Told]()


def install(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.stash[_TOLD] = Told(config)
    config.pluginmanager.register(config.stash[_TOLD])


def tell(config: pytest.Config, title: str, lines: Lines, *, is_fact: bool = False) -> None:
    """Adds a section to the summary of the run.

    Args:
        config: of the run.
        title: of the section.
        lines: returns its lines, when the run has ended; without any there is no section.
        is_fact: whether equal sections of several processes are one, as they are not where something is counted.
    """
    config.stash[_TOLD].tell(title, lines, is_fact)
