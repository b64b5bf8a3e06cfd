"""What every source promises alike: files of TFDS, tars, `.beton`, datasets of one's own, mixtures, subsets, caches."""

import logging
import pickle
import random
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import RunPython

from parsers.sources import FILES, NUM_EXAMPLES, PIXELS, SIDE, SOURCES, Made, damaged
from tfds_torch import EvalPreprocess, ImageDataset, ReadOptions, TrainPreprocess, World, create_loader
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError
from tfds_torch.parsers.protocol import Parser

GLOBAL_BATCH, DAMAGED = 6, 5
WORLDS = ((1, 1), (1, 3), (2, 1), (3, 2))
WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)
REPLACE = ReadOptions(on_error="replace")


@pytest.fixture(scope="module", params=SOURCES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made(name: str, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return SOURCES[name](tmp_path_factory.mktemp("whole"), FILES)


@pytest.fixture(scope="module")
def spoiled(name: str, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The same, where the image of example 5 is cut off."""
    return SOURCES[name](tmp_path_factory.mktemp("spoiled"), damaged(DAMAGED))


def kinds_of(made: Made) -> list[dict[str, Any]]:
    """Return the arguments of training, and of evaluation where there is one."""
    evaluation: list[dict[str, Any]] = (
        [] if made.weighs else [{"remainder": "pad"}, {"remainder": "pad", "shuffle": True}]
    )
    return [{"is_training": True}, {"is_training": True, "repeats": 2, "remainder": "drop"}, *evaluation]


def labels_of(made: Made, batch: Batch) -> list[int]:
    values: Any = batch.features["label"] if batch.label is None else batch.label
    return [int(value) for value in values]


def assert_stored(made: Made, batch: Batch) -> None:
    """Assert that a batch holds the examples that its index names."""
    numbers = [made.number_at[place] for place in batch.index.tolist()]
    is_marked = batch.label is not None  # A label that is another feature is only told apart by `valid`.
    expected = [number if valid or not is_marked else -100 for number, valid in zip(numbers, batch.valid, strict=True)]
    assert labels_of(made, batch) == expected
    if batch.image is not None:
        np.testing.assert_array_equal(np.stack(batch.image), PIXELS[numbers])


def test_it_is_a_parser_of_one_split_that_is_read_by_number(made: Made) -> None:
    parser = made.make(is_training=made.weighs, batch_size=2)
    assert isinstance(parser, Parser)
    assert parser.num_examples == len(parser) == len(made.numbers)  # type: ignore[arg-type]
    assert parser.read_mode(World()) == "index"
    assert {"image", "label", "valid", "index", "id"} <= set(parser.element_spec.fields)
    assert f"{type(parser).__name__}({parser.dataset_name}, split={parser.split!r}, num_examples=" in repr(parser)


# Batches


def test_batches_are_the_plans_from_any_start_in_any_world(made: Made) -> None:
    for kind in kinds_of(made):
        plan = made.make(batch_size=GLOBAL_BATCH, **kind).plan(World())
        planned = [plan.batch(1, number) for number in range(plan.num_batches)]
        for num_replicas, num_workers in WORLDS:
            parser = made.make(batch_size=GLOBAL_BATCH // num_replicas, **kind)
            for start in (0, 1, len(planned) - 1):
                found: dict[int, list[Batch]] = {}
                for rank in range(num_replicas):
                    for worker in range(num_workers):
                        world = World(rank, num_replicas, worker, num_workers)
                        fields = ("image", "label") if start == 1 else ("label",)
                        for batch in parser.batches(world, 1, start, fields=fields):
                            found.setdefault(batch.batch, []).append(batch)
                            assert_stored(made, batch)
                assert sorted(found) == list(range(start, len(planned)))
                for number, parts in found.items():
                    assert np.concatenate([part.index for part in parts]).tolist() == planned[number].index.tolist()
                    assert np.concatenate([part.valid for part in parts]).tolist() == planned[number].valid.tolist()
        if not kind.get("is_training"):
            valid = [int(place) for one in planned for place in one.index[one.valid]]
            assert sorted(valid) == sorted(made.number_at)


def test_a_short_batch_and_one_that_is_resized_hold_what_is_stored(made: Made) -> None:
    for batch_size in (7, NUM_EXAMPLES, 1):
        parser = made.make(is_training=made.weighs, batch_size=batch_size, preprocess=WHOLE)
        batches = list(parser.batches(World()))
        assert {batch.image.shape[1:] for batch in batches} == {(SIDE, SIDE, 3)}
        for batch in batches:
            assert_stored(made, batch)
        assert made.weighs or [len(batch) for batch in batches][:-1] == [batch_size] * (len(batches) - 1)


def negate(example: dict[str, Any], rng: np.random.Generator, label: str) -> dict[str, Any]:
    """Returns another image, a field of its own, and numbers that it draws in five ways."""
    drawn = [random.random(), np.random.rand(), torch.rand(()).item(), rng.random()]
    return {"image": 255 - example["image"], "twice": 2 * int(example[label]), "drawn": np.array(drawn)}


def test_a_transform_gets_whole_examples_and_draws_the_examples_own_numbers(made: Made) -> None:
    transform = partial(negate, label=made.label)
    for preprocess in (None, WHOLE):
        values = {"is_training": made.weighs, "batch_size": 7, "transform": transform, "preprocess": preprocess}
        parser, drawn = made.make(**values), dict[int, list[float]]()
        for batch in parser.batches(fields=["image", made.label, "twice", "drawn"]):
            numbers = [made.number_at[place] for place in batch.index.tolist()]
            np.testing.assert_array_equal(np.stack(batch.image), 255 - PIXELS[numbers])
            assert batch.features["twice"].tolist() == [2 * number for number in numbers]
            assert len({*batch.features["drawn"].ravel().tolist()}) == 4 * len(numbers)
            drawn |= dict(zip(batch.index.tolist(), batch.features["drawn"].tolist(), strict=True))
        example = parser[2]
        assert made.weighs or example.features["drawn"].tolist() == drawn[example.index]
        np.testing.assert_array_equal(example.image, 255 - PIXELS[made.number_at[example.index]])


def test_crops_depend_on_seed_pass_and_example_alone(made: Made) -> None:
    def crops(world: World, batch_size: int, **more: Any) -> dict[int, bytes]:
        preprocess = TrainPreprocess(size=8, scale=(0.2, 0.6))
        parser = made.make(is_training=True, batch_size=batch_size, preprocess=preprocess, **more)
        batches = list(parser.batches(world, more.pop("epoch", 0)))
        return {
            int(place): image.tobytes()
            for batch in reversed(batches)  # The first of each, where an example comes again.
            for place, image in zip(batch.index.tolist()[::-1], np.array(batch.image)[::-1], strict=True)
        }

    alone = crops(World(), 6)
    for world, batch_size in ((World(1, 2), 3), (World(0, 1, 1, 2), 6)):
        part = crops(world, batch_size)
        assert part
        assert made.weighs or part == {place: alone[place] for place in part}
    assert crops(World(), 6, seed=7) != alone


# Single examples


def test_ids_are_different_and_find_their_examples(name: str, made: Made) -> None:
    parser = made.make(is_training=made.weighs, batch_size=5)
    places = np.array(list(made.number_at), np.int64)
    ids = list(parser.ids(places))
    assert len(set(ids)) == len(made.numbers)
    assert [parser[id].index for id in ids] == places.tolist()
    for batch in parser.batches(fields=("label",)):
        assert list(batch.id) == list(parser.ids(batch.index))
    names = parser.filenames()
    assert [names[place] for place in places.tolist()] == ids
    assert parser.filenames(basename=True) == [Path(one).name for one in names]
    if name in ("beton", "tars", "image folder", "concatenation"):
        first, *_ = parser.filenames(absolute=True)
        assert Path(first).is_absolute()
        assert first.endswith(names[0].removeprefix("tars/"))
    for key in (len(made.numbers), -len(made.numbers) - 1, "no such id", "", f"{ids[0]}x"):
        with pytest.raises(ExampleNotFoundError, match="there is no "):
            parser[key]
    for other in (1.0, None, True, b"x"):
        with pytest.raises(ConfigError, match=r"names no example: give its index|must be an integer in"):
            parser[other]


def test_single_examples_are_what_batches_hold(made: Made) -> None:
    parser = made.make(is_training=made.weighs, batch_size=5)
    places, fields = list(made.number_at), tuple(parser.element_spec.fields)
    examples = parser.examples_by_index(places, fields)
    assert [example.index for example in examples] == places
    for place, example in enumerate(examples):
        number = made.numbers[place]
        alone = parser[place - len(places)]
        for one in (example, alone, parser[place : place + 1][0]):
            np.testing.assert_array_equal(one.image, PIXELS[number])
            assert (one.label if one.label is not None else one.features["label"]) == number
            assert (one.index, one.id) == (example.index, example.id)
    for batch in parser.batches(fields=fields):
        for row, place in enumerate(batch.index.tolist()):
            example = examples[places.index(place)]
            np.testing.assert_array_equal(example.image, batch.image[row])
            assert example.features.keys() == batch.features.keys()
            for key, value in example.features.items():
                np.testing.assert_equal(value, batch.features[key][row])
                assert type(value) is type(batch.features[key][row])


def test_targets_are_the_labels_of_batches(made: Made) -> None:
    parser = made.make(is_training=made.weighs, batch_size=5)
    targets = parser.targets()
    assert (targets.dtype, targets.tolist()) == (np.int64, list(made.numbers))
    places = list(made.number_at)
    for batch in parser.batches(fields=("label",)):
        assert labels_of(made, batch) == [targets[places.index(place)] for place in batch.index.tolist()]


def test_a_class_map_maps_labels_everywhere(name: str, made: Made) -> None:
    class_map = {number: 2 * number for number in range(NUM_EXAMPLES)}
    if name == "image folder":
        class_map = {f"{number:02}": 2 * number for number in range(NUM_EXAMPLES)}  # type: ignore[misc]
    if name == "windows":
        with pytest.raises(ConfigError, match="Windows have no labels"):
            made.make(class_map=class_map)
        return
    parser = made.make(is_training=made.weighs, batch_size=5, class_map=class_map)
    assert parser.targets().tolist() == [2 * number for number in made.numbers]
    assert parser[3].label == 2 * made.numbers[3]
    for batch in parser.batches(fields=("label",)):
        assert batch.label.tolist() == [2 * made.number_at[place] for place in batch.index.tolist()]


def test_undecoded_images_are_the_stored_bytes(made: Made) -> None:
    if not made.decodes:
        with pytest.raises(ConfigError, match="decode"):
            made.make(decode={"image": False})
        return
    parser = made.make(is_training=made.weighs, batch_size=5, decode={"image": False})
    assert parser.dataset.is_undecoded("image")
    assert not made.make(is_training=made.weighs, batch_size=5).dataset.is_undecoded("image")
    assert (parser.element_spec.fields["image"].shape, parser.element_spec.fields["image"].dtype) == ((), object)
    for batch in parser.batches():
        assert list(batch.image) == [FILES[made.number_at[place]] for place in batch.index.tolist()]
    assert parser[2].image == FILES[made.numbers[2]]
    with pytest.raises(ConfigError, match=r"works on its pixels|decode gives 'image' as bytes"):
        parser.with_preprocess(WHOLE)


# Damage


def test_a_damaged_example_is_named(spoiled: Made) -> None:
    parser = spoiled.make(is_training=True, batch_size=1)
    place = spoiled.numbers.index(DAMAGED)
    index = list(spoiled.number_at)[place]
    for read in (lambda: parser[place], lambda: list(parser.batches(World())), lambda: parser[:]):
        with pytest.raises(CorruptRecordError) as caught:
            read()
        assert spoiled.file(DAMAGED) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert [one.index for one in parser.examples_by_index([index - 1, index + 1])] == [index - 1, index + 1]
    assert labels_of(spoiled, next(parser.batches(fields=("label",), epoch=1))) != []


@pytest.mark.parametrize("preprocess", [None, WHOLE])
def test_another_example_takes_the_place_of_the_damaged_one_alone(
    preprocess: Any, spoiled: Made, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    kind: dict[str, Any] = {"is_training": made.weighs, "batch_size": 5, "preprocess": preprocess}
    whole = list(made.make(**kind).batches(World()))
    with caplog.at_level(logging.WARNING):
        replaced = list(spoiled.make(**kind, read=REPLACE).batches(World()))
    index = list(made.number_at)[made.numbers.index(DAMAGED)]
    for ours, theirs in zip(replaced, whole, strict=True):
        is_damaged = theirs.index == index
        np.testing.assert_array_equal(ours.index[~is_damaged], theirs.index[~is_damaged])
        assert not (ours.index == index).any()
        assert (ours.valid == (theirs.valid & (made.weighs | ~is_damaged))).all()
        for place, image in zip(ours.index.tolist(), ours.image, strict=True):
            np.testing.assert_array_equal(image, PIXELS[made.number_at[place]])
    told = [record.getMessage() for record in caplog.records if "is taken by example" in record.getMessage()]
    assert len(told) == sum(int((batch.index == index).sum()) for batch in whole)
    assert all(spoiled.file(DAMAGED) in text for text in told)


# Other processes


def test_workers_deliver_the_same_and_another_loader_continues_their_state(made: Made) -> None:
    def open_loader(num_workers: int) -> Any:
        parser = made.make(is_training=True, batch_size=GLOBAL_BATCH, preprocess=WHOLE)
        return create_loader(ImageDataset(parser, fields=("image", "index", "label")), num_workers)

    with open_loader(2) as loader:
        batches = iter(loader)
        next(batches)
        state, rest = loader.state_dict(), list(batches)
    for images, index, labels in rest:
        numbers = [made.number_at[place] for place in index.tolist()]
        assert torch.equal(images.permute(0, 2, 3, 1), torch.from_numpy(PIXELS[numbers]))
        assert labels.tolist() == numbers
    with open_loader(0) as other:
        other.load_state_dict(state)
        for ours, theirs in zip(other, rest, strict=True):
            assert all(torch.equal(one, another) for one, another in zip(ours, theirs, strict=True))


def test_a_pickled_parser_is_small_equal_and_reads_in_a_fresh_process_without_other_packages(
    tmp_path: Path, run_python: RunPython
) -> None:
    """As a spawned worker gets it. One process reads all of them."""
    expected: dict[str, Any] = {}
    for name, make in SOURCES.items():
        (tmp_path / name).mkdir()
        made = make(tmp_path / name, FILES)
        parser = made.make(is_training=made.weighs, batch_size=5, preprocess=WHOLE)
        next(parser.batches(World()))
        content = pickle.dumps(parser)
        assert len(content) < 12_000 + 2 * sum(map(len, FILES)) * (name in ("own dataset", "columns")), name
        (tmp_path / f"{name}.pickle").write_bytes(content)
        assert pickle.loads(content).fingerprint == parser.fingerprint, name
        expected[name] = [parser.fingerprint, *(batch.index.tolist() for batch in parser.batches(World()))]
    code = f"""
import pickle, sys
from pathlib import Path
import numpy as np
pixels = np.load("pixels.npy")
for name, expected in {expected!r}.items():
    parser = pickle.loads(Path(f"{{name}}.pickle").read_bytes())
    batches = list(parser.batches())
    assert [parser.fingerprint, *(batch.index.tolist() for batch in batches)] == expected, name
    for batch in batches:
        labels = batch.features["label"] if batch.label is None else batch.label
        assert np.array_equal(batch.image, pixels[labels]), name
    found = {{"tensorflow", "tensorflow_datasets", "torch", "ffcv", "webdataset"}} & set(sys.modules)
    assert not found, f"{{name}} imported {{found}}"
"""
    np.save(tmp_path / "pixels.npy", PIXELS)
    paths = [str(Path(__file__).parents[1]), *sys.path]
    done = run_python("-c", code, env={"PYTHONPATH": ":".join(paths)})
    assert (done.returncode, done.stderr) == (0, "")


def test_parsers_are_opened_without_other_packages(tmp_path: Path, run_python: RunPython) -> None:
    """One process opens them, those first that need less; only ParserTfds imports TFDS, and nothing tensorflow."""
    calls: list[str] = []
    for name in ("beton", "tars", "records", "array records", "image folder"):
        (tmp_path / name).mkdir()
        make: Any = SOURCES[name](tmp_path / name, FILES).make
        assert isinstance(make, partial)
        calls.append(f"{make.func.__name__}(*{make.args!r}, **{make.keywords!r}, batch_size=24)")
    own = f"ParserMapStyle({{'image': [{FILES[0]!r}] * 24, 'label': list(range(24))}}, batch_size=24)"
    mixture = (
        f"ParserMixture({{'a': {calls[0]}, 'b': {calls[1]}}}, {{'a': 1, 'b': 1}}, is_training=True, batch_size=24)"
    )
    code = f"""
import sys
import tfds_torch
for call in {[own, *calls[:2], mixture, *calls[2:]]!r}:
    parser = eval(call, {{name: getattr(tfds_torch, name) for name in tfds_torch.__all__ if name.startswith("Parser")}})
    batch = next(parser.batches())
    assert len(batch) == 24, call
    others = {{"tensorflow", "torch", "ffcv", "webdataset"}}
    others |= set() if call.startswith("ParserTfds") else {{"tensorflow_datasets"}}
    assert not others & set(sys.modules), (call, others & set(sys.modules))
"""
    done = run_python("-c", code)
    assert (done.returncode, done.stderr) == (0, "")


# Identity


def test_fingerprints_are_those_of_the_content_and_the_order(name: str, made: Made, tmp_path: Path) -> None:
    def fingerprint(made: Made, **more: Any) -> str:
        return str(made.make(is_training=True, batch_size=2, **more).fingerprint)

    again = SOURCES[name](tmp_path, FILES)
    assert fingerprint(again) == fingerprint(made) == fingerprint(made, preprocess=WHOLE)
    if not made.weighs:
        some = made.make(is_training=True, batch_size=2).subset([*made.number_at][:9])
        assert some.fingerprint != fingerprint(made)
