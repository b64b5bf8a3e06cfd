"""Report: what a suite found, as data that is written, read back and shown; pages and charts are made of it alone."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.tables import Column, Ratio, Row, Spread, Table
from benchmarks.targets import Verdict

SCHEMA = 2
"""Of the JSON form; `report.schema.json` describes it."""


@dataclass(frozen=True)
class Report:
    """What a suite found.

    Attributes:
        suite: its name.
        title: what it measures, in a line.
        method: how, in a paragraph.
        command: what was typed.
        date: when it began, ISO 8601, UTC.
        took_s: how long it took, seconds; None: not noted.
        machine: see `machine.describe_machine`.
        versions: distribution -> version; None: not installed.
        settings: what the command's options were.
        tables: figures.
        targets: our own, judged.
        configured: where to read how it is measured, and why so.
    """

    suite: str
    title: str
    method: str
    command: str
    date: str
    took_s: float | None
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    settings: Mapping[str, Any]
    tables: Sequence[Table]
    targets: Sequence[Verdict]
    configured: str

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON has it: figures in the units of their columns, raw epochs in seconds and bytes."""
        return {"schema": SCHEMA, **asdict(self)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        """Returns the report that `as_dict` made this of.

        Raises:
            ValueError: it has another form.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"its schema is {data.get('schema')}, and should be {SCHEMA}")
        own = {key: value for key, value in data.items() if key != "schema"}
        targets = [Verdict(**target) for target in own.pop("targets")]
        return cls(**own | {"tables": list(map(_table, own["tables"]))}, targets=targets)

    def table(self, name: str) -> Table:
        """Returns a table.

        Raises:
            KeyError: there is none of this name.
        """
        return {table.name: table for table in self.tables}[name]

    def facts(self) -> list[str]:
        """Returns lines that say when, how and on what was measured."""
        machine, settings = self.machine, self.settings
        ram = "memory not known" if machine["ram_bytes"] is None else f"{machine['ram_bytes'] / 2**30:.0f} GiB"
        where = f"{machine['cpu'] or 'CPU not known'} ({machine['architecture']}), {machine['num_cores']} cores, {ram}"
        load = "not known" if machine["load_before"] is None else f"{machine['load_before']:.2f}"
        took = "" if self.took_s is None else f", took {self.took_s:.0f} s"
        return [
            f"{self.command}, begun {self.date}{took}",
            f"{where}, {machine['kernel']}, load before: {load}",
            f"{settings['num_photos']:,} photographs in {settings['num_shards']} shards, batches of "
            f"{settings['batch_size']}, {settings['num_workers']} workers, {settings['num_repeats']} repeats",
            ", ".join(f"{name} {version or 'not installed'}" for name, version in self.versions.items()),
            f"how it is configured, and why: {self.configured}",
        ]

    def markdown(self, chart: str | None) -> str:
        """Returns the report as a page.

        Args:
            chart: the name of the chart's file, beside the page; None when there is no chart.
        """
        lines = [f"# {self.suite}: {self.title}", "", self.method, ""]
        lines += [f"![{self.title}]({chart})", ""] if chart else []
        for table in self.tables:
            lines += [f"## {table.title[0].upper()}{table.title[1:]}", ""] if table.title else []
            lines += [table.note, ""] if table.note else []
            lines += table_lines(*table.texts(), table.reasons())
        if self.targets:
            verdicts = [[one.name, one.wanted, one.found, "kept" if one.kept else "**MISSED**"] for one in self.targets]
            lines += ["## Targets", "", *table_lines(["target", "wanted", "found", ""], verdicts, rule="---|")]
        lines += ["## Where and how", "", *(f"- {fact}" for fact in self.facts())]
        return "\n".join(lines) + "\n"


def table_lines(
    headings: Sequence[str], rows: Sequence[Sequence[str]], reasons: Sequence[str] = (), rule: str = "---:|"
) -> list[str]:
    """Returns a table in Markdown, with a paragraph for every reason; `rule` aligns all columns but the first one."""
    lines = [_line(headings), "|---|" + rule * (len(headings) - 1), *map(_line, rows), ""]
    return lines + [line for reason in reasons for line in (f"{reason.rstrip('.')}.", "")]


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
