"""What tests have to tell at the end of a run, also where xdist runs them in processes of their own."""

from collections.abc import Callable, Sequence

import pytest

Lines = Callable[[], Sequence[str]]


class Told:
    """A plugin of pytest: a section of the summary for each title."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._own: dict[str, Lines] = {}
        self._sections: list[tuple[str, list[str]]] = []

    def tell(self, title: str, lines: Lines) -> None:
        """Adds a section, whose lines are asked for at the end."""
        self._own[title] = lines

    def pytest_sessionfinish(self) -> None:
        self._sections += [(title, list(lines())) for title, lines in self._own.items()]
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["told"] = self._sections

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._sections += getattr(node, "workeroutput", {}).get("told", [])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for title, lines in sorted(self._sections):
            terminalreporter.section(title)
            for line in lines:
                terminalreporter.line(line)


_TOLD = pytest.StashKey[Told]()


def install(config: pytest.Config) -> None:
    """Registers the plugin."""
    config.stash[_TOLD] = Told(config)
    config.pluginmanager.register(config.stash[_TOLD])


def tell(config: pytest.Config, title: str, lines: Lines) -> None:
    """Adds a section to the summary of the run.

    Args:
        config: of the run.
        title: of the section.
        lines: returns its lines, when the run has ended.
    """
    config.stash[_TOLD].tell(title, lines)
