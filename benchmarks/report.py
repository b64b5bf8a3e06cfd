"""Report: the figures of a suite, as data that is written and read back, as text and as a page.

mkdocs calls `on_page_markdown`, which puts the committed reports on the page Benchmarks.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from benchmarks.tables import Column, Ratio, Row, Spread, Table
from tfds_torch.errors import ConfigError
from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.printable import printable

SCHEMA = 4
"""Of the JSON form."""

RESULTS = Path(__file__).parent / "results"
ALL_REPORTS = "<!-- all reports -->"
"""The site has all committed reports in the place of this line."""


@dataclass(frozen=True)
class Report:
    """The figures of a suite, and how, when and where they were measured.

    Attributes:
        date: of the beginning, ISO 8601, UTC.
        machine: see `machine.describe_machine`.
        versions: distribution -> version.
        settings: see `turns.Settings`.
    """

    suite: str
    title: str
    method: str
    command: str
    date: str
    took_s: float
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    settings: Mapping[str, Any]
    tables: Sequence[Table]

    def as_dict(self) -> dict[str, Any]:
        """Returns the report for JSON, figures in the units of their columns."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        """Returns the report of a dictionary that `as_dict` returned.

        Raises:
            ValueError: the dictionary has another form.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {data.get('schema')}, and should be {SCHEMA}")
        own = {key: value for key, value in data.items() if key != "schema"}
        return cls(**own | {"tables": list(map(_table, own["tables"]))})

    def facts(self) -> list[str]:
        """Returns lines about when, how and where it was measured."""
        machine, settings = self.machine, self.settings
        where = f"{machine['cpu'] or 'CPU not known'} ({machine['architecture']}), {machine['num_cores']} cores"
        return [
            f"{self.command}, begun {self.date}, took {self.took_s:.0f} s",
            f"{where}, {machine['ram_bytes'] / 2**30:.0f} GiB, {machine['kernel']}, "
            f"load before: {machine['load_before']:.2f}",
            f"{settings['num_photos']:,} photographs in {settings['num_shards']} shards, batches of "
            f"{settings['batch_size']}, {settings['num_workers']} workers, {settings['num_repeats']} repeats",
            ", ".join(f"{name} {version or 'not installed'}" for name, version in self.versions.items()),
        ]

    def markdown(self) -> str:
        """Returns the report as a section of a page."""
        lines = [f"### {self.suite}: {self.title}", "", self.method, ""]
        for table in self.tables:
            lines += [f"#### {table.title[0].upper()}{table.title[1:]}", ""] if table.title else []
            lines += [table.note, ""] if table.note else []
            headings, rows = table.texts()
            lines += [_line(headings), "|---|" + "---:|" * (len(headings) - 1), *map(_line, rows), ""]
            lines += [line for reason in table.reasons() for line in (f"{reason.rstrip('.')}.", "")]
        return "\n".join([*lines, *(f"- {fact}" for fact in self.facts()), ""])

    def show(self, console: Console) -> None:
        """Prints the tables."""
        for table in self.tables:
            headings, rows = table.texts()
            shown = RichTable(title=f"{self.suite}: {table.title or self.title}", title_justify="left")
            for number, heading in enumerate(headings):
                shown.add_column(heading, justify="right" if number else "left", overflow="fold")
            for row in rows:
                shown.add_row(*map(Text, row))
            console.print(shown)
            for reason in table.reasons():
                console.print(Text(printable(reason)), soft_wrap=True)
        for fact in self.facts():
            console.print(Text(fact), soft_wrap=True)

    def write(self, folder: Path) -> None:
        """Writes `<suite>.json`, and the page `<suite>.md`.

        Raises:
            ConfigError: the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomically(folder / f"{self.suite}.json", (json.dumps(self.as_dict(), indent=1) + "\n").encode())
            write_atomically(folder / f"{self.suite}.md", self.markdown().encode())
        except OSError as error:
            raise ConfigError(f"The report cannot be written to {folder}: {error}. Choose another --out.") from error


def read_reports(folder: Path = RESULTS) -> dict[str, Report]:
    """Returns all reports of a folder, by suite.

    Raises:
        ConfigError: one cannot be read.
    """
    reports = {}
    for path in sorted(folder.glob("*.json")):
        try:
            reports[path.stem] = Report.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"The report {path} cannot be read: {error}. Run its suite again.") from error
    return reports


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts all committed reports into the page that has a line for them. mkdocs calls this for every page."""
    if ALL_REPORTS not in markdown:
        return markdown
    return markdown.replace(ALL_REPORTS, "\n".join(report.markdown() for report in read_reports().values()))


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(data: Mapping[str, Any]) -> Table:
    columns = [Column(**column | {"ratio": column["ratio"] and Ratio(**column["ratio"])}) for column in data["columns"]]
    rows = [
        Row(**row | {"figures": {key: _figure(value) for key, value in row["figures"].items()}}) for row in data["rows"]
    ]
    return Table(**{**data, "columns": columns, "rows": rows})


def _figure(value: Any) -> Spread | str | None:
    return Spread(**value) if isinstance(value, dict) else value
