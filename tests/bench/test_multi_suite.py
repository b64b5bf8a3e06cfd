"""The suite `multi`: how it is judged, and that it is measured."""

from pathlib import Path

import pytest

from tfds_torch.bench import multi_suite
from tfds_torch.bench.multi_suite import MULTI, judge_multi
from tfds_torch.bench.peers.multi_items import LOADER, SHARED, WEBDATASET, ZMQ, Turn
from tfds_torch.bench.suite import Run, Settings


def turns(**speeds: float) -> list[Turn]:
    names = {"shared": SHARED, "webdataset": WEBDATASET, "loader": LOADER}
    return [Turn(names[name], per_s) for name, per_s in speeds.items() for _ in range(3)]


@pytest.mark.parametrize(
    ("of_items", "of_photos", "mebibytes", "kept"), [(20.0, 9.0, 120, [True] * 3), (19.0, 8.9, 121, [False] * 3)]
)
def test_each_ratio_and_the_memory_are_judged(
    of_items: float, of_photos: float, mebibytes: float, kept: list[bool]
) -> None:
    items, photos = turns(shared=of_items, webdataset=10.0), turns(shared=of_photos, loader=10.0)
    assert [target.kept for target in judge_multi(items, photos, mebibytes * 2**20)] == kept


def test_what_is_missing_is_not_kept() -> None:
    targets = judge_multi(turns(shared=1.0), [], None)
    assert not any(target.kept for target in targets)
    assert targets[0].found == "cannot be judged: WebDataset's MultiLoader is missing"


@pytest.mark.slow
def test_all_loaders_are_measured(monkeypatch: pytest.MonkeyPatch, photos: Path) -> None:
    monkeypatch.setattr(multi_suite, "_NUM_ITEMS", 20)
    settings = Settings(num_photos=8, batch_size=4, num_workers=1, num_repeats=1, timeout_s=60)
    found = MULTI.measure(Run((), settings, photos, lambda text: None))
    items, photos, memory = found.sections
    assert {SHARED, ZMQ} <= {row["loader"] for row in items.rows} | {ZMQ}
    assert [row["loader"] for row in photos.rows] == [SHARED, ZMQ, LOADER]
    assert all(row["per_s"].least > 0 for row in [*items.rows, *photos.rows])
    assert memory.rows[0]["mebibytes"].least > 10
    assert len(found.targets) == 3
