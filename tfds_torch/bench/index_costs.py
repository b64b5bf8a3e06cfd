"""What an index and its order cost: the parts of the suite `index` that read no images."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import platformdirs

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.index_building import IndexFigures, measure_index
from tfds_torch.bench.made_records import write_shards
from tfds_torch.bench.order_speed import SLICE, num_places, slice_peak_bytes, slice_times_s
from tfds_torch.bench.section import Column, Section
from tfds_torch.bench.suite import Settings
from tfds_torch.bench.system import can_drop
from tfds_torch.bench.targets import Target, judge_figure
from tfds_torch.bench.turns import Say
from tfds_torch.errors import ConfigError
from tfds_torch.plan.order import BlockShuffle

MOST_BUILD_S = 20.0
MOST_BUILD_MB = 100.0
MOST_OPEN_MS = 50.0
MOST_SLICE_MS = 5.0
MOST_MEMORY_GROWTH = 1.1

_FULL_PHOTOS, _SMALL_RECORDS = 4096, 1_280_000
_SMALL_SIZES, _LARGE_SIZES = range(64, 201), range(100_000, 100_001)
_MOST_BUILDS = 3
_SMALL_N, _LARGE_N, _NUM_SLICES = 10**6, 10**10, 200


def measure_building(settings: Settings, say: Say) -> tuple[Section, list[Target]]:
    """Builds and opens indices of small and of large records, cold and warm.

    Raises:
        ConfigError: the records cannot be written.
    """
    num_small = max(settings.num_shards, _SMALL_RECORDS * settings.num_photos // _FULL_PHOTOS)
    rows, small = [], list[IndexFigures]()
    with _workplace() as folder:
        for title, num_records, sizes in (
            ("small", num_small, _SMALL_SIZES),
            ("100 KB", settings.num_photos, _LARGE_SIZES),
        ):
            say(f"writing {num_records:,} records")
            instructions = write_shards(folder / title, num_records, sizes, settings.num_shards)
            for kind in ("cold", "warm") if can_drop() else ("warm",):
                say(f"building the index of {num_records:,} records, {kind}")
                builds = [
                    measure_index(
                        instructions, f"made/{title}_{kind}:{number}.0.0", folder / "cache", is_cold=kind == "cold"
                    )
                    for number in range(min(_MOST_BUILDS, settings.num_repeats))
                ]
                name = f"{num_records:,} x {title if sizes is _LARGE_SIZES else '64 to 200 bytes'}, {kind}"
                rows.append(_building_row(name, builds))
                small += builds if sizes is _SMALL_SIZES else []
    section = Section(
        "building",
        "building and opening an index",
        f"Records in {settings.num_shards} TFRecord files. Every index is built, and opened when it is there, in fresh "
        "processes whose imports are not counted; memory is the resident size at its greatest above the one before. "
        "Cold: the files are dropped from the page cache (posix_fadvise) before. Opening holds the whole index "
        "against its checksum.",
        [
            Column("files", "records"),
            Column("build_s", "build, s", "{:.2f}"),
            Column("peak_mb", "memory for it, MB", "{:.1f}"),
            Column("open_ms", "open, ms", "{:.1f}"),
            Column("index_mb", "index, MB", "{:.2f}"),
        ],
        rows,
    )
    return section, judge_building(num_small, small)


def _building_row(name: str, builds: Sequence[IndexFigures]) -> dict[str, Any]:
    return {
        "files": name,
        "build_s": Spread.of(build.build_s for build in builds),
        "peak_mb": Spread.of(build.peak_bytes and build.peak_bytes / 1e6 for build in builds),
        "open_ms": Spread.of(build.open_s * 1e3 for build in builds),
        "index_mb": builds[0].index_bytes / 1e6,
    }


def judge_building(num_records: int, builds: Sequence[IndexFigures]) -> list[Target]:
    """Returns the targets of indices of small records, by the slowest and the largest of them."""
    peaks = [build.peak_bytes for build in builds if build.peak_bytes is not None]
    what = f"{num_records:,} small records"
    return [
        judge_figure(
            f"building the index of {what}",
            f"less than {MOST_BUILD_S:g} s",
            max(build.build_s for build in builds),
            "{:.2f} s",
            lambda seconds: seconds < MOST_BUILD_S,
        ),
        judge_figure(
            f"memory for building the index of {what}",
            f"less than {MOST_BUILD_MB:g} MB",
            max(peaks) / 1e6 if peaks else None,
            "{:.1f} MB",
            lambda megabytes: megabytes < MOST_BUILD_MB,
        ),
        judge_figure(
            f"opening the index of {what}",
            f"less than {MOST_OPEN_MS:g} ms",
            max(build.open_s for build in builds) * 1e3,
            "{:.1f} ms",
            lambda milliseconds: milliseconds < MOST_OPEN_MS,
        ),
    ]


def measure_order(say: Say) -> tuple[Section, list[Target]]:
    """Times slices of orders, and looks at their memory."""
    say("slices of the order")
    blocks = BlockShuffle(1024, 8)
    rows: list[dict[str, Any]] = []
    for name, num_examples, shuffle in (
        ("10^6 examples", _SMALL_N, None),
        ("10^10 examples", _LARGE_N, None),
        ("10^6 examples, blocks of 1,024 in windows of 8", _SMALL_N, blocks),
        ("10^10 examples, blocks of 1,024 in windows of 8", _LARGE_N, blocks),
    ):
        times = slice_times_s(num_examples, _NUM_SLICES, shuffle)
        rows.append(
            {
                "order": name,
                "slice_ms": Spread.of(seconds * 1e3 for seconds in times),
                "peak_kb": slice_peak_bytes(num_examples, shuffle) / 1e3,
            }
        )
    section = Section(
        "order",
        f"a slice of {SLICE:,} positions of the order",
        f"{_NUM_SLICES} slices all over the order; memory is what numpy and Python allocate for one, its result of "
        f"{8 * SLICE / 1e3:.0f} KB included.",
        [
            Column("order", "order"),
            Column("slice_ms", "a slice, ms", "{:.2f}"),
            Column("peak_kb", "memory for it, KB", "{:,.0f}"),
        ],
        rows,
    )
    return section, judge_order(rows[1]["slice_ms"], rows[0]["peak_kb"], rows[1]["peak_kb"])


def judge_order(slice_ms: Spread | None, small_kb: float, large_kb: float) -> list[Target]:
    """Returns the targets of a slice of 10^10 examples.

    Args:
        slice_ms: milliseconds of such a slice.
        small_kb: memory for a slice of 10^6.
        large_kb: memory for a slice of 10^10.
    """
    return [
        judge_figure(
            f"a slice of {SLICE:,} of 10^10",
            f"less than {MOST_SLICE_MS:g} ms",
            None if slice_ms is None else slice_ms.median,
            "{:.2f} ms",
            lambda milliseconds: milliseconds < MOST_SLICE_MS,
        ),
        judge_figure(
            "memory for a slice of 10^10",
            f"at most {MOST_MEMORY_GROWTH:g} x that of 10^6",
            large_kb / small_kb,
            "{:.2f} x",
            lambda ratio: ratio <= MOST_MEMORY_GROWTH,
        ),
    ]


def measure_locality(settings: Settings) -> Section:
    """Counts the places on the disk that consecutive examples of an order have."""
    num_examples = max(1 << 14, _SMALL_RECORDS * settings.num_photos // _FULL_PHOTOS)
    rows = []
    for block_records in (None, 64, 256, 1024):
        blocks = None if block_records is None else BlockShuffle(block_records, max(1, 8192 // block_records))
        rows.append(
            {
                "block_records": "none" if block_records is None else f"{block_records:,}",
                "in_a_batch": num_places(num_examples, 128, blocks),
                "in_a_window": num_places(num_examples, 8192, blocks),
            }
        )
    return Section(
        "locality",
        "how far apart the examples of a shuffled order lie",
        f"{num_examples:,} examples, `shuffle_buffer` 8,192: separate places on the disk (runs of direct neighbours) "
        "of the examples of a batch, and of all examples of a window.",
        [
            Column("block_records", "block_records"),
            Column("in_a_batch", "places of 128 consecutive examples", "{:,.1f}"),
            Column("in_a_window", "places of 8,192 consecutive examples", "{:,.1f}"),
        ],
        rows,
    )


@contextmanager
def _workplace() -> Iterator[Path]:
    """A folder for large files, on the disk that also holds datasets, and removed at the end."""
    parent = platformdirs.user_cache_path("tfds_torch") / "bench"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix="index-") as folder:
            yield Path(folder)
    except OSError as error:
        raise ConfigError(f"The records that are to be indexed cannot be written to {parent}: {error}.") from error
