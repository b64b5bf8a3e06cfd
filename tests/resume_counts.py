"""Counts the random stops from which reading went on, for the summary of the run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from pytest_report import add_section


@dataclass(frozen=True)
class Outcome:
    """The examples that came before a stop and after it, in order, and those of a run that never stopped."""

    before: Sequence[int]
    after: Sequence[int]
    planned: Sequence[int]


@dataclass(frozen=True)
class Count:
    """What random stops gave: those with another sequence, and examples that came less or more often than planned."""

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


def add_count(config: pytest.Config, level: str, count: Count) -> None:
    """Adds a count to the summary of the run."""
    line = (
        f"{count.num_stops:,} stops, {count.num_other} with another sequence, {count.num_missing} examples missing, "
        f"{count.num_twice} too often"
    )
    add_section(config, f"random stops of {level} that were resumed in other worlds", lambda: [line])
