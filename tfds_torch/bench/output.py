"""Where reports go: a folder that can be written, three files for each suite, and the terminal."""

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tfds_torch.bench import report as reports
from tfds_torch.bench.chart import draw_chart
from tfds_torch.bench.contest_tables import table_of
from tfds_torch.bench.report import Report
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.printable import printable
from tfds_torch.runtime.whole_file import write_whole

OVERVIEW = "overview.md"
"""Name of the page about all suites of a run."""

_ENDINGS = ("json", "md", "png")


def default_folder(is_full: bool) -> Path:
    """Returns where reports go unless told otherwise.

    Args:
        is_full: whether all suites run with all peers and all settings as they are; only such a run replaces the
            reports of a checkout. Any other goes to `bench_results` in the current folder.
    """
    package = Path(__file__).parent
    if not is_full:
        return Path("bench_results")
    is_checkout = (package.parents[1] / "pyproject.toml").is_file()
    return package / "results" if is_checkout and os.access(package, os.W_OK) else Path("bench_results")


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
    try:
        picture.unlink(missing_ok=True)  # No old chart beside new figures.
        notes = _draw(report, picture)
        write_whole(data, (json.dumps(reports.as_dict(report), indent=1) + "\n").encode())
        write_whole(page, reports.markdown(report, None if notes else picture.name).encode())
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {folder}: {error}.") from error
    return notes


def show(report: Report, console: Console) -> None:
    """Prints a report's figures and targets."""
    if report.outcomes:
        show_table(
            f"{report.suite}: {report.title}",
            *table_of(report.suite, report.outcomes),
            reports.missing(report),
            console,
        )
    for section in report.sections:
        show_table(f"{report.suite}: {section.title}", *section.table(), section.missing, console)
    if report.targets:
        _show_targets(report, console)
    for fact in reports.facts(report):
        console.print(Text(fact), soft_wrap=True)


def _show_targets(report: Report, console: Console) -> None:
    targets = Table(title="Targets", title_justify="left")
    for heading in ("", "target", "wanted", "found"):
        targets.add_column(heading, overflow="fold")
    for target in report.targets:
        mark = "[green]kept[/]" if target.kept else "[bold red]MISSED[/]"
        targets.add_row(mark, *map(Text, (target.name, target.wanted, target.found)))
    console.print(targets)


def show_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], reasons: Sequence[str], console: Console
) -> None:
    """Prints a table, and a line for every reason."""
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)
    for reason in reasons:
        console.print(Text(printable(reason)), soft_wrap=True)


def _draw(report: Report, path: Path) -> list[str]:
    try:
        draw_chart(report, path)
    except ImportError as error:
        return [f"No chart: {error} (pip install 'tfds-torch[bench]')."]
    return []


def _paths(folder: Path, suites: Sequence[str]) -> list[Path]:
    return [folder / f"{suite}.{ending}" for suite in suites for ending in _ENDINGS]
