"""Clock: what a pipeline reports to."""

from typing import Protocol


class Clock(Protocol):
    """Takes times and places from any thread of a process that reads."""

    def add(self, stage: str, seconds: float) -> None:
        """Adds to the time of a stage: `read`, from the files, or `decode`, with all that is done to images."""

    def note_reading(self, index: int) -> None:
        """Notes the example that is about to be read."""

    def note_replaced(self) -> None:
        """Counts a damaged example whose place another one took."""
