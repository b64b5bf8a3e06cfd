"""TfdsReader and the loader's checks: timm's arguments, what is refused, and names in the order of delivery."""

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.utils.data
from tfds_fixtures import write_numbered
from torch_data.reading import planned_rows

from tfds_torch import ImageDataset, ParserTfds, ReadOptions, World
from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.integrations.timm import drop_in
from tfds_torch.integrations.timm.drop_in import find_source, prepare_source
from tfds_torch.integrations.timm.metrics import CURRENT, PaddedBatch
from tfds_torch.integrations.timm.reader import TfdsReader, delivered_order

NUM_EXAMPLES = 61
SHARDS = (9, 3, 13, 0, 5, 11, 7, 2, 11)
TRAINING: dict[str, Any] = {"is_training": True, "batch_size": 4}


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of `numbered`."""
    root = tmp_path_factory.mktemp("numbered")
    write_numbered(root, {"train": SHARDS, "test": (5,)})
    return str(root)


class Stream(torch.utils.data.IterableDataset[Any]):
    """As timm's IterableImageDataset: holds a reader."""

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.reader)


class Wrapper(torch.utils.data.Dataset[Any]):
    """As timm's AugMixDataset: takes examples by number."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset


# Arguments


def test_timms_arguments_become_the_parsers(numbered: str) -> None:
    given: dict[str, Any] = {"repeats": 2.0, "seed": 7, "download": False, "input_key": "image", "input_img_mode": "L"}
    given |= {"target_key": "label", "class_map": {str(i): i // 2 for i in range(66)}, "prefetch_size": 100}
    given |= {"shuffle_size": 99, "target_format": "indices", "target_img_mode": "", "num_samples": 66}
    reader = TfdsReader("numbered", numbered, "train+test", **TRAINING, **given, max_steps=None)
    parser = reader.parser
    assert (parser.split, parser.is_training, parser.batch_size, parser.repeats) == ("train+test", True, 4, 2)
    keys = parser.dataset.image_key, parser.dataset.image_mode, parser.dataset.target_key
    assert (parser.seed, *keys, parser.read.shuffle_buffer) == (7, "image", "L", "label", 99)
    assert reader.num_samples == 66
    assert reader.class_to_idx["65"] == 32
    assert len(reader) == 132  # Two passes, 33 batches.


def test_defaults_are_those_of_the_parser(numbered: str) -> None:
    reader, parser = TfdsReader("numbered", numbered), ParserTfds(numbered, "numbered")
    for name in ("split", "is_training", "repeats", "seed", "read", "class_to_idx"):
        assert getattr(reader.parser, name) == getattr(parser, name), name
    for name in ("image_key", "image_mode", "target_key"):
        assert getattr(reader.parser.dataset, name) == getattr(parser.dataset, name), name
    # timm's default batch size is none at all in evaluation.
    assert TfdsReader("numbered", numbered, batch_size=1).parser.batch_size is None
    assert TfdsReader("numbered", numbered, batch_size=1, is_training=True).parser.batch_size == 1
    for root in (None, ""):
        with pytest.raises(DatasetNotFoundError) as caught:
            TfdsReader("numbered", root)
        with pytest.raises(DatasetNotFoundError) as expected:
            ParserTfds(None, "numbered")
        assert str(caught.value) == str(expected.value)


@pytest.mark.parametrize(("num_workers", "num_threads"), [(0, 6), (1, 6), (2, 3), (4, 1), (9, 1)])
def test_the_threads_are_divided_among_the_workers(numbered: str, num_workers: int, num_threads: int) -> None:
    reader = TfdsReader("numbered", numbered, max_threadpool_size=6)
    reader.use_loader(4, num_workers)
    assert reader.parser.read.num_threads == num_threads
    assert reader.parser.batch_size == 4
    reader.set_loader_cfg(None)
    assert reader.parser.read.num_threads == num_threads


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"suffle_size": 3}, ["'suffle_size'", "prefetch_size", "Did you mean 'shuffle_size'?"]),
        ({"max_steps": 9}, ["max_steps=9", "split='train[:10%]'"]),
        ({"additional_features": ["id"]}, ["additional_features=['id']", "fields="]),
        ({"target_img_mode": "L"}, ["target_img_mode='L'", "target_transform"]),
        ({"target_format": "onehot"}, ["'onehot'", "'indices'", "'multihot'"]),
        ({"target_format": "multihot", "target_key": "a,b"}, ["target_format='multihot'", "'a,b'", "indices"]),
        ({"target_format": "multihot", "class_map": {"0": 1}}, ["class_map", "target_format='multihot'"]),
        ({"num_samples": 10}, ["num_samples=10", "numbered:1.0.0", "'train'", "61", "split='train[:10]'"]),
        ({"max_threadpool_size": 0}, ["max_threadpool_size=0", ">= 1"]),
        ({"shuffle_size": 0}, ["shuffle_buffer=0", ">= 1"]),
        ({"repeats": 1.5, **TRAINING}, ["repeats=1.5", "integer"]),
        ({"is_training": True}, ["Training needs batch_size"]),
        ({"input_img_mode": "rgb"}, ["'rgb'", "'RGB'"]),
        ({"target_key": "lable"}, ["'lable'", "Did you mean 'label'"]),
        ({"class_map": "nowhere.txt"}, ["nowhere.txt"]),
    ],
)
def test_arguments_that_cannot_work_are_a_config_error(
    numbered: str, arguments: dict[str, Any], facts: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        TfdsReader("numbered", numbered, **arguments)
    for fact in facts:
        assert fact in str(caught.value)


def test_a_pickled_reader_reads_the_same(numbered: str) -> None:
    reader = TfdsReader("numbered", numbered, **TRAINING, max_threadpool_size=6)
    reader.use_loader(8, 2)
    copy = pickle.loads(pickle.dumps(reader))
    assert (len(copy), copy.parser.batch_size, copy.parser.read) == (64, 8, reader.parser.read)
    with pytest.raises(ConfigError, match=r"stream.*filenames\(\)"):
        reader.filename(0)


def test_a_new_epoch_ends_an_evaluation_that_was_given_up(numbered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CURRENT, "padded", PaddedBatch(1, 2, 3, 4))
    TfdsReader("numbered", numbered).set_epoch(1)
    assert CURRENT.padded is None


# The order of the names


def as_stream(reader: TfdsReader) -> TfdsReader:
    """Lets a reader read as it does remote files."""
    reader.dataset.parser = reader.parser.with_read(ReadOptions(mode="examples"))
    return reader


@pytest.mark.parametrize(("num_workers", "batch_size"), [(1, 7), (2, 1), (3, 7), (10, 7)])
def test_names_come_in_the_order_of_delivery(
    numbered: str, in_reader: Callable[..., Any], num_workers: int, batch_size: int
) -> None:
    reader = as_stream(TfdsReader("numbered", numbered))
    reader.use_loader(batch_size, num_workers)
    rows = in_reader(planned_rows, reader.parser, World(), num_workers, 0)
    delivered = [label for batch in rows for _, label, _, _ in batch]
    assert sorted(delivered) == list(range(NUM_EXAMPLES))
    assert reader.filenames() == [f"{label}.jpg" for label in delivered]
    assert delivered_order(reader.parser, num_workers) == delivered


@pytest.mark.parametrize("num_workers", [1, 3])
def test_by_index_names_come_in_the_order_of_the_split(
    numbered: str, in_reader: Callable[..., Any], num_workers: int
) -> None:
    reader = TfdsReader("numbered", numbered)
    names = reader.filenames()
    assert names == [f"{label}.jpg" for label in range(NUM_EXAMPLES)]
    assert reader.use_loader(7, num_workers) == num_workers, "the order depends on no number of workers"
    rows = in_reader(planned_rows, reader.parser, World(), num_workers, 0)
    assert [f"{label}.jpg" for batch in rows for _, label, _, _ in batch] == names


def test_names_of_a_shuffled_stream_come_in_the_order_of_the_split(numbered: str) -> None:
    reader = TfdsReader("numbered", numbered, **TRAINING)
    reader.use_loader(4, 3)
    assert reader.filenames() == [f"{i}.jpg" for i in range(NUM_EXAMPLES)]
    assert reader.filenames(absolute=True)[0].startswith(numbered)


@pytest.mark.parametrize(("asked", "used"), [(0, 0), (1, 1), (3, 1)])
def test_names_that_were_given_out_keep_their_order(
    numbered: str, caplog: pytest.LogCaptureFixture, asked: int, used: int
) -> None:
    reader = as_stream(TfdsReader("numbered", numbered))
    names = reader.filenames()
    with caplog.at_level(logging.WARNING):
        assert reader.use_loader(4, asked) == used
    facts = ("filenames() of numbered:1.0.0", "'train'", "1 instead of 3") if asked == 3 else ()
    assert bool(caplog.text) == bool(facts)
    for fact in facts:
        assert fact in caplog.text
    assert reader.filenames() == names == [f"{i}.jpg" for i in range(NUM_EXAMPLES)]


# What the loader is held against


def test_the_source_is_found_through_wrappers(numbered: str) -> None:
    reader, images = TfdsReader("numbered", numbered), ImageDataset(ParserTfds(numbered, "numbered"))
    assert find_source(Stream(reader)) is reader
    assert find_source(Wrapper(Wrapper(Stream(reader)))) is reader
    assert find_source(images) is images
    assert find_source(Wrapper(images)) is images
    ring = Wrapper(None)
    ring.dataset = ring
    for other in (None, Stream("timm's"), Wrapper([1, 2]), ring):
        assert find_source(other) is None


def prepare(dataset: Any, batch_size: int = 4, is_training: bool = False, num_workers: int = 0) -> tuple[int, int]:
    source = find_source(dataset)
    assert source is not None
    plan, num_workers = prepare_source(dataset, source, batch_size, is_training, num_workers)
    return plan.num_batches, num_workers


def test_the_reader_takes_the_loaders_batch_size(numbered: str) -> None:
    for said in (None, 1, 9):
        dataset = Stream(TfdsReader("numbered", numbered, batch_size=said))
        assert prepare(dataset, 4, num_workers=2) == (16, 2)
        assert dataset.reader.parser.batch_size == 4
        assert dataset.reader.num_workers == 2


def test_a_dataset_that_fits_its_loader_is_let_through(numbered: str) -> None:
    assert prepare(ImageDataset(ParserTfds(numbered, "numbered"))) == (61, 0)
    assert prepare(ImageDataset(ParserTfds(numbered, "numbered", batch_size=4)), num_workers=2) == (16, 2)
    training = ImageDataset(ParserTfds(numbered, "numbered", **TRAINING))
    assert prepare(training, is_training=True, num_workers=2) == (16, 2)
    dropped = ImageDataset(ParserTfds(numbered, "numbered", batch_size=4, remainder="drop"))
    assert prepare(dropped, is_training=True) == (15, 0)
    share = ImageDataset(ParserTfds(numbered, "numbered", batch_size=4), world=World(1, 3))
    assert prepare(share) == (6, 0), "an explicit world needs no other ranks"


IMAGES: dict[str, dict[str, Any]] = {
    "another batch size": {"batch_size": 8},
    "several workers without a batch size": {},
    "more workers than files": {**TRAINING, "read": ReadOptions(mode="files")},
}
REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another batch size": ({}, ["batch_size=4", "batches of 8"]),
    "several workers without a batch size": ({"num_workers": 3}, ["3 workers", "1 rank", "batch_size=4"]),
    "more workers than files": ({"is_training": True, "num_workers": 9}, ["8 non-empty files", "9 pipelines"]),
    "evaluation data that loses its last batch": (
        {"is_training": True},
        ["is_training=True", "is_training=False", "61 examples"],
    ),
    "training data in an evaluation": ({}, ["is_training=False", "is_training=True", "61 examples twice"]),
    "examples by number": ({"is_training": True}, ["Wrapper", "by number", "stream", "--aug-splits"]),
    "a batch size that makes no sense": ({"batch_size": 0}, ["batch_size=0", ">= 1"]),
}


def make_refused(case: str, root: str) -> Any:
    if case in IMAGES:
        return ImageDataset(ParserTfds(root, "numbered", **IMAGES[case]))
    dataset = Stream(TfdsReader("numbered", root, **TRAINING if "training data" in case else {}))
    return Wrapper(dataset) if case == "examples by number" else dataset


@pytest.mark.parametrize("case", REFUSED)
def test_a_loader_that_contradicts_the_dataset_is_a_config_error(numbered: str, case: str) -> None:
    arguments, facts = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        prepare(make_refused(case, numbered), **arguments)
    for fact in facts:
        assert fact in str(caught.value)


def test_a_second_loader_may_not_change_the_batches_of_the_first(numbered: str) -> None:
    dataset = Stream(TfdsReader("numbered", numbered))
    assert prepare(dataset, 4) == (16, 0)
    assert prepare(dataset, 4, num_workers=2) == (16, 2)
    with pytest.raises(ConfigError, match=r"batch_size=8\): a loader with batch_size=4 already reads this dataset"):
        prepare(dataset, 8)
    assert len(dataset.reader) == 61


def test_ranks_are_compared_before_they_read(numbered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr(drop_in, "is_distributed", lambda: True)
    monkeypatch.setattr(drop_in, "check_ranks", lambda *facts: compared.append(facts))
    dataset = Stream(TfdsReader("numbered", numbered))
    prepare(dataset, num_workers=2)
    assert compared == [(dataset.reader.parser, dataset.reader.dataset.find_rank, 60.0, {"num_workers": 2})]


def test_one_of_several_ranks_that_are_not_connected_is_refused(numbered: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError) as caught:
        prepare(Stream(TfdsReader("numbered", numbered)))
    for fact in ("rank 1 of 3", "torch.distributed is not initialised", "validate.py", "without torchrun"):
        assert fact in str(caught.value)
    unplanned = ImageDataset(ParserTfds(numbered, "numbered"))
    with pytest.raises(ConfigError, match=r"3 rank\(s\) needs a parser with batch_size=4"):
        prepare(unplanned)
