"""How a command writes: quietly, in any encoding, and to readers that may go away."""

import io
import logging
import os
import sys
from collections.abc import Callable, Iterator

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from tfds_torch.runtime import progress

_WIDTH_OF_PIPES = 160

QUIET_ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment variables that keep tensorflow's C++ code from writing to standard error; they must be set before it is
loaded. Commands set them; the library does while it loads tensorflow."""


def prepare_output() -> None:
    """Silence tensorflow in this process and its children; escape characters that an output's encoding lacks."""
    os.environ.update(QUIET_ENVIRON | os.environ)
    logging.getLogger("absl").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        # Characters that a log file's encoding lacks, like those of a class's name.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class PatientConsole(Console):
    """Continues where a reader of standard output went away: there is other work left."""

    def on_broken_pipe(self) -> None:
        """Stop writing."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_console() -> PatientConsole:
    """Return the console of a command's results; a pipe has no width, and its readers want whole lines."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return PatientConsole(emoji=False, highlight=False, width=None if is_terminal else _WIDTH_OF_PIPES)


class ProgressBar(Progress):
    """A bar that goes away at its end, and is for terminals only; its tasks have a field `rate`, a text.

    Args:
        console: where it is shown.
        note: returns a line below the bar, whenever the bar is drawn; "": no line.
    """

    def __init__(self, console: Console, note: Callable[[], str] = str) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._note = note
        super().__init__(*columns, console=console, transient=True, disable=not console.is_terminal)

    def start(self) -> None:
        """Show the bar."""
        super().start()
        if not self.disable:
            progress.shown.add(self)

    def stop(self) -> None:
        """Remove the bar."""
        progress.shown.discard(self)
        super().stop()

    def get_renderables(self) -> Iterator[RenderableType]:
        """Yield the bar, and the line below it."""
        yield from super().get_renderables()
        if text := self._note():
            yield Text(text, no_wrap=True, overflow="ellipsis")
