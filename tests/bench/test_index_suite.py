"""The suite `index` as a whole: what it hands to its parts, and what it makes of their figures."""

from collections.abc import Sequence
from pathlib import Path

import platformdirs
import pytest
from bench.made_up import outcome

from tfds_torch import demo
from tfds_torch.bench import index_suite
from tfds_torch.bench.figures import Outcome
from tfds_torch.bench.index_suite import INDEX_SUITE
from tfds_torch.bench.read_modes import Contest
from tfds_torch.bench.suite import Run, Settings
from tfds_torch.bench.task import Peer, Task

SETTINGS = Settings(num_photos=8, batch_size=4, num_workers=2, num_repeats=5, timeout_s=60)


def test_every_part_has_its_section_and_only_warm_contests_are_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, tuple[Task, int]] = {}

    def compete(contest: Contest, task: Task, num_repeats: int, timeout_s: float, say: object) -> Sequence[Outcome]:
        asked[contest.name] = (task, num_repeats)
        peers = [Peer(mode.name, mode.name, "nowhere:nothing") for mode in contest.modes]
        return [outcome(peer, (50.0,) if contest.is_cold and peer.name == "index" else (100.0,)) for peer in peers]

    monkeypatch.setattr(index_suite, "compete", compete)
    monkeypatch.setattr(demo, "prepare_fake", lambda name, num_examples, **_: tmp_path / f"{name}-{num_examples}")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    found = INDEX_SUITE.measure(Run((), SETTINGS, tmp_path / "data", lambda text: None))
    contests = ["photos_parser", "photos_decoded", "photos_transformed", "png_parser", "png_arrays", "photos_cold"]
    assert [section.name for section in found.sections] == ["building", "order", "locality", *contests]
    assert list(asked) == contests
    assert (asked["png_arrays"][0].num_photos, asked["png_arrays"][0].data_dir) == (40, str(tmp_path / "cifar10-40"))
    assert (asked["photos_parser"][0].num_photos, asked["photos_parser"][1]) == (4, 5)
    assert (asked["photos_cold"][0].split, asked["png_parser"][0].split) == ("train[:50%]", "train")
    assert asked["photos_cold"][1] == 3  # Cold epochs are dear, and are not judged.
    speeds = [target for target in found.targets if target.name.startswith("mode index: ")]
    assert [target.found for target in speeds] == ["1.00 x"] * 5
    assert {section.bars for section in found.sections[3:]} == {"examples_per_s"}
    assert "2 workers" in found.sections[4].note
