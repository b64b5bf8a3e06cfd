"""Metadata that was forged or damaged: a typed error at once, in little memory, with the value cut; or it works."""

import errno
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

from tfds_torch import demo
from tfds_torch.errors import ConfigError, DatasetNotFoundError, ShardError
from tfds_torch.parsers.tfds.folder import DamagedError
from tfds_torch.parsers.tfds.info import MOST_EXAMPLES
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.tfds.splits import BadTemplateError, NamedSplit, shard_names

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
    file.write_text(replaced if isinstance(replaced, str) else json.dumps(replaced or content))


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
    "attribute": (with_split(filepathTemplate="{SHARD_INDEX.__class__}"), "{SHARD_INDEX.__class__}, which TFDS does"),
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
    "2^80": (with_split(shardLengths=[str(2**80)]), "which is not a number that can be"),
    "negative": (with_split(shardLengths=["-1"]), "a shard length of the split 'train' is '-1'"),
    "a fraction": (with_split(shardLengths=[1.5]), "is 1.5, which is not a number that can be"),
    "not a list": (with_split(shardLengths=7), "its shardLengths is 7"),
    "numBytes": (with_split(numBytes="-5"), "numBytes of the split 'train' is '-5'"),
    "null in a name": (with_top(name="a\0b"), r"its name is 'a\x00b'"),
    "long name": (with_top(name=LONG), "its name is 'yyyy"),
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
    "dtype": (
        with_feature("image", dtype="nonsense"),
        "damaged (it has the dtype 'nonsense', which is not a type of",
    ),
    "long dtype": (with_feature("image", dtype=LONG), "it has the dtype 'yyyy"),
    "no dtype": (with_feature("image", dtype=None), "'featuresDict/features/image/image' has no dtype"),
    "one feature": (lambda declared: declared["featuresDict"]["features"]["label"], "is not a dictionary of features"),
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


def test_opening_imports_neither_tensorflow_nor_the_code_of_datasets(version_dir: Path) -> None:
    broken = [Path(shutil.copytree(version_dir, version_dir.parents[2] / name)) for name in ("dtype", "no dtype")]
    for folder in broken:
        edit(folder / "features.json", FEATURES[folder.name][0])
    script = (
        "import sys; from tfds_torch import ParserTfds\n"
        "ParserTfds(sys.argv[1], 'digits')\n"
        "for folder in sys.argv[2:]:\n"
        "    try: ParserTfds(None, folder)\n"
        "    except LookupError as error: print(type(error).__name__)\n"
        "print({'tensorflow', 'tensorflow_datasets.image_classification.mnist'} & set(sys.modules))"
    )
    arguments = [str(version_dir.parents[1]), *map(str, broken)]
    run = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert run.stdout.split() == ["DamagedError", "DamagedError", "set()"], run.stderr[-1000:]


# What is damaged, and what is not


def with_connector(name: str, **content: Any) -> Callable[[Path, pytest.MonkeyPatch], None]:
    content = content or {"jsonFeature": {"json": "{}"}}

    def plant(folder: Path, patch: pytest.MonkeyPatch) -> None:
        (folder / "with_error_of_mine.py").write_text("raise RuntimeError('needs a GPU')")
        (folder / "row_of_mine.py").write_text(
            "import tensorflow_datasets as tfds\nloaded = []\nclass Row(tfds.features.Text):\n"
            "    from_json_content = classmethod(lambda cls, value: cls(**value))\n"
            "    def load_metadata(self, *args, **keywords): loaded.append((args, keywords)); print(1 / 0)\n"
        )
        patch.syspath_prepend(str(folder))
        added = {"row": {"pythonClassName": name, **content}}
        edit(folder / "features.json", lambda declared: declared["featuresDict"]["features"].update(added))

    return plant


def failing(file: str, error: Exception) -> Callable[[Path, pytest.MonkeyPatch], None]:
    """Has a file fail when it is looked at: permissions do not hold for root."""

    def plant(folder: Path, patch: pytest.MonkeyPatch) -> None:
        stat = os.stat

        def fail(path: Any, **options: Any) -> os.stat_result:
            if str(path) == str(folder / file):
                raise error
            return stat(path, **options)

        patch.setattr(os, "stat", fail)

    return plant


def written(file: str, content: Any) -> Callable[[Path, pytest.MonkeyPatch], None]:
    def plant(folder: Path, patch: pytest.MonkeyPatch) -> None:
        if callable(content):
            edit(folder / file, content)
        else:
            (folder / file).write_bytes(content)

    return plant


def with_fifo(folder: Path, patch: pytest.MonkeyPatch) -> None:
    (folder / "features.json").unlink()
    os.mkfifo(folder / "features.json")


DENIED, DISK = PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EIO, "Input/output error")
ASK = "Permission denied. Ask for the right to read it"
NEWER = f"TFDS {tfds.__version__} lacks. A newer one wrote this file: pip install --upgrade"


def without_memory(folder: Path, patch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise MemoryError

    patch.setattr("google.protobuf.json_format.ParseDict", fail)


REASONS: dict[str, tuple[Callable[[Path, pytest.MonkeyPatch], None], str]] = {
    "not JSON": (written("features.json", b"{"), "its features.json is damaged (JSONDecodeError: "),
    "another shape": (
        written("features.json", lambda declared: declared["featuresDict"].update(features=3)),
        "its features.json is damaged (ParseError: ",
    ),
    "no name": (written("dataset_info.json", with_top(name="")), "its dataset_info.json is damaged (its n"),
    "names": (written("label.labels.txt", b"a\nb\n"), "its label.labels.txt is damaged (features.json declares 10 cl"),
    "permission": (failing("dataset_info.json", DENIED), f"dataset_info.json cannot be read: {ASK}"),
    "permission of features": (failing("features.json", DENIED), f"features.json cannot be read: {ASK}"),
    "permission of names": (failing("label.labels.txt", DENIED), f"label.labels.txt cannot be read: {ASK}"),
    "a disk": (failing("features.json", DISK), "features.json cannot be read: Input/output error. Check the disk"),
    "a FIFO": (with_fifo, "features.json cannot be read: it is not a regular file"),
    "memory": (without_memory, "making the features of its features.json raises MemoryError. Open it again"),
    "no features": (lambda folder, _: (folder / "features.json").unlink(), "has no features.json, which TFDS 3.2.1"),
    "blocked": (written("dataset_info.json", with_top(isBlocked="it leaks")), "TFDS blocks it: 'it leaks'. Take anoth"),
    "encoding": (
        written("label.labels.txt", b"\xff\n"),
        "labels.txt is not UTF-8 (byte 0): save its class names",
    ),
    "a module": (
        with_connector("row_of_nobody.Row"),
        "'row_of_nobody.Row', which cannot be imported (ModuleNotFoundError: No module named 'row_of_nobody'). Install",
    ),
    "a class": (with_connector("row_of_mine.Column"), "'row_of_mine.Column', which cannot be imported (ValueError: "),
    "an import": (with_connector("with_error_of_mine.Row"), "cannot be imported (RuntimeError: needs a GPU). Install"),
    "a newer module": (with_connector("tensorflow_datasets.core.features.holograms.Hologram"), NEWER),
    "a newer class": (with_connector("tensorflow_datasets.core.features.text_feature.Texts"), NEWER),
    "newer content": (
        with_connector("tensorflow_datasets.core.features.text_feature.Text", hologram={"depth": 3}),
        "knows no content of a feature of its features.json, 'featuresDict/features/row': its keys are 'hologram'. A n",
    ),
    "own code": (
        with_connector("row_of_mine.Row", jsonFeature={"json": '{"width": 3}'}),
        "connectors of its own: 'row_of_mine.Row'. Install the version of their code that prepared the dataset",
    ),
    "a newer format": (written("dataset_info.json", with_top(fileFormat="zarr")), "Files of the format 'zarr' are not"),
}


@pytest.mark.parametrize("case", REASONS)
def test_only_what_is_damaged_is_called_so_and_all_else_has_its_own_remedy(
    case: str, version_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, said = REASONS[case]
    plant(version_dir, monkeypatch)
    with pytest.raises((DatasetNotFoundError, ConfigError)) as caught:
        ParserTfds(None, version_dir)
    message, is_damaged = str(caught.value).replace(str(version_dir), ""), " is damaged (" in said
    assert said in message
    assert isinstance(caught.value, DamagedError) == is_damaged
    assert ("damaged" in message) == message.endswith("Prepare it again.") == is_damaged


def test_a_connector_of_a_datasets_own_reads_its_own_files(version_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in TFDS, an error of that is dropped."""
    with_connector("row_of_mine.Row")(version_dir, monkeypatch)
    assert ParserTfds(None, version_dir).element_spec.fields["row"].shape == ()
    assert sys.modules["row_of_mine"].loaded[-1] == ((str(version_dir),), {"feature_name": "row"})


def test_features_may_stand_in_dataset_info(version_dir: Path) -> None:
    before = ParserTfds(None, version_dir)
    declared = json.loads((version_dir / "features.json").read_text())
    (version_dir / "features.json").unlink()
    edit(version_dir / "dataset_info.json", with_top(features=declared))
    assert repr(ParserTfds(None, version_dir).element_spec) == repr(before.element_spec)


def test_names_of_classes_may_end_in_any_way_and_say_how_many_there_are(version_dir: Path) -> None:
    edit(version_dir / "features.json", with_feature("classLabel", numClasses="0"))
    (version_dir / "label.labels.txt").write_bytes(b"a\rb\r\n\nc\n")
    assert ParserTfds(None, version_dir).class_names == ["a", "b", "c"]


def test_a_dataset_that_may_not_be_looked_at_is_not_called_missing(
    version_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing("features.json", DENIED)(version_dir, monkeypatch)
    for name in ("digits", "digits:1.0.0"):
        with pytest.raises(
            DatasetNotFoundError, match=rf"'{name}' was not found, and not all .*/features\.json.* {ASK}"
        ):
            ParserTfds(version_dir.parents[1], name)


# Keys of a newer TFDS

PLANTED = {
    "newKey": ("features.json", lambda declared: declared),
    "featuresDict/features/label/newKey": ("features.json", lambda d: d["featuresDict"]["features"]["label"]),
    "featuresDict/features/image/image/newKey": (
        "features.json",
        lambda d: d["featuresDict"]["features"]["image"]["image"],
    ),
    "dataset_info": ("dataset_info.json", lambda info: info),
    "splits/1/newKey": ("dataset_info.json", lambda info: info["splits"][1]),
}


@pytest.mark.parametrize("key", PLANTED)
def test_a_key_of_a_newer_tfds_is_ignored_with_one_warning(
    key: str, version_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, place = PLANTED[key]
    before = ParserTfds(None, version_dir)
    edit(version_dir / file, lambda content: place(content).update(newKey={"value": [1]}))
    parser, _ = ParserTfds(None, version_dir), ParserTfds(None, version_dir)
    assert (parser.fingerprint, parser.class_names) == (before.fingerprint, before.class_names)
    assert repr(parser.element_spec) == repr(before.element_spec)
    (warning,) = [one.getMessage() for one in caplog.records if one.name.startswith("tfds_torch")]
    shown = key if "newKey" in key else "newKey"
    assert f"{version_dir}: {file} has keys that TFDS {tfds.__version__} does not know" in warning
    assert f"ignored: {shown!r}." in warning


def test_few_of_many_unknown_keys_are_shown(version_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = {f"{'y' * 300}{number}": number for number in range(10_000)}
    edit(version_dir / "features.json", lambda declared: declared.update(keys))
    assert ParserTfds(None, version_dir).class_names is not None
    assert "and 9,995 others" in caplog.text
    assert len(caplog.text) < 3000


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
    ours = NamedSplit(theirs.name, theirs.shard_lengths, 0, theirs.filename_template, folder=str(tmp_path))
    assert ours.filepaths == [os.fspath(path) for path in theirs.filepaths]
    assert ours.file_instructions == theirs.file_instructions


@pytest.mark.parametrize("folder", ["s3://bucket/d", "/data/d"])
@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("", "digits-train.tfrecord-00001-of-00002"),
        ("a/../b/./{SHARD_INDEX}", "b/00001"),
        ("../{SHARD_INDEX}", None),
        ("/etc/{SHARD_INDEX}", None),
    ],
)
def test_shards_lie_in_the_folder_of_their_dataset_also_at_a_url(template: str, name: str | None, folder: str) -> None:
    file_template = tfds.core.ShardedFileTemplate(
        data_dir="/elsewhere", template=template, dataset_name="digits", filetype_suffix="tfrecord"
    )
    split = NamedSplit("train", [5, 5], 0, file_template, folder=folder)
    if name is None:
        with pytest.raises(
            BadTemplateError, match=rf"dataset_info\.json in {folder} names the file .*, which does not"
        ):
            _ = split.filepaths
    else:
        assert split.filepaths[1] == f"{folder}/{name}"


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


# Arguments


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
