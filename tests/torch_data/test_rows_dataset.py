"""create_loader(rows, batch_size=...): batches as torch collates them, in a plan's order; and bad input."""

import os
import random
from collections import namedtuple
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from grids.fleet import Fleet, Place
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset, get_worker_info

from tfds_torch import ImageDataset, IndexedImageDataset, ParserMapStyle, World, create_loader
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError, StateMismatchError, WorkerError
from tfds_torch.integrations.lightning import resumable

FORKED: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
WORKERS = [pytest.param({}, id="no workers"), pytest.param(FORKED, id="fork")]
Pair = namedtuple("Pair", ["x", "y"])


class Rows(Dataset[Any]):
    """A map-style dataset over a list."""

    def __init__(self, rows: Any) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> Any:
        return self.rows[number]


class Failing(Rows):
    """Raises what `errors` has for a number."""

    def __init__(self, num_items: int, errors: Mapping[int, Exception]) -> None:
        super().__init__(range(num_items))
        self.errors = errors

    def __getitem__(self, number: int) -> Any:
        if number in self.errors:
            raise self.errors[number]
        return number


NUMBERS = torch.arange(23)
DATASETS: dict[str, Any] = {
    "TensorDataset": TensorDataset(NUMBERS.reshape(-1, 1).float(), NUMBERS),
    "tuples": Rows([(np.full((3, 2), number, np.float32), number) for number in range(23)]),
    "dictionaries": Rows([{"a": number, "b": {"c": float(number), "d": str(number)}} for number in range(23)]),
    "named tuples": Rows([Pair(np.int16(number), [number, -number]) for number in range(23)]),
    "numbers": Rows(list(range(23))),
    "texts": Rows([("a", str(number), b"b") for number in range(23)]),
    "booleans": Rows([np.bool_(number % 2) for number in range(23)]),
    "bfloat16": Rows(list(NUMBERS.to(torch.bfloat16))),
    "a list": [(number, np.float64(number)) for number in range(23)],
    "Subset": Subset(TensorDataset(NUMBERS), list(range(22, -1, -1))),
    "ConcatDataset": ConcatDataset([TensorDataset(NUMBERS[:7]), TensorDataset(NUMBERS[7:])]),
}


def assert_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert torch.equal(ours, theirs)
    elif isinstance(ours, dict):
        assert list(ours) == list(theirs)
        for name in ours:
            assert_same(ours[name], theirs[name])
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("arguments", WORKERS)
@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_those_of_torchs_loader(name: str, arguments: dict[str, Any], drop_last: bool) -> None:
    dataset = DATASETS[name]
    theirs = DataLoader(dataset, batch_size=5, drop_last=drop_last)
    with create_loader(dataset, batch_size=5, drop_last=drop_last, **arguments) as ours:
        assert ours.dataset is dataset
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other)


def test_a_dictionary_of_columns_gives_dictionaries() -> None:
    columns: dict[str, Any] = {
        "x": np.arange(14, dtype=np.float32).reshape(7, 2),
        "y": torch.arange(7),
        "name": list("abcdefg"),
        "flag": np.arange(7) > 3,
        "small": np.arange(7, dtype=np.uint8),
    }
    rows = [{name: column[number] for name, column in columns.items()} for number in range(7)]
    with create_loader(columns, batch_size=3) as ours:
        for one, other in zip(ours, DataLoader(Rows(rows), batch_size=3), strict=True):
            assert_same(one, other)


def test_a_column_of_numpys_texts_gives_texts() -> None:
    columns = {"name": np.array(["a", "bcd", ""]), "x": [[1, 2], [3, 4], [5, 6]]}
    (batch,) = create_loader(columns, batch_size=3)
    assert batch["name"] == ["a", "bcd", ""]
    assert [one.tolist() for one in batch["x"]] == [[1, 3, 5], [2, 4, 6]]  # As torch makes it.
    with pytest.raises(
        ConfigError, match=r"the column 'x' has 2 values in one of them and 1 in another, items 0 and 2"
    ):
        list(create_loader({"x": [[1, 2], [3, 4], [5]]}, batch_size=3))


def numbers_of(loader: Any) -> list[int]:
    return [number for batch in loader for number in batch.tolist()]


def test_the_order_is_a_plans_whatever_the_number_of_workers() -> None:
    orders = []
    for num_workers in (0, 1, 3):
        loader = create_loader(Rows(range(23)), num_workers, batch_size=4, shuffle=True, seed=7)
        with loader:
            orders.append([numbers_of(loader) for _ in range(2)])
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0][0]) == sorted(orders[0][1]) == list(range(23))
    assert orders[0][0] != orders[0][1]
    plan = ParserMapStyle(Rows(range(23)), batch_size=4, shuffle=True, seed=7)
    assert orders[0][0] == [int(number) for batch in plan.batches(fields=()) for number in batch.index]
    assert numbers_of(create_loader(Rows(range(23)), batch_size=4, shuffle=True, seed=8)) != orders[0][0]


def test_a_state_goes_on_exactly_in_another_process_like_one() -> None:
    rows = Rows(range(40))
    with create_loader(rows, 2, batch_size=4, shuffle=True, seed=1) as loader:
        whole = numbers_of(loader)
        loader.set_epoch(0)
        iteration = iter(loader)
        came = [number for _ in range(3) for number in next(iteration).tolist()]
        state = loader.state_dict()
    assert state["batches"] == 3
    with create_loader(rows, 3, batch_size=4, shuffle=True, seed=1) as other:
        other.load_state_dict(state)
        assert came + numbers_of(other) == whole
    with create_loader(rows, batch_size=8, shuffle=True, seed=1) as larger:
        with pytest.raises(StateMismatchError, match="batch"):
            larger.load_state_dict(state)
        larger.load_state_dict(state, allow_batch_change=True)
        assert came + numbers_of(larger) == whole
    with (
        create_loader(Rows(range(41)), batch_size=4, shuffle=True, seed=1) as grown,
        pytest.raises(StateMismatchError),
    ):
        grown.load_state_dict(state)


class Augmenting(Rows):
    """Knows the epoch, because its `set_epoch` is called."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __getitem__(self, number: int) -> int:
        return self.epoch


@pytest.mark.parametrize("arguments", WORKERS)
def test_a_dataset_that_has_set_epoch_is_given_the_epoch(arguments: dict[str, Any]) -> None:
    dataset = Subset(Augmenting(range(6)), range(6))
    with create_loader(dataset, batch_size=3, **arguments) as loader:
        assert [set(numbers_of(loader)) for _ in range(2)] == [{0}, {1}]
        loader.set_epoch(7)
        assert set(numbers_of(loader)) == {7}


def test_workers_see_the_users_dataset() -> None:
    class Asking(Rows):
        def __getitem__(self, number: int) -> bool:
            info = get_worker_info()
            return info is not None and info.dataset is self and info.num_workers == 2

    with create_loader(Asking(range(6)), batch_size=2, **FORKED) as loader:
        assert all(batch.all() for batch in loader)


def test_the_training_process_asks_for_no_item_where_workers_read() -> None:
    """A file that the dataset opens late would be shared by its workers."""

    class Pids(Rows):
        def __getitem__(self, number: int) -> int:
            return os.getpid() if get_worker_info() is not None else 1 // 0

    with create_loader(Pids(range(6)), batch_size=2, shuffle=True, **FORKED) as loader:
        pids = {pid for batch in loader for pid in batch.tolist()}
        assert pids <= set(loader.worker_pids)


def test_an_item_that_raises_keeps_its_type_though_none_can_be_read() -> None:
    failing = Failing(20, dict.fromkeys(range(20), OSError("no disk")))
    for arguments in ({}, FORKED):
        with create_loader(failing, batch_size=4, **arguments) as loader, pytest.raises(OSError, match="no disk"):
            list(loader)


def test_random_numbers_of_workers_depend_on_the_seed() -> None:
    class Drawing(Rows):
        def __getitem__(self, number: int) -> list[float]:
            return [random.random(), float(np.random.random()), torch.rand(()).item()]

    def draw(seed: int) -> list[Any]:
        with create_loader(Drawing(range(4)), batch_size=2, seed=seed, **FORKED) as loader:
            return [torch.stack(batch).tolist() for _ in range(2) for batch in loader]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert len({str(batch) for batch in draw(1)}) == 4


def test_lightnings_loader_takes_it() -> None:
    loader = resumable(create_loader(Rows(range(8)), batch_size=4))
    assert numbers_of(loader) == list(range(8))
    assert loader.state_dict()["batches"] == 2
    with pytest.raises(ConfigError, match="or over a map-style dataset with batch_size and without sampler"):
        resumable(create_loader(Rows(range(8))))


# Ranks


def read_as_rank(_: Place, num_items: int, shuffle: bool) -> list[list[int]]:
    with create_loader(Rows(range(num_items)), 2, batch_size=3, shuffle=shuffle) as loader:
        return [numbers_of(loader) for _ in range(2)]


def test_ranks_that_only_the_environment_names_share_the_items(fleet: Fleet) -> None:
    ranks = fleet.call(read_as_rank, 24, True, num_replicas=2, reads=False, deadline_s=120)
    for epoch in range(2):
        assert sorted(number for rank in ranks for number in rank[epoch]) == list(range(24))
        assert len({len(rank[epoch]) for rank in ranks}) == 1


def test_an_evaluation_that_counts_items_twice_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    early = create_loader(Rows(range(23)), batch_size=5)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    message = r"Rows has 23 items, and 2 ranks with batch_size 5 read 7 of them twice.*fields=\(\.\.\., 'valid'\)"
    with pytest.warns(UserWarning, match=message) as caught:
        loader = create_loader(Rows(range(23)), batch_size=5)
    assert [warning.filename for warning in caught] == [__file__]
    assert [len(batch) for batch in loader] == [5, 5, 5]  # Without a second warning, which would be an error here.
    with pytest.warns(UserWarning, match=message) as caught:
        iter(early)  # Its ranks are known only now.
    assert [warning.filename for warning in caught] == [__file__]
    assert len(create_loader(Rows(range(23)), batch_size=5, shuffle=True)) == 3
    assert len(create_loader(Rows(range(23)), batch_size=5, drop_last=True)) == 2
    assert len(create_loader(Rows(range(20)), batch_size=5)) == 2


def test_a_share_of_this_rank_is_read_whole_in_a_world_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    share = ParserMapStyle([{"x": number} for number in (1, 3, 5, 7)], batch_size=2)
    dataset = ImageDataset(share, fields=("x",), world=World(), batched=True)
    assert [number for (batch,) in create_loader(dataset) for number in batch.tolist()] == [1, 3, 5, 7]


# What stays with torch's loader


def test_a_state_is_refused_where_torchs_loader_plans() -> None:
    rows = Rows(range(6))
    left: list[dict[str, Any]] = [{}, {"batch_size": 2, "collate_fn": list}, {"batch_size": 2, "sampler": range(6)}]
    for arguments in left:
        with create_loader(rows, **arguments) as loader, pytest.raises(ConfigError, match="Rows does not say which"):
            loader.state_dict()
    parser = ParserMapStyle([(Image.new("L", (2, 2)), number) for number in range(4)])
    indexed = IndexedImageDataset(parser, transform=np.asarray)
    with create_loader(indexed, batch_size=2) as loader, pytest.raises(ConfigError, match="IndexedImageDataset does"):
        loader.state_dict()


# Bad input


@pytest.mark.parametrize("arguments", WORKERS)
def test_an_item_that_raises_is_named_and_keeps_its_type(arguments: dict[str, Any]) -> None:
    dataset = Failing(20, {13: ZeroDivisionError("no pixels")})
    came: list[int] = []
    with create_loader(dataset, batch_size=4, **arguments) as loader:
        batches = map(came.extend, map(torch.Tensor.tolist, loader))
        with pytest.raises(ZeroDivisionError, match="no pixels") as caught:
            list(batches)
        notes = str(caught.value) if arguments else "\n".join(caught.value.__notes__)
        assert "Failing: item 13 cannot be read: ZeroDivisionError: no pixels." in notes
        assert came == list(range(12))  # What comes before it has been delivered.
        assert loader.state_dict()["batches"] == 3


def test_our_own_errors_and_stop_iteration_of_a_dataset() -> None:
    with pytest.raises(CorruptRecordError, match=r"^file x$"):
        list(create_loader(Failing(4, {2: CorruptRecordError("file x")}), batch_size=2))
    with pytest.raises(WorkerError, match=r"Failing raised StopIteration for an index it has\. .*item 2 "):
        list(create_loader(Failing(4, {2: StopIteration()}), batch_size=2))


def test_a_dataset_without_a_length_is_refused() -> None:
    class Endless:
        def __getitem__(self, number: int) -> int:
            return number

    with pytest.raises(ConfigError, match=r"Endless has no length \(TypeError: object of type 'Endless' has no len"):
        create_loader(Endless(), batch_size=2)


@pytest.mark.parametrize("arguments", WORKERS)
@pytest.mark.parametrize(
    ("odd", "message"),
    [
        ({"x": torch.zeros(2)}, "example has the keys {'x', 'y'} in one of them and {'x'} in another"),
        ({"x": torch.zeros(2), "y": 1, "z": 2}, "example has the keys {'x', 'y'} in one of them and {'x', 'y', 'z'}"),
        (
            {"x": torch.zeros(3), "y": 1},
            "example['x'] is a tensor of shape [2] in one of them and a tensor of shape [3]",
        ),
        ({"x": torch.zeros(2), "y": None}, "example['y'] is of type int in one of them and None in another"),
    ],
)
def test_an_item_that_is_not_like_the_others_is_named(odd: Any, message: str, arguments: dict[str, Any]) -> None:
    rows = [{"x": torch.zeros(2), "y": number} for number in range(20)]
    rows[14] = odd
    with create_loader(Rows(rows), batch_size=4, **arguments) as loader, pytest.raises(ConfigError) as caught:
        list(loader)
    assert message in str(caught.value)
    assert "items 12 and 14 of Rows" in str(caught.value)


def test_a_number_of_too_many_bits_is_named() -> None:
    rows = [{"y": 2**64 if number == 6 else number} for number in range(8)]
    with pytest.raises(ConfigError, match=r"example\['y'\] is 18446744073709551616, which 64 bits .*, item 6 of Rows"):
        list(create_loader(Rows(rows), batch_size=4))


def test_a_dataset_that_shrinks_is_an_error() -> None:
    rows = list(range(20))
    loader = create_loader(rows, batch_size=4)
    assert numbers_of(loader) == rows
    del rows[10:]
    with pytest.raises(ShardError, match="list had 20 items when it was opened, and has 10 now"):
        list(loader)


def test_a_dataset_that_spawn_cannot_pickle_is_one_error() -> None:
    rows = Rows(range(4))
    rows.transform = lambda value: value
    message = r"create_loader: dataset\.transform = .*<lambda> cannot be pickled"
    for dataset in (rows, Subset(rows, range(4))):
        with create_loader(dataset, 1, batch_size=2, multiprocessing_context="spawn") as loader:
            with pytest.raises(ConfigError, match=message.replace("dataset", r"dataset(\.dataset)?")):
                next(iter(loader))
            assert loader.worker_pids == []
    own = ImageDataset(ParserMapStyle(rows, batch_size=2), fields=("item",), batched=True)
    with create_loader(own, 1, multiprocessing_context="spawn") as loader, pytest.raises(ConfigError, match="lambda"):
        next(iter(loader))


def test_a_mistake_in_the_columns_is_named() -> None:
    with pytest.raises(ConfigError, match="'x' has 3 values, and 'y' 4"):
        create_loader({"x": np.zeros(3), "y": np.zeros(4)}, batch_size=2)
    with pytest.raises(ConfigError, match="'y' of the dictionary is 7, and must be a column"):
        create_loader({"x": np.zeros(3), "y": 7}, batch_size=2)
