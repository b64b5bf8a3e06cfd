"""The parts of the suite `index` that read no images, at a small size."""

from pathlib import Path

import platformdirs
import pytest

from benchmarks.index_costs import (
    measure_building,
    measure_index,
    measure_locality,
    measure_order,
    num_places,
    order_of,
    slice_peak_bytes,
    slice_times_s,
    write_shards,
)
from benchmarks.task import Run, Settings
from tfds_torch.errors import CorruptRecordError
from tfds_torch.plan.block_order import BlockShuffle
from tfds_torch.storage.tfrecord.framing import read_records

SMALL = Run((), Settings(num_photos=16, batch_size=4, num_workers=0, num_repeats=1, timeout_s=60), Path(), str)  # type: ignore[arg-type]


def test_building_is_measured_warm_and_cold_and_leaves_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    table = measure_building(SMALL)
    assert [row.title for row in table.rows] == [
        "5,000 x 64 to 200 bytes, cold",
        "5,000 x 64 to 200 bytes, warm",
        "16 x 100 KB, cold",
        "16 x 100 KB, warm",
    ]
    assert [row.name for row in table.rows] == ["small_cold", "small_warm", "large_cold", "large_warm"]
    for row in table.rows:
        assert "-" not in [column.text_of(row.figures[column.key]) for column in table.columns]
    assert "8 TFRecord files" in table.note
    assert list((tmp_path / "tfds_torch" / "bench").iterdir()) == []


@pytest.mark.parametrize("is_cold", [pytest.param(False, marks=pytest.mark.slow), True])
def test_an_index_is_built_stored_and_opened(is_cold: bool, tmp_path: Path) -> None:
    runs = write_shards(tmp_path / "made", 20_000, range(64, 201), 2)
    figures = measure_index(runs, "made:1.0.0", tmp_path / "cache", is_cold=is_cold)
    (stored,) = (tmp_path / "cache").rglob("*.index")
    assert figures["index_mb"] == 8 * 20_002 / 1e6
    assert 8 * 20_002 <= stored.stat().st_size < 8 * 20_002 + 4096
    assert min(figures["open_ms"] or 0, figures["build_s"] or 0) > 0
    assert 0 < (figures["peak_mb"] or 0) < 100


def test_what_cannot_be_indexed_is_an_error(tmp_path: Path) -> None:
    runs = write_shards(tmp_path / "made", 10, range(64, 65), 1)
    with open(runs[0].path, "r+b") as file:
        file.truncate(300)
    with pytest.raises(CorruptRecordError, match="it was cut"):
        measure_index(runs, "made:1.0.0", tmp_path / "cache", is_cold=False)


def test_orders_are_measured_up_to_10_to_the_10() -> None:
    table = measure_order(SMALL)
    assert [row.title for row in table.rows][:2] == ["10^6 examples", "10^10 examples"]
    growth = table.spread("10^10", "growth")
    assert growth is not None
    assert growth.median < 1.1
    times = slice_times_s(order_of(10**6), [0, 5000, 10**6 - 4096])
    assert len(times) == 3
    assert min(times) > 0


@pytest.mark.parametrize("blocks", [None, BlockShuffle(1024, 8)])
def test_memory_counts_the_slice_and_not_the_examples(blocks: BlockShuffle | None) -> None:
    small, large = (
        slice_peak_bytes(order_of(num_examples, blocks), num_examples // 2) for num_examples in (10**6, 10**10)
    )
    assert 8 * 4096 < small < 1e6
    assert 8 * 4096 < large < 1e6


def test_blocks_lie_in_fewer_places() -> None:
    table = measure_locality(SMALL)
    counts = [spread.median for name in ("none", "64") if (spread := table.spread(name, "in_a_window"))]
    assert counts[0] > 10 * counts[1]


@pytest.mark.parametrize(
    ("consecutive", "blocks", "places"),
    [
        (1024, BlockShuffle(1024, 1), 1.0),  # A window is one block.
        (8192, BlockShuffle(8192, 1), 1.0),
        (8192, None, 1.0),  # All examples there are.
    ],
)
def test_places_of_whole_windows_are_their_blocks(consecutive: int, blocks: BlockShuffle | None, places: float) -> None:
    assert num_places(8192, consecutive, blocks) == places
    assert 127 < num_places(1_000_000, 128) <= 128  # A global shuffle has hardly any neighbours.


def test_shards_hold_what_the_runs_promise_with_right_checksums(tmp_path: Path) -> None:
    runs = write_shards(tmp_path / "made", 3000, range(64, 201), 7)
    assert len({run.path for run in runs}) == 7
    assert [run.first_index for run in runs] == [sum(run.take for run in runs[:number]) for number in range(7)]
    assert sum(run.take for run in runs) == 3000
    lengths = []
    for run in runs:
        records = list(read_records(run.path))
        assert len(records) == run.take == run.num_in_shard
        lengths += map(len, records)
    assert (min(lengths), max(lengths)) == (64, 200)
    assert len(set(lengths)) == 137  # All of them.
    # Records may be larger than the bytes that are drawn for small ones.
    (run,) = write_shards(tmp_path / "large", 3, range(2_000_000, 2_000_001), 1)
    assert [len(record) for record in read_records(run.path)] == [2_000_000] * 3
