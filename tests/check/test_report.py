"""What is printed of the findings: labels, sizes, speeds, memory, advice."""

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from unittest import mock

import pytest
from rich.console import Console

from check.machine import Checked, no_control_characters
from tfds_torch.check.content import ImageSizes, LabelCount
from tfds_torch.check.delivery import Delivery
from tfds_torch.check.figures import show_seconds
from tfds_torch.check.findings import Findings
from tfds_torch.check.ledger import EpochCounts, Ledger
from tfds_torch.check.report import describe_network, plain, print_findings, print_verdict
from tfds_torch.check.throughput import STAGES, RankReading
from tfds_torch.check.verdict import CappedList, NotJudged, Promise
from tfds_torch.runtime.metrics import EpochTimes
from tfds_torch.storage.network import NetworkStats


def speed(
    rank: int, first_batch_s: float, rate: float, tail_s: float = 0.0, memory: Mapping[int, int] = {}
) -> RankReading:
    """Returns the reading of one epoch of 10 s."""
    return RankReading(rank, [EpochTimes(first_batch_s, tail_s, 10.0, 9)], [round(10 * rate)], memory)


SPEED = RankReading(
    0,
    [EpochTimes(12.345, 0.0625, 99.0, 9), EpochTimes(0.5, 0.0, 10.0, 9)],
    [12_344, 12_344],
    {11: 300_000_000, 12: 5_000_000, 13: 900_000_000},
)


class PlayedLedger(Ledger):
    """A ledger that knows nothing but one epoch and its labels."""

    def __init__(self, labels: Sequence[LabelCount]) -> None:
        self.counts = {0: EpochCounts((1,), CappedList(), CappedList(), CappedList(), 3, 0)}
        self.num_batches = 0
        self.labels = mock.Mock(counts=lambda: labels)


def printed(width: int = 160, labels: Sequence[LabelCount] = (), **found: object) -> Checked:
    """Returns what is printed of findings, as that of a check."""
    findings = Findings(
        ledger=PlayedLedger(labels),
        promises=[Promise("all well", True, "yes")],
        **{"readings": [SPEED], **found},  # type: ignore[arg-type]
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
        (ImageSizes(1, (8, 8), (8, 8), (8, 8), 64.0), "Images: all 8x8 (1 image looked at)"),
        (ImageSizes(9, (1, 2), (30, 4), (50, 60), 99.0), "Images: 1x2 to 50x60, median 30x4 (9 images looked at)"),
        (ImageSizes(2, (2, 4), (4, 2), (4, 2), 8.0), "Images: 2x4 to 4x2, median 4x2 (2 images looked at)"),
    ],
)
def test_sizes_of_images_are_width_by_height(sizes: ImageSizes, line: str) -> None:
    lines = printed(image_sizes=sizes).output.splitlines()
    assert line in lines
    assert "Throughput: each rank alone on this machine" in lines
    assert "Images:" not in printed().output


def test_speeds_are_shown_with_their_units() -> None:
    once = speed(1, 0.004, 7.0, 0.0004)
    rows = printed(readings=[SPEED, once]).throughput
    headings = ["rank", "first batch s", "later first batch s", "examples/s", "tail s"]
    assert [list(row) for row in rows] == [headings] * 2
    assert [list(row.values()) for row in rows] == [
        ["0", f"{12.345:.2f}", "0.50", "1234", f"{0.0625:.3f}"],
        ["1", "0.00", "-", "7", "0.000"],
    ]


def test_the_memory_is_that_of_the_heaviest_rank() -> None:
    light = speed(1, 1.0, 7.0, memory={11: 1_100_000_000})
    output = printed(readings=[light, SPEED]).output
    assert "Memory (PSS, MB): this process 300, its children 900 + 5" in output.splitlines()
    alone = printed(readings=[light]).output
    assert "Memory (PSS, MB): this process 1,100" in alone.splitlines()


def test_ranks_at_the_same_time_are_not_said_to_read_alone() -> None:
    other = speed(1, 1.0, 7.0, memory={21: 100_000_000})
    lines = printed(readings=[SPEED, other], is_torchrun=True).output.splitlines()
    assert "Throughput: 2 ranks of torch.distributed at the same time on this machine" in lines
    assert "All ranks together: 1,241 examples/s" in lines
    assert "Memory (PSS, MB): rank 0 300, its children 900 + 5; all ranks 1,305" in lines
    alone = printed(is_torchrun=True).output
    assert "Throughput: 1 rank of torch.distributed alone on this machine" in alone.splitlines()
    assert "Memory (PSS, MB): rank 0 300, its children 900 + 5\n" in alone
    assert "together" not in alone
    assert "together" not in printed(readings=[SPEED, other]).output


def test_where_the_system_tells_no_memory_none_is_shown() -> None:
    assert "Memory" not in printed(readings=[speed(0, 1.0, 7.0)]).output


def test_the_stages_of_rank_0_are_shown_where_its_loader_tells_them() -> None:
    staged = replace(SPEED, stages={stage: number / 4 for number, stage in enumerate(STAGES)})
    other = speed(1, 1.0, 7.0)
    lines = printed(width=400, readings=[staged, other]).output.splitlines()
    assert (
        "Stages of 9 batches of rank 0 in 10.00 s, seconds of all workers: read 0.00, download 0.25, "
        "decode 0.50, fetch 0.75, collate 1.00, hand-over 1.25, waiting 1.50" in lines
    )
    assert "Stages" not in printed(readings=[other]).output


@pytest.mark.parametrize(
    ("delivery", "line"),
    [
        (
            Delivery("create_loader", True, "TrainPreprocess(size=[red])", False, None),
            "create_loader, whole batches, preprocess=TrainPreprocess(size=[red]) (the usual one; a recipe gives "
            "another)",
        ),
        (
            Delivery("DataLoader", True, "EvalPreprocess(size=8)", True, None),
            "DataLoader, whole batches, preprocess=EvalPreprocess(size=8) (the recipe's own)",
        ),
        (
            Delivery("DataLoader", False, None, False, "a [bold]reason[/]"),
            "DataLoader, single examples without a preprocess: a [bold]reason[/]",
        ),
    ],
)
def test_how_the_examples_were_read_is_one_line(delivery: Delivery, line: str) -> None:
    assert f"Read by {line}" in printed(width=400, delivery=delivery).output.splitlines()


def test_a_hundred_ranks_are_not_all_shown() -> None:
    ranks = [speed(rank, 1.0, 7.0) for rank in range(100)]
    checked = printed(readings=ranks)
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


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0.0 ms"),
        (0.0004, "0.4 ms"),
        (0.3399, "340 ms"),
        (0.9996, "1 s"),
        (1.234, "1.23 s"),
        (12.34, "12.3 s"),
        (2500, "2,500 s"),
    ],
)
def test_a_duration_has_three_digits_at_most(seconds: float, shown: str) -> None:
    assert show_seconds(seconds) == shown


def test_what_was_asked_of_object_stores_is_a_line() -> None:
    parser = mock.Mock(source=range(100), mean_example_bytes=1000)
    line = describe_network(Findings(parser=parser, network=NetworkStats(12, 1, 110_000, 400_000, 2.5)))
    assert line == (
        "Network: 12 requests, 1 of them sent again; 110 kB fetched (1.10 of the split), 400 kB read; readers waited "
        "2.5 s, all together"
    )
    assert describe_network(Findings(parser=parser)) == ""
