"""What is measured of this package alone, or in one process: states, loaders, Feeders, `.beton` files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from bench.made_up import SUITE_OF

from benchmarks import export_costs, loader_costs
from benchmarks.cached_costs import measure_opening, write_pixels
from benchmarks.peers import small_pixels, writers
from benchmarks.peers.multi_items import LOADER, SHARED, WEBDATASET, ZMQ
from benchmarks.tables import Table
from benchmarks.targets import judge
from benchmarks.task import PLAIN, TRAIN, Run, Settings, Task
from tfds_torch.errors import ConfigError


def measure(
    suite: str, data_dir: Path, *, num_photos: int = 8, num_workers: int = 0, num_repeats: int = 1
) -> list[Table]:
    """Measures a suite; every target of it finds its figure, but for those of peers that are missing."""
    settings = Settings(num_photos, 4, num_workers, num_repeats, timeout_s=120)
    tables = list(SUITE_OF[suite].measure(Run((), settings, data_dir, lambda text: None)))
    missing = [row.name for table in tables for row in table.rows if row.missing is not None]
    for verdict in judge(SUITE_OF[suite].targets, tables):
        is_known = not verdict.found.startswith("cannot be judged")
        assert is_known or any(f"{name} is missing" in verdict.found for name in missing), verdict
    return tables


def names(table: Table) -> list[str]:
    return [row.name for row in table.rows]


def least(table: Table, key: str) -> float:
    """The least of all figures of a column; every row has one."""
    spreads = [table.spread(name, key) for name in names(table)]
    return min(0.0 if spread is None else spread.least for spread in spreads)


@pytest.mark.slow
def test_states_and_resuming_are_measured_in_every_mode(photos: Path) -> None:
    states, resuming = measure("state", photos, num_photos=64)
    assert names(states) == ["index", "files", "examples"]
    assert 100 < least(states, "json_bytes") < 1000
    assert least(states, "save_ms") > 0
    assert len(resuming.rows) == 9
    assert least(resuming, "first_batch_s") > 0
    counts = [resuming.spread(name, "batches_read") for name in names(resuming)]
    assert counts[3:] == [None] * 6
    first, last = counts[0], counts[2]
    assert first is not None
    assert last is not None
    assert 1 <= last.median <= first.median <= 16
    # The stream modes read what comes before; the buffer holds all of the dataset.
    index, examples = (resuming.spread(f"{mode}_end", "read_mb") for mode in ("index", "examples"))
    assert index is not None
    assert examples is not None
    assert index.median < examples.median


@pytest.mark.slow
def test_both_loaders_are_measured_with_and_without_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loader_costs, "_NUM_BATCHES", 4)
    monkeypatch.setattr(loader_costs, "_NUM_LARGE", 3)
    small, large = measure("ready", tmp_path)
    assert names(small) == [f"{loader}_{number}" for number in range(3) for loader in ("loader", "torch")]
    assert [row.title for row in small.rows[:3]] == [
        "Loader, no workers",
        "DataLoader of torch, no workers",
        "Loader, 1 worker",
    ]
    assert names(large) == ["loader_2", "torch_2"]
    assert min(least(small, "batch_us"), least(large, "batch_us")) > 0


def test_batches_and_cuts_of_a_feeder_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loader_costs, "_NUM_FED", 20)
    monkeypatch.setattr(loader_costs, "_FEW", 4096)
    monkeypatch.setattr(loader_costs, "_MANY", 8192)
    feed, cut = measure("feeder", tmp_path, num_repeats=2)
    assert names(feed) == ["chunks of 256 x [8]", "chunks of 100 x [8]", "chunks of 100 x [3, 32, 32]"]
    assert names(cut) == ["chunks of 1 to batches of 256", "chunks of 4096 to batches of 1"]
    assert min(least(feed, "batch_us"), least(cut, "few_ns"), least(cut, "growth")) > 0


@pytest.mark.slow
def test_all_loaders_without_torch_are_measured(monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    monkeypatch.setattr(loader_costs, "_NUM_ITEMS", 20)
    items, pictures, memory = measure("multi", photos, num_workers=1)
    assert names(items) == [SHARED, ZMQ, WEBDATASET]
    assert names(pictures) == [SHARED, ZMQ, LOADER]
    assert min(least(items, "per_s"), least(pictures, "per_s")) > 0
    assert least(memory, "mebibytes") > 10


def test_writers_take_turns_and_one_that_is_missing_has_no_further_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def call(write: Callable[..., object], source: str, target: str, mode: str, num_photos: int) -> tuple[float, float]:
        calls.append(f"{write.__name__} {mode} {num_photos}")
        if write is writers.write_with_ffcv and mode == "raw":
            raise ConfigError("No module named 'ffcv' (install it)")
        return (2.0 if write is writers.export_beton else 8.0), 1.0

    monkeypatch.setattr(export_costs.subprocess_call, "call", call)
    monkeypatch.setattr(export_costs, "converted", lambda *arguments: tmp_path)
    settings = Settings(40, 4, 0, 2, timeout_s=120)
    passthrough, raw = export_costs.measure_beton(Run((), settings, tmp_path, lambda text: None))
    assert calls[:3] == ["export_beton passthrough 40", "write_with_ffcv passthrough 40", "export_beton passthrough 40"]
    assert calls[4:] == ["export_beton raw 40", "write_with_ffcv raw 40", "export_beton raw 40"]
    assert passthrough.texts()[1] == [
        ["tfds_torch", "20 (20 to 20)", "1.00 (1.00 to 1.00)"],
        ["FFCV, jpg", "5 (5 to 5)", "4.00 (4.00 to 4.00)"],
    ]
    assert raw.texts()[1][0] == ["tfds_torch", "20 (20 to 20)", "1.00 (1.00 to 1.00)"]
    assert raw.reasons() == ["FFCV, raw is missing: No module named 'ffcv' (install it)"]


def test_opening_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    figures = measure_opening(tmp_path, 50)
    assert 0 < (figures["open_s"] or 0) < 60
    assert figures["kept_bytes"] == pytest.approx((figures["kept_mb"] or 0) * 1e6 / 50)


def test_every_image_of_an_epoch_comes_once_with_and_without_augmentation(tmp_path: Path) -> None:
    write_pixels(str(tmp_path), 70)
    for work in (PLAIN, TRAIN):
        epochs = small_pixels.load(Task("", str(tmp_path), 70, 32, 0, image_shape=(3, 32, 32), work=work))
        batches = [images.numpy().copy() for images in epochs(0)]
        assert [batch.shape for batch in batches] == [(32, 3, 32, 32)] * 3  # The last one is filled up.
        if work == PLAIN:
            assert len({image.tobytes() for image in np.concatenate(batches)}) == 70


@pytest.mark.campaign  # Processes of competitors, and a dataset that TFDS builds.
def test_stored_pixels_and_the_decoded_cache_are_measured(photos: Path) -> None:
    tables = measure("cached", photos, num_photos=64)
    assert [table.name for table in tables] == [PLAIN, TRAIN, "cache", "opening"]
    assert [len(tables[number].rows[0].epochs) for number in range(3)] == [4, 4, 1]
    assert all(table.rows[0].missing is None for table in tables)
