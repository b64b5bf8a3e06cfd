"""Functions over whole examples draw the same numbers in every world, and leave those of a training process alone."""

import pickle
import random
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    ParserTfds,
    ReadOptions,
    Transform,
    World,
    create_loader,
    demo,
)
from tfds_torch.errors import ConfigError, CorruptRecordError

NUM_EXAMPLES, GLOBAL_BATCH = 96, 16


@pytest.fixture(scope="module")
def digits() -> Path:
    return demo.prepare("digits")


def draw(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return an image that depends on all four sources of random numbers."""
    drawn = [random.random(), np.random.rand(), torch.rand(()).item(), rng.random()]
    example["image"][0, 0, 0] = int(100 * sum(drawn) / 4)
    return {"image": example["image"], "drawn": np.array(drawn)}


def draw_again(example: dict[str, Any]) -> dict[str, Any]:
    return {"drawn": np.concatenate([example["drawn"], [random.random()]])}


def draw_alone(example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {"drawn": rng.random(5)}


DRAWS = [Transform(draw), Transform(draw_again, ["drawn"], ["drawn"])]


def open_parser(digits: Path, num_ranks: int = 1, transform: Any = DRAWS, **options: Any) -> ParserTfds:
    values = {"preprocess": EvalPreprocess(8, crop_pct=1), "batch_size": GLOBAL_BATCH // num_ranks, **options}
    return ParserTfds(digits, "digits", f"train[:{NUM_EXAMPLES}]", is_training=True, transform=transform, **values)


def drawn_of(batches: Iterable[dict[str, Any]]) -> dict[int, list[float]]:
    """Return index -> what its functions drew, and the pixel that they wrote."""
    found = {}
    for batch in batches:
        for index, image, drawn in zip(batch["index"].tolist(), batch["image"], batch["drawn"], strict=True):
            found[index] = [*drawn.tolist(), float(np.asarray(image)[0, 0, 0])]
    return found


FIELDS = {"image": "image", "index": "index", "drawn": "drawn"}


@pytest.fixture(scope="module")
def alone(digits: Path) -> dict[int, list[float]]:
    found = drawn_of(create_loader(ImageDataset(open_parser(digits), fields=FIELDS)))
    assert len({value for row in found.values() for value in row[:5]}) == 5 * NUM_EXAMPLES
    return found


@pytest.mark.parametrize(
    ("num_ranks", "num_workers", "num_threads", "method"),
    [(1, 0, 4, None), (1, 2, 1, "fork"), (1, 3, 4, "fork"), (2, 0, 1, None), (2, 2, 1, "fork"), (1, 2, 1, "spawn")],
)
def test_numbers_are_the_examples_own_in_every_world(
    digits: Path, alone: dict[int, list[float]], num_ranks: int, num_workers: int, num_threads: int, method: str | None
) -> None:
    parser, found = open_parser(digits, num_ranks, read=ReadOptions(num_threads=num_threads)), {}
    for rank in range(num_ranks):
        dataset = ImageDataset(parser, fields=FIELDS, world=World(rank, num_ranks))
        with create_loader(dataset, num_workers=num_workers, multiprocessing_context=method) as loader:
            found |= drawn_of(loader)
    assert found == alone


def test_a_resume_another_epoch_and_another_seed(digits: Path, alone: dict[int, list[float]]) -> None:
    def resumed(dataset: ImageDataset, num_workers: int) -> dict[int, list[float]]:
        with create_loader(dataset, num_workers=num_workers) as loader:
            loader.load_state_dict(state)
            return drawn_of(loader)

    dataset = ImageDataset(open_parser(digits), fields=FIELDS)
    with create_loader(dataset) as loader:
        begun = iter(loader)
        first = drawn_of([next(begun), next(begun)])
        state = loader.state_dict()
    for num_workers in (0, 2):
        assert first | resumed(ImageDataset(open_parser(digits), fields=FIELDS), num_workers) == alone
    dataset.set_epoch(1)
    later, other = (
        drawn_of(create_loader(dataset)),
        drawn_of(create_loader(ImageDataset(open_parser(digits, seed=7), fields=FIELDS))),
    )
    firsts = [{row[0] for row in found.values()} for found in (alone, later, other)]
    assert len(set.union(*firsts)) == sum(map(len, firsts))
    with pytest.warns(UserWarning, match=r"saved with the transforms .*draw.*, and here they are \[\]"):
        ImageDataset(open_parser(digits, transform=None)).load_state_dict(state)


def test_a_training_process_keeps_its_generators(digits: Path) -> None:
    def states() -> list[Any]:
        return [random.getstate(), pickle.dumps(np.random.get_state()), torch.get_rng_state().tolist()]

    before = states()
    parser = open_parser(digits)
    next(iter(create_loader(ImageDataset(parser, fields=FIELDS))))
    next(parser.batches(fields=["image", "drawn"]))
    parser[3]
    with pytest.raises(
        ConfigError, match=r"KeyError: 'image'. It got no field. It gets the fields that are asked for: Transform"
    ):
        next(parser.batches(fields=["drawn"]))
    assert states() == before


def test_one_that_draws_from_rng_alone_may_run_in_threads(digits: Path) -> None:
    found = []
    for threads in (False, True):
        transform = Transform(draw_alone, ["label"], ["drawn"], threads=threads)
        for num_threads in (1, 4):
            parser = open_parser(digits, transform=transform, read=ReadOptions(num_threads=num_threads))
            found.append(drawn_of(create_loader(ImageDataset(parser, fields=FIELDS))))
    assert found[0] == found[1] == found[2] == found[3]


class Mosaic:
    """Draws, reads an example of a parser with transforms of its own, and draws again."""

    def __init__(self, other: ParserTfds) -> None:
        self.other = other

    def __call__(self, example: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        first = [random.random(), rng.random()]
        other = self.other[int(rng.integers(20))].features["drawn"]
        return {
            "drawn": np.array([*first, random.random(), np.random.rand(), torch.rand(()).item(), rng.random()]),
            "other": other,
        }


def test_a_function_that_reads_other_examples_keeps_its_own_numbers(digits: Path) -> None:
    parser = open_parser(digits, transform=Mosaic(open_parser(digits, preprocess=None)))
    found = []
    for num_workers in (0, 2):
        with create_loader(ImageDataset(parser, fields=FIELDS), num_workers=num_workers) as loader:
            found.append(drawn_of(loader))
    assert found[0] == found[1]
    assert len({value for row in found[0].values() for value in row[:6]}) == 6 * NUM_EXAMPLES


def test_examples_by_index_are_those_of_the_epoch(digits: Path, alone: dict[int, list[float]]) -> None:
    dataset = IndexedImageDataset(open_parser(digits), fields=FIELDS)
    with pytest.warns(UserWarning, match="every epoch has the random numbers of epoch 0"):
        found = dataset.__getitems__([5])[0]["drawn"].tolist()
    assert [one == other for one, other in zip(found, alone[5], strict=False)] == [False, False, False, True, False]
    dataset.set_epoch(0)
    for index in range(9):
        one = dataset[index]
        assert [*one["drawn"].tolist(), float(one["image"][0, 0, 0])] == alone[index]
    dataset.set_epoch(1)
    assert dataset[3]["drawn"].tolist() != alone[3][:5]


def test_without_seeds_the_three_generators_are_the_process_own(digits: Path, alone: dict[int, list[float]]) -> None:
    dataset = ImageDataset(open_parser(digits), fields=FIELDS, seed_transforms=False)
    found = drawn_of(create_loader(dataset))
    assert all(found[index][0] != alone[index][0] for index in alone)
    assert all(found[index][3] == alone[index][3] for index in alone), "rng stays the example's"


def grow(example: dict[str, Any]) -> dict[str, Any]:
    """Return a larger image, and fields that nobody has named."""
    return {"image": np.pad(example["image"], ((0, 2), (1, 1), (0, 0))), "shape": np.array(example["image"].shape)}


def normalise(example: dict[str, Any]) -> dict[str, Any]:
    return {"image": example["image"].astype(np.float32) / 255}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_images_of_another_size_or_type_make_whole_batches(digits: Path, num_workers: int) -> None:
    stored = {one.index: one.image for one in open_parser(digits, transform=None)[:NUM_EXAMPLES]}
    for options in ({}, {"preprocess": None}):
        dataset = ImageDataset(open_parser(digits, transform=grow, **options), fields="all", batched=True)
        with create_loader(dataset, num_workers=num_workers) as loader:
            for batch in loader:
                assert (batch["image"].shape, batch["image"].dtype) == ((16, 3, 10, 10), torch.uint8)
                assert batch["image"].is_contiguous(memory_format=torch.channels_last)
                assert batch["shape"].tolist() == [[8, 8, 3]] * 16
        parser = open_parser(digits, transform=normalise, **options)
        dataset = ImageDataset(parser, fields=["image", "index"], as_dict=True, batched=True)
        with create_loader(dataset, num_workers=num_workers) as loader:
            for batch in loader:
                expected = np.stack([stored[index] for index in batch["index"].tolist()]).astype(np.float32) / 255
                np.testing.assert_array_equal(batch["image"].permute(0, 2, 3, 1).numpy(), expected)


def test_single_examples_and_all_fields_have_what_is_added(digits: Path) -> None:
    parser = open_parser(digits, transform=grow, preprocess=None)
    examples = list(ImageDataset(parser, fields="all"))
    assert {tuple(one) for one in examples} == {("image", "label", "shape")}
    assert {one["image"].size for one in examples} == {(10, 10)}
    indexed = IndexedImageDataset(parser, fields="all")
    indexed.set_epoch(0)
    (one,) = indexed.__getitems__([4])
    assert one["shape"].tolist() == [8, 8, 3]
    with pytest.raises(ConfigError, match=r"PIL images .*, or batched=True"):
        create_loader(ImageDataset(parser))


def test_ranks_and_messages_name_it(digits: Path) -> None:
    parser = open_parser(digits, transform=[partial(draw_again), Transform(draw_alone, version="2")])
    names = ImageDataset(parser).parser.dataset.transformed.identities
    assert [name.rpartition(":")[2] for name in names] == ["draw_again", "draw_alone version=2"]
    spawned = type("Drawn", (), {"map": lambda self, element: element, "__module__": "__mp_main__"})
    assert Transform(spawned()).identity == "__main__:Drawn", "as the script's own process has it"


def test_what_cannot_be_pickled_is_named_under_spawn(digits: Path) -> None:
    parser = open_parser(digits, transform=lambda example: example)
    dataset = ImageDataset(parser)
    loaders: list[Callable[[], Iterable[Any]]] = [
        lambda: create_loader(dataset, num_workers=1, multiprocessing_context="spawn"),
        lambda: DataLoader(dataset, None, num_workers=1, multiprocessing_context="spawn"),
    ]
    for make in loaders:
        with pytest.raises(ConfigError, match=r"transform.*function.*lambda.* cannot be pickled"):
            next(iter(make()))


def fail(example: dict[str, Any]) -> dict[str, Any]:
    if example["label"] == 7:
        raise CorruptRecordError("Another dataset's.")
    return example


@pytest.mark.parametrize(("num_workers", "threads"), [(0, False), (0, True), (1, False)])
def test_a_function_that_fails_is_named_with_its_example_and_traceback(
    digits: Path, num_workers: int, threads: bool
) -> None:
    transform = Transform(fail, threads=threads)
    parser = open_parser(digits, transform=transform, read=ReadOptions(on_error="replace"))
    message = r"transform fail cannot be used for the example 'digits-train.*__\d+'. It failed: .*Another dataset's\."
    with (
        create_loader(ImageDataset(parser), num_workers=num_workers) as loader,
        pytest.raises(ConfigError, match=message) as raised,
    ):
        list(loader)
    assert "in fail" in str(raised.value.__cause__) or isinstance(raised.value.__cause__, CorruptRecordError)
