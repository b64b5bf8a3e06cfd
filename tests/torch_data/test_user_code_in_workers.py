"""What users' code finds in the workers of a Loader over an ImageDataset, and what it may return."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tfds_torch import ImageDataset, Loader, ParserTfds, World, create_loader
from tfds_torch.errors import WorkerError
from torch_data import user_code

BATCH_SIZE = 4
slow, campaign = pytest.mark.slow, pytest.mark.campaign
METHODS = ["fork", pytest.param("spawn", marks=slow), pytest.param("forkserver", marks=campaign)]
MANY_METHODS = ["fork", *(pytest.param(method, marks=campaign) for method in ("spawn", "forkserver"))]
"""Of what workers do alike once they have begun."""


def make_loader(
    root: str, method: str = "fork", target_transform: Any = None, world: World | None = None, **options: Any
) -> Loader:
    parser = ParserTfds(root, "numbered", is_training=True, batch_size=BATCH_SIZE)
    dataset = ImageDataset(parser, fields=("label", "index"), target_transform=target_transform, world=world)
    return create_loader(
        dataset, 2, multiprocessing_context=method, timeout_s=100, **{"collate_fn": list, "seed": 3, **options}
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_transform_finds_its_worker_with_the_users_dataset(method: str, numbered_root: str) -> None:
    with make_loader(numbered_root, method, user_code.Info()) as loader:
        iteration = iter(loader)
        pids = list(loader.worker_pids)
        told = [{info for (_, info), _ in batch} for batch in iteration]
    assert all(len(infos) == 1 for infos in told), "a batch is of one worker"
    workers = [infos.pop() for infos in told]
    seeds = [workers[0][2], workers[1][2]]
    assert len(set(seeds)) == 2
    for number, worker in enumerate(workers):
        turn = number % 2
        assert worker == (turn, 2, seeds[turn], "ImageDataset", "numbered:1.0.0", pids[turn])


def draw(root: str, method: str = "fork", epochs: int = 2, **options: Any) -> list[list[Any]]:
    """Returns what a transform draws in some epochs."""
    with make_loader(root, method, user_code.Draws(), **options) as loader:
        return [[drawn for batch in loader for drawn, _ in batch] for _ in range(epochs)]


def test_draws_depend_on_seed_epoch_rank_and_worker_only(numbered_root: str) -> None:
    first, second = draw(numbered_root)
    torch.manual_seed(9)
    random.seed(9)
    assert draw(numbered_root, persistent_workers=False) == [first, second]
    (other_seed,) = draw(numbered_root, seed=4, epochs=1)
    ranks = [draw(numbered_root, world=World(rank, 2), epochs=1)[0] for rank in range(2)]
    for column in zip(*first, *second, *other_seed, *ranks[1], strict=True):
        assert len(set(column)) == len(column), "two epochs, seeds, workers, ranks, or examples draw the same"
    assert set(ranks[0]).isdisjoint(ranks[1])


@slow
def test_draws_do_not_depend_on_how_workers_start(numbered_root: str) -> None:
    assert draw(numbered_root, "spawn") == draw(numbered_root)


def test_the_training_process_keeps_its_generators(numbered_root: str) -> None:
    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]

    before = states()
    draw(numbered_root)
    assert states() == before


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("persistent", [True, False])
def test_worker_init_fn_is_called_once_in_each_worker(
    persistent: bool, method: str, numbered_root: str, tmp_path: Path
) -> None:
    started = set()
    options: dict[str, Any] = {"worker_init_fn": user_code.NoteStart(str(tmp_path)), "persistent_workers": persistent}
    with make_loader(numbered_root, method, **options) as loader:
        for _ in range(2):
            iteration = iter(loader)
            started |= {f"{worker} {pid}" for worker, pid in enumerate(loader.worker_pids)}
            assert len(list(iteration)) == len(loader)
    assert len(started) == (2 if persistent else 4)
    assert {file.name for file in tmp_path.iterdir()} == started


@pytest.mark.parametrize("method", MANY_METHODS)
def test_an_exception_of_worker_init_fn_is_a_worker_error_that_names_it(method: str, numbered_root: str) -> None:
    expected = r"(?s)worker_init_fn failed in worker 1 \(pid \d+\): no start of 1\n.*in fail\n.*ZeroDivisionError"
    with (
        make_loader(numbered_root, method, worker_init_fn=user_code.fail) as loader,
        pytest.raises(WorkerError, match=expected),
    ):
        list(loader)


@pytest.mark.parametrize("method", MANY_METHODS)
@pytest.mark.parametrize("kind", user_code.BATCHES)
def test_a_collate_function_may_return_whatever_can_be_pickled(kind: str, method: str, numbered_root: str) -> None:
    with make_loader(numbered_root, method, collate_fn=user_code.Collate(kind)) as loader:
        batches = list(loader)
        plan = loader.dataset.plan()
    planned = [user_code.BATCHES[kind](plan.batch(0, number).index.tolist()) for number in range(plan.num_batches)]
    assert len(batches) == len(planned)
    assert all(map(user_code.are_equal, batches, planned))
