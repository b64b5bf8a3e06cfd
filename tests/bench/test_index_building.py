"""Indices are really built and really opened, in processes of their own."""

from pathlib import Path

import pytest

from tfds_torch.bench.index_building import measure_index
from tfds_torch.bench.made_records import write_shards
from tfds_torch.errors import CorruptRecordError


@pytest.mark.parametrize("is_cold", [False, True])
def test_an_index_is_built_stored_and_opened(is_cold: bool, tmp_path: Path) -> None:
    runs = write_shards(tmp_path / "made", 20_000, range(64, 201), 2)
    figures = measure_index(runs, "made:1.0.0", tmp_path / "cache", is_cold=is_cold)
    (stored,) = (tmp_path / "cache").rglob("*.index")
    assert figures.index_bytes == 8 * 20_002
    assert figures.index_bytes <= stored.stat().st_size < figures.index_bytes + 4096
    assert min(figures.open_s, figures.build_s) > 0
    assert figures.peak_bytes is not None
    assert 0 < figures.peak_bytes < 100e6


def test_what_cannot_be_indexed_is_an_error(tmp_path: Path) -> None:
    runs = write_shards(tmp_path / "made", 10, range(64, 65), 1)
    with open(runs[0].path, "r+b") as file:
        file.truncate(300)
    with pytest.raises(CorruptRecordError, match="it was cut"):
        measure_index(runs, "made:1.0.0", tmp_path / "cache", is_cold=False)
