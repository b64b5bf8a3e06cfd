"""Verdicts of a check about single promises, and the examples that broke them."""

from collections.abc import Iterable
from dataclasses import dataclass

NUM_SHOWN = 5
NUM_KEPT = 100


class CappedList:
    """The first of many texts, and how many they are."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.number, self.first = 0, list[str]()
        self.extend(texts)

    def add(self, text: str, times: int = 1) -> None:
        """Adds a text; several times the same, where it stands for so many."""
        self.number += times
        self.first += [text] * min(times, NUM_KEPT - len(self.first))

    def extend(self, texts: "Iterable[str] | CappedList") -> None:
        """Adds many."""
        if isinstance(texts, CappedList):
            self.number += texts.number
            self.first = (self.first + texts.first)[:NUM_KEPT]
            return
        for text in texts:
            self.add(text)

    def __bool__(self) -> bool:
        return self.number > 0

    def __str__(self) -> str:
        more = f" and {self.number - NUM_SHOWN} more" if self.number > NUM_SHOWN else ""
        return ", ".join(self.first[:NUM_SHOWN]) + more


@dataclass(frozen=True)
class Promise:
    """A promise and whether it was kept; `detail` gives the figures, and what broke it."""

    name: str
    kept: bool
    detail: str


@dataclass(frozen=True)
class NotJudged:
    """A promise that cannot be judged, and why."""

    name: str
    reason: str
