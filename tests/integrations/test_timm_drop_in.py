"""timm's own create_dataset, create_loader and metrics, over our datasets, without the shim and with it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tfds_fixtures import Datasets, cache_home, datasets

from integrations import timm_lives
from integrations.timm_lives import GRIDS, NUM_EXAMPLES
from tfds_torch.runtime import subprocess_call

__all__ = ["cache_home", "datasets"]
pytestmark = pytest.mark.slow

ALL = list(range(NUM_EXAMPLES))
Life = Callable[..., Any]


@pytest.fixture(scope="module")
def lives(tmp_path_factory: pytest.TempPathFactory, data_root: Path, datasets: Datasets) -> dict[str, list[Any]]:
    root = tmp_path_factory.mktemp("lives")
    data = timm_lives.prepare_data(root, data_root, datasets.root)
    return subprocess_call.call(timm_lives.live_all, data, str(root / "store"))


@pytest.fixture
def life(lives: dict[str, list[Any]]) -> Life:
    """`life(function)`: what a life of timm_lives.py returned."""

    def result_of(function: Callable[..., Any]) -> Any:
        (result,) = lives[function.__name__]
        assert not isinstance(result, str), result
        return result

    return result_of


def flat(batches: list[list[int]]) -> list[int]:
    return [label for batch in batches for label in batch]


# Without the shim


def test_training_gives_the_planned_batches_in_every_epoch_that_is_set(life: Life) -> None:
    found = life(timm_lives.train_without_shim)
    first, second, again = found["epochs"]
    assert found["announced"] == 16
    for epoch in (first, second):
        assert [len(batch) for batch in epoch] == [4] * 16
        assert set(flat(epoch)) == set(ALL)  # And three of them twice.
    assert first != second == again
    assert found["persistent"] is True


def test_workers_deliver_bytes_and_the_loader_normalised_images(life: Life) -> None:
    found = life(timm_lives.train_without_shim)
    assert found["transform"] == "Compose"
    assert found["raw"] == ["torch.uint8", [4, 3, 32, 32], "torch.int64"]
    assert found["cooked"] == ["torch.float32", [4, 3, 32, 32], True]


def test_training_without_prefetcher_and_without_workers_is_the_same(life: Life) -> None:
    found = life(timm_lives.train_without_prefetcher)
    assert found["image"] == ["torch.float32", [4, 3, 32, 32]]
    assert found["announced 0"] == found["announced 1"] == 16
    assert found["labels 0"] == found["labels 1"]
    assert set(flat(found["labels 0"])) == set(ALL)


@pytest.mark.parametrize("num_workers", ["0", "1", "3"])
def test_evaluation_gives_every_example_once_and_the_announced_batches(life: Life, num_workers: str) -> None:
    found = life(timm_lives.evaluate_without_shim)
    assert found[num_workers]["announced"] == len(found[num_workers]["labels"]) == 9
    assert sorted(flat(found[num_workers]["labels"])) == ALL
    assert found["names"] == [f"{i}.jpg" for i in ALL]


# With the shim


@pytest.mark.parametrize(("when", "workers"), [("after, 3", 3), ("before, 3", 3), ("before, 0", 0)])
def test_names_belong_to_the_examples_of_an_evaluation(life: Life, when: str, workers: int) -> None:
    found = life(timm_lives.validate_with_shim)[when]
    assert found["names"] == [f"{label}.jpg" for label in found["labels"]]
    assert sorted(found["labels"]) == ALL
    assert (found["announced"], found["workers"]) == (9, workers)
    assert found["loader"] == "PrefetchLoader"  # One rank pads nothing: it is timm's own.
    assert found["labels"] == ALL  # By index the order depends on no number of workers.


def test_training_takes_the_batch_size_of_the_loader(life: Life) -> None:
    found = life(timm_lives.train_with_shim)
    assert found["announced"] == 13
    for epoch in found["epochs"]:
        assert [len(batch) for batch in epoch] == [5] * 13
        assert set(flat(epoch)) == set(ALL)
    assert found["epochs"][0] != found["epochs"][1]
    assert found["threads"] == 2


def test_image_mode_class_map_and_target_keys_are_as_in_timm(life: Life) -> None:
    found = life(timm_lives.read_as_asked)
    assert found["modes"] == ["L", "RGB"]
    label, mapped = found["labels"]
    assert mapped == 9 - label
    assert found["class_to_idx"] == [{name: 9 - int(name) for name in "0123456789"}, {"flag": 0, "small": 1}]
    flags, smalls = found["single targets"]
    expected = [[i for i, value in enumerate(pair) if value > 0] for pair in zip(flags, smalls, strict=True)]
    assert found["several targets"] == expected
    assert {0: [0], 1: [1], 2: [0, 1]}.items() <= dict(zip(smalls, expected, strict=True)).items()
    assert found["mask"] == "L"


def test_download_prepares_a_dataset_that_is_not_there(life: Life) -> None:
    assert life(timm_lives.download) == {"targets": [1000, 1001, 1002], "len": 3}


def test_other_datasets_stay_timms_own(life: Life) -> None:
    found = life(timm_lives.use_other_readers)
    assert found["readers"] == ["ReaderImageFolder", "ReaderImageFolder"]
    assert (found["loader"], found["labels"]) == ("PrefetchLoader", [[0]])
    assert found["unknown"].startswith("ModuleNotFoundError")


def test_install_replaces_once_and_everywhere(life: Life) -> None:
    found = life(timm_lives.install_twice)
    assert found["replaced"] == [True] * 6
    assert found["same"] is True
    assert found["everywhere"] is True
    assert found["signature"] is True
    assert found["pickled"] == 3.0
    assert found["reader_tfds"] is False


def test_install_that_comes_too_late_is_an_error_and_changes_nothing(life: Life) -> None:
    found = life(timm_lives.install_twice)
    for place, said in zip(("__main__", "engine"), found["too late"], strict=True):
        for fact in ("ConfigError", f"too late: {place} already holds", "create_loader", "before importing"):
            assert fact in said
    assert found["unchanged"] is True


@pytest.mark.parametrize(
    ("way", "facts"),
    [
        ("argument", ["'suffle_size'", "Did you mean 'shuffle_size'?"]),
        ("no name", ["''", "name/config:version"]),
        ("batch size", ["batch_size=4", "batches of 8"]),
        ("second loader", ["batch_size=8", "batch_size=4", "create_dataset() once for each loader"]),
        ("evaluation of training data", ["is_training=False", "examples twice"]),
        ("drop_last", ["is_training=True", "is_training=False"]),
        ("augmix", ["AugMixDataset", "--aug-splits"]),
        ("multi epochs", ["use_multi_epochs_loader=True", "persistent_workers"]),
        ("naflex", ["batch_size=4", "batches of 8"]),
    ],
)
def test_a_loader_that_cannot_work_is_a_config_error(life: Life, way: str, facts: list[str]) -> None:
    found = life(timm_lives.be_refused)[way]
    for fact in ("ConfigError", *facts):
        assert fact in found


# Several ranks


@pytest.mark.parametrize("grid", GRIDS)
def test_evaluation_on_several_ranks_equals_that_of_one_process(lives: dict[str, Any], grid: Any) -> None:
    (alone,) = lives[f"1 of {grid}"]
    ranks = lives[f"{grid[0]} of {grid}"]
    assert len(ranks) == grid[0]
    assert not isinstance(alone, str), alone
    for rank in ranks:
        assert not isinstance(rank, str), rank
        assert rank[0] == pytest.approx(alone[0], rel=1e-6)
        for found, expected in zip(rank[1:], alone[1:], strict=True):
            hits = found * grid[1] / 100
            assert hits == pytest.approx(round(hits), abs=1e-3)
            assert round(hits) == round(expected * grid[1] / 100)
    if grid[1] > 10:
        assert 0 < alone[1] < alone[2] < 100


def test_ranks_that_differ_are_told_so_by_create_loader(lives: dict[str, Any]) -> None:
    said = lives["differ"]
    assert said[0] == said[1]
    for fact in ("ConfigError", "seed is 0 on rank 0, 1 on rank 1"):
        assert fact in said[0]
