"""The suite `multi`: MultiLoader against torch's Loader, WebDataset's MultiLoader, and its own other transport.

Command: `python -m tfds_torch.bench multi`. Explanation: of small images, handing over is all of the work: arrays are
copied once, into shared memory, where WebDataset pickles, sends and unpickles them. Of photographs, decoding is nearly
all of it; what is left is the resize, which torch does faster than what there is without it.
"""

from collections.abc import Sequence
from typing import Any

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.peers.multi_items import (
    ITEM_SHAPE,
    LOADER,
    SHARED,
    WEBDATASET,
    ZMQ,
    Turn,
    run_item_turns,
    run_photo_turns,
    worker_bytes,
)
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Found, Run, Suite
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.runtime import fresh_process

LEAST_OF_LOADER, LEAST_OF_WEBDATASET = 0.9, 2.0
MOST_WORKER_BYTES = 120 * 2**20
"""Of a worker, above the batches that it shares."""

_NUM_ITEMS = 2000


def _measure(run: Run) -> Found:
    settings = run.settings
    num_workers, num_turns = max(1, settings.num_workers), settings.num_repeats
    run.say("handing over small images")
    items = list(fresh_process.iterate(run_item_turns, _NUM_ITEMS, num_workers, num_turns))
    run.say("reading photographs")
    photos = list(
        fresh_process.iterate(run_photo_turns, str(run.data_dir), settings.batch_size, num_workers, num_turns)
    )
    run.say("measuring workers")
    found = fresh_process.call(worker_bytes, str(run.data_dir), settings.batch_size, num_workers)
    sizes = Spread.of(size for size in found if size is not None)
    sections = [
        _section("items", f"items of {' x '.join(map(str, ITEM_SHAPE))} a second", "items/s", items),
        _section("photos", "photographs a second", "examples/s", photos),
        Section(
            "memory",
            "memory of a worker",
            "Resident memory of a spawned worker that reads photographs, after three epochs, without what it shares.",
            [Column("what", "process"), Column("mebibytes", "MiB", "{:.0f}")],
            [{"what": "a worker", "mebibytes": Spread.of(size / 2**20 for size in found if size is not None)}],
        ),
    ]
    return Found(judge_multi(items, photos, None if sizes is None else sizes.greatest), sections=sections)


def judge_multi(items: Sequence[Turn], photos: Sequence[Turn], most_bytes: float | None) -> list[Target]:
    """Returns the targets of the suite; ratios are medians of those of all turns.

    Args:
        items: turns over small images.
        photos: turns over photographs.
        most_bytes: of the largest worker, without its batches; None: the system does not tell.
    """
    return [
        _judge_ratio("small images", items, WEBDATASET, LEAST_OF_WEBDATASET),
        _judge_ratio("photographs", photos, LOADER, LEAST_OF_LOADER),
        judge_figure(
            "memory of a worker above its batches",
            f"at most {MOST_WORKER_BYTES / 2**20:g} MiB",
            None if most_bytes is None else most_bytes / 2**20,
            "{:.0f} MiB",
            lambda found: found <= MOST_WORKER_BYTES / 2**20,
        ),
    ]


def _judge_ratio(what: str, turns: Sequence[Turn], other: str, least: float) -> Target:
    ratio = _ratio(turns, SHARED, other)
    name, wanted = f"{what} against {other}", f"at least {least:g} x"
    if ratio is None:
        return Target(name, wanted, f"cannot be judged: {other} is missing", False)
    return judge_figure(name, wanted, ratio.median, "{:.2f} x", lambda found: found >= least)


def _ratio(turns: Sequence[Turn], one: str, other: str) -> Spread | None:
    pairs = zip(_speeds(turns, one), _speeds(turns, other), strict=False)
    return Spread.of(ours / theirs for ours, theirs in pairs)


def _section(name: str, title: str, unit: str, turns: Sequence[Turn]) -> Section:
    rows: list[dict[str, Any]] = [
        {"loader": loader, "per_s": Spread.of(_speeds(turns, loader)), "ratio": _ratio(turns, loader, SHARED)}
        for loader in (SHARED, ZMQ, WEBDATASET, LOADER)
        if _speeds(turns, loader)
    ]
    return Section(
        name,
        title,
        "The loaders take turns in one process; the first items of a turn are not counted, of photographs an epoch.",
        [
            Column("loader", "loader"),
            Column("per_s", unit, "{:,.0f}"),
            Column("ratio", f"of {SHARED}'s", "{:.2f}"),
        ],
        rows,
        bars="per_s",
    )


def _speeds(turns: Sequence[Turn], loader: str) -> list[float]:
    return [turn.per_s for turn in turns if turn.loader == loader]


MULTI = Suite(
    "multi",
    "what loaders without torch hand over",
    "MultiLoader, WebDataset's MultiLoader over the same arrays, and torch's Loader over the same photographs, median "
    "(least to greatest).",
    _measure,
    "how it is measured, and why: tfds_torch.bench.multi_suite",
)
