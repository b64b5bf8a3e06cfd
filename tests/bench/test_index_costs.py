"""The parts of the suite `index` that read no images: at a small size, and how they are judged."""

from pathlib import Path

import platformdirs
import pytest

from tfds_torch.bench.figures import Spread
from tfds_torch.bench.index_building import IndexFigures
from tfds_torch.bench.index_costs import judge_building, judge_order, measure_building, measure_locality, measure_order
from tfds_torch.bench.suite import Settings
from tfds_torch.errors import ConfigError

SMALL = Settings(num_photos=16, batch_size=4, num_workers=0, num_repeats=1, timeout_s=60)


def ignore(text: str) -> None:
    pass


def test_building_is_measured_warm_and_cold_and_leaves_no_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    section, targets = measure_building(SMALL, ignore)
    assert [row["files"] for row in section.rows] == [
        "5,000 x 64 to 200 bytes, cold",
        "5,000 x 64 to 200 bytes, warm",
        "16 x 100 KB, cold",
        "16 x 100 KB, warm",
    ]
    assert all(row["build_s"].least > 0 and row["open_ms"].least > 0 for row in section.rows)
    assert [target.kept for target in targets] == [True, True, True]
    assert list((tmp_path / "tfds_torch" / "bench").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tfds_torch").write_text("")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    with pytest.raises(ConfigError, match=r"^The records that are to be indexed cannot be written to .*bench: "):
        measure_building(SMALL, ignore)


@pytest.mark.parametrize(
    ("worst", "kept"),
    [
        (IndexFigures(19.9, 99_000_000, 0.049, 8), [True, True, True]),
        (IndexFigures(20.1, 101_000_000, 0.051, 8), [False, False, False]),
        (IndexFigures(1.0, None, 0.001, 8), [True, True, True]),  # Another one tells its memory.
    ],
)
def test_the_worst_build_is_judged(worst: IndexFigures, kept: list[bool]) -> None:
    targets = judge_building(100, [IndexFigures(1.0, 1_000_000, 0.001, 8), worst])
    assert [target.kept for target in targets] == kept


def test_memory_that_nobody_tells_cannot_be_judged() -> None:
    target = judge_building(100, [IndexFigures(1.0, None, 0.001, 8)])[1]
    assert (target.found, target.kept) == ("cannot be judged: there is no figure on this system", False)


@pytest.mark.parametrize(("milliseconds", "kb", "kept"), [(4.9, 110, [True, True]), (5.1, 120, [False, False])])
def test_slices_are_judged_by_time_and_by_growth(milliseconds: float, kb: float, kept: list[bool]) -> None:
    targets = judge_order(Spread(milliseconds, 1.0, 100.0), 100.0, kb)
    assert [target.kept for target in targets] == kept


def test_orders_are_measured_up_to_10_to_the_10(monkeypatch: pytest.MonkeyPatch) -> None:
    section, targets = measure_order(ignore)
    assert [row["order"] for row in section.rows][:2] == ["10^6 examples", "10^10 examples"]
    assert targets[1].kept
    assert len(targets) == 2


def test_blocks_lie_in_fewer_places() -> None:
    counts = [row["in_a_window"] for row in measure_locality(SMALL).rows]
    assert counts[0] > 10 * counts[1]
