"""The count of random stops from which reading went on, told at the end of a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest


@dataclass(frozen=True)
class Outcome:
    """What came at a stop, as examples in order.

    Attributes:
        before: until the stop.
        after: from there on, mostly in another world.
        planned: of a run that never stopped.
    """

    before: Sequence[int]
    after: Sequence[int]
    planned: Sequence[int]


@dataclass(frozen=True)
class Count:
    """What random stops gave.

    Attributes:
        num_stops: how many there were.
        num_other: of them, those after which another sequence came.
        num_missing: examples that were planned and did not come, over all stops.
        num_twice: examples that came more often than planned.
    """

    num_stops: int
    num_other: int
    num_missing: int
    num_twice: int


def count_outcomes(outcomes: Sequence[Outcome]) -> Count:
    """Returns what the stops gave."""
    num_other = num_missing = num_twice = 0
    for outcome in outcomes:
        sequence = [*outcome.before, *outcome.after]
        came, planned = Counter(sequence), Counter(outcome.planned)
        num_other += sequence != list(outcome.planned)
        num_missing += (planned - came).total()
        num_twice += (came - planned).total()
    return Count(len(outcomes), num_other, num_missing, num_twice)


@dataclass
class ResumeTally:
    """A plugin of pytest that tells the counts of a run."""

    counts: dict[str, Count] = field(default_factory=dict)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("random stops that were resumed in other worlds")
        for level, count in self.counts.items():
            terminalreporter.line(
                f"{level}: {count.num_stops:,} stops, {count.num_other} with another sequence, {count.num_missing} "
                f"examples missing, {count.num_twice} too often"
            )


_TALLY = pytest.StashKey[ResumeTally]()


def add_count(config: pytest.Config, level: str, count: Count) -> None:
    """Notes a count, to be told at the end of the run."""
    if _TALLY not in config.stash:
        config.stash[_TALLY] = ResumeTally()
        config.pluginmanager.register(config.stash[_TALLY])
    config.stash[_TALLY].counts[level] = count
