"""`--start-until`: the moment after which a run starts no other test. What it left out is named at its end."""

import time

import pytest
import pytest_report

LEFT_OUT = "left out: the run's time was over"
"""`allowed_skips.txt` names it."""


class TimeLimit:
    """A plugin of pytest, for each process that runs tests.

    Args:
        until: seconds since the epoch.
    """

    def __init__(self, until: float) -> None:
        self.until = until
        self.left_out: list[str] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skips a test, before any of its fixtures is made."""
        if time.time() > self.until:
            self.left_out.append(item.nodeid)
            pytest.skip(LEFT_OUT)

    def lines(self) -> list[str]:
        """Returns what the summary says."""
        return sorted(self.left_out)


def add_option(parser: pytest.Parser) -> None:
    """Adds the option."""
    parser.addoption("--start-until", type=float, help="start no test after this moment, seconds since the epoch")


def install(config: pytest.Config) -> None:
    """Registers the plugin, where the option is given."""
    if (until := config.getoption("--start-until")) is not None:
        limit = TimeLimit(until)
        config.pluginmanager.register(limit)
        pytest_report.add_section(config, "tests that were left out, since the run's time was over", limit.lines)
