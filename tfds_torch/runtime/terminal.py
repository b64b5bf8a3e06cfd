"""How a command writes: quietly, in any encoding, and to readers that may go away."""

import io
import logging
import os
import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

QUIET_ENVIRON = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0"}
"""Environment variables that keep tensorflow's C++ code from writing to standard error; they must be set before it is
loaded. Commands set them, the library does not."""


def prepare_output() -> None:
    """Silences tensorflow in this process and its children; what an output's encoding lacks will be escaped."""
    os.environ.update(QUIET_ENVIRON | os.environ)
    logging.getLogger("absl").setLevel(logging.ERROR)
    for stream in (sys.stdout, sys.stderr):
        # What a log file's encoding lacks, such as a class's name.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class PatientConsole(Console):
    """Goes on where a reader of standard output went away: there is other work left."""

    def on_broken_pipe(self) -> None:
        """Writes no more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def make_progress(console: Console) -> Progress:
    """Returns a bar that goes away at its end, and is for terminals only; its tasks have a field `rate`, a text."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
