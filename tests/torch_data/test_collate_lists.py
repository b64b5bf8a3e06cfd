"""Episodes as they are, of different lengths: lists of their values, or advice in the place of torch's error."""

import numpy as np
import pytest
from parsers.robot_episodes import LENGTHS, Robots

from tfds_torch import ImageDataset, ParserTfds, create_loader
from tfds_torch.errors import ConfigError


def whole_episodes(robots: Robots) -> ImageDataset:
    parser = ParserTfds(robots.root, "libero_like", image_key=None, target_key=None, batch_size=2)
    return ImageDataset(parser, fields=("steps", "episode_metadata/file_path"))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_list_of_the_values_of_each_field(robots: Robots, num_workers: int) -> None:
    with create_loader(whole_episodes(robots), num_workers=num_workers, collate_fn="list") as loader:
        batches = list(loader)
    assert [len(steps) for steps, _ in batches] == [2, 2, 1]
    assert sorted(len(episode) for steps, _ in batches for episode in steps) == sorted(LENGTHS["libero_like"])
    first = robots.episodes["libero_like"][0]
    np.testing.assert_array_equal(batches[0][0][0][3]["action"], first["steps"][3]["action"])
    assert batches[0][1][0] == first["episode_metadata"]["file_path"].decode()


def test_dictionaries_and_single_values_are_lists_too() -> None:
    rows = [{"x": np.zeros(size), "y": size} for size in range(3)]
    (batch,) = create_loader(rows, batch_size=3, collate_fn="list")
    assert batch["y"] == [0, 1, 2]
    assert [len(x) for x in batch["x"]] == [0, 1, 2]
    (batch,) = create_loader([np.zeros(1), np.zeros(2)], batch_size=2, collate_fn="list")
    assert [len(x) for x in batch] == [1, 2]


def test_steps_that_make_no_batch_get_advice(robots: Robots) -> None:
    with pytest.raises(ConfigError) as raised, create_loader(whole_episodes(robots)) as loader:
        next(iter(loader))
    message = str(raised.value)
    assert "the field 'steps' has 26 values in one of them and 20 in another" in message
    assert "collate_fn='list' leaves the values of each field a list" in message
    assert message.endswith("make batches as windows: ParserTfds(..., windows=Windows('steps', ...)).")
