"""The suite `episodes`: its peers see the same windows, and its figures are what they are called."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench.made_up import SUITE_OF
from run_folder import built_once
from zygote import forked_instead_of_fresh, tensorflow_zygote

from benchmarks import episode_costs
from benchmarks.episode_costs import growth
from benchmarks.peers import frame_limit, rlds_stream
from benchmarks.tables import Table
from benchmarks.targets import judge
from benchmarks.task import Run, Settings, Task
from tfds_torch import demo
from tfds_torch.demo.episodes import make_episode

NUM_EPISODES = 4


@pytest.fixture(scope="session")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    """An epoch over a few episodes in two files."""

    def build(root: Path) -> None:
        with forked_instead_of_fresh():
            demo.prepare("episodes", root=root, num_examples=NUM_EPISODES, num_shards=2, progress=False)

    root = built_once(tmp_path_factory, "episodes of bench", build)
    return Task(
        str(root), None, NUM_EPISODES, 16, 1, dataset="episodes/bridge", image_shape=(3, 256, 256), work="plain"
    )


@pytest.mark.parametrize(
    ("sizes", "slope"),
    [([100.0, 100.0, 100.0], 0.0), ([1.0, 3.0, 5.0, 7.0], 2.0), ([10.0, 10.0, 90.0, 10.0, 10.0], 0.0), ([5.0], 0.0)],
)
def test_growth_is_a_slope_that_an_outlier_does_not_move(sizes: list[float], slope: float) -> None:
    assert growth(sizes) == slope


def read_stream(task: Task, num_batches: int) -> list[dict[str, Any]]:
    return list(rlds_stream.make_stream(task, 50).take(num_batches).as_numpy_iterator())


@pytest.mark.slow
def test_the_stream_has_the_windows_of_the_episodes(task: Task) -> None:
    batches = tensorflow_zygote().call(read_stream, task, 3)
    expected = set()
    for index in range(NUM_EPISODES):
        episode = make_episode(index, 0)
        actions = np.column_stack([episode.move, episode.grip]).astype(np.float32)
        state = np.column_stack([episode.pose, episode.gripper]).astype(np.float32)
        for step in range(len(episode)):
            rows = np.arange(step, step + 16)
            window = state[step], actions[np.minimum(rows, len(episode) - 1)], rows >= len(episode)
            expected.add(b"".join(part.tobytes() for part in window))
    for batch in batches:
        assert batch["image_primary"].shape == batch["image_wrist"].shape == (16, 256, 256, 3)
        for window in zip(batch["state"], batch["action"], batch["action_pad"], strict=True):
            assert b"".join(part.tobytes() for part in window) in expected


def run_epochs(load: Callable[[Task], Callable[[int], Any]], task: Task) -> list[int]:
    epochs = load(task)
    return [sum(len(batch) for batch in epochs(number)) for number in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "num_windows"),
    [
        pytest.param(rlds_stream.load_small, 22 * 16, id="stream"),
        pytest.param(frame_limit.load, None, id="limit"),
    ],
)
def test_an_epoch_has_its_windows(load: Any, num_windows: int | None, task: Task) -> None:
    counts = tensorflow_zygote().call(run_epochs, load, task)
    assert counts[0] == counts[1] if num_windows is None else counts == [num_windows, num_windows]
    assert abs(counts[0] - 90 * NUM_EPISODES) < 33


@pytest.mark.campaign
def test_the_suite_is_measured_for_real(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_costs, "NUM_EPOCHS", 2)
    settings = Settings(num_photos=64, batch_size=16, num_workers=1, num_repeats=1, timeout_s=200)
    run = Run((), settings, photos, lambda text: None)
    tables: dict[str, Table] = {table.name: table for table in measured(run)}
    assert list(tables) == ["windows", "memory", "index", "columns"]
    assert [reason for table in tables.values() for reason in table.reasons()] == []
    for row in tables["windows"].rows:
        assert all(150 < epoch["num_examples"] < 350 for epoch in row.epochs), row.name
    for verdict in judge(SUITE_OF["episodes"].targets, list(tables.values())):
        assert not verdict.found.startswith("cannot be judged"), verdict


def measured(run: Run) -> Iterator[Table]:
    yield from SUITE_OF["episodes"].measure(run)
