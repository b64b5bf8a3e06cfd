"""Figures and outcomes that nobody measured."""

from collections.abc import Callable, Sequence

from tfds_torch.bench.figures import EpochFigures, Memory, Outcome, Spread
from tfds_torch.bench.fused_targets import judge_jpeg, judge_memory, judge_png32
from tfds_torch.bench.report import Report
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suites import SUITES
from tfds_torch.bench.targets import Target, judge_sample, judge_start
from tfds_torch.bench.task import BATCHED, EIGHT_WORKERS, FUSED_PEERS, PEERS, Peer
from tfds_torch.runtime.epoch_times import EpochTimes

PEER_OF = {peer.name: peer for peer in (*FUSED_PEERS, BATCHED, EIGHT_WORKERS, *PEERS)}
IMPORT_S = Spread(0.3, 0.25, 0.35)
"""An import of torch, in the suite `memory`."""

JUDGES: dict[str, Callable[[Sequence[Outcome]], list[Target]]] = {
    "sample": judge_sample,
    "start": judge_start,
    "jpeg": judge_jpeg,
    "jpeg_eval": lambda outcomes: [],
    "png32": judge_png32,
    "memory": lambda outcomes: judge_memory(outcomes, IMPORT_S, num_workers=2, batch_bytes=20_000_000),
}


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
    very_first_batch_s: float = 0.5,
    start_s: tuple[float, float] = (4.0, 3.0),
    memory_bytes: tuple[int, ...] | None = (100_000_000, 200_000_000, 300_000_000),
    missing: str | None = None,
) -> Outcome:
    """A contestant with an epoch of each of the speeds, examples per second."""
    return Outcome(
        PEER_OF[peer] if isinstance(peer, str) else peer,
        [] if missing else [epoch(5.0, start_s=seconds, first_batch_s=very_first_batch_s) for seconds in start_s],
        [] if missing else [epoch(100 / speed, first_batch_s=first_batch_s, tail_s=tail_s) for speed in speeds],
        None if memory_bytes is None or missing else Memory(memory_bytes[0], memory_bytes[1:], num_samples=9),
        missing,
    )


def section(name: str = "speed", bars: str | None = "speed") -> Section:
    """Two rows with figures, one without."""
    return Section(
        name,
        f"the {name} of it",
        "How it was done.",
        [Column("mode", "read mode"), Column("speed", "examples/s"), Column("share", "x examples", "{:.2f}")],
        [
            {"mode": "index", "speed": Spread(1000.0, 900.0, 1100.0), "share": 1.1, "epochs": [{"whole_s": 2.0}]},
            {"mode": "examples", "speed": Spread(900.0, 800.0, 950.0), "share": 1.0},
            {"mode": "files", "speed": None},
        ],
        missing=["files is missing: it | broke"],
        bars=bars,
    )


def report(suite_name: str, outcomes: Sequence[Outcome], sections: Sequence[Section] = ()) -> Report:
    (suite,) = (suite for suite in SUITES if suite.name == suite_name)
    return Report(
        suite=suite.name,
        title=suite.title,
        method=suite.method,
        command=f"python -m tfds_torch.bench {suite.name}",
        date="2026-01-02T03:04:05Z",
        machine={
            "cpu": "A fine one",
            "num_cores": 2,
            "ram_bytes": 8 * 2**30,
            "kernel": "Linux 6.1",
            "architecture": "x86_64",
            "load_before": 0.25,
        },
        versions={"python": "3.11.0", "timm": None},
        settings={
            "num_photos": 4096,
            "batch_size": 128,
            "num_workers": 2,
            "num_repeats": 3,
            "timeout_s": 300.0,
            "num_shards": 8,
        },
        outcomes=outcomes,
        targets=JUDGES[suite.name](outcomes) if outcomes else [],
        sections=sections,
        configured=suite.configured,
    )
