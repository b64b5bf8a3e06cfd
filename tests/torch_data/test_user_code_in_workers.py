"""What users' code finds in the workers of a Loader over an ImageDataset, and what it may return."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from tfds_torch import (
    ImageDataset,
    IndexedImageDataset,
    Loader,
    MultiLoader,
    ParserMapStyle,
    ParserMixture,
    ParserTfds,
    World,
    create_loader,
)
from tfds_torch.errors import ConfigError, StallError, WorkerError
from torch_data import user_code

BATCH_SIZE = 4
slow, campaign = pytest.mark.slow, pytest.mark.campaign
METHODS = ["fork", pytest.param("spawn", marks=slow), pytest.param("forkserver", marks=campaign)]
MANY_METHODS = ["fork", *(pytest.param(method, marks=campaign) for method in ("spawn", "forkserver"))]
"""Of what workers do alike once they have begun."""


def make_loader(
    root: str, method: str = "fork", target_transform: Any = None, world: World | None = None, **options: Any
) -> Loader:
    split = options.pop("split", "train")
    parser = ParserTfds(root, "numbered", split, is_training=True, batch_size=BATCH_SIZE)
    dataset = ImageDataset(parser, fields=("label", "index"), target_transform=target_transform, world=world)
    num_workers = options.pop("num_workers", 2)
    context = method if num_workers else None
    options = {"collate_fn": list, "seed": 3, **options}
    return create_loader(dataset, num_workers, multiprocessing_context=context, timeout_s=100, **options)


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


def draw(root: str, method: str = "fork", epochs: int = 2, **options: Any) -> list[dict[int, Any]]:
    """Returns what a transform draws in some epochs, by the example's index."""
    # Of as many examples as two ranks share without a rest, which would be of the next pass.
    with make_loader(root, method, user_code.Draws(), split="train[:40]", **options) as loader:
        return [{index: drawn for batch in loader for drawn, index in batch} for _ in range(epochs)]


@pytest.mark.parametrize("method", METHODS)
def test_a_transform_draws_by_seed_pass_and_example_whoever_calls_it(method: str, numbered_root: str) -> None:
    first, second = draw(numbered_root, method)
    torch.manual_seed(9)
    random.seed(9)
    assert draw(numbered_root, method, persistent_workers=False, num_workers=3) == [first, second]
    assert draw(numbered_root, num_workers=0) == [first, second]
    (other_seed,) = draw(numbered_root, method, seed=4, epochs=1)
    for each in (first, second, other_seed):
        assert all(len(set(column)) == len(column) for column in zip(*each.values(), strict=True))
    assert len({*first.values(), *second.values(), *other_seed.values()}) == 120
    for rank in range(2):
        (own,) = draw(numbered_root, method, world=World(rank, 2), epochs=1)
        assert own.items() <= first.items()


def test_a_resumed_transform_draws_what_it_would_have_drawn(numbered_root: str) -> None:
    (whole,) = draw(numbered_root, epochs=1)
    with make_loader(numbered_root, target_transform=user_code.Draws(), split="train[:40]") as loader:
        next(iter(loader))
        state = loader.state_dict()
    with make_loader(numbered_root, target_transform=user_code.Draws(), split="train[:40]", num_workers=3) as loader:
        loader.load_state_dict(state)
        rest = {index: drawn for batch in loader for drawn, index in batch}
    assert len(rest) == len(whole) - BATCH_SIZE
    assert rest.items() <= whole.items()


def test_behind_torchs_loader_a_transform_draws_the_same_numbers(numbered_root: str) -> None:
    parser = ParserTfds(numbered_root, "numbered", is_training=True, batch_size=BATCH_SIZE)
    found = []
    for num_workers in (0, 2):
        dataset = ImageDataset(parser, fields=("label", "index"), target_transform=user_code.Draws())
        batches = DataLoader(dataset, BATCH_SIZE, num_workers=num_workers, collate_fn=list)
        found.append({index: drawn for batch in batches for drawn, index in batch})
    with make_loader(numbered_root, target_transform=user_code.Draws(), seed=None) as loader:
        assert [{index: drawn for batch in loader for drawn, index in batch}] * 2 == found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_items_of_own_datasets_are_drawn_by_seed_pass_and_example(num_workers: int) -> None:
    """Also of a Subset, whose own `__getitems__` asks for one after the other."""
    rows = Subset(user_code.DrawnItems(20), list(range(4, 20)))
    parser = ParserMapStyle(rows, batch_size=BATCH_SIZE, is_training=True)
    alone: dict[int, float] = {}
    for batch in parser.batches(fields=("1",)):
        alone |= dict(zip(batch.index.tolist(), batch.features["1"].tolist(), strict=True))
    passes: list[dict[int, float]] = [{}, {}]
    with create_loader(rows, num_workers, batch_size=BATCH_SIZE, shuffle=True) as loader:
        for drawn in passes:
            for numbers, values in loader:
                drawn |= dict(zip((numbers - 4).tolist(), values.tolist(), strict=True))
    assert passes[0] == alone
    assert len({value for drawn in passes for value in drawn.values()}) == 32


def test_looking_at_an_own_dataset_moves_no_generator() -> None:
    random.seed(3)
    parser = ParserMapStyle(user_code.DrawnItems(20), names=("number", "label"), batch_size=BATCH_SIZE)
    ImageDataset(parser, fields=("label",))
    parser.targets()
    assert random.random() == random.Random(3).random()


def test_transforms_draw_as_they_like_where_that_is_switched_off(numbered_root: str) -> None:
    parser = ParserTfds(numbered_root, "numbered", is_training=True, batch_size=BATCH_SIZE)
    dataset = ImageDataset(parser, fields=("label",), target_transform=user_code.Draws(), seed_transforms=False)
    passes = []
    for _ in range(2):
        dataset.set_epoch(0)
        random.seed(3)
        passes.append([drawn[0] for (drawn,) in dataset])
    numbers = random.Random(3)
    assert passes == [[numbers.random() for _ in passes[0]]] * 2
    with pytest.raises(ConfigError, match=re.escape("seed_transforms=1 must be True or False.")):
        ImageDataset(parser, seed_transforms=1)  # type: ignore[arg-type]


def test_an_example_of_an_indexed_dataset_draws_by_its_epoch_where_that_is_told(numbered_root: str) -> None:
    dataset = IndexedImageDataset(
        ParserTfds(numbered_root, "numbered"), fields=("label",), target_transform=user_code.Draws()
    )
    assert dataset[1] != dataset[1], "nothing has told the epoch: numbers would be the same in all of them"
    told = []
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        told.append(dataset[1])
        assert dataset[1] == told[-1]
    assert told[0] != told[1]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_error_of_a_transform_names_the_example(num_workers: int, numbered_root: str) -> None:
    with (
        make_loader(numbered_root, target_transform=user_code.fail_at_2, num_workers=num_workers) as loader,
        pytest.raises((WorkerError, ZeroDivisionError)) as caught,
    ):
        list(loader)
    note = "The target_transform raised it for the example 'numbered-"
    assert note in str(caught.value) or note in "".join(caught.value.__notes__)


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_death_of_a_worker_in_a_transform_names_the_example(shuffle: bool, numbered_root: str) -> None:
    parser = ParserTfds(numbered_root, "numbered", batch_size=BATCH_SIZE, is_training=True, shuffle=shuffle)
    index, label = _third_of_a_later_batch(parser)
    dataset = ImageDataset(parser, fields=("label", "index"), target_transform=user_code.EndsAt(label))
    id = parser.ids(np.array([index], np.int64))[0]
    shard, _, record = id.rpartition("__")
    place = rf"split 'train', shard {re.escape(shard)}, record {record} \(example {index}\)[.;]"
    with (
        create_loader(dataset, 2, multiprocessing_context="fork", timeout_s=100, collate_fn=list) as loader,
        pytest.raises(WorkerError, match=rf"was killed by SIGKILL .* while it read numbered:1\.0\.0, {place}"),
    ):
        list(loader)


def _third_of_a_later_batch(parser: ParserTfds) -> tuple[int, int]:
    """Returns index and label of an example within the chunk that it is read and decoded with."""
    batch = parser.plan(World()).batch(0, 4)
    index = int(batch.index[2])
    return index, int(parser[index].label or 0)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_transform_that_does_not_end_is_reported_with_the_example(num_workers: int, numbered_root: str) -> None:
    parser = ParserTfds(numbered_root, "numbered", batch_size=BATCH_SIZE, is_training=True)
    index, label = _third_of_a_later_batch(parser)
    dataset = ImageDataset(parser, fields=("label",), target_transform=user_code.EndsAt(label, "wait"))
    expected = rf"reads numbered:1\.0\.0, split 'train', shard \S+, record \d+ \(example {index}\)[.;]"
    context = "fork" if num_workers else None
    with (
        create_loader(dataset, num_workers, multiprocessing_context=context, timeout_s=2) as loader,
        pytest.raises(StallError, match=expected),
    ):
        list(loader)


@pytest.mark.parametrize("at", [20, 29])
@pytest.mark.parametrize("seeded", [True, False])
def test_the_death_of_a_worker_in_an_item_names_it(at: int, seeded: bool) -> None:
    rows = user_code.HarmedItems(64, user_code.EndsAt(at))
    parser = ParserMapStyle(rows, batch_size=16)
    dataset = ImageDataset(parser, fields=("item",), batched=True, seed_transforms=seeded)
    said = rf"while it read HarmedItems, split 'all', {at} \(example {at}\)[.;]"
    for loader in (
        create_loader(rows, 2, batch_size=16, multiprocessing_context="fork"),
        create_loader(dataset, 2, multiprocessing_context="fork"),
        MultiLoader(parser, 2, start_method="fork"),
    ):
        with loader, pytest.raises(WorkerError, match=said):
            list(loader)


def test_the_death_of_a_worker_that_reads_a_mixture_names_the_example_of_the_mixture() -> None:
    members = {
        "a": ParserMapStyle(user_code.HarmedItems(8, user_code.EndsAt(-1))),
        "b": ParserMapStyle(user_code.HarmedItems(8, user_code.EndsAt(5))),
    }
    parser = ParserMixture(members, weights={"a": 1, "b": 1}, batch_size=8, is_training=True)
    name = parser.ids(np.array([13], np.int64))[0]
    with (
        create_loader(ImageDataset(parser, fields=("item",), batched=True), 1) as loader,
        pytest.raises(WorkerError, match=rf"{re.escape(name)} \(example 13\)[.;]"),
    ):
        list(loader)


def test_the_death_of_a_worker_that_decodes_names_the_examples_that_it_decodes() -> None:
    preprocess = user_code.EndsAtPixel(size=8, crop_pct=1.0, harm=user_code.EndsAt(22))
    parser = ParserMapStyle(user_code.HarmedPictures(64), batch_size=4, preprocess=preprocess)
    with (
        create_loader(ImageDataset(parser, fields=("image",)), 2, multiprocessing_context="fork") as loader,
        pytest.raises(WorkerError) as caught,
    ):
        list(loader)
    found = re.search(r"split 'all', among examples ([^.]*)\.", str(caught.value))
    assert found, str(caught.value)
    runs = [[int(number) for number in run.split(" to ")] for run in found[1].split(", ")]
    assert any(run[0] <= 22 <= run[-1] for run in runs)
    assert max(run[-1] for run in runs) <= 64


def test_the_training_process_keeps_its_generators(numbered_root: str) -> None:
    def states() -> list[Any]:
        return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]  # type: ignore[index]

    before = states()
    draw(numbered_root)
    draw(numbered_root, num_workers=0)
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
