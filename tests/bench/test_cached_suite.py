"""The suite `cached`: how it is judged, and that its parts are measured."""

from pathlib import Path

import numpy as np
import pytest
from bench.made_up import outcome

from tfds_torch.bench import cached_suite
from tfds_torch.bench.cached_suite import CACHED, judge_cache, judge_opening, judge_pixels, write_pixels
from tfds_torch.bench.many_samples import Opening, measure_opening
from tfds_torch.bench.peers import small_pixels
from tfds_torch.bench.suite import Run, Settings
from tfds_torch.bench.task import FFCV, OURS, PLAIN, TIMM, TRAIN, Peer, Task


@pytest.mark.parametrize(("work", "least"), [(PLAIN, 2), (TRAIN, 3)])
def test_pixels_are_judged_by_ffcvs_speed_turn_by_turn(work: str, least: int) -> None:
    ours, ffcv = Peer(OURS, "tfds_torch", ""), Peer(FFCV, "FFCV", "")
    for speed, kept in ((100.0 * least, True), (99.0 * least, False)):
        judged, first_batch = judge_pixels(work, [outcome(ours, (speed,)), outcome(ffcv, (100.0,))])
        assert judged.kept is kept
        assert first_batch.wanted == "less than 0.3 s"
    judged, _ = judge_pixels(work, [outcome(ours, (1e9,)), outcome(ffcv, (), missing="not installed")])
    assert (judged.kept, judged.found) == (False, "cannot be judged: ffcv is missing: not installed")


def test_the_decoded_cache_is_judged_by_timms_speed() -> None:
    timm = outcome(Peer(TIMM, "timm", ""), (100.0,))
    assert judge_cache([outcome(Peer(OURS, "ours", ""), (10_000.0,)), timm]).kept
    assert not judge_cache([outcome(Peer(OURS, "ours", ""), (9_900.0,)), timm]).kept


def test_opening_is_judged_by_its_slowest_time_and_by_what_is_kept_for_a_sample() -> None:
    fine = Opening(1000, 0.9, 8000)
    assert [target.kept for target in judge_opening([fine])] == [True, True]
    assert [target.kept for target in judge_opening([fine, Opening(1000, 1.0, 9000)])] == [False, False]
    assert [target.kept for target in judge_opening([Opening(1000, 0.1, None)])] == [True, False]


def test_opening_is_measured_in_a_process_of_its_own(tmp_path: Path) -> None:
    opening = measure_opening(tmp_path, 50)
    assert opening.num_samples == 50
    assert 0 < opening.open_s < 60


def test_every_image_of_an_epoch_comes_once_with_and_without_augmentation(tmp_path: Path) -> None:
    write_pixels(str(tmp_path), 70)
    for work in (PLAIN, TRAIN):
        epochs = small_pixels.load(Task("", str(tmp_path), 70, 32, 0, image_shape=(3, 32, 32), work=work))
        batches = [images.numpy().copy() for images in epochs(0)]
        assert [batch.shape for batch in batches] == [(32, 3, 32, 32)] * 3  # The last one is filled up.
        if work == PLAIN:
            assert len({image.tobytes() for image in np.concatenate(batches)}) == 70


@pytest.mark.slow  # Processes of contestants, and a dataset that TFDS builds.
def test_the_suite_measures_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_suite, "_read_cache", lambda run, folder: [outcome(Peer(OURS, "ours", ""), (1.0,))])
    settings = Settings(num_photos=24, batch_size=4, num_workers=0, num_repeats=1, timeout_s=60)
    found = CACHED.measure(Run((), settings, tmp_path, lambda text: None))
    assert [section.name for section in found.sections] == [PLAIN, TRAIN, "cache", "opening"]
    plain = found.sections[0].rows[0]
    assert plain["examples_per_s"].least > 0
    assert len(plain["epochs"]) == 4
    assert len(found.targets) == 7
