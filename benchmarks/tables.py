"""Table: rows of figures under columns, the one form in which every suite reports."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Samples = Mapping[str, Mapping[str, Any]]
"""Row -> column's key -> numbers round by round (None: not reported), or a text."""


@dataclass(frozen=True)
class Spread:
    """Median, least and greatest of some values."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """Returns the spread of the values that are not None; None without such values."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


@dataclass(frozen=True)
class Ratio:
    """One row's values by another's, round by round: a drift of the machine hits both of a round.

    Attributes:
        key: of the values that are divided.
        of: the row that is divided; "": every row itself.
        by: the row that divides; "": every row itself.
    """

    key: str
    of: str = ""
    by: str = ""


@dataclass(frozen=True)
class Column:
    """A column of figures.

    Attributes:
        key: of the figure in each row.
        heading: with the unit.
        form: of a number, for `str.format`.
        has_spread: whether least and greatest are shown beside the median.
        ratio: how it is made from another column; None: it was measured.
    """

    key: str
    heading: str
    form: str = "{:,.0f}"
    has_spread: bool = True
    ratio: Ratio | None = None

    def text_of(self, figure: Spread | str | None) -> str:
        """Returns a figure as it is shown: a dash where there is none."""
        if figure is None or isinstance(figure, str):
            return figure or "-"
        median, least, greatest = map(self.form.format, (figure.median, figure.least, figure.greatest))
        return f"{median} ({least} to {greatest})" if self.has_spread else median


@dataclass(frozen=True)
class Row:
    """A row of figures, named in the data, titled in tables.

    Attributes:
        figures: column's key -> figure; None or no key: there is none. Keys without a column are in the data only.
        missing: why there are no figures; None: there are some.
    """

    name: str
    title: str
    figures: Mapping[str, Spread | str | None] = field(default_factory=dict)
    missing: str | None = None


@dataclass(frozen=True)
class Table:
    """Figures that belong together.

    Attributes:
        title: a line; "": the suite's.
        note: how it was measured, a paragraph; "": the suite's.
        heading: of the rows' titles.
        rows: empty before the measurement.
    """

    name: str
    title: str
    note: str
    heading: str
    columns: Sequence[Column]
    rows: Sequence[Row] = ()

    def fill(
        self,
        samples: Samples,
        titles: Mapping[str, str] | None = None,
        missing: Mapping[str, str] | None = None,
        **in_note: Any,
    ) -> "Table":
        """Returns the table with a row for each sample.

        Args:
            samples: a row without figures has no keys.
            titles: of rows whose title is not their name.
            missing: why rows have no figures.
            **in_note: values of the fields of the note.
        """
        titles, missing = titles or {}, missing or {}
        rows = []
        for name, own in samples.items():
            figures = {key: value if isinstance(value, str) else Spread.of(value) for key, value in own.items()}
            made = {column.key: _ratio(column.ratio, name, samples) for column in self.columns if column.ratio}
            rows.append(Row(name, titles.get(name, name), figures | made, missing.get(name)))
        return replace(self, rows=rows, note=self.note.format(**in_note))

    def row(self, name: str) -> Row | None:
        """Returns a row; None where there is none of this name."""
        return next((row for row in self.rows if row.name == name), None)

    def spread(self, name: str, key: str) -> Spread | None:
        """Returns a figure; None where it is a text, or there is none."""
        row = self.row(name)
        figure = row.figures.get(key) if row else None
        return figure if isinstance(figure, Spread) else None

    def texts(self) -> tuple[list[str], list[list[str]]]:
        """Returns headings and rows as they are shown."""
        rows = [
            [row.title, *(column.text_of(row.figures.get(column.key)) for column in self.columns)] for row in self.rows
        ]
        return [self.heading, *(column.heading for column in self.columns)], rows

    def reasons(self) -> list[str]:
        """Returns a line for every row that has no figures."""
        return [f"{row.title} is missing: {row.missing}" for row in self.rows if row.missing is not None]


def collect(samples: Iterable[tuple[str, Mapping[str, float | None]]]) -> dict[str, dict[str, list[float | None]]]:
    """Returns measurements by row and key, in the order in which they came."""
    found: dict[str, dict[str, list[float | None]]] = {}
    for name, figures in samples:
        for key, value in figures.items():
            found.setdefault(name, {}).setdefault(key, []).append(value)
    return found


def _ratio(ratio: Ratio, name: str, samples: Samples) -> Spread | None:
    of, by = (samples.get(row or name, {}).get(ratio.key, ()) for row in (ratio.of, ratio.by))
    # One that was measured less often has fewer rounds.
    return Spread.of(one / other for one, other in zip(of, by, strict=False) if one is not None and other)
