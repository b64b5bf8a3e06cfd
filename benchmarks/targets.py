"""Our own targets, as data: which figure of which table, and its limit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from benchmarks.tables import Table

Relation = Literal["at_least", "at_most", "less_than", "within"]
"""`within`: a ratio that differs from 1 by no more than the limit."""


@dataclass(frozen=True)
class Target:
    """A target of ours. It is missed where its figure is missing.

    Attributes:
        table: name of the table.
        rows: names of rows; the worst one is judged.
        column: key of the column.
        limit: in the column's unit.
        unit: follows the limit in words, as in " x timm's".
        digits: of the figure, behind the point.
        figure: of the spread.
    """

    name: str
    table: str
    rows: Sequence[str]
    column: str
    relation: Relation
    limit: float
    unit: str
    digits: int = 2
    figure: Literal["median", "greatest"] = "median"

    @property
    def wanted(self) -> str:
        """The limit, in words."""
        limit = f"{self.limit:.0%}" if self.relation == "within" else f"{self.limit:,g}"
        return f"{self.relation.replace('_', ' ')} {limit}{self.unit}"


@dataclass(frozen=True)
class Verdict:
    """A judged target: the limit in words, and the figure or why there is none."""

    name: str
    wanted: str
    found: str
    kept: bool


def judge(targets: Sequence[Target], tables: Sequence[Table]) -> list[Verdict]:
    """Returns a verdict for each target."""
    there = {table.name: table for table in tables}
    return [_judge(target, there.get(target.table)) for target in targets]


def _judge(target: Target, table: Table | None) -> Verdict:
    def unknown(reason: str) -> Verdict:
        return Verdict(target.name, target.wanted, f"cannot be judged: {reason}", False)

    if table is None:
        return unknown("it was not measured")
    ratio = table.column(target.column).ratio
    for name in dict.fromkeys([*((ratio.of, ratio.by) if ratio else ()), *target.rows]):
        row = table.row(name)
        if name and (row is None or row.missing is not None):
            return unknown(f"{name} did not take part" if row is None else f"{name} is missing: {row.missing}")
    spreads = [table.spread(name, target.column) for name in target.rows]
    figures = [getattr(spread, target.figure) for spread in spreads if spread is not None]
    if len(figures) < len(spreads):
        return unknown("there is no figure on this system")
    is_kept, worst = RELATIONS[target.relation]
    figure = worst(figures)
    found = f"{figure:,.{target.digits}f}{_unit(target)}"
    return Verdict(target.name, target.wanted, found, is_kept(figure, target.limit))


def _unit(target: Target) -> str:
    """Returns " x", " s", ... of " x timm's" and the like; a ratio without a unit is a factor."""
    return f" {target.unit.split()[0]}" if target.unit else " x"


RELATIONS: Mapping[Relation, tuple[Callable[[float, float], bool], Callable[[Sequence[float]], float]]] = {
    "at_least": (lambda figure, limit: figure >= limit, min),
    "at_most": (lambda figure, limit: figure <= limit, max),
    "less_than": (lambda figure, limit: figure < limit, max),
    "within": (
        lambda figure, limit: abs(figure - 1) <= limit,
        lambda ratios: max(ratios, key=lambda one: abs(one - 1)),
    ),
}
