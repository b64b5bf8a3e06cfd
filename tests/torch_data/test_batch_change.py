"""An epoch that goes on with another global batch: each example exactly once, and later epochs are whole ones."""

from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from parsers.cached_pictures import NUM_EXAMPLES, write_small
from torch.utils.data import DataLoader

from tfds_torch import ImageDataset, MultiLoader, ParserTfds, ReadOptions, World, create_loader
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.plan.state import LoaderState

ALONE = World()
KINDS = ("Loader", "Loader, 2 workers", "MultiLoader")
SLOW_KINDS = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
ONE_QUICKLY, TWO_QUICKLY = ("Loader", *SLOW_KINDS[1:]), ("Loader", SLOW_KINDS[1], "MultiLoader")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small(tmp_path_factory.mktemp("changes"))


def parser_of(root: Path, batch_size: int, **arguments: Any) -> ParserTfds:
    return ParserTfds(root, "pictures", **{"is_training": True, "batch_size": batch_size} | arguments)


def dataset_of(root: Path, batch_size: int, world: World = ALONE, **arguments: Any) -> ImageDataset:
    return ImageDataset(parser_of(root, batch_size, **arguments), fields=("index", "valid"), world=world)


def columns_of(rows: list[tuple[int, bool]]) -> tuple[list[int], list[bool]]:
    return [index for index, _ in rows], [valid for _, valid in rows]


def ranks_of(kind: str, root: Path, num_replicas: int, batch_size: int, **arguments: Any) -> list[Any]:
    """A loader of each rank."""
    worlds = [World(rank, num_replicas) for rank in range(num_replicas)]
    if kind == "MultiLoader":
        parser = parser_of(root, batch_size, **arguments)
        return [MultiLoader(parser, 2, world=world, fields=("index",), timeout_s=60.0) for world in worlds]
    num_workers = 2 if kind.endswith("workers") else 0
    return [
        create_loader(dataset_of(root, batch_size, world, **arguments), num_workers, collate_fn=columns_of)
        for world in worlds
    ]


def examples_of(batch: Any) -> list[tuple[int, bool]]:
    index, valid = batch if isinstance(batch, tuple) else (batch.index.tolist(), batch.valid.tolist())
    return list(zip(index, valid, strict=True))


def take(loaders: list[Any], num_batches: int | None) -> tuple[list[tuple[int, bool]], dict[str, Any]]:
    """Takes global batches, and returns their examples in order and the state behind them."""
    came = []
    for batches in islice(zip(*loaders, strict=True), num_batches):
        came += [example for batch in batches for example in examples_of(batch)]
    states = [loader.state_dict() for loader in loaders]
    assert all(state == states[0] for state in states)
    return came, states[0]


def close(loaders: list[Any]) -> None:
    for loader in loaders:
        loader.close()


@pytest.mark.parametrize("kind", TWO_QUICKLY)
def test_the_rest_of_an_epoch_goes_on_in_any_world_each_example_exactly_once(kind: str, root: Path) -> None:
    """Preempted twice: 2 ranks x 3, then 1 rank x 4, then 3 ranks x 1."""
    whole, _ = take(ranks_of("Loader", root, 1, 1), None)
    loaders = ranks_of(kind, root, 2, 3)
    came, state = take(loaders, 1)
    close(loaders)
    for num_replicas, batch_size, num_batches in ((1, 4, 2), (3, 1, None)):
        loaders = ranks_of(kind, root, num_replicas, batch_size)
        for loader in loaders:
            loader.load_state_dict(state, allow_batch_change=True)
            assert LoaderState.from_dict(loader.state_dict()).first_example == len(came)
            assert len(loader) == -(-NUM_EXAMPLES // (num_replicas * batch_size)), "that of a whole epoch"
        part, state = take(loaders, num_batches)
        came += part
        assert state["examples"] == len(came)
        if num_batches is not None:
            close(loaders)
    assert came[:NUM_EXAMPLES] == whole
    assert set(Counter(index for index, _ in came[:NUM_EXAMPLES]).values()) == {1}
    assert len(came) < NUM_EXAMPLES + 3, "the planned fill of the last batch"

    following, state = take(loaders, None)
    assert (state["epoch"], LoaderState.from_dict(state).first_example) == (1, 0), "later epochs are whole ones"
    assert {index for index, _ in following} == set(range(NUM_EXAMPLES))
    close(loaders)


@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_a_state_taken_after_a_change_goes_on_with_the_same_batch_and_with_another(kind: str, root: Path) -> None:
    (first,) = ranks_of(kind, root, 1, 6)
    came, state = take([first], 1)
    first.close()
    (second,) = ranks_of(kind, root, 1, 4)
    second.load_state_dict(state, allow_batch_change=True)
    part, state = take([second], 1)
    assert (state["examples"], state["batches"]) == (10, 1)
    rests = []
    for batch_size in (4, 5):
        (third,) = ranks_of(kind, root, 1, batch_size)
        third.load_state_dict(state, allow_batch_change=batch_size == 5)
        rests.append(take([third], None)[0][: NUM_EXAMPLES - 10])
        third.close()
    assert rests[0] == rests[1]
    assert sorted(index for index, _ in came + part + rests[0]) == list(range(NUM_EXAMPLES))
    second.close()


@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_groups_of_blocks_go_on_with_another_batch_whether_they_divide_it_or_not(kind: str, root: Path) -> None:
    """2 ranks x 3 with a group each, then 1 rank x 5, which has no equal groups, then 2 ranks x 1."""
    arguments: dict[str, Any] = {"read": ReadOptions(block_records=3, shuffle_buffer=12, block_groups=2)}
    came: list[tuple[int, bool]] = []
    state = None
    for num_replicas, batch_size, num_batches in ((2, 3, 1), (1, 5, 1), (2, 1, None)):
        loaders = ranks_of(kind, root, num_replicas, batch_size, **arguments)
        for loader in loaders if state else ():
            loader.load_state_dict(state, allow_batch_change=True)
        part, state = take(loaders, num_batches)
        came += part
        close(loaders)
    assert {index for index, _ in came} == set(range(NUM_EXAMPLES))
    assert len(came) == NUM_EXAMPLES + (NUM_EXAMPLES - 6 - 5) % 2, "the planned fill of the last batch"


@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_padded_evaluation_counts_each_example_once_after_a_change(kind: str, root: Path) -> None:
    arguments: dict[str, Any] = {"is_training": False, "remainder": "pad"}
    loaders = ranks_of(kind, root, 2, 2, **arguments)
    came, state = take(loaders, 1)
    close(loaders)
    loaders = ranks_of(kind, root, 1, 7, **arguments)
    loaders[0].load_state_dict(state, allow_batch_change=True)
    came += take(loaders, None)[0]
    assert sorted(index for index, valid in came if valid) == list(range(NUM_EXAMPLES))
    close(loaders)


@pytest.mark.parametrize("kind", ONE_QUICKLY)
def test_an_ended_epoch_stays_ended_with_another_batch(kind: str, root: Path) -> None:
    (first,) = ranks_of(kind, root, 1, 6)
    _, state = take([first], None)
    first.close()
    (second,) = ranks_of(kind, root, 1, 4)
    second.load_state_dict(state, allow_batch_change=True)
    assert take([second], None)[0] == []
    assert take([second], None)[1]["epoch"] == 1
    second.close()


@pytest.mark.parametrize("kind", [*KINDS, "ImageDataset"])
def test_without_being_allowed_another_batch_is_refused_with_the_remedy(kind: str, root: Path) -> None:
    state = dataset_of(root, 6).state_at(1, 1, None).to_dict()
    loader = dataset_of(root, 4) if kind == "ImageDataset" else ranks_of(kind, root, 1, 4)[0]
    before = loader.state_dict()
    with pytest.raises(StateMismatchError, match=r"global_batch: 6 .*\(state, allow_batch_change=True\)"):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    loader.load_state_dict(state, allow_batch_change=True)
    assert loader.state_dict()["examples"] == 6


@pytest.mark.parametrize("kind", ["Loader", "MultiLoader"])
def test_a_stream_keeps_its_batch(kind: str, root: Path) -> None:
    read: dict[str, Any] = {"read": ReadOptions(mode="examples")}
    state = dataset_of(root, 6, **read).state_at(1, 1, None).to_dict()
    (loader,) = ranks_of(kind, root, 1, 4, **read)
    with pytest.raises(StateMismatchError, match=r"batch_size: 6 in the state, 4 here\. Read mode .examples."):
        loader.load_state_dict(state, allow_batch_change=True)


def test_a_stream_that_is_asked_for_the_rest_of_an_epoch_refuses_it(root: Path) -> None:
    parser = parser_of(root, 4, read=ReadOptions(mode="examples"))
    with pytest.raises(
        ConfigError, match=r"^first_example=4: read modes 'files' and 'examples' deal whole epochs only"
    ):
        next(parser.batches(World(), fields=("index",), first_example=4))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_loader_goes_on_with_another_batch(num_workers: int, root: Path) -> None:
    def loader_of(dataset: ImageDataset) -> "DataLoader[Any]":
        return DataLoader(dataset, dataset.parser.batch_size, num_workers=num_workers, collate_fn=columns_of)

    first, second = dataset_of(root, 6), dataset_of(root, 4)
    (batch,) = islice(loader_of(first), 1)
    second.load_state_dict(first.state_dict(batches_delivered=1), allow_batch_change=True)
    loader = loader_of(second)
    came = examples_of(batch) + [example for part in loader for example in examples_of(part)]
    assert sorted(index for index, _ in came[:NUM_EXAMPLES]) == list(range(NUM_EXAMPLES))
    following = [example for part in loader for example in examples_of(part)]
    assert {index for index, _ in following} == set(range(NUM_EXAMPLES))


# Two live iterators


def test_the_state_of_a_loader_is_that_of_the_iterator_that_began_last(root: Path) -> None:
    loader = create_loader(dataset_of(root, 4), collate_fn=columns_of)
    first = iter(loader)
    next(first), next(first)
    second = iter(loader)
    next(second)
    for _ in range(2):
        state = loader.state_dict()
        assert (state["epoch"], state["batches"]) == (1, 1)
        with pytest.raises(ConfigError, match="This iteration ended when another one of the same loader began"):
            next(first)


def test_the_state_of_a_concurrent_multi_loader_is_that_of_the_iterator_that_began_last(root: Path) -> None:
    with MultiLoader(parser_of(root, 4), 1, concurrent=True, fields=("index",), timeout_s=60.0) as loader:
        first = iter(loader)
        next(first)
        second = iter(loader)
        assert loader.state_dict()["epoch"] == 1
        came = next(second).index.tolist()
        next(first), next(first)
        state = loader.state_dict()
        assert (state["epoch"], state["batches"]) == (1, 1)
        rest = [batch.index.tolist() for batch in second]
    with MultiLoader(parser_of(root, 4), 1, fields=("index",), timeout_s=60.0) as other:
        other.load_state_dict(state)
        assert [batch.index.tolist() for batch in other] == rest
    assert came not in rest


def test_two_loaders_over_one_dataset_share_its_epochs_and_have_their_own_states(root: Path) -> None:
    dataset = dataset_of(root, 4)
    one, two = (create_loader(dataset, collate_fn=columns_of) for _ in range(2))
    of_one, of_two = iter(one), iter(two)
    next(of_one), next(of_one), next(of_two)
    places = [(state["epoch"], state["batches"]) for state in (one.state_dict(), two.state_dict())]
    assert places == [(0, 2), (1, 1)]
    assert dataset.state_dict() == two.state_dict(), "of the iteration that began last"


def test_loaders_and_plain_loaders_over_one_dataset_share_its_epochs_and_a_loaded_state(root: Path) -> None:
    dataset = dataset_of(root, 4)
    plain = DataLoader(dataset, 4, collate_fn=columns_of)
    loader = create_loader(dataset, collate_fn=columns_of)
    whole = [list(create_loader(dataset_of(root, 4), collate_fn=columns_of)) for _ in range(1)]
    assert list(plain) == whole[0]
    next(iter(loader))
    assert loader.state_dict()["epoch"] == 1
    next(iter(plain))
    assert dataset.state_dict()["epoch"] == 2
    dataset.load_state_dict(dataset.state_at(0, 2, None).to_dict())
    assert list(plain) == whole[0][2:]
    next(iter(loader))
    state = loader.state_dict()
    assert (state["epoch"], state["batches"]) == (1, 1), "a state is gone on from once"
