"""Made-up figures, outcomes and reports."""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.comparisons import JPEG
from benchmarks.figures import EpochFigures, Outcome
from benchmarks.report import Report
from benchmarks.suites import SUITES
from benchmarks.tables import Column, Ratio, Row, Spread, Table
from benchmarks.targets import judge
from benchmarks.task import PEERS, SINGLE_PEERS, Peer
from tfds_torch.runtime.metrics import EpochTimes

SUITE_OF = {suite.name: suite for suite in SUITES}


def epoch(
    whole_s: float = 2.0,
    *,
    num_examples: int = 100,
    first_batch_s: float = 0.5,
    tail_s: float = 0.01,
    start_s: float | None = None,
) -> EpochFigures:
    return EpochFigures(EpochTimes(first_batch_s, tail_s, whole_s, num_batches=4), num_examples, start_s, 0.0)


def outcome(
    peer: str | Peer,
    speeds: Sequence[float] = (100.0, 200.0, 150.0),
    *,
    first_batch_s: float = 0.5,
    tail_s: float = 0.01,
    memory_bytes: tuple[int, ...] = (100_000_000, 200_000_000, 300_000_000),
    missing: str | None = None,
) -> Outcome:
    """A competitor with an epoch of each of the speeds, examples per second."""
    return Outcome(
        (PEERS | SINGLE_PEERS)[peer] if isinstance(peer, str) else peer,
        [] if missing else [epoch(5.0, start_s=seconds) for seconds in (4.0, 3.0)],
        [] if missing else [epoch(100 / speed, first_batch_s=first_batch_s, tail_s=tail_s) for speed in speeds],
        [] if missing else list(memory_bytes),
        missing,
    )


def table_of(outcomes: Sequence[Outcome], table: Table = JPEG.table) -> Table:
    """The table of a comparison."""
    filled = table.fill(
        {one.peer.name: one.samples() for one in outcomes},
        {one.peer.name: one.peer.title for one in outcomes},
        {one.peer.name: one.missing for one in outcomes if one.missing is not None},
    )
    epochs = [[epoch.as_dict() for epoch in one.epochs] for one in outcomes]
    return replace(filled, rows=[replace(row, epochs=own) for row, own in zip(filled.rows, epochs, strict=True)])


def small_table(name: str = "speed") -> Table:
    """Two rows with figures, one without."""
    columns = [
        Column("speed", "examples/s"),
        Column("share", "x examples", "{:.2f}", has_spread=False, ratio=Ratio("speed", by="examples")),
    ]
    rows = [
        Row("index", "index", {"speed": Spread(1000.0, 900.0, 1100.0), "share": Spread(1.1, 1.0, 1.2)}),
        Row("examples", "examples", {"speed": Spread(900.0, 800.0, 950.0), "share": None}),
        Row("files", "files", {}, "it | broke"),
    ]
    return Table(name, f"the {name} of it", "How it was done.", "read mode", columns, rows)


def report(suite_name: str, tables: Sequence[Table], **fields: object) -> Report:
    suite = SUITE_OF[suite_name]
    machine = {"cpu": "A fine one", "num_cores": 2, "ram_bytes": 8 * 2**30, "kernel": "Linux 6.1"}
    made = Report(
        suite=suite.name,
        title=suite.title,
        method=suite.method,
        command=f"python -m benchmarks {suite.name}",
        date="2026-01-02T03:04:05Z",
        took_s=12.5,
        machine={**machine, "architecture": "x86_64", "load_before": 0.25},
        versions={"python": "3.11.0", "timm": None},
        settings={"num_photos": 4096, "batch_size": 128, "num_workers": 2, "num_repeats": 3, "num_shards": 8},
        tables=tables,
        targets=judge(suite.targets, tables),
        configured=suite.configured,
    )
    return replace(made, **fields)  # type: ignore[arg-type]
