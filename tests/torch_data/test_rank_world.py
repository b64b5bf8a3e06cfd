"""Which rank a process is: torch.distributed and the environment must agree."""

import pickle
from pathlib import Path

import pytest
import torch.distributed

from tfds_torch import ImageDataset, World
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.rank_world import find_rank
from torch_data import scenarios


@pytest.fixture
def rank_1_of_3(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.distributed is initialised."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)


def test_without_torch_distributed_the_environment_tells() -> None:
    assert find_rank({}) == World()
    assert find_rank({"RANK": "1", "WORLD_SIZE": "2"}) == World(1, 2)


@pytest.mark.usefixtures("rank_1_of_3")
@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({}, id="started by hand"),
        pytest.param({"RANK": "1", "WORLD_SIZE": "3"}, id="torchrun"),
        pytest.param({"WORLD_SIZE": "3"}, id="Lightning"),
        pytest.param({"RANK": "1"}, id="half"),
    ],
)
def test_torch_distributed_names_the_rank_where_the_environment_agrees_or_is_silent(environ: dict[str, str]) -> None:
    assert find_rank(environ) == World(1, 3)


@pytest.mark.usefixtures("rank_1_of_3")
@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"RANK": "0", "WORLD_SIZE": "3"}, "RANK=0, WORLD_SIZE=3"),
        ({"RANK": "1", "WORLD_SIZE": "4"}, "RANK=1, WORLD_SIZE=4"),
        ({"RANK": "first", "WORLD_SIZE": "3"}, "RANK=first, WORLD_SIZE=3"),
        ({"WORLD_SIZE": "2"}, "RANK=None, WORLD_SIZE=2"),
    ],
)
def test_a_contradiction_is_an_error_with_both_values(environ: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=f"torch.distributed reports rank 1 of 3, and the environment has {said}"):
        find_rank(environ)


@pytest.mark.usefixtures("rank_1_of_3")
def test_an_explicit_world_wins_over_a_contradiction(data_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    parser = scenarios.training_parser(data_root)
    assert len(ImageDataset(parser, world=World(0, 2))) == 32
    with pytest.raises(ConfigError, match="rank 1 of 3"):
        len(ImageDataset(parser))


def test_a_dataset_handed_to_a_training_process_finds_that_ones_rank(
    data_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = ImageDataset(scenarios.training_parser(data_root))
    handed = pickle.loads(pickle.dumps(dataset))
    handed._rank._of_parent = (-1, World(0, 1))  # As a spawning launcher resolved it, before there were ranks.
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert len(handed) == len(dataset) == 16
