"""Hugging Face Accelerate: loaders go through `prepare` as they are, and every example is read exactly once."""

import inspect
import json
import os
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import ChainDataset, DataLoader, IterableDataset

from integrations import accelerate_scenarios as scenarios
from tfds_torch import ImageDataset, World
from tfds_torch.errors import ConfigError
from tfds_torch.torch_data.accelerate_hook import _PrepareOwnShards

NUM_PHOTOS, NUM_RANKS, BATCH_SIZE, NUM_BATCHES = 61, 2, 8, 4
NUM_FILLED = NUM_RANKS * BATCH_SIZE * NUM_BATCHES - NUM_PHOTOS

RunRanks = Callable[..., list[Any]]


@pytest.fixture
def run_ranks(root: Path, tmp_path: Path) -> RunRanks:
    """`run_ranks(function, *args)`: runs a function of accelerate_scenarios.py on two ranks, as torchrun would.

    Returns their JSON results, rank by rank. A rank that fails ends the other one.
    """

    def run(function: Callable[..., Any], *args: object) -> list[Any]:
        command = [sys.executable, scenarios.__file__, function.__name__, *map(str, args)]
        environment = rank_environment(root)
        ranks = [
            subprocess.Popen(
                command,
                cwd=tmp_path,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(NUM_RANKS)
        ]
        try:
            outputs = [process.communicate() for process in ranks]
        finally:
            for process in ranks:
                process.kill()
        assert [process.returncode for process in ranks] == [0] * NUM_RANKS, outputs
        for _, complaints in outputs:
            assert "Warning" not in complaints
        return [json.loads(output.splitlines()[-1]) for output, _ in outputs]

    return run


def rank_environment(root: Path) -> dict[str, str]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")]),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(NUM_RANKS),
    }


def assert_exact_training(ranks: Iterable[Any]) -> None:
    """Asserts that an epoch of all ranks holds every example once, and the wrapped ones, in full batches."""
    rows = [row for rank in ranks for batch in rank for row in batch]
    assert [[len(batch) for batch in rank] for rank in ranks] == [[BATCH_SIZE] * NUM_BATCHES] * NUM_RANKS
    times = Counter(Counter(index for index, *_ in rows).values())
    assert times == {1: NUM_PHOTOS - NUM_FILLED, 2: NUM_FILLED}


def assert_exact_evaluation(ranks: Iterable[Any]) -> None:
    rows = [row for rank in ranks for batch in rank for row in batch]
    assert sorted(index for index, _, valid, _ in rows if valid) == list(range(NUM_PHOTOS))
    assert [label for _, label, valid, _ in rows if not valid] == [-100] * NUM_FILLED


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    """Filled by the first test that needs it: one run serves several promises."""
    return {}


@pytest.fixture
def ranks(run_ranks: RunRanks, data_root: Path, trained: dict[str, Any]) -> list[Any]:
    """What both ranks of a usual program saw."""
    if "ranks" not in trained:
        trained["ranks"] = run_ranks(scenarios.train_and_evaluate, data_root)
    return trained["ranks"]


@pytest.mark.slow
def test_prepared_loaders_give_every_example_exactly_once_on_two_ranks(ranks: list[Any]) -> None:
    for epoch in range(2):
        assert_exact_training([rank["epochs"][epoch] for rank in ranks])
        assert_exact_evaluation([rank["evaluated"][epoch] for rank in ranks])
    for rank in ranks:
        assert rank["len"] == rank["prepared len"] == [NUM_BATCHES, NUM_BATCHES]
    assert ranks[0]["weight"] == ranks[1]["weight"]


@pytest.mark.slow
def test_epochs_of_a_prepared_loader_advance_and_follow_its_set_epoch(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["epochs"][0] != rank["epochs"][1]
        assert rank["epoch 1 again"] == rank["epochs"][1]


@pytest.mark.slow
def test_gather_for_metrics_gives_every_valid_example_once_on_every_rank(ranks: list[Any]) -> None:
    for metrics in zip(*(rank["metrics"] for rank in ranks), strict=True):
        assert metrics[0] == metrics[1]
        assert sorted(index for index, _ in metrics[0]) == list(range(NUM_PHOTOS))


@pytest.mark.slow
def test_gradients_are_synchronised_at_the_end_of_a_prepared_loader(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["synchronised"] == [[False, False, True, True]] * 2, "every third batch, and the last"


@pytest.mark.slow
def test_skip_first_batches_gives_the_rest_of_the_epoch(ranks: list[Any]) -> None:
    for rank in ranks:
        assert rank["skipped"] == rank["epoch 2"][2:]


@pytest.mark.slow
def test_settings_that_do_not_share_examples_out_change_nothing(run_ranks: RunRanks, data_root: Path) -> None:
    for rank in run_ranks(scenarios.evaluate_with_settings, data_root):
        assert rank["finders"] == 0
        for name in ("late import", "even_batches", "dispatch_batches", "use_seedable_sampler", "rng_types"):
            assert sorted(index for index, _ in rank[name]) == list(range(NUM_PHOTOS)), name
        assert [row[0] for batch in rank["an explicit world"] for row in batch] == list(range(NUM_PHOTOS))
        assert len(rank["not ours"]) == NUM_BATCHES, "Accelerate shares out what does not do so itself"
        for name, message in rank["refused"].items():
            assert message.startswith(f"ConfigError: Accelerate was asked for {name}=True"), message


@pytest.mark.slow
def test_without_the_hook_examples_would_be_lost_and_every_rank_says_so(run_ranks: RunRanks, data_root: Path) -> None:
    """What makes the other tests able to fail."""
    ranks = run_ranks(scenarios.go_without_hook, data_root)
    for way in ("dispatched", "sharded"):
        read = {index for rank in ranks for index, valid in rank[way] if valid}
        assert len(read) <= NUM_BATCHES * BATCH_SIZE, "no more than the share of one rank"
        for rank in ranks:
            assert (
                "Accelerate would deal out this rank's share of photos:1.0.0 (train) once more, among 2 processes"
                in (rank[f"said when {way}"])
            )


@pytest.mark.slow
def test_persistent_workers_of_prepared_loaders_read_every_example_exactly_once(
    run_ranks: RunRanks, data_root: Path
) -> None:
    ranks = run_ranks(scenarios.train_with_workers, data_root)
    for epoch in range(2):
        assert_exact_training([rank["train"][epoch] for rank in ranks])
        assert_exact_evaluation([rank["evaluate"][epoch] for rank in ranks])
    for rank in ranks:
        assert rank["train"][0] != rank["train"][1]
        assert not rank["tensorflow"]


@pytest.mark.slow
def test_a_loader_that_was_handed_to_spawned_ranks_reads_every_example_exactly_once(
    root: Path, data_root: Path, tmp_path: Path
) -> None:
    command = [sys.executable, scenarios.__file__, "spawn_ranks", str(data_root), str(tmp_path)]
    # The process that starts the ranks is none itself.
    environment = {name: value for name, value in rank_environment(root).items() if name != "WORLD_SIZE"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(NUM_RANKS)]
    for epoch in range(2):
        assert_exact_training([rank[epoch] for rank in ranks])


# What the hook says and does, by itself


def prepare_data_loader(
    dataloader: Any,
    device: Any = None,
    num_processes: int | None = None,
    process_index: int | None = None,
    split_batches: bool = False,
    dispatch_batches: bool | None = None,
    torch_device_mesh: Any = None,
) -> dict[str, Any]:
    """Stands for Accelerate's, and returns what it was called with."""
    return dict(locals())


prepare = _PrepareOwnShards(prepare_data_loader, ImageDataset)


class Mesh(dict[str, Any]):
    """Stands for torch's DeviceMesh: name -> number of processes."""

    mesh_dim_names = property(lambda self: tuple(self))

    def __getitem__(self, name: str) -> Any:
        size = super().__getitem__(name)
        return type("Dimension", (), {"size": lambda self: size})()


def make_loader(root: Path, batch_size: int | None = BATCH_SIZE, **arguments: Any) -> "DataLoader[Any]":
    return DataLoader(scenarios.make_dataset(str(root), False, **arguments), batch_size)


def test_our_loaders_are_prepared_for_one_process_and_others_as_before(data_root: Path) -> None:
    ours, other = make_loader(data_root, world=World(1, 2)), DataLoader([1, 2, 3])  # type: ignore[arg-type]
    mesh = Mesh(dp_shard=2)
    given = {"device": "cpu", "num_processes": 2, "process_index": 1, "torch_device_mesh": mesh}
    left = {"split_batches": False, "dispatch_batches": None}
    assert prepare(other, **given) == {"dataloader": other, **given, **left}
    assert prepare(ours, "cpu", 2, process_index=1, torch_device_mesh=mesh) == {
        "dataloader": ours,
        "device": "cpu",
        "num_processes": 1,
        "process_index": 0,
        "split_batches": False,
        "dispatch_batches": False,
        "torch_device_mesh": None,
    }
    assert inspect.signature(prepare) == inspect.signature(prepare_data_loader)


class Wrapped(IterableDataset[Any]):
    """A user's dataset around ours."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.examples = dataset

    def __iter__(self) -> Iterator[Any]:
        return iter(self.examples)


@pytest.mark.parametrize("wrap", [Wrapped, lambda dataset: ChainDataset([dataset])], ids=["own", "chain"])
def test_a_dataset_around_ours_keeps_its_share_too(data_root: Path, wrap: Any) -> None:
    ours = scenarios.make_dataset(str(data_root), False, world=World(1, 2))
    loader = DataLoader(wrap(ours), BATCH_SIZE)
    assert prepare(loader, "cpu", 2, 1)["num_processes"] == 1
    with pytest.raises(ConfigError, match="split_batches=True"):
        prepare(loader, "cpu", 2, 1, split_batches=True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, None),
        ({"torch_device_mesh": Mesh(dp_replicate=2, dp_shard=2)}, None),
        ({"num_processes": 8}, "share 3 of 8; photos:1.0.0 (train) would read share 3 of 4"),
        ({"torch_device_mesh": Mesh(dp_shard=2, tp=2)}, "share 1 of 2; photos:1.0.0 (train) would read share 3 of 4"),
        ({"torch_device_mesh": Mesh(cp=2, tp=2)}, "world=World(rank=0, num_replicas=1)"),
    ],
)
def test_a_share_that_accelerate_counts_otherwise_is_refused(
    data_root: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str | None
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    call = {"num_processes": 4, "process_index": 3, **arguments}
    if said is None:
        assert prepare(make_loader(data_root), **call)["num_processes"] == 1
        return
    with pytest.raises(ConfigError) as caught:
        prepare(make_loader(data_root), **call)
    assert said in str(caught.value)
    assert prepare(make_loader(data_root, world=World(0, 1)), **call)["num_processes"] == 1, "an explicit world wins"


@pytest.mark.parametrize("setting", ["split_batches", "dispatch_batches"])
def test_a_setting_that_deals_out_batches_is_refused(data_root: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match=rf"asked for {setting}=True.* of one process \({BATCH_SIZE}\)"):
        prepare(make_loader(data_root), **{setting: True})


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
    loader = DataLoader(scenarios.make_dataset(str(data_root), False, world, batch_size=planned), batch_size)
    if is_refused:
        with pytest.raises(ConfigError, match=f"batches of 5, .* plans batch_size={planned}"):
            prepare(loader)
    else:
        prepare(loader)
