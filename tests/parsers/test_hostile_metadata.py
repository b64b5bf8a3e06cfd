"""Metadata that was forged or damaged: a typed error at once, in little memory, with the value cut; or it works."""

import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow_datasets as tfds
from hypothesis import example, given
from hypothesis import strategies as st
from tfds_torch.parsers.tfds.prepared import MOST_EXAMPLES

from tfds_torch import demo
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.parsers.tfds.info import MOST_EXAMPLES
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.tfds.shard_names import BadTemplateError, NamedSplit, shard_names
from tfds_torch.runtime.printable import QUOTED, quoted

DEFAULT = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
VALUES = {"DATASET": "digits", "SPLIT": "train", "FILEFORMAT": "tfrecord"}
LONG = "y" * 10**6


@pytest.fixture
def version_dir(tmp_path: Path) -> Path:
    """Returns a version directory of digits that may be changed."""
    return Path(shutil.copytree(Path(demo.prepare("digits")) / "digits" / "1.0.0", tmp_path / "digits" / "1.0.0"))


def edit(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(file.read_text())
    replaced = change(content)
    file.write_text(replaced if isinstance(replaced, str) else json.dumps(content))


def with_split(**values: Any) -> Callable[[dict[str, Any]], Any]:
    def change(info: dict[str, Any]) -> None:
        info["splits"][0].update(values)

    return change


def with_top(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda info: info.update(values)


def read_some(version_dir: Path) -> None:
    parser = ParserTfds(None, version_dir, is_training=True, batch_size=8)
    next(iter(parser.batches(fields=("label",))))


def error_of(version_dir: Path) -> str:
    """Returns what opening and reading a dataset raises; it takes little memory to find out."""
    tracemalloc.start()
    try:
        with pytest.raises((ConfigError, DatasetNotFoundError, ShardError)) as caught:
            read_some(version_dir)
        assert tracemalloc.get_traced_memory()[1] < 200 * 2**20
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 2000
    return str(caught.value)


# dataset_info.json

INFOS = {
    "format spec": (with_split(filepathTemplate="{SHARD_X_OF_Y:>999999999}"), "{SHARD_X_OF_Y:>999999999}, which TFDS"),
    "position": (with_split(filepathTemplate="{0}"), "has the placeholder {0}, which TFDS does not write"),
    "attribute": (with_split(filepathTemplate="{SHARD_INDEX.__class__}"), "{SHARD_INDEX.__class__}, which TFDS does"),
    "conversion": (with_split(filepathTemplate="{SHARD_INDEX!r}"), "{SHARD_INDEX!r}, which TFDS does not write"),
    "unknown placeholder": (with_split(filepathTemplate="{FOO}"), "The placeholders are {DATASET}, {SPLIT}"),
    "open brace": (with_split(filepathTemplate="{SHARD_INDEX"), "a brace that is not closed, or not opened"),
    "null in a template": (with_split(filepathTemplate="a\0{SHARD_INDEX}"), "holds a null character"),
    "long template": (with_split(filepathTemplate=LONG), "has 1,000,000 characters, and 1,000 is the most"),
    "long names": (with_split(filepathTemplate="y" * 300), "makes names of 300 bytes, and 255 is the most"),
    "one name for all": (
        with_split(filepathTemplate="x", shardLengths=["1", "2"]),
        "all of its 2 shards the same name",
    ),
    "2^62": (with_split(shardLengths=[str(2**62)]), "and 281,474,976,710,656 is the most"),
    "2^47": (with_split(shardLengths=[str(2**47)]), "holds 1437 of 140737488355328 examples"),
    "sum": (with_split(shardLengths=[str(2**47)] * 3), "is the most"),
    "2^80": (with_split(shardLengths=[str(2**80)]), "which is not a number that can be"),
    "negative": (with_split(shardLengths=["-1"]), "a shard length of the split 'train' is '-1'"),
    "a text": (with_split(shardLengths=["many"]), "a shard length of the split 'train' is 'many'"),
    "a fraction": (with_split(shardLengths=[1.5]), "is 1.5, which is not a number that can be"),
    "not a list": (with_split(shardLengths=7), "its shardLengths is 7"),
    "numBytes": (with_split(numBytes="-5"), "numBytes of the split 'train' is '-5'"),
    "null in a name": (with_top(name="a\0b"), r"its name is 'a\x00b'"),
    "long name": (with_top(name=LONG), "its name is 'yyyy"),
    "long version": (with_top(version="1" * 10**6), "its version is '1111"),
    "long format": (with_top(fileFormat=LONG), "Files of the format 'yyyy"),
    "splits": (with_top(splits="x"), "its splits is 'x'"),
    "a split": (with_top(splits=["x"]), "a split is 'x'"),
    "a split twice": (with_top(splits=[{"name": name} for name in ("a", "b", "a")]), "it has the split 'a' 2 times"),
    "many splits": (with_top(splits=[{"name": str(n)} for n in range(10_001)]), "it has 10,001 splits, and 10,000"),
    "blocked": (with_top(isBlocked="broken"), "TFDS blocks it: 'broken'"),
    "not an object": (lambda _: "[]", "dataset_info.json is not a JSON object"),
    "not JSON": (lambda _: '{"a":', "JSONDecodeError"),
    "depth": (lambda _: '{"a":' * 10**6, "dataset_info.json is nested too deeply"),
}


@pytest.mark.parametrize("name", INFOS)
def test_a_forged_dataset_info_is_a_typed_error_at_once(name: str, version_dir: Path) -> None:
    change, fact = INFOS[name]
    edit(version_dir / "dataset_info.json", change)
    assert fact in error_of(version_dir)


def test_a_dataset_info_of_absurd_size_is_not_read(version_dir: Path) -> None:
    with (version_dir / "dataset_info.json").open("r+b") as file:
        file.truncate(2**33)  # Without taking any disk.
    assert "dataset_info.json has 8,589,934,592 bytes, and 67,108,864 is the most" in error_of(version_dir)


def test_the_number_of_examples_is_bounded_where_their_arithmetic_is(version_dir: Path) -> None:
    edit(version_dir / "dataset_info.json", with_split(shardLengths=[str(MOST_EXAMPLES - 360)]))
    parser = ParserTfds(None, version_dir, is_training=True, batch_size=8)
    assert parser.num_examples == MOST_EXAMPLES - 360


# features.json


def with_feature(kind: str, **values: Any) -> Callable[[dict[str, Any]], Any]:
    def change(declared: dict[str, Any]) -> None:
        found = [one[kind] for one in declared["featuresDict"]["features"].values() if kind in one]
        assert found
        for one in found:
            one.update(values)

    return change


def nested(depth: int) -> Callable[[dict[str, Any]], Any]:
    def change(declared: dict[str, Any]) -> None:
        features = declared["featuresDict"]["features"]
        inner = dict(features["label"])
        for _ in range(depth):
            inner = {"pythonClassName": declared["pythonClassName"], "featuresDict": {"features": {"a": inner}}}
        features["deep"] = inner

    return change


FEATURES = {
    "dtype": (with_feature("image", dtype="nonsense"), "features.json has the dtype 'nonsense', which is not a type"),
    "long dtype": (with_feature("image", dtype=LONG), "features.json has the dtype 'yyyy"),
    "dtype of many": (with_feature("image", dtype="(99999,99999)f8"), "the dtype '(99999,99999)f8'"),
    "classes": (with_feature("classLabel", numClasses="99999999999"), "and 4,194,304 is the most"),
    "negative classes": (with_feature("classLabel", numClasses="-3"), "declares '-3' classes"),
    "depth 60": (nested(60), "is damaged"),
    "depth 10^5": (lambda _: '{"featuresDict":{"features":{"a":' * 10**5, "features.json is nested too deeply"),
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_forged_features_file_is_a_typed_error_at_once(name: str, version_dir: Path) -> None:
    change, fact = FEATURES[name]
    edit(version_dir / "features.json", change)
    assert fact in error_of(version_dir)


@pytest.mark.parametrize(
    ("line", "fact"),
    [("x" * 20 + "\n", "bytes, and 67,108,864 is the most"), ("1\n", "5,000,000 class names, and 4,194,304 is the")],
)
def test_millions_of_class_names_are_a_typed_error(line: str, fact: str, version_dir: Path) -> None:
    (version_dir / "label.labels.txt").write_text(line * 5_000_000)
    assert fact in error_of(version_dir)


def test_an_unknown_dtype_is_found_without_tensorflow(version_dir: Path) -> None:
    edit(version_dir / "features.json", FEATURES["dtype"][0])
    script = (
        "import sys; from tfds_torch import ParserTfds\n"
        "try: ParserTfds(None, sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, 'tensorflow' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", script, str(version_dir)], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["DatasetNotFoundError", "False"], run.stderr[-1000:]


# Templates

literals = st.text(st.characters(codec="utf-8", exclude_characters="\0{}\n"), max_size=8)
templates = st.lists(
    st.one_of(
        literals, st.sampled_from(["{DATASET}", "{SPLIT}", "{FILEFORMAT}", "{NUM_SHARDS}", "{{", "}}", "%", "%d"])
    ),
    max_size=5,
)


@given(templates, templates, st.sampled_from(["{SHARD_INDEX}", "{SHARD_X_OF_Y}"]), st.sampled_from([1, 2, 11, 1200]))
@example([], [], "{SHARD_INDEX}", 100_001)  # Beyond five digits.
@example(["{DATASET}-"], ["-{NUM_SHARDS}"], "{SHARD_X_OF_Y}", 100_001)
def test_names_are_those_that_tfds_makes(before: list[str], after: list[str], shard: str, num_shards: int) -> None:
    template = "".join([*before, shard, *after])
    theirs = tfds.core.ShardedFileTemplate(
        data_dir="/data", template=template, dataset_name="digits", split="train", filetype_suffix="tfrecord"
    )
    ours = shard_names(template, VALUES, num_shards)
    assert len(ours) == num_shards
    for number in (0, num_shards // 2, num_shards - 1):
        assert ours[number] == theirs.relative_filepath(shard_index=number, num_shards=num_shards)


@pytest.mark.parametrize(
    "template", ["", DEFAULT, "{SPLIT}/x.{FILEFORMAT}-{SHARD_INDEX}", "a-{SHARD_INDEX}-of-{NUM_SHARDS}"]
)
@pytest.mark.parametrize("num_shards", [1, 3, 1200])
def test_paths_are_those_that_tfds_makes_in_its_order(template: str, num_shards: int, tmp_path: Path) -> None:
    theirs = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[5] * num_shards,
        num_bytes=0,
        filename_template=tfds.core.ShardedFileTemplate(
            data_dir=tmp_path, template=template, dataset_name="digits", filetype_suffix="tfrecord"
        ),
    )
    ours = NamedSplit(theirs.name, theirs.shard_lengths, 0, theirs.filename_template)
    assert ours.filepaths == [os.fspath(path) for path in theirs.filepaths]
    assert ours.file_instructions == theirs.file_instructions


def test_a_dataset_without_shards_of_a_split_has_no_names() -> None:
    assert shard_names(DEFAULT, VALUES, 0) == []


def test_a_placeholder_without_a_value_is_refused() -> None:
    with pytest.raises(BadTemplateError, match="DATASET"):
        shard_names(DEFAULT, {"SPLIT": "train", "FILEFORMAT": "tfrecord"}, 3)


# Many shards


def test_opening_takes_few_steps_and_little_memory_for_each_of_many_shards(version_dir: Path) -> None:
    num_shards = 20_000
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    def opened(lengths: list[str]) -> ParserTfds:
        edit(version_dir / "dataset_info.json", with_split(shardLengths=lengths))
        return ParserTfds(None, version_dir)

    opened(["3"])  # What is imported and counted once.
    lengths = [str(number % 7) for number in range(num_shards)]
    edit(version_dir / "dataset_info.json", with_split(shardLengths=lengths))
    sys.setprofile(count)
    try:
        parser = ParserTfds(None, version_dir)
    finally:
        sys.setprofile(None)
    assert parser.num_examples == sum(map(int, lengths))
    assert calls < 25 * num_shards
    tracemalloc.start()
    try:
        parser = ParserTfds(None, version_dir)
        assert tracemalloc.get_traced_memory()[1] < 1000 * num_shards
    finally:
        tracemalloc.stop()


# What messages quote


@pytest.mark.parametrize(
    "value",
    [LONG, LONG.encode(), [LONG] * 1000, {LONG: LONG}, ("a",) * 10**6, 10**10**5, set(range(10**5))],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_quoted_in_bounded_length(value: Any) -> None:
    assert len(quoted(value)) <= QUOTED + 3


@pytest.mark.parametrize("value", ["it's", b"\0", 7, None, [1, "a"], {"a": (1,)}, "y" * 198, 2.5, True, {3}, range(3)])
def test_a_short_value_is_quoted_as_it_is(value: Any) -> None:
    assert quoted(value) == repr(value)


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": LONG},
        {"name": f"digits/{LONG}"},
        {"split": LONG},
        {"image_key": LONG},
        {"target_key": LONG},
        {"target_key": [LONG, "label"]},
        {"image_mode": LONG},
        {"remainder": LONG},
        {"batch_size": LONG},
        {"read": LONG},
        {"class_map": {LONG: -1}},
        {"root": f"s3://{LONG}"},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_an_argument_of_a_million_characters_makes_no_message_of_a_million(arguments: dict[str, Any]) -> None:
    given: dict[str, Any] = {
        "root": demo.prepare("digits"),
        "name": "digits",
        "is_training": True,
        "batch_size": 8,
    } | arguments
    with pytest.raises((ConfigError, DatasetNotFoundError)) as caught:
        ParserTfds(given.pop("root"), given.pop("name"), **given)
    assert len(str(caught.value)) < 3000
