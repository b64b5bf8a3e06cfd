"""IndexedImageDataset behind real DataLoaders and samplers. tensorflow is loaded in none of the processes."""

import os
import pickle
import sys
import uuid
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    random_split,
)

import tfds_torch
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserTfds,
    TrainPreprocess,
    Views,
    create_loader,
)
from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.runtime.terminal import QUIET_ENVIRON
from torch_data import reading
from torch_data.conftest import NUM_PHOTOS

slow, campaign = pytest.mark.slow, pytest.mark.campaign
LEDGER = ("index", "label", "valid", "id")
TRAIN = TrainPreprocess(size=32)


@pytest.fixture
def dataset(data_root: Path) -> IndexedImageDataset:
    return IndexedImageDataset(ParserTfds(data_root, "photos"), fields=LEDGER)


def take_indices(loader: DataLoader[Any]) -> list[list[int]]:
    """Returns the indices of every batch; what else comes with them must be theirs."""
    parser = loader.dataset.parser
    batches = [reading._rows_of_batch(batch) for batch in loader]
    for batch in batches:
        indices = [row[0] for row in batch]
        assert [row[3] for row in batch] == parser.ids(np.array(indices))
        assert all(row[2] for row in batch)
    return [[row[0] for row in batch] for batch in batches]


# What an example is


def test_examples_are_those_of_image_dataset(data_root: Path) -> None:
    parser = ParserTfds(data_root, "photos", batch_size=8)
    fields = ("file_name", "image", "index", "label", "valid", "id")
    expected = reading.read_examples(ImageDataset(parser, fields=fields))
    dataset = IndexedImageDataset(parser, fields=fields)
    assert len(dataset) == len(expected) == NUM_PHOTOS
    for ours, theirs in zip(dataset.__getitems__(range(NUM_PHOTOS)), expected, strict=True):
        assert [type(value) for value in ours] == [type(value) for value in theirs]
        assert ours[1].tobytes() == theirs[1].tobytes()
        assert ours[:1] + ours[2:] == theirs[:1] + theirs[2:]


def test_an_example_is_a_pil_image_and_an_int(data_root: Path) -> None:
    image, label = IndexedImageDataset(ParserTfds(data_root, "photos"))[3]
    assert isinstance(image, Image.Image)
    assert image.mode == "RGB"
    assert type(label) is int
    gray, _ = IndexedImageDataset(ParserTfds(data_root, "digits", image_mode="L"))[-1]
    assert (gray.mode, gray.size) == ("L", (8, 8))


def test_transforms_take_the_place_of_image_and_label(data_root: Path) -> None:
    dataset = IndexedImageDataset(ParserTfds(data_root, "photos"), reading.size_of, reading.name_of)
    image, label = dataset[0]
    assert image[0] == "RGB"
    assert label in ("class 0", "class 1")
    dataset.transform, dataset.target_transform = None, None
    assert isinstance(dataset[0][0], Image.Image)


def test_a_text_target_is_the_label(data_root: Path) -> None:
    parser = ParserTfds(data_root, "photos", target_key="file_name")
    assert IndexedImageDataset(parser, fields=("label",))[2] == (parser.filenames()[2],)


def test_an_index_may_be_numpys_torchs_negative_or_an_id(dataset: IndexedImageDataset) -> None:
    example = dataset[NUM_PHOTOS - 1]
    for key in (-1, np.int64(60), torch.tensor(60), example[3]):
        assert dataset[key] == example  # type: ignore[index]
    with pytest.raises(IndexError, match="no example 61"):
        dataset[NUM_PHOTOS]
    with pytest.raises(ExampleNotFoundError, match="no example 61"):
        dataset.__getitems__([0, NUM_PHOTOS])
    with pytest.raises(ConfigError, match="True names no example"):
        dataset[True]


def test_filenames_are_the_parsers(data_root: Path) -> None:
    dataset = IndexedImageDataset(ParserTfds(data_root, "photos"), fields=("file_name",))
    assert dataset.filenames() == [name for (name,) in dataset.__getitems__(range(NUM_PHOTOS))]
    assert Path(dataset.filenames(absolute=True)[0]).is_relative_to(data_root)


def test_a_parser_without_random_access_is_refused() -> None:
    class InOrderOnly:
        def check_fields(self, fields: Sequence[str]) -> None:
            pass

    with pytest.raises(ConfigError, match="cannot fetch examples by their index: use ImageDataset, which reads"):
        IndexedImageDataset(InOrderOnly())  # type: ignore[arg-type]


def test_it_stands_at_the_front_door() -> None:
    assert tfds_torch.IndexedImageDataset is IndexedImageDataset


# Samplers


def weights() -> list[float]:
    return [float(i % 3 == 0) for i in range(NUM_PHOTOS)]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


SAMPLERS: dict[str, Callable[[Any], Sampler[int]]] = {
    "random": lambda dataset: RandomSampler(dataset, generator=generator()),
    "weighted, with doubles": lambda dataset: WeightedRandomSampler(weights(), 100, generator=generator()),
    "subset": lambda dataset: SubsetRandomSampler([5, 60, 0, 33], generator=generator()),
    "distributed": lambda dataset: DistributedSampler(dataset, num_replicas=3, rank=1, seed=7),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_exactly_the_examples_of_a_sampler_come(dataset: IndexedImageDataset, name: str) -> None:
    make = SAMPLERS[name]
    indices = list(make(dataset))
    found = take_indices(DataLoader(dataset, 8, sampler=make(dataset)))
    assert found == [indices[start : start + 8] for start in range(0, len(indices), 8)]


def test_a_distributed_sampler_deals_out_every_example(dataset: IndexedImageDataset) -> None:
    parts = [DistributedSampler(dataset, 3, rank, shuffle=False) for rank in range(3)]
    found = [take_indices(DataLoader(dataset, 50, sampler=part)) for part in parts]
    assert {index for rank in found for batch in rank for index in batch} == set(range(NUM_PHOTOS))


def test_a_batch_is_fetched_at_once(dataset: IndexedImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[int]] = []
    fetch = ParserTfds.examples_by_index

    def count(parser: ParserTfds, indices: Sequence[int], fields: Sequence[str]) -> Any:
        calls.append(list(indices))
        return fetch(parser, indices, fields)

    monkeypatch.setattr(ParserTfds, "examples_by_index", count)
    subset = Subset(dataset, [9, 8, 7, 6, 5])
    assert [batch[0].tolist() for batch in DataLoader(subset, 3)] == [[9, 8, 7], [6, 5]]
    assert calls == [[9, 8, 7], [6, 5]]


def test_random_split_gives_every_example_once(dataset: IndexedImageDataset) -> None:
    parts = random_split(dataset, [0.7, 0.3], generator())
    indices = [index for part in parts for batch in DataLoader(part, 16) for index in batch[0].tolist()]
    assert sorted(indices) == list(range(NUM_PHOTOS))


def test_threads_may_share_a_dataset(dataset: IndexedImageDataset) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert [example[0] for example in pool.map(dataset.__getitem__, range(30))] == list(range(30))


# Workers


@pytest.mark.parametrize(
    ("method", "is_persistent"),
    [
        pytest.param("fork", True, id="fork"),
        pytest.param("spawn", False, id="spawn", marks=slow),
        pytest.param("forkserver", True, id="forkserver", marks=slow),
    ],
)
def test_workers_read_the_samplers_examples_after_the_parent_looked(
    dataset: IndexedImageDataset, method: str, is_persistent: bool
) -> None:
    first = dataset[0]
    loader = DataLoader(
        dataset,
        8,
        sampler=RandomSampler(dataset, generator=generator()),
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=is_persistent,
    )
    sampler = RandomSampler(dataset, generator=generator())
    for _ in range(2 if is_persistent else 1):
        expected = list(sampler)
        assert take_indices(loader) == [expected[start : start + 8] for start in range(0, NUM_PHOTOS, 8)]
        assert dataset[0] == first  # The parent goes on looking while workers live.
    assert "tensorflow" not in sys.modules


def test_a_dataset_that_was_read_can_be_pickled(dataset: IndexedImageDataset) -> None:
    first = dataset[0]
    assert pickle.loads(pickle.dumps(dataset))[0] == first


def test_errors_of_workers_keep_their_type(dataset: IndexedImageDataset) -> None:
    loader = DataLoader(dataset, sampler=[NUM_PHOTOS], num_workers=1)
    with pytest.raises(ExampleNotFoundError, match="there is no example 61"):
        list(loader)


# Preprocessed images


def preprocessing(data_root: Path, preprocess: Any = TRAIN, fields: Sequence[str] = ("image", "index")) -> Any:
    parser = ParserTfds(data_root, "photos", is_training=True, batch_size=8, preprocess=preprocess, repeats=2)
    return IndexedImageDataset(parser, fields=fields)


@pytest.fixture(scope="module")
def crops(data_root: Path) -> list[dict[int, torch.Tensor]]:
    """The images of the first pass of three epochs, by their index, as ImageDataset's whole batches have them."""
    dataset, found = ImageDataset(preprocessing(data_root).parser, fields=("image", "index")), []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        batches = [(images.clone(), index.tolist()) for images, index in dataset]
        rows = [pair for images, index in batches for pair in zip(index, images, strict=True)][:NUM_PHOTOS]
        assert len(dict(rows)) == NUM_PHOTOS
        found.append(dict(rows))
    return found


def epochs_of(loader: Any, crops: list[dict[int, torch.Tensor]]) -> set[int]:
    """Returns the epochs whose crops a loader's images are."""
    found = set()
    for images, index in loader:
        for image, number in zip(images, index.tolist(), strict=True):
            (epoch,) = [epoch for epoch, crop in enumerate(crops) if torch.equal(crop[number], image)]
            found.add(epoch)
    return found


def test_a_preprocessed_example_is_that_of_the_whole_batches(data_root: Path, crops: list[Any]) -> None:
    dataset = preprocessing(data_root, fields=("image", "label", "id"))
    for epoch in (2, 0):
        dataset.set_epoch(epoch)
        for number, (image, label, name) in zip((5, 60, 5), dataset.__getitems__([5, 60, 5]), strict=True):
            assert (image.dtype, image.shape) == (torch.uint8, (3, 32, 32))
            assert torch.equal(image, crops[epoch][number])
            assert (label, name) == (dataset.parser[number].label, dataset.parser[number].id)
        assert torch.equal(dataset["photos-train.tfrecord-00000-of-00008__3"][0], crops[epoch][3])
    assert not torch.equal(crops[0][5], crops[2][5])
    assert dataset.parser[5].image.shape == np.asarray(IndexedImageDataset(plain(data_root))[5][0]).shape


def plain(data_root: Path) -> ParserTfds:
    return ParserTfds(data_root, "photos")


def test_evaluation_is_that_of_the_whole_batches(data_root: Path) -> None:
    preprocess = EvalPreprocess(size=32, interpolation="bicubic")
    parser = ParserTfds(data_root, "photos", batch_size=64, image_mode="L", preprocess=preprocess)
    ((images, labels),) = ImageDataset(parser)
    ((ours, our_labels),) = DataLoader(IndexedImageDataset(parser), 64)
    assert torch.equal(ours, images)
    assert torch.equal(our_labels, labels)


LOADERS: dict[str, Callable[..., Any]] = {
    "torch's": partial(DataLoader, batch_size=8),
    "torch's, fork": partial(DataLoader, batch_size=8, num_workers=2, multiprocessing_context="fork"),
    "torch's, fork, persistent": partial(
        DataLoader, batch_size=8, num_workers=2, multiprocessing_context="fork", persistent_workers=True
    ),
    "torch's, spawn, persistent": partial(
        DataLoader, batch_size=8, num_workers=2, multiprocessing_context="spawn", persistent_workers=True
    ),
    "torch's, forkserver": partial(DataLoader, batch_size=8, num_workers=2, multiprocessing_context="forkserver"),
    "ours": partial(create_loader, batch_size=8),
    "ours, fork": partial(create_loader, batch_size=8, num_workers=2, multiprocessing_context="fork"),
    "ours, spawn": partial(create_loader, batch_size=8, num_workers=2, multiprocessing_context="spawn"),
}
SLOW_LOADERS = ("torch's, spawn, persistent", "ours, spawn")
LOADER_PARAMETERS = [
    pytest.param(name, marks=slow if name in SLOW_LOADERS else campaign if "server" in name else ()) for name in LOADERS
]


@pytest.mark.parametrize("name", LOADER_PARAMETERS)
def test_an_epoch_that_is_set_has_its_crops(name: str, data_root: Path, crops: list[Any]) -> None:
    dataset = preprocessing(data_root)
    part, _ = random_split(dataset, [30, NUM_PHOTOS - 30], generator())
    loader = LOADERS[name](part)
    for epoch in (0, 2, 1, 1):
        dataset.set_epoch(epoch)  # It reaches workers that already run.
        assert epochs_of(loader, crops) == {epoch}
    getattr(loader, "close", lambda: None)()


@pytest.mark.parametrize("name", ["ours", "ours, fork", pytest.param("ours, spawn", marks=slow)])
def test_every_iteration_of_our_loader_has_other_crops_until_an_epoch_is_set(
    name: str, data_root: Path, crops: list[Any]
) -> None:
    dataset = preprocessing(data_root)
    with LOADERS[name](ConcatDataset([dataset])) as loader:
        assert [epochs_of(loader, crops) for _ in range(3)] == [{0}, {1}, {2}]
        loader.set_epoch(1)
        assert [epochs_of(loader, crops) for _ in range(2)] == [{1}, {1}]


def test_torchs_loader_has_the_crops_of_epoch_0_and_a_warning_where_none_is_set(
    data_root: Path, crops: list[Any]
) -> None:
    dataset = preprocessing(data_root)
    assert torch.equal(dataset[3][0], crops[0][3])  # Somebody looks at an image: no warning, which would be an error.
    with pytest.warns(
        UserWarning, match=r"photos:1\.0\.0: nothing has told this IndexedImageDataset the epoch.*set_epoch"
    ):
        assert epochs_of(DataLoader(dataset, 8), crops) == {0}
    assert epochs_of(DataLoader(dataset, 8), crops) == {0}  # Once.
    dataset.set_epoch(2)
    assert epochs_of(DataLoader(dataset, 8), crops) == {2}


def test_workers_of_torchs_loader_warn_once_in_all_epochs(data_root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    dataset = preprocessing(data_root)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: os.write(2, f"{message}\n".encode())  # type: ignore[assignment]
        for _ in range(2):
            list(DataLoader(dataset, 8, num_workers=2, multiprocessing_context="fork"))
    assert capfd.readouterr().err.count("nothing has told this IndexedImageDataset the epoch") == 1


def test_a_transform_gets_the_preprocessed_image(data_root: Path) -> None:
    dataset = IndexedImageDataset(preprocessing(data_root).parser, transform=torch.Tensor.float)
    assert dataset[0][0].dtype == torch.float32


def test_a_copy_of_a_preprocessing_dataset_goes_on_for_itself(data_root: Path, crops: list[Any]) -> None:
    dataset = preprocessing(data_root)
    dataset.set_epoch(1)
    copy = pickle.loads(pickle.dumps(dataset))
    dataset.set_epoch(2)
    assert torch.equal(copy[4][0], crops[1][4])


def test_what_single_examples_cannot_do_is_refused(data_root: Path) -> None:
    with pytest.raises(ConfigError, match=r"photos:1.0.0: single examples cannot go through Views.*come in whole"):
        preprocessing(data_root, Views((TRAIN, 2)))
    for dataset in (preprocessing(data_root), IndexedImageDataset(plain(data_root))):
        with pytest.raises(ConfigError, match=r"^set_epoch: epoch=-1 must be an integer >= 0"):
            dataset.set_epoch(-1)
    dataset = preprocessing(data_root)
    dataset.set_epoch(2**62)
    with pytest.raises(ConfigError, match=r"^epoch=4611686018427387904 must be .* 0\.\.\d+"):
        dataset[0]


# Lives of whole programs

PROGRAM = """
import os, signal, sys
from torch.utils.data import DataLoader, RandomSampler
from tfds_torch import IndexedImageDataset, ParserTfds
os.setpgrp()  # Ctrl-C in a terminal reaches the whole group.
dataset = IndexedImageDataset(ParserTfds(sys.argv[1], "photos"), fields=("index", "label"))
dataset[0]
loader = DataLoader(dataset, 4, num_workers=2, persistent_workers=True)
seen = [index for indices, _ in loader for index in indices.tolist()]
dataset[1]
print(seen == list(range(len(dataset))), "tensorflow" in sys.modules, flush=True)
if sys.argv[2] == "ctrl-c":
    for batch in loader:
        dataset[2]
        os.killpg(0, signal.SIGINT)
"""


@slow
@pytest.mark.parametrize("ending", ["end", "ctrl-c"])
def test_a_program_that_looks_and_then_loads_leaves_no_process(
    ending: str, data_root: Path, run_python: Callable[..., Any]
) -> None:
    mark = uuid.uuid4().hex
    done = run_python(
        *("-W", "always::ResourceWarning", "-c", PROGRAM, str(data_root), ending),
        env={reading.MARK: mark, **QUIET_ENVIRON},
    )
    assert done.stdout == "True False\n", done.stderr
    if ending == "end":
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode != 0
        assert "KeyboardInterrupt" in done.stderr
    assert psutil.wait_procs(reading.marked_processes(mark), timeout=30)[1] == []
