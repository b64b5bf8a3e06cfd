"""What is printed of the findings: labels, sizes, speeds, memory, advice."""

import io
import re

import pytest
from rich.console import Console

from check.machine import Checked, no_control_characters
from tfds_torch.check.content import ImageSizes, LabelCount
from tfds_torch.check.findings import Findings
from tfds_torch.check.fused import STAGES, FusedMeasure, FusedSpeed
from tfds_torch.check.ledger import EpochCounts, NotJudged, Promise
from tfds_torch.check.report import plain, print_findings, print_verdict
from tfds_torch.check.throughput import Throughput

SPEED = Throughput(0, 12.345, 0.5, 1234.4, 0.0625, {11: 300_000_000, 12: 5_000_000, 13: 900_000_000})


def printed(width: int = 160, **found: object) -> Checked:
    """Returns what is printed of findings, as that of a check."""
    findings = Findings(
        counts=[EpochCounts((1,), [], [], [], 3, 0)],
        promises=[Promise("all well", True, "yes")],
        **{"throughputs": [SPEED], **found},  # type: ignore[arg-type]
    )
    output = io.StringIO()
    print_findings(Console(file=output, width=width, emoji=False, highlight=False), findings)
    assert no_control_characters(output.getvalue())
    return Checked(0, "┃ ┃\n└─┘\n" + output.getvalue(), "")  # An empty table in the place of the plan.


def counts(*numbers: int) -> list[LabelCount]:
    return [LabelCount(label, f"class{label}", number) for label, number in enumerate(numbers)]


def test_up_to_24_labels_are_all_shown_in_their_order() -> None:
    labels = counts(*range(24))
    assert list(printed(labels=labels).labels.items()) == [(f"class{label}", label) for label in range(24)]


def test_of_more_labels_the_extremes_are_shown_with_their_number() -> None:
    checked = printed(labels=counts(*([0, 7] * 500), 9, 1))
    assert checked.labels == {
        "class1000": 9,
        "class1": 7,
        "class3": 7,
        "class5": 7,
        "class7": 7,
        **{f"class{label}": 0 for label in (990, 992, 994, 996, 998)},
    }
    note = "the 5 most frequent and the 5 rarest of 1,002 labels; 500 do not occur"
    assert checked.panel("Labels")[-1] == note
    assert printed(labels=counts(*range(1, 26))).panel("Labels")[-1].endswith("the 5 rarest of 25 labels")


def test_the_bars_are_in_proportion() -> None:
    lines = printed(labels=counts(4000, 2000, 1, 0)).panel("Labels")
    assert [line.count("█") for line in lines] == [40, 20, 0, 0]
    assert ["▏" in line for line in lines] == [False, False, True, False]
    assert "4,000" in lines[0]


def test_labels_of_which_none_occurs_are_no_division_by_zero() -> None:
    assert "█" not in printed(labels=counts(0, 0)).output


def test_without_labels_no_panel_is_shown() -> None:
    assert "Labels" not in printed().output


def test_names_cannot_control_the_terminal_and_markup_is_text() -> None:
    names = ["\x1b[31mred", "a\rb", "[bold]x[/]", ":smile:", "\u202ex", "名前", "x" * 500]
    labels = [LabelCount(number, name, 1) for number, name in enumerate(names)]
    shown = "\n".join(printed(labels=labels).panel("Labels"))
    for text in (r"\x1b[31mred", r"a\rb", "[bold]x[/]", ":smile:", r"\u202ex", "名前"):
        assert text in shown
    assert shown.count("x") >= 500


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        (ImageSizes((8, 8), (8, 8), (8, 8), 64.0), "Images: all 8x8"),
        (ImageSizes((1, 2), (30, 4), (50, 60), 99.0), "Images: 1x2 to 50x60, median 30x4"),
        (ImageSizes((2, 4), (4, 2), (4, 2), 8.0), "Images: 2x4 to 4x2, median 4x2"),
    ],
)
def test_sizes_of_images_are_width_by_height(sizes: ImageSizes, line: str) -> None:
    lines = printed(image_sizes=sizes).output.splitlines()
    assert line in lines
    assert "Throughput: whole images, no transform, each rank alone on this machine" in lines


def test_without_images_none_are_spoken_of() -> None:
    output = printed().output
    assert "Images:" not in output
    assert "Throughput: no images, each rank alone on this machine" in output


def test_speeds_are_shown_with_their_units() -> None:
    once = Throughput(1, 0.004, None, 7.0, 0.0004, {})
    rows = printed(throughputs=[SPEED, once]).throughput
    headings = ["rank", "first batch s", "later first batch s", "examples/s", "tail s"]
    assert [list(row) for row in rows] == [headings] * 2
    assert [list(row.values()) for row in rows] == [
        ["0", f"{12.345:.2f}", "0.50", "1234", f"{0.0625:.3f}"],
        ["1", "0.00", "-", "7", "0.000"],
    ]


def test_the_memory_is_that_of_the_heaviest_rank() -> None:
    light = Throughput(1, 1.0, None, 7.0, 0.0, {11: 1_100_000_000})
    output = printed(throughputs=[light, SPEED]).output
    assert "Memory (PSS, MB): this process 300, its children 900 + 5" in output.splitlines()
    alone = printed(throughputs=[light]).output
    assert "Memory (PSS, MB): this process 1,100" in alone.splitlines()


def test_ranks_at_the_same_time_are_not_said_to_read_alone() -> None:
    other = Throughput(1, 1.0, None, 7.0, 0.0, {21: 100_000_000})
    lines = printed(throughputs=[SPEED, other], is_torchrun=True).output.splitlines()
    assert "Throughput: no images, 2 ranks of torch.distributed at the same time on this machine" in lines
    assert "All ranks together: 1,241 examples/s" in lines
    assert "Memory (PSS, MB): rank 0 300, its children 900 + 5; all ranks 1,305" in lines
    alone = printed(is_torchrun=True).output
    assert "Throughput: no images, 1 rank of torch.distributed alone on this machine" in alone.splitlines()
    assert "Memory (PSS, MB): rank 0 300, its children 900 + 5\n" in alone
    assert "together" not in alone
    assert "together" not in printed(throughputs=[SPEED, other]).output


def test_where_the_system_tells_no_memory_none_is_shown() -> None:
    assert "Memory" not in printed(throughputs=[Throughput(0, 1.0, None, 7.0, 0.0, {})]).output


WHOLE = FusedMeasure(
    *("EvalPreprocess(size=[red])", False, 2, 0.001),
    FusedSpeed(
        2.5, 1480.4, 9, 300, 1.25, {stage: number / 4 for number, stage in enumerate(STAGES)}, {1: 10**8, 2: 10**9}
    ),
)


def test_whole_batches_are_shown_beside_single_examples_with_the_same_crop() -> None:
    """1,234 single examples a second, and half a millisecond for each with 2 workers."""
    lines = printed(width=400, fused=WHOLE).output.splitlines()
    how = "Whole batches: EvalPreprocess(size=[red]), create_loader, 2 workers, rank 0 alone: "
    assert (
        f"{how}1,480 examples/s; single examples with the same crop by Pillow about 763; first batch after 2.50 s; "
        "1,100 MB (PSS)" in lines
    )
    assert (
        "Stages of 9 batches in 1.25 s, seconds of all workers: read 0.00, decode 0.25, fetch 0.50, collate 0.75, "
        "hand-over 1.00, waiting 1.25" in lines
    )
    assert "Whole batches" not in printed().output


def test_whole_batches_are_not_compared_with_ranks_that_read_at_the_same_time() -> None:
    other = Throughput(1, 1.0, None, 7.0, 0.0, {})
    for throughputs, is_compared in (([SPEED], True), ([SPEED, other], False)):
        output = printed(width=400, fused=WHOLE, is_torchrun=True, throughputs=throughputs).output
        assert ("by Pillow" in output) is is_compared


def test_why_whole_batches_were_not_measured_is_one_line() -> None:
    failed = FusedMeasure("EvalPreprocess(size=8)", True, 0, None, None, "a [bold]reason[/]")
    lines = printed(width=400, fused=failed).output.splitlines()
    how = "Whole batches: EvalPreprocess(size=8), create_loader, without workers, rank 0 alone:"
    assert f"{how} not measured: a [bold]reason[/]" in lines
    assert not any(line.startswith("Stages") for line in lines)


def test_a_hundred_ranks_are_not_all_shown() -> None:
    ranks = [Throughput(rank, 1.0, None, 7.0, 0.0, {}) for rank in range(100)]
    checked = printed(throughputs=ranks)
    assert len(checked.throughput) == 24
    assert "and 76 more ranks" in checked.output


def test_advice_is_shown_whole_in_any_width() -> None:
    sentences = ["One [bold]sentence[/] about /a/path/" + "x" * 200 + ".", "Another one."]
    assert printed(width=400, advice=sentences).advice == sentences
    narrow = "".join(line[3:] for line in printed(width=40, advice=sentences).panel("Advice"))
    assert re.sub(r"\s", "", narrow) == re.sub(r"\s", "", "".join(sentences))
    assert "Advice" not in printed().output


def test_the_verdict_counts_what_broke() -> None:
    promises = [Promise("a", True, ""), Promise("b", False, "x"), Promise("c", False, "y")]
    for shown, verdict in ((promises, "2 of 3 promises broken.\n"), (promises[:1], "All 1 promises kept.\n")):
        output = io.StringIO()
        print_verdict(Console(file=output), shown)
        assert output.getvalue() == verdict


def test_a_promise_that_is_not_judged_is_named_with_the_reason() -> None:
    skipped = NotJudged("a long story", "no [bold]time[/]")
    assert "Not judged: a long story: no [bold]time[/]" in printed(not_judged=[skipped], width=30).output.splitlines()
    assert "Not judged" not in printed().output


def test_plain_text_is_no_markup() -> None:
    assert plain("[red]\x1b[0m").plain == r"[red]\x1b[0m"
    assert plain("[red]x").spans == []


@pytest.mark.parametrize(
    ("promises", "error", "is_kept"),
    [
        ([], None, False),
        ([Promise("a", True, "")], None, True),
        ([Promise("a", True, ""), Promise("b", False, "")], None, False),
        ([Promise("a", True, "")], ValueError("late"), False),
    ],
)
def test_findings_are_kept_only_if_every_promise_was_judged_and_kept(
    promises: list[Promise], error: Exception | None, is_kept: bool
) -> None:
    assert Findings(promises=promises, error=error).is_kept is is_kept
