"""Where reports go: a folder that can be written, and the terminal."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.report import Report, overview
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.printable import printable


def check_folder(folder: Path, suites: Sequence[str]) -> None:
    """Makes the folder, and raises ConfigError when the reports of these suites cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        paths = [folder / f"{suite}.json" for suite in suites]
        taken = [path for path in paths if path.exists() and not os.access(path, os.W_OK)]
        taken += [path for path in paths if path.is_dir()]
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {folder}: {error}. Choose another --out.") from error
    if taken:
        raise ConfigError(f"The reports cannot be written: {taken[0]} cannot be replaced. Choose another --out.")


def write(report: Report, folder: Path) -> None:
    """Writes a report.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        write_atomically(folder / f"{report.suite}.json", (json.dumps(report.as_dict(), indent=1) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"The report cannot be written to {folder}: {error}.") from error


def show(report: Report, console: Console) -> None:
    """Prints a report's figures and targets."""
    for table in report.tables:
        _print_table(f"{report.suite}: {table.title or report.title}", *table.texts(), console)
        for reason in table.reasons():
            console.print(Text(printable(reason)), soft_wrap=True)
    rows = [["kept" if one.kept else "MISSED", one.name, one.wanted, one.found] for one in report.targets]
    if rows:
        _print_table("Targets", ["", "target", "wanted", "found"], rows, console, justify="left")
    for fact in report.facts():
        console.print(Text(fact), soft_wrap=True)


def show_overview(reports: Sequence[Report], console: Console) -> None:
    """Prints both tables of all suites, so far as there is anything in them."""
    for title, headings, rows in overview(reports):
        _print_table(f"overview: {title}", headings, rows, console)


def _print_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], console: Console, justify: str = "right"
) -> None:
    styles = {"kept": "green", "MISSED": "bold red"}
    table = RichTable(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number and justify == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell, styles.get(cell, "")) for cell in row))
    console.print(table)
