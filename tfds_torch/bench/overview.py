"""The end of a run: contestants by suites that measure whole epochs, and how many of our own targets were kept."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tfds_torch.bench.contest_tables import Table, short_table_of
from tfds_torch.bench.output import OVERVIEW, show_table
from tfds_torch.bench.report import Report, facts, table_lines
from tfds_torch.bench.task import OURS
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.whole_file import write_whole

_SUITES = ("sample", "jpeg", "jpeg_eval", "png32")
_TITLE = "examples a second into the training process, whole epochs"
_NOTE = "Medians; in parentheses: how many times as fast tfds_torch was, turn by turn."


def speed_table(reports: Sequence[Report]) -> Table:
    """Returns a row for every contestant, with its examples per second in every suite that measures them."""
    columns = [report for report in reports if report.suite in _SUITES]
    found: dict[str, dict[str, str]] = {}
    for report in columns:
        _, rows = short_table_of(report.outcomes)
        for outcome, (title, speed, ratio) in zip(report.outcomes, rows, strict=True):
            cells = found.setdefault(outcome.peer.name, {"contestant": title})
            cells[report.suite] = speed if outcome.peer.name == OURS or ratio == "-" else f"{speed} ({ratio} x)"
    headings = ["contestant", *(report.suite for report in columns)]
    return headings, [[cells.get(heading, "") for heading in headings] for cells in found.values()]


def targets_table(reports: Sequence[Report]) -> Table:
    """Returns a row for every suite that has targets: how many were kept, and those that were not."""
    rows = []
    for report in reports:
        missed = [target.name for target in report.targets if not target.kept]
        if report.targets:
            num_all = len(report.targets)
            rows.append([report.suite, f"{num_all - len(missed)} of {num_all}", ", ".join(missed) or "-"])
    return ["suite", "targets kept", "missed"], rows


def show(reports: Sequence[Report], console: Console) -> None:
    """Prints both tables, so far as there is anything in them."""
    for title, (headings, rows) in (
        (f"overview: {_TITLE}", speed_table(reports)),
        ("overview: targets", targets_table(reports)),
    ):
        if rows:
            show_table(title, headings, rows, [], console)


def write(reports: Sequence[Report], folder: Path) -> None:
    """Writes both tables as a page; does nothing where no suite measured whole epochs.

    Raises:
        ConfigError: the folder cannot be written.
    """
    headings, rows = speed_table(reports)
    if not rows:
        return
    lines = [f"# {_TITLE[0].upper()}{_TITLE[1:]}", "", _NOTE, "", *table_lines(headings, rows)]
    lines += table_lines(*targets_table(reports))
    lines += [f"- {fact}" for fact in facts(reports[0])]
    try:
        write_whole(folder / OVERVIEW, ("\n".join(lines) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"The reports cannot be written to {folder}: {error}.") from error
