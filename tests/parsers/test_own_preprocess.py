"""A user's own preprocess: one method, the same pixels everywhere, and errors that name it and the example."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_preprocess import Failing, FailingCrop, NoDataclass, Shade, SquareCrop
from tfds_fixtures import NUM_TRAIN, Datasets, Read, call_reader, read_all

from parsers.preprocessing import to_arrays
from tfds_torch import (
    ImageDataset,
    IndexedImageDataset,
    ParserBeton,
    ParserTfds,
    TrainPreprocess,
    World,
    create_loader,
)
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.images.preprocess import Preprocess
from tfds_torch.storage.beton.fields import BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

SIZE = 16
OWN = (Shade(SIZE), SquareCrop(SIZE))
WORLD = World()
Pixels = dict[int, np.ndarray]


def training(preprocess: Any, batch_size: int = 12, mode: str = "index", **arguments: Any) -> dict[str, Any]:
    read = ReadOptions(mode=mode, num_threads=arguments.pop("num_threads", 1))
    wanted = {"name": "shapes", "is_training": True, "batch_size": batch_size, "preprocess": preprocess, "read": read}
    return wanted | arguments


def reading(preprocess: Any, world: World = WORLD, epoch: int = 0, **arguments: Any) -> Read:
    return Read(training(preprocess, **arguments), world, epoch, fields=("image", "label"))


def first_pass(batches: Sequence[Any]) -> Pixels:
    """Returns the pixels of each example of epoch 0, without those that were wrapped: they come last."""
    found: Pixels = {}
    for batch in batches:
        for index, image in zip(batch.index.tolist(), to_arrays(batch.image), strict=True):
            found.setdefault(index, image)
    return found


def assert_same(found: Pixels, wanted: Pixels) -> None:
    assert len(wanted) == NUM_TRAIN
    assert found.keys() == wanted.keys()
    for index, image in found.items():
        np.testing.assert_array_equal(image, wanted[index])


@pytest.fixture(scope="module")
def wanted(datasets: Datasets) -> dict[Any, Pixels]:
    """What one pipeline of read mode `index` makes of epoch 0."""
    return {own: first_pass(read_all(datasets.root, [reading(own)])[0]) for own in OWN}


def test_an_augment_gets_random_numbers_of_each_example(datasets: Datasets, wanted: dict[Any, Pixels]) -> None:
    plain = first_pass(read_all(datasets.root, [reading(TrainPreprocess(SIZE))])[0])
    levels = []
    for index, image in wanted[OWN[0]].items():
        (level,) = set(((image.astype(int) - plain[index]) % 256).ravel().tolist())
        levels.append(level)
    assert len(set(levels)) > 80
    other_pass = read_all(datasets.root, [reading(OWN[0], epoch=1)])[0]
    assert not any(np.array_equal(image, wanted[OWN[0]][index]) for index, image in first_pass(other_pass).items())


CASES: dict[str, tuple[dict[str, Any], int]] = {
    "other batches": ({"batch_size": 7}, 1),
    "batches larger than chunks": ({"batch_size": 60, "num_threads": 3}, 1),
    "single examples": ({"batch_size": 1}, 1),
    "more workers": ({}, 3),
    "a stream": ({"mode": "examples"}, 2),
}


@pytest.mark.parametrize("own", OWN, ids=lambda own: type(own).__name__)
@pytest.mark.parametrize("case", CASES)
def test_an_example_has_the_same_pixels_in_both_engines_and_every_world(
    case: str, own: Any, datasets: Datasets, wanted: dict[Any, Pixels]
) -> None:
    arguments, num_workers = CASES[case]
    reads = [reading(own, World(0, 1, worker, num_workers), **arguments) for worker in range(num_workers)]
    batches = [batch for part in read_all(datasets.root, reads) for batch in part]
    if case == "a stream":  # Its pipelines wrap each for itself.
        batches.sort(key=lambda batch: batch.batch)
    assert_same(first_pass(batches), wanted[own])


def _with_torch(arguments: dict[str, Any], epoch: int) -> tuple[Pixels, Pixels]:
    """Returns what a Loader with workers and an IndexedImageDataset make of an epoch. Loads torch."""
    parser = ParserTfds(**arguments)
    dataset, found = ImageDataset(parser, fields=("image", "index")), {}
    dataset.set_epoch(epoch)
    with create_loader(dataset, num_workers=2) as loader:
        for images, index in loader:
            for number, image in zip(index.tolist(), images, strict=True):
                found.setdefault(number, image.permute(1, 2, 0).numpy().copy())
    indexed = IndexedImageDataset(parser, fields=("image",))
    indexed.set_epoch(epoch)
    numbers = sorted(found)
    singles = [indexed[number] for number in numbers[:10]] + indexed.__getitems__(numbers[10:])
    images = [one[0] if isinstance(one, tuple) else one for one in singles]
    return found, {number: image.permute(1, 2, 0).numpy() for number, image in zip(numbers, images, strict=True)}


@pytest.mark.parametrize("own", OWN, ids=lambda own: type(own).__name__)
def test_a_loader_and_an_indexed_dataset_give_the_same_pixels(own: Any, datasets: Datasets) -> None:
    arguments = {"root": str(datasets.root), **training(own)}
    found, indexed = call_reader(_with_torch, arguments, 1)
    assert_same(indexed, found)


# What cannot be


BY_CROP, BY_AUGMENT = "Failing.crop failed: ", "Failing.augment failed: "
ERRORS = {
    "raises in crop": f"{BY_CROP}KeyError: 'no such box'.",
    "raises for several": "Failing.crop failed for it and its neighbours: KeyError: 'too many'.",
    "wrong dtype": f"{BY_CROP}ValueError: Crops: boxes must be a numpy array int64 [1, 4], not float64 [1, 4].",
    "wrong count": f"{BY_CROP}TypeError: it must return Crops of 1 images, not 0 of them.",
    "returns boxes": f"{BY_CROP}TypeError: it must return Crops of 1 images, not array([[",
    "returns nothing": f"{BY_CROP}TypeError: it must return Crops of 1 images, not None.",
    "lies outside": f"{BY_CROP}The box (top, left, height, width) = (1000, ",
    "raises in augment": f"{BY_AUGMENT}ZeroDivisionError: no light.",
    "casts in place": f"{BY_AUGMENT}UFuncTypeError: Cannot cast ufunc 'add' output",
    "returns an image": f"{BY_AUGMENT}TypeError: it must change the images in place, as in images[:] = ..., and",
    "another shape": f"{BY_AUGMENT}ValueError: could not broadcast input array",
}
NAMED = r"^The preprocess cannot be applied to shapes-train\.tfrecord-\S+__(\d+)\. "


def fails_alone(parser: ParserTfds, index: int) -> bool:
    try:
        parser.examples_by_index([index], epoch=0)
    except ConfigError:
        return True
    return False


@pytest.mark.parametrize("how", ERRORS)
def test_what_cannot_be_is_an_error_that_names_preprocess_and_example(how: str, datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, **training(Failing(SIZE, how=how), is_training=False, shuffle=False))
    with pytest.raises(ConfigError, match=re.escape(ERRORS[how])) as refused:
        list(parser.batches())
    (number,) = re.findall(NAMED, str(refused.value))
    assert int(number) == next((index for index in range(12) if fails_alone(parser, index)), 0)


def test_a_failing_crop_of_stored_pixels_names_the_example(tmp_path: Path) -> None:
    with BetonWriter(tmp_path / "raw.beton", {"image": BetonImage("raw"), "label": BetonInt()}, 40) as writer:
        for number in range(40):
            writer.add((np.full((SIZE, SIZE, 3), number, np.uint8), number))
    parser = ParserBeton(tmp_path / "raw.beton", batch_size=8, preprocess=FailingCrop(SIZE))
    message = (
        r"^The preprocess cannot be applied to raw\.beton__0\. FailingCrop\.crop failed: KeyError: 'no such box'\.$"
    )
    with pytest.raises(ConfigError, match=message):
        list(parser.batches())


def test_a_lack_of_memory_comes_out_as_it_is(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, **training(Failing(SIZE, how="runs out of memory")))
    with pytest.raises(MemoryError, match="no room"):
        next(parser.batches())


def test_what_is_not_a_dataclass_is_refused(datasets: Datasets) -> None:
    with pytest.raises(ConfigError, match="or a dataclass of your own that is derived from one of them or from tfds_"):
        ParserTfds(datasets.root, **training(NoDataclass()))
    with pytest.raises(ConfigError, match=r"Several crops of an image are Views\(\(TrainPreprocess\(224\), 2\)\)\."):
        ParserTfds(datasets.root, **training((TrainPreprocess(size=8), TrainPreprocess(size=8))))
    with pytest.raises(TypeError, match="abstract"):
        Preprocess()  # type: ignore[abstract]
    with pytest.raises(ConfigError, match="SquareCrop: size=0 must be an integer >= 1"):
        SquareCrop(0)
