"""Hugging Face Accelerate: loaders go through `prepare`, every example is read exactly once, positions are saved."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from zygote import Script, torch_zygote

from integrations import accelerate_scenarios as scenarios
from integrations.exact import (
    BATCH_SIZE,
    NUM_BATCHES,
    NUM_PHOTOS,
    NUM_RANKS,
    assert_exact_evaluation,
    assert_exact_training,
)
from tfds_torch import ImageDataset, World
from tfds_torch.errors import ConfigError
from tfds_torch.integrations.accelerate import _check_batch_size, check_accelerator

RunRanks = Callable[..., list[Any]]
Ranks = list[dict[str, Any]]


def all_indices(rows: list[list[int]]) -> list[int]:
    return sorted(index for index, *_ in rows)


@pytest.mark.parametrize(
    "make_loader",
    [
        pytest.param(scenarios.make_ours, id="Loader"),
        pytest.param(scenarios.make_plain, id="DataLoader", marks=pytest.mark.slow),
    ],
)
def test_a_usual_program_on_two_ranks_reads_every_example_exactly_once(
    run_forked_ranks: RunRanks, data_root: Path, make_loader: Any
) -> None:
    ranks = run_forked_ranks(scenarios.train_and_evaluate, NUM_RANKS, str(data_root), make_loader)
    for epoch in range(2):
        assert_exact_training([rank["epochs"][epoch] for rank in ranks])
        assert_exact_evaluation([rank["evaluated"][epoch] for rank in ranks])
    first, second = ranks
    assert first["weight"] == second["weight"]
    # `gather_for_metrics` gives every valid example once, on every rank.
    assert first["metrics"] == second["metrics"]
    assert [all_indices(epoch) for epoch in first["metrics"]] == [list(range(NUM_PHOTOS))] * 2
    for rank in ranks:
        assert rank["len"] == rank["prepared len"] == [NUM_BATCHES, NUM_BATCHES]
        assert rank["epochs"][0] != rank["epochs"][1]
        assert rank["epoch 1 again"] == rank["epochs"][1], "it follows set_epoch"
        assert rank["synchronised"] == [[False, False, True, True]] * 2, "every third batch, and the last"


@pytest.mark.parametrize("num_ranks", [1, NUM_RANKS])
def test_a_loss_that_is_repeated_and_gathered_weighs_the_short_last_batch_by_its_examples(
    run_forked_ranks: RunRanks, data_root: Path, num_ranks: int
) -> None:
    """The mean of 0 to 60 is 30; the last batch, counted as a full one, would make it more."""
    found = run_forked_ranks(scenarios.gather_losses, num_ranks, str(data_root))
    assert len(found) == num_ranks
    for rank in found:
        assert len(rank) == (9 if num_ranks == NUM_RANKS else 11)
        for name, (mean, *numbers) in rank.items():
            first = {"skipped": num_ranks * BATCH_SIZE}.get(name, 0)
            last = 56 if name == "DataLoader that drops the last" else NUM_PHOTOS
            copies = num_ranks if "everything" in name else 1
            assert sorted(numbers) == sorted(list(range(first, last)) * copies), name
            total: float = sum(range(first, last))
            if name == "own dataset" and num_ranks == NUM_RANKS:  # Filled: the means are Accelerate's own, too.
                total += 5 * (sum(range(56, 61)) + 0 + 1 + 2) / BATCH_SIZE - sum(range(56, 61))
            assert mean == pytest.approx(total / (last - first)), name


def test_settings_that_do_not_share_examples_out_change_nothing(run_forked_ranks: RunRanks, data_root: Path) -> None:
    ranks = run_forked_ranks(scenarios.use_settings, NUM_RANKS, str(data_root))
    assert_exact_evaluation([rank["wrapped"] for rank in ranks])
    for rank in ranks:
        for name in ("even_batches", "dispatch_batches", "use_seedable_sampler", "rng_types"):
            assert all_indices(rank[name]) == list(range(NUM_PHOTOS)), name
        assert [row[0] for batch in rank["an explicit world"] for row in batch] == list(range(NUM_PHOTOS))
        assert len(rank["not ours"]) == NUM_BATCHES, "Accelerate shares out what does not do so itself"
        assert rank["prepared twice"] == [True, True]
        assert rank["asked twice"] == 1
        assert rank["skipped"] == rank["not skipped"][2:]
        assert len(rank["skipped"]) == 2
        said = rank["refused"]
        assert "load_state has restored its position" in said.pop("skip")
        assert "without workers: Accelerate reads a batch ahead" in said.pop("stateful")
        assert len(said) == 4
        for name, message in said.items():
            assert message.startswith(f"ConfigError: Accelerate was asked for {name.split()[0]}=True"), message


@pytest.mark.parametrize(
    ("num_ranks", "spawns"), [(1, False), (2, False), pytest.param(2, True, marks=pytest.mark.slow)]
)
def test_without_keep_own_shards_every_rank_raises_before_anything_is_read(
    run_forked_ranks: RunRanks, data_root: Path, num_ranks: int, spawns: bool
) -> None:
    found = run_forked_ranks(scenarios.forget_the_line, num_ranks, str(data_root), spawns)
    assert len(found) == num_ranks
    for rank in found:
        said = rank["said"]
        assert len(said) == (10 if spawns else 8)
        for way, message in said.items():
            if num_ranks == 1:
                assert message == "nothing", way
            else:
                assert message.startswith("ConfigError: ") or "forked" in way, (way, message)
                assert "photos:1.0.0 (train) once more, among 2 processes" in message, way
                assert "keep_own_shards(accelerator)" in message, way
        assert rank["of accelerate"] == ("accelerate.data_loader", "accelerate.accelerator"), "nothing is replaced"
        is_same, rows = rank["a Loader"]
        assert is_same
        assert rows, "it is left as it is, and exact"
    if num_ranks > 1:
        assert_exact_training([rank["a Loader"][1] for rank in found])


# Checkpoints


@pytest.mark.parametrize(
    ("num_batches", "num_workers", "then"),
    [
        pytest.param(NUM_BATCHES + 1, 0, 1, marks=pytest.mark.slow),
        pytest.param(2, 1, 0, marks=pytest.mark.campaign),
        pytest.param(NUM_BATCHES, 0, 0, marks=pytest.mark.slow),
        pytest.param(NUM_BATCHES, 1, 2, marks=pytest.mark.slow),
    ],
)
def test_a_saved_state_goes_on_exactly_in_as_many_ranks_and_in_fewer(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path, num_batches: int, num_workers: int, then: int
) -> None:
    root, folder = str(data_root), str(tmp_path / "state")
    saved = run_forked_ranks(scenarios.save, NUM_RANKS, root, folder, num_batches, scenarios.make_ours, num_workers)
    loaded = run_forked_ranks(scenarios.load, NUM_RANKS, root, folder, BATCH_SIZE, then)
    (alone,) = run_forked_ranks(scenarios.load, 1, root, folder, NUM_RANKS * BATCH_SIZE, then)
    for ours, theirs in zip(loaded, saved, strict=True):
        assert ours["epoch"] == num_batches // NUM_BATCHES, "of a whole epoch, the next one"
        assert ours["rest"] == theirs["rest"]
        assert ours["next"] == theirs["next"]
        assert all_indices(ours["evaluated"]) == list(range(NUM_PHOTOS))
    first, second = (rank["rest"] + rank["next"] for rank in saved)
    assert len(first) == NUM_BATCHES - num_batches % NUM_BATCHES + NUM_BATCHES
    assert alone["rest"] + alone["next"] == [[*ours, *others] for ours, others in zip(first, second, strict=True)]
    assert all_indices(alone["evaluated"]) == list(range(NUM_PHOTOS))


@pytest.mark.parametrize("num_batches", [1, pytest.param(NUM_BATCHES, marks=pytest.mark.slow)])
def test_a_saved_state_of_a_dataset_of_ones_own_goes_on_exactly(
    run_forked_ranks: RunRanks, tmp_path: Path, num_batches: int
) -> None:
    folder = str(tmp_path / "state")
    saved = run_forked_ranks(scenarios.save_numbers, NUM_RANKS, folder, num_batches)
    assert run_forked_ranks(scenarios.load_numbers, NUM_RANKS, folder, BATCH_SIZE) == saved
    (alone,) = run_forked_ranks(scenarios.load_numbers, 1, folder, NUM_RANKS * BATCH_SIZE)
    assert alone == [[*first, *second] for first, second in zip(*saved, strict=True)]
    assert sorted(number for batch in alone[-NUM_BATCHES:] for number in batch) == list(range(64))


@pytest.mark.parametrize(
    ("make_loader", "num_workers", "num_ranks"),
    [
        (scenarios.make_plain, 1, 1),
        pytest.param(scenarios.make_ours, 0, 1, marks=pytest.mark.slow),
        pytest.param(scenarios.make_plain, 1, NUM_RANKS, marks=pytest.mark.slow),
        pytest.param(scenarios.make_ours, 1, NUM_RANKS, marks=pytest.mark.slow),
    ],
)
def test_with_use_stateful_dataloader_a_state_goes_on_exactly(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path, make_loader: Any, num_workers: int, num_ranks: int
) -> None:
    found = run_forked_ranks(
        scenarios.go_on_stateful, num_ranks, str(data_root), str(tmp_path / "state"), make_loader, num_workers
    )
    assert len(found) == num_ranks
    for rank in found:
        assert rank["found"] == rank["expected"]
        assert rank["expected"][0]


def test_a_state_of_another_dataset_is_refused(run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    run_forked_ranks(scenarios.save, 1, str(data_root), folder, 2)
    (said,) = run_forked_ranks(scenarios.load_into_another_dataset, 1, str(data_root), folder)
    assert said.startswith("StateMismatchError: The state does not fit this dataset. dataset: 'photos:1.0.0'")


def test_a_state_without_the_position_of_a_plain_loader_is_warned_of(
    run_forked_ranks: RunRanks, data_root: Path, tmp_path: Path
) -> None:
    (said,) = run_forked_ranks(scenarios.save_plain, 1, str(data_root), str(tmp_path / "state"))
    assert said["before"] == said["after"] == "nothing"
    assert said["within"].startswith("UserWarning: accelerator.save_state does not hold how far")
    assert "tfds_torch.create_loader" in said["within"]


# What is refused, by itself


class Mesh(dict[str, Any]):
    """Stands for torch's DeviceMesh: name -> number of processes."""

    mesh_dim_names = property(lambda self: tuple(self))

    def __getitem__(self, name: str) -> Any:
        size = super().__getitem__(name)
        return type("Dimension", (), {"size": lambda self: size})()


class Counting:
    """Stands for an Accelerator: what it counts."""

    split_batches, dispatch_batches = False, None

    def __init__(self, num_processes: int = 4, process_index: int = 3, torch_device_mesh: Any = None) -> None:
        self.num_processes, self.process_index = num_processes, process_index
        self.torch_device_mesh = torch_device_mesh


@pytest.mark.parametrize(
    ("counting", "said"),
    [
        (Counting(), None),
        (Counting(torch_device_mesh=Mesh(dp_replicate=2, dp_shard=2)), None),
        (Counting(8), "share 3 of 8; photos:1.0.0 (train) would read share 3 of 4"),
        (
            Counting(torch_device_mesh=Mesh(dp_shard=2, tp=2)),
            "share 1 of 2; photos:1.0.0 (train) would read share 3 of 4",
        ),
        (Counting(torch_device_mesh=Mesh(cp=2, tp=2)), "world=World(rank=0, num_replicas=1)"),
    ],
)
def test_a_share_that_accelerate_counts_otherwise_is_refused(
    data_root: Path, monkeypatch: pytest.MonkeyPatch, counting: Any, said: str | None
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    if said is None:
        check_accelerator(counting, scenarios.make_dataset(str(data_root), False))
        return
    with pytest.raises(ConfigError) as caught:
        check_accelerator(counting, scenarios.make_dataset(str(data_root), False))
    assert said in str(caught.value)
    check_accelerator(
        counting, scenarios.make_dataset(str(data_root), False, world=World(0, 1))
    )  # An explicit world wins.


@pytest.mark.parametrize(
    ("batch_size", "planned", "world", "is_refused"),
    [
        (5, 8, World(0, 2), True),
        (5, 8, World(), True),
        (5, None, World(0, 2), True),
        (5, None, World(), False),
        (None, 8, World(0, 2), False),
        (8, 8, World(0, 2), False),
    ],
)
def test_another_batch_size_than_the_planned_one_is_refused(
    data_root: Path, batch_size: int | None, planned: int | None, world: World, is_refused: bool
) -> None:
    dataset = scenarios.make_dataset(str(data_root), False, world, batch_size=planned)
    loader = DataLoader(dataset, batch_size)
    if is_refused:
        with pytest.raises(ConfigError, match=f"batches of 5, .* plans batch_size={planned}"):
            _check_batch_size(loader, dataset)
    else:
        _check_batch_size(loader, dataset)


def test_building_and_copying_a_dataset_installs_nothing(root: Path, data_root: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, torch; from tfds_torch import ImageDataset, ParserTfds; import tfds_torch.integrations\n"
        f"ImageDataset; parser = ParserTfds({str(data_root)!r}, 'photos')\n"  # It imports TFDS, whose six installs one.
        "before = list(sys.meta_path); dataset = ImageDataset(parser)\n"
        "import pickle; pickle.loads(pickle.dumps(dataset))\n"
        "print(before == sys.meta_path, 'accelerate' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert Script(torch_zygote(), [str(script)], environment, tmp_path).finish().stdout == "True False\n"


def test_a_dataset_that_is_copied_while_nothing_is_iterated_travels(data_root: Path) -> None:
    dataset = scenarios.make_dataset(str(data_root), False)
    assert isinstance(pickle.loads(pickle.dumps(dataset)), ImageDataset)
