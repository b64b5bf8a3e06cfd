"""check_parser: what `python -m tfds_torch.check` proves of a dataset, of a parser that was made in Python."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console

from tfds_torch.check import report
from tfds_torch.check.expectation import expect
from tfds_torch.check.findings import Findings
from tfds_torch.check.index_promises import judge_index
from tfds_torch.check.ledger import EpochCounts, EpochEnd, Ledger
from tfds_torch.check.promises import judge
from tfds_torch.check.reading import HowRead, kept_batches, read_other_world, read_rank
from tfds_torch.check.reference import CheckedParser, choose_examples
from tfds_torch.check.resume import choose_points
from tfds_torch.check.sample import find_why_no_pixels, judge_compared, read_compared
from tfds_torch.check.throughput import RankReading
from tfds_torch.check.verdict import NotJudged, Promise
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.parser import DatasetParser
from tfds_torch.plan.world import World
from tfds_torch.runtime.arguments import check_integer
from tfds_torch.runtime.printable import quoted

_MOST_COMPARED = 32  # Examples of a subset.
_REPORT_WIDTH = 120


@dataclass(frozen=True)
class ParserReport:
    """What `check_parser` found. `print(report)` shows it; `assert report.is_kept, report` is a test.

    Attributes:
        promises: each with its `name`, whether it was `kept`, and a `detail` with figures and what broke it.
        not_judged: promises that this parser cannot be asked for, each with its `name` and `reason`.
        counts: epoch -> batches of each rank, and how many examples were valid, padded, missing, twice or unknown.
        text: the report as it is printed.
    """

    promises: Sequence[Promise]
    not_judged: Sequence[NotJudged]
    counts: Mapping[int, EpochCounts]
    text: str

    @property
    def is_kept(self) -> bool:
        """Whether every promise that was judged is kept."""
        return all(promise.kept for promise in self.promises)

    def __str__(self) -> str:
        return self.text


def check_parser(
    parser: DatasetParser,
    *,
    num_replicas: int = 1,
    num_workers: int = 2,
    num_epochs: int = 2,
) -> ParserReport:
    """Reads a parser as a training does, with every rank and real workers, and proves what came.

    It takes any parser: a dataset of one's own (`ParserMapStyle`), a subset, balanced or weighted examples, a mixture.
    The promises are those of the command: equal numbers of full batches on every rank, each example once (of a subset:
    its examples; of balanced ones: once in each pass of their class; of weighted ones: as often as their own order
    draws them), each rank's share, and in read mode `index` one order for any number of ranks and workers, and exact
    resume. Of some images the pixels are compared with Pillow's.

    Ranks read one after the other, through `create_loader`, in whole batches where the parser has a preprocess.

    Args:
        parser: what is checked, as the training script makes it.
        num_replicas: ranks, >= 1.
        num_workers: loader processes of a rank, >= 0.
        num_epochs: epochs that are read, >= 1.

    Raises:
        ConfigError: an argument that cannot work, or a parser that cannot be read in such a world.
        ShardError, CorruptRecordError, WorkerError: as reading raises them.
    """
    if not isinstance(parser, DatasetParser):
        raise ConfigError(
            f"check_parser: {quoted(parser)} is not a parser. Of a dataset of your own make one: "
            f"check_parser(ParserMapStyle(dataset, batch_size=32, is_training=True))."
        )
    num_replicas = check_integer("check_parser: num_replicas", num_replicas, 1)
    num_workers = check_integer("check_parser: num_workers", num_workers, 0)
    num_epochs = check_integer("check_parser: num_epochs", num_epochs, 1)
    findings = _examine(parser, num_replicas, num_workers, num_epochs)  # type: ignore[arg-type] # All kinds of parsers.
    return ParserReport(
        tuple(findings.promises), tuple(findings.not_judged), dict(findings.counts), _render(findings, parser)
    )


def _examine(parser: CheckedParser, num_replicas: int, num_workers: int, num_epochs: int) -> Findings:
    expected = expect(parser, num_replicas, num_workers, num_epochs)
    findings = Findings(parser=parser, expected=expected, num_workers=num_workers)
    indices = _choose_compared(parser)
    why_no_pixels = find_why_no_pixels(parser, indices)
    how = HowRead(num_workers, num_epochs, sample=frozenset(indices), has_pixels=why_no_pixels is None)
    is_index = expected.mode == "index"
    points = choose_points(expected.plan, num_epochs) if is_index else []
    kept = kept_batches(points, expected.plan.num_batches, num_epochs)
    ledger = findings.ledger = Ledger(expected, parser.class_names, kept)
    findings.readings = [_read(parser, how, world, ledger) for world in World.grid(num_replicas, 1)]
    findings.promises = judge(ledger)
    if is_index:
        other = read_other_world(parser, expected, how, findings.readings[0].resumed)
        findings.promises = [*findings.promises, *judge_index(ledger, findings.readings, other)]
    sample = read_compared(parser, expected, indices)
    judge_compared(findings, ledger, parser, sample, why_no_pixels=why_no_pixels)
    return findings


def _read(parser: CheckedParser, how: HowRead, world: World, ledger: Ledger) -> RankReading:
    """Reads as one rank, into the ledger."""
    epoch, reading = 0, None
    for step in read_rank(parser, how, world):
        if isinstance(step, RankReading):
            reading = step
        elif isinstance(step, EpochEnd):
            ledger.end(world.rank, epoch, step)
            epoch += 1
        else:
            ledger.add(world.rank, epoch, step)
    assert reading is not None  # noqa: S101 (the last step)
    return reading


def _choose_compared(parser: CheckedParser) -> list[int]:
    """Returns the numbers of examples that are compared with another reader, ascending."""
    subset = parser.selected
    if subset is None:
        return choose_examples(parser.files, parser.mean_example_bytes, parser.seed)
    places = np.linspace(0, len(subset) - 1, min(len(subset), _MOST_COMPARED)).round().astype(np.int64)
    return sorted(set(subset.numbers[places].tolist()))


def _render(findings: Findings, parser: DatasetParser) -> str:
    """Returns the report as text."""
    console = Console(file=io.StringIO(), width=_REPORT_WIDTH, emoji=False, highlight=False)
    console.print(report.plain(f"{parser.dataset_name}, split {parser.split}"), soft_wrap=True)
    if findings.expected is not None:
        console.print(report.describe_plan(findings.expected), soft_wrap=True)
    report.print_judged(console, findings)
    report.print_verdict(console, findings.promises)
    assert isinstance(console.file, io.StringIO)  # noqa: S101 (that of above)
    return console.file.getvalue().rstrip()
