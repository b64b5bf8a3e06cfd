"""The suite `ready`: what a loader costs that has nothing to read.

Command: `python -m tfds_torch.bench ready`. Explanation: torch's DataLoader is inside of the Loader. Without
workers the Loader adds its watchdog, metrics and state; with workers, a batch lies in memory that both processes see,
where torch sends a file descriptor for every tensor. What is left is torch's own queues and the waking of processes.
"""

from collections.abc import Sequence
from typing import Any

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.peers.ready_batches import LARGE_SHAPE, OURS, SHAPE, TORCH, ReadyEpoch, run_ready_epochs
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.runtime import fresh_process

MOST_US = {0: 30.0, 1: 300.0, 2: 300.0}
"""Microseconds a ready batch of `SHAPE` may cost, by the number of workers."""
MOST_HAND_OVER_US = 1000.0

_NUM_BATCHES, _NUM_LARGE = 1500, 100


def _measure(run: Run) -> Found:
    num_rounds = run.settings.num_repeats
    run.say("handing over small batches")
    small = list(fresh_process.iterate(run_ready_epochs, _NUM_BATCHES, SHAPE, tuple(MOST_US), num_rounds))
    run.say("handing over large batches")
    large = list(fresh_process.iterate(run_ready_epochs, _NUM_LARGE, LARGE_SHAPE, (2,), num_rounds))
    sections = [
        _section("ready", "a ready batch", SHAPE, small),
        _section("large", "a ready batch as large as one of photographs", LARGE_SHAPE, large),
    ]
    return Found(judge_ready(small, large), sections=sections)


def judge_ready(small: Sequence[ReadyEpoch], large: Sequence[ReadyEpoch]) -> list[Target]:
    """Returns the targets of the suite: medians of the Loader's epochs."""
    targets = [
        judge_figure(
            f"a ready batch of {' x '.join(map(str, SHAPE))}, {number or 'no'} worker{'s' if number != 1 else ''}",
            f"at most {most:g} us",
            _median(epoch.batch_us for epoch in _of(small, OURS, number)),
            "{:.0f} us",
            most.__ge__,
        )
        for number, most in MOST_US.items()
    ]
    return [
        *targets,
        judge_figure(
            f"hand-over of a batch of {' x '.join(map(str, LARGE_SHAPE))}",
            f"less than {MOST_HAND_OVER_US:g} us",
            _median(epoch.hand_over_us for epoch in _of(large, OURS, 2)),
            "{:.0f} us",
            lambda found: found < MOST_HAND_OVER_US,
        ),
    ]


def _section(name: str, title: str, shape: tuple[int, ...], epochs: Sequence[ReadyEpoch]) -> Section:
    rows: list[dict[str, Any]] = []
    for number in dict.fromkeys(epoch.num_workers for epoch in epochs):
        for loader in (OURS, TORCH):
            own = _of(epochs, loader, number)
            rows.append(
                {
                    "loader": f"{loader}, {number or 'no'} worker{'s' if number != 1 else ''}",
                    "batch_us": Spread.of(epoch.batch_us for epoch in own),
                    "hand_over_us": Spread.of(epoch.hand_over_us for epoch in own),
                }
            )
    return Section(
        name,
        title,
        f"A map-style dataset returns the same batch again and again: uint8 {list(shape)} and int64 [{shape[0]}]. The "
        "loaders take turns, epoch by epoch; the first batch is not counted. Hand-over: the batch was ready and the "
        "training process waited.",
        [
            Column("loader", "loader"),
            Column("batch_us", "time of a batch, us", "{:,.0f}"),
            Column("hand_over_us", "hand-over, us", "{:,.0f}"),
        ],
        rows,
        bars="batch_us",
    )


def _of(epochs: Sequence[ReadyEpoch], loader: str, num_workers: int) -> list[ReadyEpoch]:
    return [epoch for epoch in epochs if (epoch.loader, epoch.num_workers) == (loader, num_workers)]


def _median(values: Any) -> float | None:
    spread = Spread.of(values)
    return None if spread is None else spread.median


READY = Suite(
    "ready",
    "what a loader costs by itself",
    "This package's Loader and the DataLoader of torch that it is made of, over a dataset that has nothing to read, "
    "median (least to greatest).",
    _measure,
    "how it is measured, and why: tfds_torch.bench.ready_suite",
)
