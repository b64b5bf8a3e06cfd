"""What a Feeder costs by itself: how it is judged, and that it is measured."""

from pathlib import Path

import pytest

from tfds_torch.bench import feeder_suite
from tfds_torch.bench.feeder_suite import FEEDER, judge_feeder
from tfds_torch.bench.ready_chunks import CASES, IMAGES, CutTime, FeedTime
from tfds_torch.bench.suite import Run, Settings


@pytest.mark.parametrize(("batch_us", "row_ns", "kept"), [(150.0, 15.0, True), (151.0, 15.1, False)])
def test_overhead_and_growth_are_judged(batch_us: float, row_ns: float, kept: bool) -> None:
    feeds = [FeedTime(chunk_size, shape, 1e9 if shape == IMAGES else batch_us) for chunk_size, shape in CASES]
    cuts = [CutTime(1, 256, number, time) for number, time in ((100, 10.0), (1600, row_ns))]
    assert [target.kept for target in judge_feeder(feeds, cuts)] == [kept] * 3
    assert not any(target.kept for target in judge_feeder([], []))


def test_batches_and_cuts_are_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(feeder_suite, "_NUM_BATCHES", 20)
    monkeypatch.setattr(feeder_suite, "_SIZES", (4096, 8192))
    settings = Settings(num_photos=8, batch_size=4, num_workers=0, num_repeats=2, timeout_s=60)
    found = FEEDER.measure(Run((), settings, tmp_path, lambda text: None))
    feed, cut = found.sections
    assert [row["source"] for row in feed.rows] == [
        "chunks of 256 x [8]",
        "chunks of 100 x [8]",
        "chunks of 100 x [3, 32, 32]",
    ]
    assert [row["cut"] for row in cut.rows][:2] == [
        "4,096 rows, chunks of 1 to batches of 256",
        "8,192 rows, chunks of 1 to batches of 256",
    ]
    assert len(cut.rows) == len(found.targets) == 4
    assert all(row["batch_us"].least > 0 for row in feed.rows)
    assert all(row["row_ns"].least > 0 for row in cut.rows)
    assert [target.found[-2:] for target in found.targets] == ["us", "us", " x", " x"]
