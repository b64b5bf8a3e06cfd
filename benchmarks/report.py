"""Report: the figures of a suite, as data that is written, read back and shown; pages and charts are made from it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.tables import COMPETITORS, Column, Ratio, Row, Spread, Table
from benchmarks.targets import Verdict
from benchmarks.task import OURS

SCHEMA = 3
"""Of the JSON form; `report.schema.json` describes it."""

_SPEED_SUITES = ("sample", "jpeg", "jpeg_eval", "png32")
_SPEED_TITLE = "examples a second into the training process, whole epochs"


@dataclass(frozen=True)
class Report:
    """The figures of a suite, and how, when and where they were measured.

    Attributes:
        date: of the beginning, ISO 8601, UTC.
        took_s: None: not recorded.
        machine: see `machine.describe_machine`.
        versions: distribution -> version; None: not installed.
        settings: see `task.Settings`.
        configured: where to read the configuration of the competitors.
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
        """Returns the report for JSON: figures in the units of their columns, raw epochs in seconds and bytes."""
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
        targets = [Verdict(**target) for target in own.pop("targets")]
        return cls(**own | {"tables": list(map(_table, own["tables"]))}, targets=targets)

    def table(self, name: str) -> Table:
        """Returns a table.

        Raises:
            KeyError: there is none of this name.
        """
        return {table.name: table for table in self.tables}[name]

    def facts(self) -> list[str]:
        """Returns lines about when, how and where it was measured."""
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

    def markdown(self) -> str:
        """Returns the report as a section of a page."""
        lines = [f"### {self.suite}: {self.title}", "", self.method, ""]
        for table in self.tables:
            lines += [f"#### {table.title[0].upper()}{table.title[1:]}", ""] if table.title else []
            lines += [table.note, ""] if table.note else []
            lines += table_lines(*table.texts(), table.reasons())
        if self.targets:
            verdicts = [[one.name, one.wanted, one.found, "kept" if one.kept else "**MISSED**"] for one in self.targets]
            lines += table_lines(["target", "wanted", "found", ""], verdicts, rule="---|")
        return "\n".join([*lines, *(f"- {fact}" for fact in self.facts()), ""])


def overview(reports: Sequence[Report]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Returns title, headings and rows of the tables about all reports: speeds of whole epochs, and targets."""
    speeds, targets = _speeds(reports), _targets(reports)
    headings = ["competitor", *(report.suite for report in reports if report.suite in _SPEED_SUITES)]
    tables = [
        (_SPEED_TITLE, headings, [[cells.get(heading, "") for heading in headings] for cells in speeds]),
        ("targets", ["suite", "targets kept", "missed"], targets),
    ]
    return [table for table in tables if table[2]]


def _speeds(reports: Sequence[Report]) -> list[dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for report in reports:
        for row in report.table(COMPETITORS).rows if report.suite in _SPEED_SUITES else ():
            cells = found.setdefault(row.name, {"competitor": row.title})
            speed, ratio = (row.figures.get(key) for key in ("examples_per_s", "ours_by_it"))
            cells[report.suite] = f"{speed.median:,.0f}" if isinstance(speed, Spread) else "-"
            if isinstance(ratio, Spread) and row.name != OURS:
                cells[report.suite] += f" ({ratio.median:.2f} x)"
    return list(found.values())


def _targets(reports: Sequence[Report]) -> list[list[str]]:
    rows = []
    for report in reports:
        missed = [target.name for target in report.targets if not target.kept]
        if report.targets:
            num_all = len(report.targets)
            rows.append([report.suite, f"{num_all - len(missed)} of {num_all}", ", ".join(missed) or "-"])
    return rows


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
