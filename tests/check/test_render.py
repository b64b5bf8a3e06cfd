"""A report as text, page and JSON: golden as a whole, harmless whatever its texts are, with every documented key."""

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from check.machine import no_control_characters
from check.made_report import GOLDEN, render_all
from check.page_file import load as load_page
from check.report_file import ALWAYS, WHERE_KNOWN, differences, keys_of, load
from check.report_file import GOLDEN as VALUES
from tfds_torch.check import render, sections
from tfds_torch.check.command import save_report
from tfds_torch.check.ledger import LabelCount
from tfds_torch.check.pictures import chip, cut, draw_bar
from tfds_torch.check.render import Run, Verdict, as_text, as_values, verdict_of
from tfds_torch.check.report import Cell, NotJudged, Picture, Promise, Report, Section
from tfds_torch.errors import ConfigError, ShardError

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(2)>',
    "</style></title><b>",
    "\u202egnorw\u202c",
    "{{ 7 * 7 }}",
    "&lt;&amp;",
    "x" * 5000,
    "' onmouseover='alert(3)",
    "שלום",
    "猫",
]
MORE_HOSTILE = [
    "\x1b[31mred\x07\x00",
    "\x7f\x9b",
    "\udc80",
    "a\nb\r",
    "[bold]x[/]",
    ":smile:",
    "[link=x]",
    "\\",
    '"\\/',
]
GOOD = Verdict("good", "All 1 promises kept", "3 batches read in 1 epoch.")
KEPT, BROKEN = Promise("a", True, ""), Promise("b", False, "x")


def both(folder: Path, report: Report, exit_code: int = 0) -> tuple[Any, dict[str, Any]]:
    """Returns the page and the JSON, as they are written and read again."""
    run = Run(["--name", "x"], time.time(), exit_code)
    for flag, name in (("--html", "r.html"), ("--json", "r.json")):
        save_report(flag, folder / name, report, run)
    return load_page(folder / "r.html"), load(folder / "r.json")


@pytest.mark.parametrize("name", ["report.txt", "report.json", "report.html"])
def test_a_report_of_everything_is_the_golden_one(name: str, numbered_root: str) -> None:
    """To change it on purpose: `python -m check.made_report`, and say why."""
    assert render_all(numbered_root)[name] == (GOLDEN / name).read_text(encoding="utf-8")


# The form of JSON.


def test_every_key_is_documented_and_nothing_else() -> None:
    words = set(re.findall(r"\w+", render.__doc__ or ""))
    keys = keys_of(VALUES) - {"farthest_from_n_x_weight"}
    assert keys <= words
    top = set(re.findall(r"^    (\w+)  ", render.__doc__ or "", re.MULTILINE)) | {"duration_s"}
    assert top == ALWAYS
    assert top | WHERE_KNOWN == set(VALUES)
    named = {"create_loader", "read_mode", "tfds_torch", "num_", "_s", "_bytes", "num_cores"}
    assert {word for word in words if "_" in word} <= keys | named
    for wrong in ({"promises": [{"name": 1, "kept": True, "detail": ""}]}, {"advice": [True]}, {"x": 1}, {"plan": 1}):
        assert list(differences(VALUES, VALUES | wrong))
    assert list(differences(VALUES, {key: one for key, one in VALUES.items() if key != "plan"}))


def test_a_check_that_knows_nothing_has_every_key(tmp_path: Path) -> None:
    page, values = both(tmp_path, Report(error=ConfigError("no such thing")), 2)
    assert values["error"] == {"type": "ConfigError", "message": "no such thing"}
    assert [values[key] for key in ("dataset", "plan", "images", "reading", "network")] == [None] * 5
    assert [values[key] for key in ("epochs", "labels", "throughput", "promises", "not_judged", "advice")] == [[]] * 6
    assert (values["exit_code"], values["command"], values["started"][-6:]) == (2, ["--name", "x"], "+00:00")
    assert page.title == "tfds_torch.check: The check ended with a ConfigError"
    assert page.texts["verdict"] == "The check ended with a ConfigError no such thing"


def test_what_is_no_number_is_no_report_and_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("old")
    report = Report(sections=[Section("advice", "Advice", rows=[{"": float("nan")}])])
    with pytest.raises(ValueError, match="JSON"):
        save_report("--json", path, report, Run([], 0.0, 0))
    assert ([one.name for one in tmp_path.iterdir()], path.read_text()) == (["r.json"], "old")


# Text of anybody's.


@pytest.mark.parametrize("text", [*HOSTILE, *MORE_HOSTILE], ids=lambda text: ascii(text)[:20])
def test_any_text_is_harmless_and_in_json_whole(tmp_path: Path, text: str) -> None:
    """Of promises, errors, advice, ids, labels, paths and columns."""
    report = Report(
        [Promise(text, False, text)], [NotJudged(text, text)], error=ShardError(text), images_path=Path(text)
    )
    names = [{"member": Cell(text, text, html=chip(0, text))}]
    pictures = [Picture(text, draw_bar(0.5, cut(text)), text)]
    report.put(Section("mixture", "Mixture", text, ["member"], rows=names, folded=[(text, [text])], pictures=pictures))
    report.put(sections.describe_promises(report.promises))
    report.put(sections.describe_not_judged(report.not_judged))
    report.put(sections.describe_labels([LabelCount(0, text, 1)]))
    report.put(sections.describe_advice([text]))
    page, values = both(tmp_path, report, 1)
    assert values["promises"] == [{"name": text, "kept": False, "detail": text}]
    assert (values["advice"], values["error"]["message"], values["mixture"]) == ([text], text, [{"member": text}])
    printed, written = as_text(report), (tmp_path / "r.html").read_text()
    assert no_control_characters(printed + written)
    assert "x" * 4001 not in written
    assert page.texts["verdict"].startswith("1 of 1 promise broken")
    if len(text) < 100 and text.isprintable():
        assert page.texts["advice"] == f"Advice {' '.join(text.split())}"
        assert text in page.texts["labels"]
        assert text in page.texts["mixture"]
        assert text in printed


# What people read.


@pytest.mark.parametrize(
    ("report", "verdict"),
    [
        (Report(), Verdict("unknown", "No promise was judged")),
        (Report([KEPT], num_batches=3, counts={0: mock.Mock()}), GOOD),
        (Report([KEPT, BROKEN, BROKEN]), Verdict("bad", "2 of 3 promises broken", "b; b")),
        (Report([BROKEN], error=ShardError("s")), Verdict("bad", "1 of 1 promise broken", "b; s")),
        (Report([KEPT], error=ShardError("s")), Verdict("bad", "The check ended with a ShardError", "s")),
        (Report(is_interrupted=True), Verdict("unknown", "Interrupted", "Nothing had been read.")),
        (
            Report([KEPT], is_interrupted=True, num_batches=3, num_planned_batches=1200, counts={0: mock.Mock()}),
            Verdict("unknown", "Interrupted", "3 of 1,200 batches had come, 1 whole epoch; "
            "no promise broken until then."),
        ),
    ],
)  # fmt: skip
def test_the_verdict_says_how_a_check_ended(report: Report, verdict: Verdict) -> None:
    assert verdict_of(report) == verdict
    assert report.text.endswith(f"{verdict.headline}.")
    assert report.is_kept is (verdict.kind == "good")


def test_what_an_interrupted_check_knows_of_broken_promises_is_said() -> None:
    report = Report([KEPT, BROKEN], is_interrupted=True, num_batches=1, num_planned_batches=2)
    assert render.summarize_interrupted(report).endswith("0 whole epochs; 1 of 2 promises broken until then.")
    assert render.summarize_interrupted(replace(report, num_planned_batches=None)) == ""


def test_cells_and_headings_are_shown_as_people_read_them() -> None:
    cells = {
        0.0001234: "0.000123",
        12.345: "12.3",
        999.4: "999",
        999.9: "1,000",
        12_345.6: "12,346",
        1234: "1,234",
        None: "-",
    }
    rows = [{"first_batch_s": value, "hidden": 7, "num_examples_per_s": Cell(1, "[x]", "bad")} for value in cells]
    report = Report(
        sections=[Section("x", "X", "A note.", ["first_batch_s", "num_examples_per_s", "nowhere"], rows=rows)]
    )
    lines = as_text(report).splitlines()
    assert lines[0] == "X: A note."
    assert [cell.strip() for cell in lines[2].strip("┃").split("┃")] == ["first batch s", "examples/s"]
    assert [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")] == [
        [text, "[x]"] for text in cells.values()
    ]


def test_of_many_rows_the_first_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    rows = [{"rank": rank, "x": "y" * 40} for rank in range(100)]
    for shown, number in ((rows[:25], 25), (rows, 25)):
        report = Report(
            sections=[Section("throughput", "Speed", columns=["rank", "x"], rows=rows, shown=shown, of="ranks")]
        )
        text = as_text(report)
        assert sum(line.startswith("│") for line in text.splitlines()) == number
        assert ("and 75 more ranks" in text) is (len(shown) == 100)
        save_report("--html", tmp_path / "r.html", report, Run([], 0.0, 0))
        page = load_page(tmp_path / "r.html")
        assert len(page.table("throughput")) == number
        assert ("and 75 more ranks" in page.texts["throughput"]) is (len(shown) == 100)
    assert as_values(report, Run([], 0.0, 0))["throughput"] == rows


def test_every_part_of_a_page_is_there_once_and_can_be_gone_to(tmp_path: Path, numbered_root: str) -> None:
    (tmp_path / "r.html").write_text(render_all(numbered_root)["report.html"].replace(
        "<style>...</style>", ""
    ))  # fmt: skip
    page = load_page(tmp_path / "r.html")
    parts = [id for id in page.texts if id != "verdict"]
    assert [address for address in page.addresses if address.startswith("#")] == [f"#{id}" for id in parts]
    assert parts[:3] == ["promises", "not_judged", "dataset"]
    assert len(parts) == len(set(parts)) > 10
    assert [address for address in page.addresses if not re.match("#|data:", address)] == [
        r"https://example.org/\u202e<b>",
        "http://c",
    ]
