"""Where reports go: a folder that can be written, three files for each suite and a page for all, and the terminal."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.chart import draw_report
from benchmarks.comparisons import COMPETITORS
from benchmarks.figures import OURS_BY_IT, SPEED
from benchmarks.report import Report, table_lines
from benchmarks.task import OURS
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.printable import printable

OVERVIEW = "overview.md"
"""Name of the page about all suites of a run."""

_ENDINGS = ("json", "md", "png")
_SPEED_SUITES = ("sample", "jpeg", "jpeg_eval", "png32")
_SPEED_TITLE = "examples a second into the training process, whole epochs"
_SPEED_NOTE = "Medians; in parentheses: how many times as fast tfds_torch was, turn by turn."

Cells = tuple[list[str], list[list[str]]]
"""Headings, and rows as text."""


def check_folder(folder: Path, suites: Sequence[str]) -> None:
    """Makes the folder, and raises ConfigError when the reports of these suites cannot be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        paths = [*_paths(folder, suites), folder / OVERVIEW]
        taken = [path for path in paths if path.exists() and not os.access(path, os.W_OK)]
        taken += [path for path in paths if path.is_dir()]
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {folder}: {error}. Choose another --out.") from error
    if taken:
        raise ConfigError(f"The reports cannot be written: {taken[0]} cannot be replaced. Choose another --out.")


def write(report: Report, folder: Path) -> list[str]:
    """Writes a report; returns a line for everything that could not be drawn.

    Raises:
        ConfigError: the folder cannot be written.
    """
    data, page, picture = _paths(folder, [report.suite])
    notes, is_drawn = [], False
    try:
        picture.unlink(missing_ok=True)  # No old chart beside new figures.
        try:
            is_drawn = draw_report(report, picture)
        except ImportError as error:
            notes.append(f"No chart: {error} (in a clone: pip install -e '.[bench]').")
        write_atomically(data, (json.dumps(report.as_dict(), indent=1) + "\n").encode())
        write_atomically(page, report.markdown(picture.name if is_drawn else None).encode())
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {folder}: {error}.") from error
    return notes


def write_overview(reports: Sequence[Report], folder: Path) -> None:
    """Writes both tables of all suites as a page; does nothing where no suite measured whole epochs.

    Raises:
        ConfigError: the folder cannot be written.
    """
    page = overview_page(reports)
    if page is None:
        return
    try:
        write_atomically(folder / OVERVIEW, page.encode())
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {folder}: {error}.") from error


def overview_page(reports: Sequence[Report]) -> str | None:
    """Returns the page of all suites; None where no suite measured whole epochs."""
    headings, rows = speed_table(reports)
    if not rows:
        return None
    lines = [f"# {_SPEED_TITLE[0].upper()}{_SPEED_TITLE[1:]}", "", _SPEED_NOTE, "", *table_lines(headings, rows)]
    lines += [*table_lines(*targets_table(reports)), *(f"- {fact}" for fact in reports[0].facts())]
    took_s = [report.took_s for report in reports if report.took_s is not None]
    if len(took_s) == len(reports):
        lines.append(f"- all suites: {sum(took_s) / 60:.1f} minutes")
    return "\n".join(lines) + "\n"


def speed_table(reports: Sequence[Report]) -> Cells:
    """Returns a row for every competitor, with its examples per second in every suite that measures them."""
    columns = [report for report in reports if report.suite in _SPEED_SUITES]
    found: dict[str, dict[str, str]] = {}
    for report in columns:
        table = report.table(COMPETITORS)
        for row in table.rows:
            cells = found.setdefault(row.name, {"competitor": row.title})
            speed, ratio = (table.spread(row.name, column.key) for column in (SPEED, OURS_BY_IT))
            cells[report.suite] = "-" if speed is None else SPEED.form.format(speed.median)
            if ratio is not None and row.name != OURS:
                cells[report.suite] += f" ({ratio.median:.2f} x)"
    headings = ["competitor", *(report.suite for report in columns)]
    return headings, [[cells.get(heading, "") for heading in headings] for cells in found.values()]


def targets_table(reports: Sequence[Report]) -> Cells:
    """Returns a row for every suite that has targets: how many were kept, and those that were not."""
    rows = []
    for report in reports:
        missed = [target.name for target in report.targets if not target.kept]
        if report.targets:
            num_all = len(report.targets)
            rows.append([report.suite, f"{num_all - len(missed)} of {num_all}", ", ".join(missed) or "-"])
    return ["suite", "targets kept", "missed"], rows


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
    for title, (headings, rows) in ((_SPEED_TITLE, speed_table(reports)), ("targets", targets_table(reports))):
        if rows:
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


def _paths(folder: Path, suites: Sequence[str]) -> list[Path]:
    return [folder / f"{suite}.{ending}" for suite in suites for ending in _ENDINGS]
