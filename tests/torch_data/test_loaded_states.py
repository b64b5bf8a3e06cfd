"""A state that was loaded is the state of the loader, until an iteration begins; one that cannot be changes nothing."""

import copy
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from parsers.cached_pictures import NUM_EXAMPLES, write_small
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tfds_torch import ImageDataset, Loader, MultiLoader, ParserTfds, ReadOptions, World, create_loader
from tfds_torch.errors import ConfigError

BATCH_SIZE = 8
NUM_BATCHES = -(-NUM_EXAMPLES // BATCH_SIZE)
TAKEN = (0, 1, 3, NUM_BATCHES, NUM_BATCHES + 2)
"""Batches after which a state is taken: the last one is within the second epoch."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("states"))


def parser_of(root: Path, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, "pictures", **{"is_training": True, "batch_size": BATCH_SIZE} | arguments)


def dataset_of(root: Path, num_replicas: int = 1, **arguments: Any) -> ImageDataset:
    parser = parser_of(root, batch_size=BATCH_SIZE // num_replicas, **arguments)
    return ImageDataset(parser, fields=("index",), world=World(0, num_replicas))


def take(loader: Any, num_batches: int) -> list[Any]:
    """Takes batches of one epoch after the other."""
    taken: list[Any] = []
    while len(taken) < num_batches:
        taken += islice(loader, num_batches - len(taken))
    return taken


def saved(state: Any) -> Any:
    return json.loads(json.dumps(state))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_taken", TAKEN)
def test_a_loader_that_loaded_a_state_has_it(num_taken: int, num_workers: int, root: Path) -> None:
    def loader() -> Loader:
        return create_loader(dataset_of(root), num_workers, collate_fn=list)

    with loader() as first:
        take(first, num_taken)
        state = saved(first.state_dict())
    with loader() as second:
        second.load_state_dict(state)
        assert second.state_dict() == state
        second.load_state_dict(second.state_dict())
        assert saved(copy.deepcopy(second.dataset).state_dict()) == state
        assert len(list(second)) == NUM_BATCHES - state["batches"]
    with create_loader(dataset_of(root), 1) as elsewhere:
        elsewhere.load_state_dict(state)
        found = elsewhere.state_dict()
    assert (found["epoch"], found["batches"]) == (state["epoch"], state["batches"])


@pytest.mark.parametrize("num_taken", TAKEN)
def test_a_dataset_that_loaded_a_state_has_it(num_taken: int, root: Path) -> None:
    dataset = dataset_of(root)
    take(DataLoader(dataset, BATCH_SIZE, collate_fn=list), num_taken)
    state = saved(dataset.state_dict())
    again = dataset_of(root)
    again.load_state_dict(state)
    assert again.state_dict() == state
    two_ranks = dataset_of(root, num_replicas=2)
    two_ranks.load_state_dict(state)
    found = two_ranks.state_dict()
    assert (found["epoch"], found["batches"]) == (state["epoch"], state["batches"])
    assert found == state


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # Torchdata's call, torch's warning.
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_taken", TAKEN)
def test_a_stateful_loader_that_loaded_a_state_has_it(num_taken: int, num_workers: int, root: Path) -> None:
    def loader() -> "StatefulDataLoader[Any]":
        return StatefulDataLoader(dataset_of(root), BATCH_SIZE, num_workers=num_workers, collate_fn=list)

    first = loader()
    take(first, num_taken)
    state = saved(first.state_dict())
    second = loader()
    second.load_state_dict(state)
    assert saved(second.state_dict()) == state


@pytest.mark.parametrize("num_taken", TAKEN)
def test_a_multi_loader_that_loaded_a_state_has_it(num_taken: int, root: Path) -> None:
    with MultiLoader(parser_of(root), 2, fields=("label",)) as first:
        take(first, num_taken)
        state = saved(first.state_dict())
    with MultiLoader(parser_of(root), 2, fields=("label",)) as second:
        second.load_state_dict(state)
        assert second.state_dict() == state
    with create_loader(dataset_of(root), 2) as of_torch:
        of_torch.load_state_dict(state)
        assert of_torch.state_dict() == state


@pytest.mark.parametrize("num_workers", [None, 1, 3])
@pytest.mark.parametrize("num_delivered", [0, 2, NUM_BATCHES])
def test_a_stream_that_loaded_a_state_has_it(num_delivered: int, num_workers: int | None, root: Path) -> None:
    dataset = dataset_of(root, read=ReadOptions(mode="examples"))
    state = saved(dataset.state_at(4, num_delivered, num_workers).to_dict())
    dataset.load_state_dict(state)
    assert dataset.state_dict() == state


def test_another_epoch_that_is_set_is_the_state(root: Path) -> None:
    dataset = dataset_of(root)
    dataset.load_state_dict(dataset.state_at(4, 2, 3).to_dict())
    dataset.set_epoch(6)
    found = dataset.state_dict()
    assert (found["epoch"], found["batches"], found["num_workers"]) == (6, 0, None)


# Numbers that no arithmetic of 64 bits can have

LAST_EPOCH = (2**63 - 1) // NUM_EXAMPLES - 1


def test_the_last_epoch_is_read_whole_and_a_later_one_is_an_error(root: Path) -> None:
    parser = parser_of(root, is_training=False)
    last = parser.plan(World()).last_epoch
    assert last == LAST_EPOCH
    for epoch in (last, last - 1):
        index = [i for batch in parser.batches(World(), epoch, fields=("index",)) for i in batch.index.tolist()]
        assert sorted(index) == list(range(NUM_EXAMPLES))
    for epoch in (last + 1, 2**62, 2**64):
        with pytest.raises(ConfigError, match=rf"epoch={epoch} must be an integer in 0\.\.{last}\."):
            parser.batches(World(), epoch, fields=("index",))
    dataset = ImageDataset(parser, fields=("index",))
    dataset.set_epoch(last + 1)
    with pytest.raises(ConfigError, match=rf"epoch={last + 1} must be an integer in"):
        next(iter(dataset))
