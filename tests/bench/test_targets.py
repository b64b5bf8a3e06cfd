"""Our own targets: the arithmetic, and that nothing passes for want of figures."""

from collections.abc import Sequence

import pytest
from bench.made_up import SUITE_OF, outcome, table_of

from benchmarks.comparisons import STARTING
from benchmarks.suites import SUITES
from benchmarks.tables import Column, Ratio, Row, Spread, Table
from benchmarks.targets import Relation, Target, Verdict, judge

BEYOND = 1e-6
ALL = [(suite, target) for suite in SUITES for target in suite.targets]


def table_with(name: str, column: str, *figures: float | None, missing: str | None = None) -> Table:
    rows = [
        Row(f"row {number}", "", {column: None if figure is None else Spread(figure, figure, figure)}, missing)
        for number, figure in enumerate(figures)
    ]
    return Table(name, "", "", "", [Column(column, "")], rows)


def judged(relation: Relation, *figures: float | None, missing: str | None = None) -> Verdict:
    rows = [f"row {number}" for number in range(len(figures))]
    target = Target("a", "t", rows, "c", relation, 0.5, " x theirs")
    (verdict,) = judge([target], [table_with("t", "c", *figures, missing=missing)])
    return verdict


@pytest.mark.parametrize(
    ("relation", "figures", "kept"),
    [
        ("at_least", [0.5, 0.9], True),
        ("at_least", [0.9, 0.5 - BEYOND], False),
        ("at_most", [0.5, 0.1], True),
        ("at_most", [0.1, 0.5 + BEYOND], False),
        ("less_than", [0.5 - BEYOND], True),
        ("less_than", [0.5], False),
        ("within", [1.5, 0.5], True),
        ("within", [1.0, 0.5 - BEYOND], False),
        ("within", [1.0, 1.5 + BEYOND], False),
    ],
)
def test_the_worst_row_is_judged_before_it_is_rounded(relation: Relation, figures: list[float], kept: bool) -> None:
    assert judged(relation, *figures).kept is kept


def test_a_verdict_says_what_was_wanted_and_found() -> None:
    assert judged("at_least", 2.0, 0.996) == Verdict("a", "at least 0.5 x theirs", "1.00 x", True)
    assert judged("within", 0.9).wanted == "within 50% x theirs"


def test_what_has_no_figure_is_not_kept_and_says_why() -> None:
    assert judged("at_most", None) == Verdict(
        "a", "at most 0.5 x theirs", "cannot be judged: there is no figure on this system", False
    )
    assert judged("at_most", 0.1, missing="gone").found == "cannot be judged: row 0 is missing: gone"
    target = Target("a", "t", ["row 7"], "c", "at_most", 0.5, " s")
    assert judge([target], [table_with("t", "c", 0.1)])[0].found == "cannot be judged: row 7 did not take part"
    assert judge([target], [])[0].found == "cannot be judged: it was not measured"


def test_a_ratio_needs_the_row_that_it_is_made_of() -> None:
    column = Column("c", "", ratio=Ratio("x", of="ours"))
    target = Target("a", "t", ["timm"], "c", "at_least", 1, " x timm's")
    rows = [Row("ours", "", {}, "it broke"), Row("timm", "", {"c": None})]
    (verdict,) = judge([target], [Table("t", "", "", "", [column], rows)])
    assert verdict.found == "cannot be judged: ours is missing: it broke"


def kept_inside_and_outside(target: Target) -> list[bool]:
    figures = {
        "at_least": (target.limit, target.limit - BEYOND),
        "at_most": (target.limit, target.limit + BEYOND),
        "less_than": (target.limit - BEYOND, target.limit),
        "within": (1 + target.limit - BEYOND, 1 + target.limit + BEYOND),
    }[target.relation]

    def table(figure: float) -> Table:
        spread = Spread(0.0, 0.0, figure) if target.figure == "greatest" else Spread(figure, 0.0, 1e9)
        rows = [Row(row, row, {target.column: spread}) for row in target.rows]
        return Table(target.table, "", "", "", [Column(target.column, "")], rows)

    return [judge([target], [table(figure)])[0].kept for figure in figures]


def test_every_target_is_kept_on_one_side_of_its_limit_only() -> None:
    kept = [(f"{suite.name}: {target.name}", kept_inside_and_outside(target)) for suite, target in ALL]
    wrong = [name for name, inside_and_outside in kept if inside_and_outside != [True, False]]
    assert not wrong, str(wrong)


def found(suite: str, tables: Sequence[Table]) -> list[str]:
    return [verdict.found for verdict in judge(SUITE_OF[suite].targets, tables)]


def test_speeds_are_judged_by_the_median_of_turns() -> None:
    speeds = {"baseline": 1050, "ours_0": 1100, "timm": 200, "webdataset": 400, "grain": 500}
    speeds |= {"dali": 660, "ffcv": 740, "limit": 1300, "ours_simplejpeg": 900}
    others = [outcome(name, (speed, speed, speed)) for name, speed in speeds.items()]
    ours = outcome("ours", (1000, 1, 5000), first_batch_s=0.15, tail_s=0.05)
    assert found("jpeg", [table_of([ours, *others])]) == [
        *("0.95 x", "5.00 x", "2.00 x", "1.35 x", "1.52 x", "0.77 x", "1.11 x", "0.91 x", "0.15 s", "0.050 s")
    ]
    # The faster one of WebDataset and Grain counts, whichever it is.
    assert found("jpeg", [table_of([ours, outcome("webdataset", (800,) * 3), *others[:3], others[4]])])[2] == "1.25 x"


def test_memory_is_judged_by_the_sums() -> None:
    ours, timm = outcome("ours", memory_bytes=(100, 200)), outcome("timm", memory_bytes=(100, 100, 400))
    assert found("start", [table_of([ours, timm], STARTING.table)])[2] == "0.50 x"


def test_a_missing_peer_misses_the_targets_that_need_it_alone() -> None:
    tables = [table_of([outcome("ours"), outcome("timm", missing="No module named 'timm'")], STARTING.table)]
    assert found("start", tables)[2] == "cannot be judged: timm is missing: No module named 'timm'"
    assert [verdict.kept for verdict in judge(SUITE_OF["start"].targets, tables)] == [True, True, False]
