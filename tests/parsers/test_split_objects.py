"""Splits that are objects of TFDS: even_splits and ReadInstruction. They are read, named and resumed as expressions."""

import json
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
from tfds_fixtures import NUM_TEST, NUM_TRAIN, Datasets

from tfds_torch import DecodedCache, ImageDataset, MultiLoader, ParserTfds, World, create_loader, export_dataset
from tfds_torch.check.expected import expected_ids
from tfds_torch.errors import ConfigError, StateMismatchError
from tfds_torch.parsers.tfds.folder import metadata_of

ReadInstruction = tfds.core.ReadInstruction
HALVES = tfds.even_splits("train", 2)
THIRDS = tfds.even_splits("train+test[50%:]", 3)
DROPPED = tfds.even_splits("train", 4, drop_remainder=True)
FIRST_HALF = NUM_TRAIN // 2 + 1

# A split object, the expression that it is, and how many examples it has.
CASES: dict[str, tuple[Any, str, int]] = {
    "first half": (HALVES[0], f"train[:{FIRST_HALF}]", FIRST_HALF),
    "second half": (HALVES[1], f"train[{FIRST_HALF}:]", NUM_TRAIN - FIRST_HALF),
    "third of a sum": (THIRDS[2], "train[141:]+test[31:]", 76),
    "remainder dropped": (DROPPED[3], "train[156:208]", 52),
    "whole": (ReadInstruction("train"), "train", NUM_TRAIN),
    "one of one": (tfds.even_splits("test", 1)[0], "test", NUM_TEST),
    "numbers": (ReadInstruction("train", from_=10, to=-5), "train[10:206]", 196),
    "per cent": (ReadInstruction("train", to=10, unit="%"), "train[:21]", 21),
    "per cent, rounded down": (
        ReadInstruction("train", to=10, unit="%", rounding="pct1_dropremainder"),
        "train[:20]",
        20,
    ),
    "shards": (ReadInstruction("train", from_=1, to=3, unit="shard"), "train[40:104]", 64),
    "sum": (ReadInstruction("test", to=3) + "train[:2]" + HALVES[1], f"test[:3]+train[:2]+train[{FIRST_HALF}:]", 110),
    "neighbours": (HALVES[0] + HALVES[1], "train", NUM_TRAIN),
    "neighbours with nothing between": (
        ReadInstruction("train", to=5) + ReadInstruction("test", to=0) + ReadInstruction("train", from_=5, to=9),
        "train[:5]+train[5:9]",
        9,
    ),
    "nothing": (ReadInstruction("train", from_=7, to=7), "train[7:7]", 0),
    "a name of TFDS": (tfds.Split.TRAIN, "train", NUM_TRAIN),
}


def ids_of(parser: ParserTfds) -> list[str]:
    return [one for batch in parser.batches(World(), fields=("label",)) for one in batch.id]


@pytest.mark.parametrize("case", CASES)
def test_a_split_object_is_read_as_the_expression_that_tfds_makes_of_it(case: str, datasets: Datasets) -> None:
    split, expression, num_examples = CASES[case]
    parser = ParserTfds(datasets.root, "shapes", split, batch_size=16)
    assert (parser.split, type(parser.split), parser.num_examples) == (expression, str, num_examples)
    theirs = tfds.builder_from_directory(str(datasets.shapes)).info.splits[split].file_instructions
    names = [f"{Path(one.filename).name}__{one.skip + number}" for one in theirs for number in range(one.take)]
    assert ids_of(parser) == (names if num_examples else [])


def test_equal_examples_have_an_equal_fingerprint_whatever_object_names_them(datasets: Datasets) -> None:
    def fingerprint(split: Any, root: Path = datasets.root) -> str:
        return ParserTfds(root, "shapes", split).fingerprint

    halves = tfds.even_splits("train", 2)
    assert fingerprint(halves[0]) == fingerprint(ReadInstruction("train", to=FIRST_HALF))
    assert fingerprint(halves[0]) == fingerprint(halves[0] + ReadInstruction("test", to=0))
    assert fingerprint(halves[0] + halves[1]) == fingerprint(ReadInstruction("train")) == fingerprint("train")
    assert fingerprint(tfds.Split.TRAIN) == fingerprint("train")
    assert len({fingerprint(one) for one in (*halves, halves[1] + halves[0], "train", "test")}) == 5
    assert fingerprint(halves[0]) != fingerprint(halves[0], datasets.gaps)


def test_the_fingerprint_of_an_expression_stays_from_release_to_release(datasets: Datasets) -> None:
    splits = ("train", "train[:50%]", "train+test", "train[10:37]")
    assert [ParserTfds(datasets.root, "shapes", split).fingerprint for split in splits] == [
        "2285e337b51bcd0e1459f124c2734f87",
        "9e6fbfc79056e88009f1ea59ee7aaff8",
        "9b5a5ba7558d5e03baf9a489a4f2e7fb",
        "3bb90871b67a81e33cb23329b948aa31",
    ]


def test_a_state_travels_between_objects_of_the_same_examples(datasets: Datasets) -> None:
    def dataset(split: Any) -> ImageDataset:
        parser = ParserTfds(datasets.root, "shapes", split, is_training=True, batch_size=8)
        return ImageDataset(parser, fields=("index",))

    with create_loader(dataset(HALVES[0]), collate_fn=list) as loader:
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        rest = list(batches)
    with create_loader(dataset(ReadInstruction("train", to=FIRST_HALF)), collate_fn=list) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest
    with create_loader(dataset(HALVES[1])) as loader, pytest.raises(StateMismatchError, match="split: "):
        loader.load_state_dict(state)


ONE_UNIT = r"has a unit at one end only, and TFDS takes both as %s. Write '%s', or two numbers of its %d examples\."
CUTS: dict[str, tuple[Any, str]] = {
    "the rest of nothing": (
        "test[-1%:]",
        r"-1 % of the 37 .* to the start .*'test\[:-1\]' and 'test\[-1:\]'",
    ),
    "nothing, from the end": ("test[:-1%]", "-1 % of the 37 examples of 'test' are -0.37, .* to the start"),
    "everything but nothing": (
        "train+test[1%:]",
        r"1 % of the 37 .* start .*'test\[:1\]' and 'test\[1:\]'",
    ),
    "nothing": ("test[:1%]", "1 % of the 37 examples"),
    "nearly all": (
        "test[:99%]",
        r"99 % of the 37 .* are 36.6, which TFDS rounds to all of them\. .*\[-1:\]",
    ),
    "a part of even splits": (tfds.even_splits("test[-1%:]", 2)[0], "-1 % of the 37 examples"),
    "an object": (ReadInstruction("train", from_=1) + ReadInstruction("test", from_=-1, unit="%"), "-1 % of the 37"),
    "no shard": ("train[:0shard]", r"ends at shard 0 of the 7 of 'train', .* takes as all of them\. .*'train\[:0\]'"),
    "less than none": ("train[:-8shard]", "ends at shard -8 of the 7 of 'train', which TFDS takes as the first 6"),
    "unit of the end": ("train[10:50%]", ONE_UNIT % ("%", r"train\[10%:50%\]", 211)),
    "unit of the start": ("train[1shard:20]", ONE_UNIT % ("shard", r"train\[1shard:20shard\]", 211)),
}
"""Cuts that TFDS takes as others, and what is said."""


@pytest.mark.parametrize("case", CUTS)
def test_a_cut_that_tfds_takes_as_another_one_is_refused(case: str, datasets: Datasets) -> None:
    split, said = CUTS[case]
    with pytest.raises(ConfigError, match=said):
        ParserTfds(datasets.root, "shapes", split)


WHOLE = (
    "[0%:100%]",
    "[-100%:]",
    "[:100%]",
    "[2%:98%]",
    "[0:50%]",
    "[-1shard]",
    "[:1shard]",
    "[1shard:-1shard]",
    "[:0]",
)


@pytest.mark.parametrize("cut", WHOLE)
def test_other_cuts_are_those_of_tfds(cut: str, datasets: Datasets) -> None:
    theirs = tfds.builder_from_directory(str(datasets.shapes)).info.splits[f"train{cut}"]
    assert ParserTfds(datasets.root, "shapes", f"train{cut}").num_examples == theirs.num_examples


def send_ids(told: Any, parser: ParserTfds) -> None:
    told.send((parser.split, ids_of(parser)))


@pytest.mark.slow
def test_a_parser_of_a_split_object_travels_to_other_processes(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", THIRDS[1], batch_size=16)
    ids = ids_of(parser)
    assert ids_of(pickle.loads(pickle.dumps(parser))) == ids
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=send_ids, args=(theirs, parser))
    process.start()
    assert ours.recv() == (parser.split, ids)
    process.join()
    with MultiLoader(parser, 2, start_method="spawn", fields=("label",)) as loader:
        assert [one for batch in loader for one in batch.id] == ids


def test_exports_and_caches_are_those_of_the_expression(datasets: Datasets, tmp_path: Path) -> None:
    exports = []
    for number, split in enumerate((ReadInstruction("test", to=5), "test[:5]")):
        cache = DecodedCache(folder=tmp_path / "cache")
        parser = ParserTfds(datasets.root, "shapes", split, cache=cache)
        folder = tmp_path / str(number)
        export_dataset(parser, folder, format="webdataset", fields={"frames": None})
        exports.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert exports[0] == exports[1]
    assert any(b'"split": "test[:5]"' in content for content in exports[0].values())
    (status,) = (tmp_path / "cache").glob("*.json")
    assert json.loads(status.read_text())["split"] == "test[:5]"


def test_check_finds_the_ids_of_a_split_object(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", HALVES[1])
    assert list(expected_ids(metadata_of(parser), parser.split, parser.files)) == ids_of(parser)


def test_an_image_folder_takes_split_objects_too(folder: Any) -> None:
    whole = ParserTfds(folder, "image_folder", "train")
    halves = [ParserTfds(folder, "image_folder", one) for one in HALVES]
    assert [one for half in halves for one in ids_of(half)] == ids_of(whole)


ACCEPTED = (
    r"must be a TFDS split expression, like 'train' or 'train\[:10%\]', one of those that tfds\.even_splits lists, "
    r"a tfds\.core\.ReadInstruction, or a sum of these"
)
WRONG: dict[str, tuple[Any, str]] = {
    "a number": (3, rf"split=3 {ACCEPTED}"),
    "a list": (["train"], rf"split=\['train'\] {ACCEPTED}"),
    "all halves": (HALVES, ACCEPTED),
    "nothing": (None, ACCEPTED),
    "an unknown split": (ReadInstruction("trian"), r"Unknown split 'trian'.*The splits are: .*train \(211 examples\)"),
    "an unknown split, even": (tfds.even_splits("trian", 2)[0], r"shapes:1\.0\.0: split _EvenSplit.*The splits are"),
    "too many": (ReadInstruction("train", to=1000), r"slice \[:1000\] incompatible with 211 examples"),
    "backwards": (ReadInstruction("train", from_=9, to=5), r"asks for the examples 9 to 5 of 'train', which is not a"),
    "halves of examples": (ReadInstruction("train", from_=0.5), r"asks for the examples 0\.5 to 211 of 'train'"),
    "halves of shards": (ReadInstruction("train", from_=0.5, unit="shard"), r"The splits are"),
    "not a name": (ReadInstruction(7), r"Unknown split 7"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_not_a_split_is_a_config_error_that_names_what_is(case: str, datasets: Datasets) -> None:
    split, said = WRONG[case]
    with pytest.raises(ConfigError, match=said):
        ParserTfds(datasets.root, "shapes", split)
