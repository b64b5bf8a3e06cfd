"""How far a cache is: a bar on a terminal, lines of the log elsewhere; nothing where it is ready in a moment."""

import logging
import sys
import time
from contextlib import AbstractContextManager
from typing import Any

_logger = logging.getLogger(__name__)
_BAR_AFTER_S, _LINE_AFTER_S, _LINE_EVERY_S = 1.0, 10.0, 60.0


class CacheProgress(AbstractContextManager["CacheProgress"]):
    """Shows how far a cache is. As a context manager it takes the bar away at the end."""

    def __init__(self, dataset: str) -> None:
        self._dataset = dataset
        self._is_terminal = sys.stderr.isatty()
        self._next_s = time.monotonic() + (_BAR_AFTER_S if self._is_terminal else _LINE_AFTER_S)
        self._bar: Any = None
        self._task: Any = None

    def show(self, what: str, num_done: int, num_examples: int) -> None:
        """Shows a number of examples that are done."""
        if self._bar is not None:
            self._bar.update(self._task, description=self._words(what), completed=num_done, total=num_examples)
        elif time.monotonic() >= self._next_s:
            if self._is_terminal:
                self._begin_bar(what, num_examples)
                return
            self._next_s = time.monotonic() + _LINE_EVERY_S
            # Logging that is not set up shows warnings only, and training does not begin before this ends.
            words = self._words(what)
            _logger.warning(
                "%s: %s of %s examples.", words[0].upper() + words[1:], f"{num_done:,}", f"{num_examples:,}"
            )

    def __exit__(self, *details: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _words(self, what: str) -> str:
        return f"{what} the decoded cache of {self._dataset}"

    def _begin_bar(self, what: str, num_examples: int) -> None:
        from rich.console import Console

        from tfds_torch.runtime.terminal import ProgressBar

        self._bar = ProgressBar(Console(stderr=True))
        self._bar.start()
        self._task = self._bar.add_task(self._words(what), total=num_examples, rate="")
