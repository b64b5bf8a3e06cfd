"""What everything that is read by number promises: `.beton` files, tars, image folders and datasets of one's own."""

import pickle
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conformance import OwnStateLoader, Step, check_resumes
from conftest import RunPython
from PIL import Image
from storage.beton.made_files import PAGE
from storage.webdataset.made_tars import write_samples, write_tar

from parsers.resuming import ParserLoader
from parsers.tar_samples import NUM_CLASSES, SIDE, pixels_of, png, sample_of
from tfds_torch import (
    EvalPreprocess,
    ImageDataset,
    IndexedImageDataset,
    MultiLoader,
    ParserBeton,
    ParserMapStyle,
    ParserTfds,
    ParserWebDataset,
    ReadOptions,
    TrainPreprocess,
    World,
    create_loader,
)
from tfds_torch.errors import ConfigError, ExampleNotFoundError
from tfds_torch.parsers.protocol import Parser
from tfds_torch.storage.beton.fields import BetonField, BetonInt
from tfds_torch.storage.beton.image_field import BetonImage
from tfds_torch.storage.beton.writer import BetonWriter

NUM_EXAMPLES, NUM_TARS = 36, 3
LABELS = [number % NUM_CLASSES for number in range(NUM_EXAMPLES)]
IDS = [f"part/{number:04d}" for number in range(NUM_EXAMPLES)]
NUMBERS = tuple(map(str, range(NUM_EXAMPLES)))
PIXELS = np.stack([pixels_of(number) for number in range(NUM_EXAMPLES)])
WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)


@dataclass(frozen=True)
class Case:
    """Parsers over the 36 examples.

    Attributes:
        make: the parser, of the arguments that all parsers take.
        make_masked: the same with a field `mask`, which holds the image once more.
        make_empty: a parser without examples.
        code: the parser's expression, for another process.
        folder: what absolute file names begin with.
        split: the name of its split.
        numbers: the examples in the order of `index`.
        ids: in that order.
    """

    make: Callable[..., Any]
    make_masked: Callable[..., Any]
    make_empty: Callable[..., Any]
    code: str
    folder: Path
    split: str = "all"
    numbers: Sequence[int] = range(NUM_EXAMPLES)
    ids: Sequence[str] = tuple(IDS)

    @property
    def labels(self) -> list[int]:
        return [LABELS[number] for number in self.numbers]

    @property
    def pixels(self) -> Any:
        return PIXELS[list(self.numbers)]


def beton_case(folder: Path) -> Case:
    fields: dict[str, BetonField] = {"image": BetonImage("raw"), "label": BetonInt(), "mask": BetonImage("raw")}
    path, empty = folder / "all.beton", folder / "empty.beton"
    with BetonWriter(path, fields, NUM_EXAMPLES, page_size=PAGE) as writer:
        for number, pixels in enumerate(PIXELS):
            writer.add((pixels, LABELS[number], pixels), id=IDS[number])
    BetonWriter(empty, {"label": BetonInt()}, 0).close()
    make = partial(ParserBeton, path)
    return Case(make, make, partial(ParserBeton, empty), f"ParserBeton({str(path)!r}, batch_size=36)", folder)


def tar_case(folder: Path) -> Case:
    for tar, numbers in enumerate(np.array_split(np.arange(NUM_EXAMPLES), NUM_TARS)):
        write_samples(folder / f"a-{tar:02d}.tar", map(sample_of, numbers.tolist()))
    urls, empty = str(folder / "a-{00..02}.tar"), write_tar(folder / "empty.tar", [])
    return Case(
        partial(ParserWebDataset, urls),
        partial(ParserWebDataset, urls, {"image": "png", "label": "cls", "mask": "seg.png"}),
        partial(ParserWebDataset, empty),
        f"ParserWebDataset({urls!r}, batch_size=36)",
        folder,
    )


def folder_case(folder: Path) -> Case:
    (folder / "empty" / "0").mkdir(parents=True)
    for number, label in enumerate(LABELS):
        path = folder / "train" / str(label) / f"{number:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(PIXELS[number]))
    make, empty = (partial(ParserTfds, folder, "image_folder", split) for split in ("train", "empty"))
    ids = list(make().ids(np.arange(NUM_EXAMPLES)))  # In TFDS's order.
    code = f"ParserTfds({str(folder)!r}, 'image_folder', batch_size=36)"
    return Case(make, make, empty, code, folder, "train", [int(Path(name).stem) for name in ids], ids)


class Items(torch.utils.data.Dataset[Any]):
    """A map-style dataset of torch, whose images are PIL images."""

    def __len__(self) -> int:
        return NUM_EXAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        image = Image.fromarray(PIXELS[number])
        return {"image": image, "label": torch.tensor(LABELS[number]), "mask": image.copy()}


def item_case(folder: Path) -> Case:
    make = partial(ParserMapStyle, Items())
    rows = f"[({png(PIXELS[0])!r}, number) for number in range({NUM_EXAMPLES})]"
    code = f"ParserMapStyle({rows}, batch_size=36)"
    return Case(make, make, partial(ParserMapStyle, []), code, folder, ids=NUMBERS)


def column_case(folder: Path) -> Case:
    make = partial(ParserMapStyle, {"image": PIXELS, "label": np.array(LABELS), "mask": list(PIXELS)})
    code = f"ParserMapStyle({{'image': [{png(PIXELS[0])!r}] * 36, 'label': list(range(36))}}, batch_size=36)"
    return Case(make, make, partial(ParserMapStyle, []), code, folder, ids=NUMBERS)


CASES = {"beton": beton_case, "tars": tar_case, "folder": folder_case, "items": item_case, "columns": column_case}


@pytest.fixture(scope="module", params=list(CASES.values()), ids=list(CASES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    made: Case = request.param(tmp_path_factory.mktemp("files"))
    return made


def only(*names: str) -> pytest.MarkDecorator:
    """Lets a test run for some of the cases."""
    return pytest.mark.parametrize("case", [CASES[name] for name in names], indirect=True, ids=names)


only_by_index = only("beton", "tars", "items", "columns")
"""Those that no stream reads."""


# What comes


def test_it_is_a_parser_of_one_split_that_is_read_by_number(case: Case) -> None:
    parser = case.make()
    assert isinstance(parser, Parser)
    assert (parser.num_examples, len(parser), parser.split) == (NUM_EXAMPLES, NUM_EXAMPLES, case.split)  # type: ignore[arg-type]
    assert parser.read_mode(World()) == "index"
    assert {"image", "label", "valid", "index", "id"} <= set(parser.element_spec.fields)
    assert parser.element_spec.fields["image"].shape == (None, None, 3)


@pytest.mark.parametrize("preprocess", [None, WHOLE])
@pytest.mark.parametrize("batch_size", [7, 36, 4])
def test_every_example_is_the_one_that_was_stored(case: Case, batch_size: int, preprocess: Any) -> None:
    batches = list(case.make(shuffle=True, batch_size=batch_size, preprocess=preprocess).batches())
    assert sorted(np.concatenate([batch.index for batch in batches])) == list(range(NUM_EXAMPLES))
    for batch in batches:
        assert (np.stack(batch.image) == case.pixels[batch.index]).all()
        assert batch.label.tolist() == [case.labels[number] for number in batch.index]
        assert list(batch.id) == [case.ids[number] for number in batch.index]


def test_single_examples_are_found_by_number_and_by_id(case: Case) -> None:
    parser = case.make()
    assert parser[case.ids[4]].index == 4
    assert (parser[-1].image == case.pixels[-1]).all()
    assert parser[-NUM_EXAMPLES].id == case.ids[0]
    assert [example.label for example in parser[3:6]] == case.labels[3:6]
    for number in (NUM_EXAMPLES, -NUM_EXAMPLES - 1):
        with pytest.raises(ExampleNotFoundError, match=f"there is no example {number}"):
            parser[number]


def test_single_examples_are_pillow_images(case: Case) -> None:
    image, label = next(iter(ImageDataset(case.make(batch_size=4))))
    assert (np.asarray(image) == case.pixels[0]).all()
    assert label == case.labels[0]
    assert (np.asarray(IndexedImageDataset(case.make())[7][0]) == case.pixels[7]).all()


def test_file_names_are_the_ids(case: Case) -> None:
    parser = case.make()
    assert parser.filenames() == list(case.ids)
    assert parser.filenames(basename=True)[:2] == [Path(name).name for name in case.ids[:2]]


@only("beton", "tars", "folder")
def test_absolute_file_names_begin_with_the_folder(case: Case) -> None:
    assert case.make().filenames(absolute=True)[0] == str(case.folder / case.ids[0])


def test_a_class_map_gives_new_labels(case: Case) -> None:
    class_map = {label: NUM_CLASSES - 1 - label for label in range(NUM_CLASSES)}
    (batch,) = case.make(batch_size=NUM_EXAMPLES, class_map=class_map).batches(fields=("label",))
    assert batch.label.tolist() == [class_map[label] for label in case.labels]


@only_by_index
def test_masks_go_through_the_same_crop(case: Case) -> None:
    preprocess = TrainPreprocess(size=SIDE, crop_padding=2, also=("mask",))
    parser = case.make_masked(is_training=True, batch_size=12, preprocess=preprocess)
    for batch in parser.batches(fields=("image", "mask")):
        assert (batch.image == np.stack(batch.features["mask"])).all()
    dataset = IndexedImageDataset(parser, fields=("image", "mask"))
    for number in range(NUM_EXAMPLES):
        image, mask = dataset[number]
        assert image.shape == mask.shape == (3, SIDE, SIDE)
        assert torch.equal(image, mask)


def test_a_pickled_parser_reads_the_same(case: Case) -> None:
    parser = case.make(batch_size=5, preprocess=WHOLE)
    next(iter(parser.batches()))
    again = pickle.loads(pickle.dumps(parser))
    assert again.fingerprint == parser.fingerprint
    assert [batch.label.tolist() for batch in again.batches()] == [batch.label.tolist() for batch in parser.batches()]


def test_no_other_package_is_imported(case: Case, run_python: RunPython) -> None:
    name = case.code.partition("(")[0]
    others = {"tensorflow", "torch", "ffcv", "webdataset"} | (
        {"tensorflow_datasets"} if name != "ParserTfds" else set()
    )
    code = f"""
import sys
from tfds_torch import {name}
(batch,) = {case.code}.batches()
print(len(batch), sorted({others} & set(sys.modules)))
"""
    done = run_python("-c", code)
    assert (done.stdout, done.stderr) == ("36 []\n", "")


# Promises


def test_every_example_comes_once_on_every_grid(case: Case) -> None:
    for num_replicas, num_workers in ((1, 1), (2, 3), (3, 2)):
        parser = case.make(shuffle=True, batch_size=5, remainder="pad")
        batches = [
            batch
            for rank in range(num_replicas)
            for worker in range(num_workers)
            for batch in parser.batches(World(rank, num_replicas, worker, num_workers), epoch=1)
        ]
        seen = Counter(int(number) for batch in batches for number in batch.index[batch.valid])
        assert seen == dict.fromkeys(range(NUM_EXAMPLES), 1)


def test_global_batches_do_not_depend_on_the_number_of_ranks(case: Case) -> None:
    def read(num_replicas: int) -> list[Any]:
        parser = case.make(is_training=True, batch_size=12 // num_replicas)
        ranks = [list(parser.batches(World(rank, num_replicas), 2, fields=())) for rank in range(num_replicas)]
        return [np.concatenate([batch.index for batch in batches]).tolist() for batches in zip(*ranks, strict=True)]

    assert read(1) == read(2) == read(3)


def test_a_parser_restored_at_every_step_gives_the_uninterrupted_tail(case: Case) -> None:
    make = partial(ParserLoader, partial(case.make, is_training=True))
    assert check_resumes(partial(make, (2, 2), 12), partial(make, (1, 3), 12)) == 2 * (1 + 2 * (3 + 1))


def balance(parser: Any) -> Any:
    """Balanced, where every class has another number of examples."""
    return parser.subset([n for n, label in enumerate(parser.targets()) if n % (2 + label)]).balanced(epoch_size=31)


SOME: dict[str, Callable[[Any], Any]] = {
    "subset": lambda parser: parser.subset([*range(35, 3, -1)]),
    "balanced": balance,
    "weighted": lambda parser: parser.weighted(np.arange(36) % 5, epoch_size=31),
}


@pytest.mark.parametrize("how", SOME)
def test_a_choice_of_examples_restored_at_every_step_gives_the_uninterrupted_tail(case: Case, how: str) -> None:
    def make_parser(batch_size: int) -> Any:
        return SOME[how](case.make(is_training=True, batch_size=batch_size))

    make = partial(ParserLoader, make_parser)
    assert check_resumes(partial(make, (2, 2), 12), partial(make, (1, 3), 12)) == 2 * (1 + 2 * (3 + 1))


class TrainingLoader(OwnStateLoader):
    """A Loader as training uses it."""

    def __init__(self, case: Case, num_workers: int) -> None:
        self.labels = torch.tensor(case.labels)
        parser = case.make(is_training=True, batch_size=12, preprocess=TrainPreprocess(SIDE, crop_padding=1))
        self.loader = create_loader(ImageDataset(parser, fields=("image", "label", "index", "valid")), num_workers)

    def __iter__(self) -> Iterator[Step]:
        for images, labels, index, valid in self.loader:
            assert images.shape == (12, 3, SIDE, SIDE)
            assert torch.equal(labels, self.labels[index])
            yield self.step(index.tolist(), valid.tolist())


def test_a_loader_restored_at_every_step_gives_the_uninterrupted_tail(case: Case) -> None:
    assert check_resumes(partial(TrainingLoader, case, 0), num_epochs=1) == 2 * (1 + 3 + 1)


@pytest.mark.slow
def test_a_loader_with_workers_goes_on_exactly(case: Case) -> None:
    check_resumes(partial(TrainingLoader, case, 2), partial(TrainingLoader, case, 1), num_epochs=1)


def test_a_loader_with_workers_delivers_what_is_stored(case: Case) -> None:
    parser = case.make(is_training=True, batch_size=12, preprocess=WHOLE)
    with create_loader(ImageDataset(parser, fields=("image", "index")), 2) as loader:
        for images, index in loader:
            assert (images.permute(0, 2, 3, 1) == torch.from_numpy(case.pixels)[index]).all()


def test_processes_without_torch_deliver_what_is_stored(case: Case) -> None:
    parser = case.make(is_training=True, batch_size=12, preprocess=WHOLE)
    with MultiLoader(parser, num_workers=2) as loader:
        came = [(batch.index.tolist(), np.array(batch.image)) for batch in loader]
    assert [index for index, _ in came] == [batch.index.tolist() for batch in parser.batches(fields=())]
    assert all((images == case.pixels[index]).all() for index, images in came)


# What cannot work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"is_training": True}, r"Training needs batch_size"),
        ({"shuffle": 3}, r"shuffle=3 must be True, False or None"),
        ({"is_training": "yes"}, r"is_training='yes' must be True or False"),
        ({"batch_size": 2**31}, r"batch_size=2147483648 must be an integer in 1\.\.2147483647"),
        ({"image_mode": "CMYK"}, r"Unknown image_mode 'CMYK'"),
        ({"read": 3}, r"read=3 must be ReadOptions"),
        ({"preprocess": WHOLE}, r"A preprocess needs batch_size"),
        (
            {"preprocess": TrainPreprocess(size=8, also=("label",)), "batch_size": 2},
            r"also=\('label',\) names 'label', which is not an image but",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str, case: Case) -> None:
    with pytest.raises(ConfigError, match=message):
        case.make(**arguments)


@only_by_index
def test_a_stream_is_refused(case: Case) -> None:
    arguments, read = {"is_training": True, "batch_size": 2}, ReadOptions(mode="files")
    for make in (lambda: case.make(**arguments, read=read), lambda: case.make(**arguments).with_read(read)):
        with pytest.raises(ConfigError, match="only read by index"):
            make()


def test_empty_files_are_an_error_in_training_and_no_batches_in_evaluation(case: Case) -> None:
    assert list(case.make_empty(batch_size=4).batches(fields=())) == []
    with pytest.raises(ConfigError, match=r"((empty\.(beton|tar)|list), split 'all'|split 'empty'): "):
        case.make_empty(is_training=True, batch_size=4)
