"""The suite `feeder`: what a Feeder costs by itself.

Command: `python -m tfds_torch.bench feeder`. Explanation: a chunk goes through two queues and three threads: the one
that fetched it, the one that makes batches, and the loop's. Chunks of other sizes than a batch's are joined, which
copies every row once. How long that takes must not depend on how many rows wait.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.ready_chunks import BATCH_SIZE, CASES, SMALL, CutTime, FeedTime, run_cuts, run_feeds
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.runtime import fresh_process

MOST_US = 150.0
MOST_GROWTH = 1.5

_NUM_BATCHES = 2000
_SIZES = (1 << 16, 1 << 20)


def _measure(run: Run) -> Found:
    num_rounds = run.settings.num_repeats
    run.say("taking batches out of a Feeder")
    feeds = list(fresh_process.iterate(run_feeds, _NUM_BATCHES, num_rounds))
    run.say("cutting chunks into batches")
    cuts = list(fresh_process.iterate(run_cuts, _SIZES, num_rounds))
    return Found(judge_feeder(feeds, cuts), sections=[_feed_section(feeds), _cut_section(cuts)])


def judge_feeder(feeds: Sequence[FeedTime], cuts: Sequence[CutTime]) -> list[Target]:
    """Returns the targets of the suite: medians of all rounds."""
    targets = [
        judge_figure(
            f"overhead of a batch of {BATCH_SIZE} rows, chunks of {chunk_size}",
            f"at most {MOST_US:g} us",
            _median(feed.batch_us for feed in feeds if (feed.chunk_size, feed.shape) == (chunk_size, shape)),
            "{:.0f} us",
            MOST_US.__ge__,
        )
        for chunk_size, shape in CASES
        if shape == SMALL
    ]
    return [*targets, *(_judge_growth(cuts, kind) for kind in dict.fromkeys(map(_kind, cuts)))]


def _judge_growth(cuts: Sequence[CutTime], kind: tuple[int, int]) -> Target:
    own = [cut for cut in cuts if _kind(cut) == kind]
    least, most = (pick(cut.num_rows for cut in own) for pick in (min, max))
    few, many = (_median(cut.row_ns for cut in own if cut.num_rows == number) for number in (least, most))
    return judge_figure(
        f"time of a row, chunks of {kind[0]} to batches of {kind[1]}, {most:,} rows against {least:,}",
        f"at most {MOST_GROWTH:g} x",
        None if few is None or many is None else many / few,
        "{:.2f} x",
        MOST_GROWTH.__ge__,
    )


def _feed_section(feeds: Sequence[FeedTime]) -> Section:
    rows: list[dict[str, Any]] = [
        {
            "source": f"chunks of {chunk_size} x {list(shape)}",
            "batch_us": Spread.of(feed.batch_us for feed in feeds if (feed.chunk_size, feed.shape) == case),
        }
        for case in CASES
        for chunk_size, shape in [case]
    ]
    return Section(
        "feed",
        f"a batch of {BATCH_SIZE} out of a Feeder",
        "A fetch function returns the same chunk again and again: uint8 rows, and an int64 label for each. Two threads "
        "fetch; one loop takes, and does nothing else.",
        [Column("source", "source"), Column("batch_us", "time of a batch, us", "{:,.0f}")],
        rows,
        bars="batch_us",
    )


def _cut_section(cuts: Sequence[CutTime]) -> Section:
    cases = dict.fromkeys((_kind(cut), cut.num_rows) for cut in cuts)
    rows: list[dict[str, Any]] = [
        {
            "cut": f"{num_rows:,} rows, chunks of {kind[0]} to batches of {kind[1]}",
            "row_ns": Spread.of(cut.row_ns for cut in cuts if (_kind(cut), cut.num_rows) == (kind, num_rows)),
        }
        for kind, num_rows in cases
    ]
    return Section(
        "cut",
        "rebatching",
        "All chunks of int64 rows are there before the first batch is taken; no threads.",
        [Column("cut", "rows"), Column("row_ns", "time of a row, ns", "{:,.0f}")],
        rows,
    )


def _kind(cut: CutTime) -> tuple[int, int]:
    return cut.chunk_size, cut.batch_size


def _median(values: Iterable[float]) -> float | None:
    spread = Spread.of(values)
    return None if spread is None else spread.median


FEEDER = Suite(
    "feeder",
    "what a Feeder costs by itself",
    "This package's Feeder over chunks that lie ready, median (least to greatest).",
    _measure,
    "how it is measured, and why: tfds_torch.bench.feeder_suite",
)
