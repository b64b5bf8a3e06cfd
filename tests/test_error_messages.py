"""Bad input: one typed error each, and a message that holds what was asked, what was found and what to do."""

import inspect
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_writers import write_png
from tfds_fixtures import (
    NUM_TRAIN,
    TRAIN_SHARDS,
    Datasets,
    cache_home,
    change_format,
    datasets,
    frame_record,
    has_tensorflow,
    record_offsets,
    replace_bytes_feature,
    shard_files,
    with_read,
    write_shard,
)
from zygote import tensorflow_zygote, torch_zygote

from tfds_torch import errors
from tfds_torch.engines.options import ReadOptions
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord.framing import read_records

__all__ = ["cache_home", "datasets"]

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception) and kind.__module__ == errors.__name__
]
CONFIG, NOT_FOUND = errors.ConfigError, errors.DatasetNotFoundError


def test_every_error_type_is_known_here() -> None:
    names = "ConfigError CorruptRecordError DatasetNotFoundError ExampleNotFoundError ExportError ShardError StallError"
    assert [kind.__name__ for kind in ERRORS] == [*names.split(), "StateMismatchError", "TfdsTorchError", "WorkerError"]


@pytest.mark.parametrize("kind", ERRORS)
def test_every_error_survives_being_rebuilt_from_its_message_and_pickled(kind: type[Exception]) -> None:
    error = kind('shard 3 of 7: it\'s "cut"\n at offset 12')
    for copy in (type(error)(str(error)), pickle.loads(pickle.dumps(error))):
        assert type(copy) is kind
        assert str(copy) == str(error) == 'shard 3 of 7: it\'s "cut"\n at offset 12'
    assert isinstance(error, errors.TfdsTorchError)


# What is asked for


@dataclass(frozen=True)
class Bad:
    """Arguments that cannot work.

    Attributes:
        kind: of the error.
        facts: what its message must hold; {root} stands for the data directory.
        arguments: of ParserTfds, beyond root and `name="shapes"`.
        world: when the error comes with `batches` only, the place that is asked for.
        batches: further arguments of `batches`.
    """

    kind: type[Exception]
    facts: tuple[str, ...]
    arguments: dict[str, Any] = field(default_factory=dict)
    world: World | None = None
    batches: dict[str, Any] = field(default_factory=dict)


def bad(kind: type[Exception], *facts: str, **arguments: Any) -> Bad:
    return Bad(kind, facts, arguments)


def bad_read(world: World, batches: dict[str, Any], *facts: str, **arguments: Any) -> Bad:
    return Bad(CONFIG, facts, arguments, world, batches)


TRAINING = {"is_training": True, "batch_size": 8}
SHARD_NAMES = "train (211 examples)", "test (37 examples)"
BAD = {
    "unknown dataset": bad(NOT_FOUND, "'mnits'", "{root}", "mnist", "shapes:1.0.0", name="mnits"),
    "unknown dataset, near a prepared one": bad(NOT_FOUND, "'shapez'", "nearest", "shapes", name="shapez"),
    "not prepared": bad(
        NOT_FOUND, "'mnist'", "not prepared", "tfds.builder('mnist', data_dir='{root}')", "shapes:1.0.0", name="mnist"
    ),
    "config and version not prepared": bad(
        NOT_FOUND,
        "tfds.builder('imagenet_v2/matched-frequency:3.0.0', data_dir=",
        name="imagenet_v2/matched-frequency:3.0.0",
    ),
    "version not prepared": bad(
        NOT_FOUND, "'sentences:5.0.0'", "sentences:1.0.0", "sentences:0.9.0", name="sentences:5.0.0"
    ),
    "unknown config": bad(NOT_FOUND, "'channels/pnk'", "channels/png_l:2.1.0", name="channels/pnk"),
    "a dataset's own folder as root": bad(
        NOT_FOUND,
        "{root}/shapes of dataset 'mnist' is the own folder",
        "Give root='{root}'",
        root="{root}/shapes",
        name="mnist",
    ),
    "wrong root": bad(NOT_FOUND, "{root}/nowhere", "does not exist", "'shapes'", root="{root}/nowhere"),
    "not prepared, under a wrong root": bad(
        NOT_FOUND,
        "tfds.builder('mnist', data_dir='{root}/nowhere')",
        "does not exist",
        root="{root}/nowhere",
        name="mnist",
    ),
    "root is a file": bad(NOT_FOUND, "not a dir", "dataset_info.json", root="{root}/shapes/1.0.0/dataset_info.json"),
    "root of another dataset": bad(NOT_FOUND, "shapes:1.0.0", "'tiny'", root="{root}/shapes/1.0.0", name="tiny"),
    "malformed name": bad(CONFIG, "'sha pes!'", "name/config:version", name="sha pes!"),
    "empty name": bad(CONFIG, "''", "name/config:version", name=""),
    "unknown split": bad(CONFIG, "'trian'", *SHARD_NAMES, "Did you mean 'train'", split="trian"),
    "unknown split in a sum": bad(CONFIG, "'train+validation'", *SHARD_NAMES, split="train+validation"),
    "malformed split": bad(CONFIG, "'train[10'", *SHARD_NAMES, split="train[10"),
    "nonsense in a slice": bad(CONFIG, "'train[a:b]'", *SHARD_NAMES, split="train[a:b]"),
    "empty split name": bad(CONFIG, "split ''", *SHARD_NAMES, split=""),
    "split is no text": bad(CONFIG, "split=3", "'train[:10%]'", split=3),
    "slice that ends before it begins": bad(CONFIG, "'train[10:5]+test'", "10", "5", split="train[10:5]+test"),
    "slice that TFDS takes for everything": bad(CONFIG, "'train[10:9]'", "10", "9", split="train[10:9]"),
    "shuffle is no bool": bad(CONFIG, "shuffle='no'", shuffle="no"),
    "read is no ReadOptions": bad(CONFIG, "read='files'", "ReadOptions(mode=", read="files"),
    "name is no text": bad(CONFIG, "name=None", name=None),
    "slice out of range": bad(CONFIG, "'train[300:400]'", *SHARD_NAMES, split="train[300:400]"),
    "percent out of range": bad(CONFIG, "'train[:200%]'", *SHARD_NAMES, split="train[:200%]"),
    "empty split in training": bad(CONFIG, "no examples", "'train[:0]'", split="train[:0]", **TRAINING),
    "shard out of range in training": bad(CONFIG, "no examples", "'train[9shard]'", split="train[9shard]", **TRAINING),
    "training without batch_size": bad(CONFIG, "Training needs batch_size", is_training=True),
    "batch_size 0": bad(CONFIG, "batch_size=0", ">= 1", batch_size=0),
    "batch_size negative": bad(CONFIG, "batch_size=-4", ">= 1", batch_size=-4),
    "batch_size float": bad(CONFIG, "batch_size=2.0", "integer", batch_size=2.0),
    "batch_size text": bad(CONFIG, "batch_size='8'", "integer", batch_size="8"),
    "batch_size bool": bad(CONFIG, "batch_size=True", "integer", batch_size=True),
    "repeats negative": bad(CONFIG, "repeats=-1", ">= 0", repeats=-1, **TRAINING),
    "repeats float": bad(CONFIG, "repeats=1.5", "integer", repeats=1.5, **TRAINING),
    "repeats in evaluation": bad(CONFIG, "repeats=2", "evaluation", repeats=2),
    "seed negative": bad(CONFIG, "seed=-1", ">= 0", seed=-1),
    "seed None": bad(CONFIG, "seed=None", "integer", seed=None),
    "image key absent": bad(
        CONFIG, "'pic'", "image feature", "caption", "image/filename", "nested/count", image_key="pic"
    ),
    "target key absent": bad(CONFIG, "'lable'", "target feature", "Did you mean 'label'", target_key="lable"),
    "nested target key absent": bad(CONFIG, "'nested/conut'", "Did you mean 'nested/count'", target_key="nested/conut"),
    "image is a text": bad(CONFIG, "'caption'", "not a single uint8 image", image_key="caption"),
    "unsupported format": bad(
        CONFIG,
        "tiny:1.0.0",
        "'riegeli'",
        "'tfrecord' and 'array_record'",
        "tfds convert_format",
        "{riegeli}/tiny/1.0.0",
        root="{riegeli}",
        name="tiny",
    ),
    "unknown remainder": bad(CONFIG, "'warp'", "'wrap'", "'drop'", "'pad'", "'keep'", remainder="warp"),
    "wrap in evaluation": bad(CONFIG, "remainder='wrap'", "evaluation", remainder="wrap"),
    "drop leaves nothing": bad(
        CONFIG, "remainder='drop'", "211", "500", is_training=True, batch_size=500, remainder="drop"
    ),
    "unknown image mode": bad(CONFIG, "'rgb'", "'RGB'", "'L'", "'RGBA'", image_mode="rgb"),
    "default image absent": bad_read(World(), {"fields": ("image",)}, "'image'", "text", "score", name="sentences"),
    "default target absent": bad_read(World(), {"fields": ("label",)}, "'label'", "text", "score", name="sentences"),
    "no image key": bad_read(World(), {"fields": ("image",)}, "'image'", "image_key=None", image_key=None),
    "no target key": bad_read(World(), {"fields": ("label",)}, "'label'", "target_key=None", target_key=None),
    "unknown field": bad_read(World(), {"fields": ("captoin",)}, "'captoin'", "Did you mean 'caption'", "words"),
    "files in evaluation": bad_read(World(), {}, "'files'", "evaluation", "'examples'", read=with_read("files")),
    "files with too few shards": bad_read(
        World(num_replicas=4, num_workers=2),
        {},
        "shapes:1.0.0",
        "'train'",
        "7 non-empty files",
        "8 pipelines (4 ranks x 2 workers)",
        read=with_read("files"),
        **TRAINING,
    ),
    "files with padding": bad_read(
        World(), {}, "'files'", "pad", "'examples'", read=with_read("files"), remainder="pad", **TRAINING
    ),
    "blocks of a stream": bad_read(
        World(), {}, "block_records=5", "'index'", "'examples'", read=with_read("examples", block_records=5)
    ),
    "groups of a stream": bad_read(
        World(), {}, "block_groups=2", "'index'", "'examples'", read=with_read("examples", block_groups=2)
    ),
    "groups without blocks": bad_read(
        World(), {}, "block_groups=2", "single examples", "block_records=256", read=with_read("auto", block_groups=2)
    ),
    "a stream of array_record": bad_read(
        World(),
        {},
        "'examples'",
        "shapes:1.0.0",
        "only read by index",
        "'index' or 'auto'",
        root="{array_record}",
        read=with_read("examples"),
    ),
    "workers without batch_size": bad_read(World(num_workers=3), {}, "3 workers", "batch_size"),
    "keep on several ranks": bad_read(
        World(num_replicas=2), {}, "remainder='keep'", "2 ranks", batch_size=4, remainder="keep"
    ),
    "negative epoch": bad_read(World(), {"epoch": -1}, "epoch=-1"),
    "start_batch beyond the epoch": bad_read(World(), {"start_batch": 28}, "start_batch=28", "0..27", batch_size=8),
    "negative start_batch": bad_read(World(), {"start_batch": -1}, "start_batch=-1", "0..27", batch_size=8),
}


def ask_for(case: Bad, places: dict[str, str]) -> tuple[str, str]:
    """Returns type and message of the error."""

    def fill(value: Any) -> Any:
        return value.format(**places) if isinstance(value, str) else value

    arguments = {"root": "{root}", "name": "shapes"} | case.arguments
    try:
        parser = ParserTfds(**{key: fill(value) for key, value in arguments.items()})
        if case.world is not None:
            next(parser.batches(case.world, **case.batches))
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing was raised", ""


def ask_for_all(places: dict[str, str]) -> tuple[dict[str, tuple[str, str]], bool]:
    """Runs in a child, which must stay without tensorflow."""
    return {name: ask_for(case, places) for name, case in BAD.items()}, has_tensorflow()


@pytest.fixture(scope="module")
def places(datasets: Datasets, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    riegeli = tmp_path_factory.mktemp("riegeli")
    shutil.copytree(datasets.root / "tiny", riegeli / "tiny")
    change_format(riegeli / "tiny" / "1.0.0", "riegeli")
    return {
        "root": str(datasets.root),
        "array_record": str(datasets.array_record),
        "riegeli": str(riegeli),
    }


@pytest.fixture(scope="module")
def answers(places: dict[str, str]) -> tuple[dict[str, tuple[str, str]], bool]:
    return torch_zygote().call(ask_for_all, places)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_work_is_a_typed_error_with_the_facts(
    answers: tuple[dict[str, tuple[str, str]], bool], places: dict[str, str], name: str
) -> None:
    case, (kind, message) = BAD[name], answers[0][name]
    assert kind == case.kind.__name__, message
    for fact in case.facts:
        assert fact.format(**places) in message


def test_no_such_error_loads_tensorflow(answers: tuple[dict[str, tuple[str, str]], bool]) -> None:
    assert answers[1] is False


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"mode": "file"}, ["'file'", "auto, index, files, examples", "Did you mean 'files'"]),
        ({"mode": "index!"}, ["'index!'", "auto, index, files, examples"]),
        ({"mode": None}, ["None", "auto, index, files, examples"]),
        ({"num_threads": 0}, ["num_threads=0", ">= 1"]),
        ({"shuffle_buffer": -1}, ["shuffle_buffer=-1", ">= 1"]),
        ({"prefetch_batches": 1.0}, ["prefetch_batches=1.0", "integer"]),
        ({"block_records": 0}, ["block_records=0", ">= 1"]),
        ({"block_groups": 0}, ["block_groups=0", ">= 1"]),
        ({"verify_checksums": 1}, ["verify_checksums=1", "True or False"]),
        ({"ram_budget_bytes": True}, ["ram_budget_bytes=True", "integer"]),
    ],
)
def test_read_options_that_cannot_work_are_a_config_error(arguments: dict[str, Any], facts: list[str]) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        ReadOptions(**arguments)
    for fact in facts:
        assert fact in str(caught.value)


def test_an_empty_split_evaluates_to_nothing(datasets: Datasets) -> None:
    parser = ParserTfds(datasets.root, "shapes", "train[:0]", batch_size=4)
    assert parser.num_examples == 0
    assert list(parser.batches(World())) == []
    assert list(parser.batches(World(1, 2, 1, 3))) == []


# What is on disk

DAMAGED = 2
"""The shard that is damaged: the third one, with 61 examples."""
RECORD = 20


@dataclass(frozen=True)
class Damage:
    """A way to spoil a shard.

    Attributes:
        do: changes the file; gets its path and where its records begin.
        kind: of the error.
        facts: what the message must hold beside the path; {offset} stands for the damaged record's offset.
        needs_reading: whether only reading the records can tell, not their headers.
    """

    do: Callable[[Path, list[int]], object]
    kind: type[Exception]
    facts: tuple[str, ...]
    needs_reading: bool = False


def cut_at(position: Callable[[list[int]], int]) -> Callable[[Path, list[int]], object]:
    return lambda path, offsets: path.write_bytes(path.read_bytes()[: position(offsets)])


def flip_at(position: Callable[[list[int]], int]) -> Callable[[Path, list[int]], object]:
    def flip(path: Path, offsets: list[int]) -> None:
        data = bytearray(path.read_bytes())
        data[position(offsets)] ^= 0x10
        path.write_bytes(data)

    return flip


def add_a_record(path: Path, offsets: list[int]) -> None:
    path.write_bytes(path.read_bytes() + frame_record(b"one too many"))


CORRUPT, SHARD = errors.CorruptRecordError, errors.ShardError
DAMAGES = {
    "missing": Damage(lambda path, _: path.unlink(), SHARD, ("missing",)),
    "empty": Damage(cut_at(lambda _: 0), SHARD, ("0 of 61",)),
    "cut between records": Damage(cut_at(lambda offsets: offsets[RECORD]), SHARD, ("20 of 61", "cut")),
    "cut before the last record": Damage(cut_at(lambda offsets: offsets[60]), SHARD, ("60 of 61",)),
    "cut in a header": Damage(cut_at(lambda offsets: offsets[RECORD] + 5), CORRUPT, ("record 20", "offset {offset}")),
    "cut in a record": Damage(cut_at(lambda offsets: offsets[RECORD] + 99), CORRUPT, ("record 20", "offset {offset}")),
    "cut in the last checksum": Damage(cut_at(lambda offsets: offsets[-1] - 1), CORRUPT, ("record 60",)),
    "one too many": Damage(add_a_record, SHARD, ("62 of 61",)),
    "flipped length": Damage(flip_at(lambda offsets: offsets[RECORD]), CORRUPT, ("record 20", "offset {offset}")),
    "flipped high length": Damage(
        flip_at(lambda offsets: offsets[RECORD] + 6), CORRUPT, ("record 20", "offset {offset}")
    ),
    "flipped checksum of a length": Damage(
        flip_at(lambda offsets: offsets[RECORD] + 9), CORRUPT, ("record 20", "offset {offset}")
    ),
    "flipped payload": Damage(
        flip_at(lambda offsets: offsets[RECORD] + 150), CORRUPT, ("record 20", "offset {offset}"), needs_reading=True
    ),
    "flipped checksum of a payload": Damage(
        flip_at(lambda offsets: offsets[RECORD + 1] - 2), CORRUPT, ("record 20", "offset {offset}"), needs_reading=True
    ),
}
EPOCHS: dict[str, dict[str, Any]] = {
    "evaluation": {"batch_size": 8},
    "evaluation in mode examples": {"batch_size": 8, "read": with_read("examples")},
    "training in mode index": TRAINING,
    "training in blocks": {**TRAINING, "read": with_read("index", block_records=10, shuffle_buffer=40)},
    "training in groups": {**TRAINING, "read": with_read("index", block_records=10, block_groups=2, shuffle_buffer=40)},
    "training in mode files": {**TRAINING, "read": with_read("files")},
    "training in mode examples": {**TRAINING, "read": with_read("examples")},
    "repeats in mode files": {**TRAINING, "read": with_read("files"), "repeats": 3},
    "repeats in mode examples": {**TRAINING, "read": with_read("examples"), "repeats": 3},
}


@dataclass(frozen=True)
class Outcome:
    """How an epoch ended: type and message of its error, and the examples that came before it."""

    kind: str
    message: str
    num_examples: int


def read_epoch(root: str, world: World, arguments: dict[str, Any]) -> Outcome:
    num_examples = 0
    try:
        for batch in ParserTfds(root, "shapes", **arguments).batches(world, fields=("image", "label")):
            num_examples += len(batch)
    except Exception as error:
        return Outcome(type(error).__name__, str(error), num_examples)
    return Outcome("", "", num_examples)


def damaged_copy(source: Path, target: Path, name: str) -> Path:
    """Returns the damaged shard of a damaged copy of `shapes`."""
    shutil.copytree(source, target / "shapes" / "1.0.0")
    path = shard_files(target / "shapes" / "1.0.0", "train")[DAMAGED]
    DAMAGES[name].do(path, record_offsets(path))
    return path


def read_damaged(source: Path, target: Path) -> dict[Any, Outcome]:
    """Runs in a child."""
    outcomes: dict[Any, Outcome] = {}
    for name, damage in DAMAGES.items():
        folder = target / name
        damaged_copy(source, folder, name)
        for epoch, arguments in EPOCHS.items():
            outcomes[name, epoch] = read_epoch(str(folder), World(), arguments)
        if damage.needs_reading:
            for worker in range(3):
                world, stream = World(0, 1, worker, 3), EPOCHS["evaluation in mode examples"]
                outcomes[name, "worker", worker] = read_epoch(str(folder), world, stream)
                outcomes[name, "worker by index", worker] = read_epoch(str(folder), world, EPOCHS["evaluation"])
    outcomes["counted before"] = flip_after_counting(source, target / "counted before")
    outcomes |= {
        ("image", name): read_epoch(str(rewrite_image(source, target / name, change)), World(), EPOCHS["evaluation"])
        for name, change in IMAGES.items()
    }
    for name in IMAGES:
        outcomes["streamed image", name] = read_epoch(
            str(target / name), World(), EPOCHS["evaluation in mode examples"]
        )
    outcomes["label alone"] = label_of_bad_image(str(target / "garbage"))
    return outcomes


def flip_after_counting(source: Path, target: Path) -> Outcome:
    """Damages a length without a trace in the file's size and time, after its records had been counted."""
    shutil.copytree(source, target / "shapes" / "1.0.0")
    read_epoch(str(target), World(), EPOCHS["evaluation"])
    path = shard_files(target / "shapes" / "1.0.0", "train")[DAMAGED]
    before = path.stat()
    DAMAGES["flipped length"].do(path, record_offsets(path))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return read_epoch(str(target), World(), EPOCHS["evaluation"])


PNG = write_png(np.zeros((20, 30, 3), np.uint16), 2, 8)
IMAGES: dict[str, Callable[[bytes], bytes]] = {
    "garbage": lambda _: b"no image at all",
    "cut jpeg": lambda image: image[: len(image) // 2],
    "nothing": lambda _: b"",
    "cut png": lambda _: PNG[: len(PNG) // 2],
    "png without its end": lambda _: PNG[:-12],
}


def rewrite_image(source: Path, target: Path, change: Callable[[bytes], bytes]) -> Path:
    """Writes a record whose checksums are right and whose image is not; returns the data directory."""
    shutil.copytree(source, target / "shapes" / "1.0.0")
    path = shard_files(target / "shapes" / "1.0.0", "train")[DAMAGED]
    records = list(read_records(path))
    records[RECORD] = replace_bytes_feature(records[RECORD], "image", change)
    write_shard(path, records)
    return target


def label_of_bad_image(root: str) -> Outcome:
    batches = ParserTfds(root, "shapes", batch_size=8).batches(World(), fields=("label",))
    return Outcome("", "", sum(map(len, batches)))


@pytest.fixture(scope="module")
def damaged(datasets: Datasets, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[Any, Outcome]]:
    target = tmp_path_factory.mktemp("damaged")
    return target, tensorflow_zygote().call(read_damaged, datasets.shapes, target)


@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_shard_is_an_error_and_never_a_short_epoch(
    datasets: Datasets, damaged: tuple[Path, dict[Any, Outcome]], name: str, epoch: str
) -> None:
    target, outcomes = damaged
    damage, outcome = DAMAGES[name], outcomes[name, epoch]
    path = shard_files(datasets.shapes, "train")[DAMAGED]
    offset = record_offsets(path)[RECORD]
    assert outcome.kind == damage.kind.__name__, outcome
    assert str(target / name / "shapes" / "1.0.0" / path.name) in outcome.message
    for fact in damage.facts:
        assert fact.format(offset=offset) in outcome.message
    assert outcome.num_examples <= (NUM_TRAIN * 3 if damage.needs_reading else 0)


@pytest.mark.parametrize("name", [name for name, damage in DAMAGES.items() if damage.needs_reading])
def test_the_worker_that_reads_the_damaged_record_says_so(damaged: tuple[Path, dict[Any, Outcome]], name: str) -> None:
    kinds = [damaged[1][name, "worker", worker].kind for worker in range(3)]
    first = list(accumulate(TRAIN_SHARDS))[DAMAGED - 1]
    assert first + RECORD < 72, "the record is in the cut of the first of three workers"
    assert kinds == ["CorruptRecordError", "", ""]
    kinds = [damaged[1][name, "worker by index", worker].kind for worker in range(3)]
    assert (first + RECORD) // 8 % 3 == 1, "the record is in a batch of the second of three workers"
    assert kinds == ["", "CorruptRecordError", ""]


def test_damage_after_the_records_were_counted_is_found(damaged: tuple[Path, dict[Any, Outcome]]) -> None:
    outcome = damaged[1]["counted before"]
    assert outcome.kind == "CorruptRecordError"
    assert "record 20" in outcome.message
    assert "-00002-of-00007" in outcome.message


@pytest.mark.parametrize("engine", ["image", "streamed image"])
@pytest.mark.parametrize("name", IMAGES)
def test_an_image_that_was_written_corrupt_is_an_error_with_its_record(
    damaged: tuple[Path, dict[Any, Outcome]], name: str, engine: str
) -> None:
    outcome = damaged[1][engine, name]
    assert outcome.kind == "CorruptRecordError"
    assert "shapes:1.0.0" in outcome.message
    assert "decode" in outcome.message
    assert "shapes-train.tfrecord-00002-of-00007" in outcome.message
    assert "record 20" in outcome.message
    assert "\n" not in outcome.message


def test_a_corrupt_image_that_is_not_asked_for_hurts_nobody(damaged: tuple[Path, dict[Any, Outcome]]) -> None:
    assert damaged[1]["label alone"].num_examples == NUM_TRAIN


def test_filenames_of_a_damaged_shard_are_an_error(damaged: tuple[Path, dict[Any, Outcome]]) -> None:
    target, _ = damaged
    for name, damage in DAMAGES.items():
        parser = ParserTfds(target / name, "shapes")
        with pytest.raises(damage.kind, match="-00002-of-00007"):
            parser.filenames()


def test_a_stale_dataset_info_is_an_error(datasets: Datasets, tmp_path: Path) -> None:
    """Shards that were exchanged: each whole, none of the promised length."""
    shutil.copytree(datasets.shapes, tmp_path / "shapes" / "1.0.0")
    first, second, *_ = shard_files(tmp_path / "shapes" / "1.0.0", "train")
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    parser = ParserTfds(tmp_path, "shapes", batch_size=8)
    with pytest.raises(errors.ShardError, match=r"-0000(0-of-00007 holds 3 of 40|1-of-00007 holds 40 of 3) examples"):
        list(parser.batches(World()))
