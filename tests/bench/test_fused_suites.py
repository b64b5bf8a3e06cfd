"""The suites of whole batches: who takes part in what, and that everybody is given the work that is announced."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from bench.made_up import epoch

from tfds_torch import demo
from tfds_torch.bench import contests
from tfds_torch.bench.environments import Environment
from tfds_torch.bench.figures import EpochFigures, Memory
from tfds_torch.bench.fused_suites import JPEG, JPEG_EVAL, MEMORY, PNG32
from tfds_torch.bench.import_times import import_s
from tfds_torch.bench.suite import Found, Run, Settings, Suite
from tfds_torch.bench.task import Peer, Task
from tfds_torch.errors import ConfigError
from tfds_torch.runtime import fresh_process

SETTINGS = Settings(num_photos=64, batch_size=4, num_workers=2, num_repeats=3, timeout_s=60)


class Pretender:
    """A contestant that has nothing to do."""

    def __init__(self, peer: Peer, task: Task, timeout_s: float, environment: Environment) -> None:
        self.peer = peer
        self.task = task
        self.environment = environment
        ALL.append(self)

    def run_epoch(self) -> EpochFigures:
        return epoch(first_batch_s=4.0, num_examples=self.task.num_photos)

    def measure_memory(self) -> Memory:
        return Memory(5, (6,), 1)

    def end(self) -> None:
        pass


ALL: list[Pretender] = []


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a suite whose contestants pretend; FFCV's files cannot be written, DALI's environment cannot be made."""

    def convert(data_dir: Path, file_format: str, *, dataset: str) -> Path:
        if file_format == "beton":
            raise ConfigError("first line\nNo module named 'ffcv' (how to get it)")
        return data_dir / dataset / file_format

    def environment_of(peer: Peer, baseline: str) -> Environment:
        if peer.environment == "dali":
            raise ConfigError("nvidia-dali could not be installed: no room")
        return Environment(peer.environment, [], versions={f"of {baseline}": "1"} if peer.environment else {})

    ALL.clear()
    monkeypatch.setattr(contests, "environment_of", environment_of)
    monkeypatch.setattr(contests, "ContestantProcess", Pretender)
    monkeypatch.setattr(contests, "converted", convert)
    monkeypatch.setattr(demo, "prepare_fake", lambda name, num_examples, **_: tmp_path / f"{name}-{num_examples}")
    monkeypatch.setattr(fresh_process, "call", lambda function, module: {"torch": 1.0}[module])
    return lambda suite: suite.measure(Run(suite.peers, SETTINGS, tmp_path / "data", lambda text: None))


def tasks() -> dict[str, Task]:
    return {pretender.peer.name: pretender.task for pretender in ALL}


def names(peers: Sequence[Peer]) -> list[str]:
    return [peer.name for peer in peers]


@pytest.mark.parametrize("suite", [JPEG, JPEG_EVAL, PNG32], ids=lambda suite: suite.name)
def test_everybody_takes_part_in_whole_epochs(suite: Suite, measure: Any) -> None:
    found: Found = measure(suite)
    ours = {"jpeg": ["ours", "baseline"], "jpeg_eval": ["ours"], "png32": ["ours", "ours_batched", "baseline"]}
    others = ["ours_0", "timm", "webdataset", "grain", "dali", "ffcv", "limit"]
    assert names(suite.peers) == ours[suite.name] + others
    assert names([outcome.peer for outcome in found.outcomes]) == names(suite.peers)
    missing = {outcome.peer.name: outcome.missing for outcome in found.outcomes if outcome.missing}
    assert missing == {
        "dali": "nvidia-dali could not be installed: no room",
        "ffcv": "No module named 'ffcv' (how to get it)",
    }
    num_epochs = {len(outcome.epochs) for outcome in found.outcomes if not outcome.missing}
    assert num_epochs == {1 if suite is JPEG_EVAL else 3}


def test_photographs_are_trained_and_evaluated_with(measure: Any, tmp_path: Path) -> None:
    for suite, work, is_training in ((JPEG, "train", True), (JPEG_EVAL, "eval", False)):
        ALL.clear()
        measure(suite)
        for task in tasks().values():
            assert (task.dataset, task.work, task.is_training, task.num_photos) == ("photos", work, is_training, 64)
        assert tasks()["ours"].image_shape == (3, 224, 224)
        assert tasks()["limit"].image_shape is None  # It hands over nothing that could be looked at.
        assert tasks()["grain"].converted_dir == str(tmp_path / "data" / "photos" / "array_record")


def test_small_images_are_more_and_of_another_dataset(measure: Any, tmp_path: Path) -> None:
    measure(PNG32)
    ours = tasks()["ours"]
    assert (ours.dataset, ours.work, ours.is_training, ours.num_photos) == ("cifar10", "plain", True, 320)
    assert (ours.image_shape, ours.data_dir) == ((3, 32, 32), str(tmp_path / "cifar10-320"))


def test_memory_is_measured_in_fresh_processes_beside_the_imports(measure: Any) -> None:
    found: Found = measure(MEMORY)
    assert names(MEMORY.peers) == ["ours", "baseline", "ours_0", "ours_8", "timm", "ffcv"]
    assert [len(outcome.warm_ups) for outcome in found.outcomes] == [3, 1, 3, 3, 1, 0]
    assert len(ALL) == 11
    (imports,) = found.sections
    assert [(row["module"], row["import_s"].median) for row in imports.rows] == [("torch", 1.0)]
    assert [target.found for target in found.targets[:3]] == ["4.00 s"] * 3


def test_the_baseline_runs_in_its_own_environment_and_is_named_among_the_versions(measure: Any) -> None:
    found: Found = measure(JPEG)
    own = {pretender.peer.name: pretender.environment.executable for pretender in ALL}
    assert {name for name, environment in own.items() if environment} == {"baseline"}
    assert found.versions == {"of edba0d4": "1"}


def test_an_import_happens_while_it_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_by_a_test.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_s("imported_by_a_test") > 0
    assert sys.modules.pop("imported_by_a_test").__file__ == str(tmp_path / "imported_by_a_test.py")
