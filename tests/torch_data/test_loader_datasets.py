"""create_loader over datasets of torch that are not ours: what torch's DataLoader takes, and what is said of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    get_worker_info,
    random_split,
)

from tfds_torch import DevicePrefetcher, ImageDataset, IndexedImageDataset, ParserTfds, TrainPreprocess, create_loader
from tfds_torch.errors import ConfigError
from tfds_torch.storage.beton.fields import BetonJson
from torch_data.loader_datasets import Batches, Everything, Squares

FORKED: dict[str, Any] = {"multiprocessing_context": "fork"}
WORKERS = [pytest.param({}, id="no workers"), pytest.param({"num_workers": 2, **FORKED}, id="fork")]


class Rows(Dataset[Any]):
    """Map-style: what a list holds."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


# Iterables that are their own iterators


class Rewinding(IterableDataset[int]):
    """Its `__iter__` returns itself, as torch allows; it begins anew."""

    def __iter__(self) -> "Rewinding":
        worker = get_worker_info()
        self.next, self.step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return self

    def __next__(self) -> int:
        if self.next >= 6:
            raise StopIteration
        number, self.next = self.next, self.next + self.step
        return number


class Once(Rewinding):
    """Goes on where it was."""

    next, step = 0, 1

    def __iter__(self) -> "Once":
        return self


class IteratorWithItems(Rows):
    """Map-style, and an iterator of something else."""

    def __iter__(self) -> "IteratorWithItems":
        raise AssertionError

    def __next__(self) -> Any:
        raise AssertionError


@pytest.mark.parametrize("arguments", WORKERS)
def test_an_iterable_dataset_may_be_its_own_iterator(arguments: dict[str, Any]) -> None:
    with create_loader(Rewinding(), batch_size=2, **arguments) as loader:
        expected = [batch.tolist() for batch in DataLoader(Rewinding(), 2, num_workers=arguments.get("num_workers", 0))]
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == expected
    assert list(create_loader(Rewinding())) == list(range(6))


@pytest.mark.parametrize("make", [DataLoader, create_loader])
def test_a_second_epoch_of_an_iterator_is_what_is_left_of_it_as_with_torch(make: Callable[..., Any]) -> None:
    loader = make(Once(), batch_size=None)
    assert [list(loader), list(loader)] == [list(range(6)), []]


def test_a_map_style_dataset_may_be_an_iterator_too() -> None:
    assert [batch.tolist() for batch in create_loader(IteratorWithItems([1, 2, 3]), batch_size=2)] == [[1, 2], [3]]


# Batch samplers


class Growing(BatchSampler):
    """Batches of 1, 2, 3, ... indices; knows epochs."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.sampler = DistributedSampler(Squares(6), 1, 0)

    def __iter__(self) -> Iterator[list[int]]:
        return iter([[5], [0, 1], [4, 2, 3]])

    def __len__(self) -> int:
        return 3

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@pytest.mark.parametrize("arguments", WORKERS)
def test_a_batch_sampler_chooses_the_examples_of_every_batch(arguments: dict[str, Any]) -> None:
    sampler = Growing()
    with create_loader(Squares(6), batch_sampler=sampler, **arguments) as loader:
        assert len(loader) == 3
        assert loader.batch_size is None
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == [[25], [0, 1], [16, 4, 9]]
        loader.set_epoch(4)
        stats = loader.stats()
    assert (stats.batches, stats.examples) == (6, 12)
    assert (sampler.epochs, sampler.sampler.epoch) == ([4], 4)  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match="Keep the state of its sampler or batch sampler"):
        loader.state_dict()


def test_torchs_batch_sampler_is_that_of_torchs_loader() -> None:
    def batches(make: Callable[..., Any]) -> list[Any]:
        order = RandomSampler(range(10), generator=torch.Generator().manual_seed(3))
        loader = make(Squares(10), batch_sampler=BatchSampler(order, 4, drop_last=True))
        return [[batch.tolist() for batch in loader] for _ in range(2)]

    assert batches(create_loader) == batches(DataLoader)


@pytest.mark.parametrize(
    ("dataset", "arguments", "message"),
    [
        (Squares(), {"batch_sampler": 3}, "batch_sampler=3 must be a BatchSampler, or other lists of indices"),
        (Squares(), {"batch_size": 1}, "batch_sampler= and batch_size=1 exclude each other"),
        (Squares(), {"shuffle": True}, "batch_sampler= and shuffle=True exclude each other"),
        (Squares(), {"sampler": range(3)}, "batch_sampler= and sampler=range(0, 3) exclude each other"),
        (Squares(), {"drop_last": True}, "batch_sampler= and drop_last=True exclude each other"),
        (Batches(), {}, "Batches is an iterable, which has an order of its own: shuffle=, sampler= and batch_sampler="),
    ],
)
def test_a_batch_sampler_excludes_other_orders(dataset: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        create_loader(dataset, **{"batch_sampler": [[0]], **arguments})
    assert str(caught.value).startswith(f"create_loader: {message}")


# Parsers, and what has no examples by number


@pytest.fixture
def parser(data_root: Path) -> ParserTfds:
    return ParserTfds(data_root, "digits", is_training=True, batch_size=32, preprocess=TrainPreprocess(size=8))


def test_a_parser_is_refused_and_image_dataset_is_named(parser: ParserTfds) -> None:
    text = "ParserTfds(digits:1.0.0, split='train', num_examples=1437) is a parser, "
    for call in (lambda: create_loader(parser, num_workers=2), lambda: DevicePrefetcher(parser, "cpu")):  # type: ignore[arg-type]
        with pytest.raises(ConfigError) as caught:
            call()
        assert text in str(caught.value)
        assert "Use create_loader(ImageDataset(parser), " in str(caught.value)


def test_a_subset_of_an_image_dataset_is_refused_and_what_works_is_named(parser: ParserTfds) -> None:
    message = "no examples by number.*IndexedImageDataset.*such as split='train\\[:80%\\]'"
    dataset = ImageDataset(parser)
    part, _ = random_split(dataset, [0.5, 0.5])
    for subset in (part, Subset(Subset(dataset, [0, 1]), [0])):
        with pytest.raises(ConfigError, match=message):
            create_loader(subset, batch_size=1)
        with pytest.raises(ConfigError, match=message):
            next(iter(DataLoader(subset)))
    with pytest.raises(ConfigError, match="^Example 7 was asked for, and an ImageDataset has " + message):
        dataset[7]


# Iterables that yield more than their length


class Reporting(Everything):
    """Four items; reports another length."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize(("batch_size", "expected"), [(None, 3), (2, 4)])
def test_an_iterable_that_yields_more_than_its_length_is_warned_of_once(batch_size: int | None, expected: int) -> None:
    loader = create_loader(Reporting(2), batch_size=batch_size)
    text = f"Length of IterableDataset Reporting was reported to be 2 .* but {expected} items have been fetched"
    for _ in range(2):
        with pytest.warns(UserWarning, match=text) as caught:
            assert sum(batch.numel() for batch in map(torch.as_tensor, loader)) == 4
        (warning,) = caught
        assert "workers" not in str(warning.message)


def test_workers_that_each_yield_the_whole_length_are_warned_of() -> None:
    loader = create_loader(Reporting(4), 2, batch_size=2, **FORKED)
    with loader, pytest.warns(UserWarning, match="to be 4 .*Each of the 2 workers may read more than its share"):
        assert sum(len(batch) for batch in loader) == 8


@pytest.mark.parametrize("length", [4, 9])
def test_an_iterable_that_yields_no_more_than_its_length_is_not_warned_of(length: int) -> None:
    assert sum(len(batch) for batch in create_loader(Reporting(length), batch_size=3)) == 4
    assert len(list(create_loader(Everything()))) == 4  # Without a length.


def test_short_batches_of_several_workers_are_not_taken_for_more_examples() -> None:
    class Shared(Rewinding):
        def __len__(self) -> int:
            return 6

    with create_loader(Shared(), 4, batch_size=5, **FORKED) as loader:
        assert len(loader) == 2
        assert [len(batch) for batch in loader] == [2, 2, 1, 1]


# Examples that make no batch


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"a": 1}, {"b": 2}], "example has the keys {'a'} in one of them and {'b'} in another, items 0 and 1 of R"),
        (
            [{"a": [1]}, {"a": [1, 2]}],
            "example['a'] has 1 values in one of them and 2 in another, items 0 and 1 of Rows (",
        ),
        ([(1, {"a": 1}), (1, {"a": "x"})], "example[1]['a'] is of type int in one of them and of type str in another"),
        ([1, None], "example is of type int in one of them and None in another"),
        ([None, None], "example is None, of which it makes no batch (TypeError: "),
        (
            [torch.zeros(2), torch.zeros(3)],
            "example is a tensor of shape [2] in one of them and a tensor of shape [3] in another",
        ),
        ([Image.new("L", (2, 2))] * 2, "example is a PIL image (end the dataset's transform with a conversion to"),
        ([{"a": 1, "b": {1}}, {"b": {2}, "a": 2}], "example['b'] is of type set, of which it makes no batch"),
    ],
)
@pytest.mark.parametrize("arguments", WORKERS)
def test_examples_that_make_no_batch_are_an_error_that_names_the_field(
    rows: list[Any], message: str, arguments: dict[str, Any]
) -> None:
    with create_loader(Rows(rows), batch_size=2, **arguments) as loader, pytest.raises(ConfigError) as caught:
        list(loader)
    text = str(caught.value)
    assert text.startswith("create_loader: torch's default collation cannot make a batch of these 2 examples: ")
    assert message in text
    assert "Give create_loader a collate_fn=, which makes a batch of a list of examples (collate_fn='list' " in text


@pytest.mark.parametrize("kind", [ImageDataset, IndexedImageDataset])
def test_json_fields_whose_rows_differ_are_named(kind: Any, tmp_path: Path) -> None:
    from tfds_torch import ParserBeton
    from tfds_torch.storage.beton.writer import BetonWriter

    with BetonWriter(tmp_path / "rows.beton", {"number": BetonJson(), "meta": BetonJson()}, 2) as writer:
        writer.add((1, {"a": 1}))
        writer.add((2, {"b": 2}))
    dataset = kind(ParserBeton(tmp_path / "rows.beton", batch_size=2), fields=("number", "meta"))
    arguments: dict[str, Any] = {} if kind is ImageDataset else {"batch_size": 2}
    text = r"the field 'meta' has the keys {'a'} in one of them and {'b'} in another .* fields=\('number', 'meta'\)"
    with pytest.raises(ConfigError, match=text):
        list(create_loader(dataset, **arguments))
    (batch,) = create_loader(dataset, collate_fn=list, **arguments)
    assert [meta for _, meta in batch] == [{"a": 1}, {"b": 2}]


def test_other_errors_of_default_collation_stay_what_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("unable to write to file </torch_1_2>: No space left on device (28)")

    monkeypatch.setattr(torch, "stack", fail)
    with pytest.raises(RuntimeError, match=r"^unable to write to file"):
        list(create_loader(Rows([torch.zeros(2), torch.zeros(2)]), batch_size=2))


def test_what_makes_a_batch_with_torch_makes_the_same_one() -> None:
    rows = [{"a": i, "b": (float(i), f"{i}"), "c": {"d": torch.full((2,), i)}} for i in range(4)]
    (ours,), (theirs,) = create_loader(Rows(rows), batch_size=4), DataLoader(Rows(rows), 4)
    assert repr(ours) == repr(theirs)
    both = ConcatDataset([Rows([1, 2]), Rows([3])])
    assert [batch.tolist() for batch in create_loader(both, batch_size=3)] == [[1, 2, 3]]
