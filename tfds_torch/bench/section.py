"""Section: a table of figures in a report that is not one row for every contestant."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfds_torch.bench.figures import Spread


@dataclass(frozen=True)
class Column:
    """A column of a section's table.

    Attributes:
        key: of the value in every row.
        heading: with the unit.
        form: how a number is written, as for `str.format`.
    """

    key: str
    heading: str
    form: str = "{:,.0f}"


@dataclass(frozen=True)
class Section:
    """A table, and what it is about.

    Attributes:
        name: in the data.
        title: in a line.
        note: how it was measured, in a paragraph.
        columns: the first one holds the rows' names.
        rows: column's key -> text, number, Spread, or None where there is no figure. Keys without a column are in the
            data only.
        missing: a line for every row that has no figures, with the reason.
        bars: key of the column that the chart shows; None: this section has no chart.
    """

    name: str
    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]
    missing: Sequence[str] = ()
    bars: str | None = None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Returns headings and rows as text."""
        rows = [[_text(row.get(column.key), column.form) for column in self.columns] for row in self.rows]
        return [column.heading for column in self.columns], rows

    def as_dict(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return {
            "name": self.name,
            "title": self.title,
            "note": self.note,
            "columns": {column.key: column.heading for column in self.columns},
            "rows": [{key: _plain(value) for key, value in row.items()} for row in self.rows],
            "missing": list(self.missing),
        }


def spread_text(spread: Spread | None, form: str) -> str:
    """Returns median (least to greatest), or a dash."""
    if spread is None:
        return "-"
    median, least, greatest = (form.format(value) for value in (spread.median, spread.least, spread.greatest))
    return f"{median} ({least} to {greatest})"


def _text(value: Any, form: str) -> str:
    if value is None or isinstance(value, Spread):
        return spread_text(value, form)
    return value if isinstance(value, str) else form.format(value)


def _plain(value: Any) -> Any:
    return asdict(value) if isinstance(value, Spread) else value
