"""on_error="replace": what takes the place of damaged examples, in every world, and what is told of it."""

import logging
import shutil
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from picture_fixtures import save, write_pictures
from PIL import Image
from tfds_fixtures import (
    call_reader,
    collect_rank,
    grid,
    record_offsets,
    replace_bytes_feature,
    shard_files,
    write_shard,
)

from tfds_torch import EvalPreprocess, TrainPreprocess
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord.framing import read_records

slow = pytest.mark.slow

SHARDS = (7, 0, 9, 8)
NUM_EXAMPLES = sum(SHARDS)
GLOBAL_BATCH = 12
PAD_LABEL = -100
READ = ReadOptions(mode="index", num_threads=2, on_error="replace", max_replaced=9)


@dataclass(frozen=True)
class Row:
    """An example that came; `pixels` is a number for its image."""

    index: int
    id: str
    label: int
    valid: bool
    pixels: int


@dataclass(frozen=True)
class Came:
    """What reading gave: the batches of every pipeline, the warnings, its error, and how many threads are left."""

    pipelines: list[list[list[Row]]]
    warnings: list[str]
    error: tuple[str, str] = ("", "")
    num_threads: int = 0


class Keeping(logging.Handler):
    """Keeps all records, as handlers do that send them later."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def read(arguments: dict[str, Any], worlds: Sequence[World], start_batch: int = 0) -> Came:
    """Reads an epoch of some pipelines, one after the other; a stream loads tensorflow."""
    handler, pipelines, error = Keeping(), [], ("", "")
    logger = logging.getLogger("tfds_torch")
    logger.addHandler(handler)
    try:
        for world in worlds:
            pipelines.append([])
            for batch in ParserTfds(**arguments).batches(world, 0, start_batch):
                pipelines[-1].append(list(_rows(batch)))
    except TfdsTorchError as caught:
        error = type(caught).__name__, str(caught)
    finally:
        logger.removeHandler(handler)
    num_threads = sum(thread.name.startswith("tfds_torch-decode") for thread in threading.enumerate())
    return Came(pipelines, [record.getMessage() for record in handler.records], error, num_threads)


def _rows(batch: Any) -> Iterator[Row]:
    columns = (batch.index.tolist(), batch.id, batch.label.tolist(), batch.valid.tolist(), batch.image)
    for index, name, label, valid, image in zip(*columns, strict=True):
        yield Row(index, name, label, valid, zlib.crc32(np.ascontiguousarray(image)))  # type: ignore[arg-type]


# Datasets, and what is done to them


def picture(number: int) -> bytes:
    return save(Image.fromarray(np.random.default_rng(number).integers(0, 256, (20, 16, 3), np.uint8)), "PNG")


def write_records(root: Path) -> Path:
    return write_pictures(root, [picture(number) for number in range(NUM_EXAMPLES)], shards=SHARDS)


def write_folder(root: Path) -> Path:
    for number in range(NUM_EXAMPLES):
        path = root / "train" / f"label {number // 10}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return root


def place_of(number: int) -> tuple[int, int]:
    """Returns the shard of an example, and its record there."""
    ends = np.cumsum(SHARDS)
    shard = int(np.searchsorted(ends, number, "right"))
    return shard, number - int(ends[shard]) + SHARDS[shard]


def _change_record(root: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    shard, record = place_of(number)
    path = shard_files(root / "pictures" / "1.0.0", "train")[shard]
    records = list(read_records(path))
    records[record] = change(records[record])
    write_shard(path, records)


def spoil_image(root: Path, number: int) -> None:
    _change_record(root, number, lambda record: replace_bytes_feature(record, "image", lambda _: b"no image"))


def spoil_example(root: Path, number: int) -> None:
    _change_record(root, number, lambda record: b"\xff" * len(record))


def spoil_checksum(root: Path, number: int) -> None:
    shard, record = place_of(number)
    path = shard_files(root / "pictures" / "1.0.0", "train")[shard]
    data = bytearray(path.read_bytes())
    data[record_offsets(WHOLE_SHARDS[path.name])[record] + 12 + 5] ^= 1
    path.write_bytes(data)


def spoil_file(root: Path, number: int) -> None:
    (root / id_of(root, "image_folder", number)).write_bytes(b"no image")


def empty_file(root: Path, number: int) -> None:
    (root / id_of(root, "image_folder", number)).write_bytes(b"")


def id_of(root: Path, name: str, number: int) -> str:
    return ParserTfds(str(root), name).filenames()[number]


WHOLE_SHARDS: dict[str, Path] = {}
"""File name -> the undamaged shard: offsets are not read from a damaged one."""
SPOILED: dict[str, Callable[[Path, int], None]] = {
    "image": spoil_image,
    "example": spoil_example,
    "checksum": spoil_checksum,
    "file": spoil_file,
    "empty file": empty_file,
}
NAMES = {kind: "image_folder" if "file" in kind else "pictures" for kind in SPOILED}
WORDS = {
    "image": "cannot be decoded, though its checksum is right",
    "example": "cannot be decoded, though its checksum is right",
    "checksum": "checksum",
    "file": "cannot be decoded: it is damaged, or not an image. Its 8 bytes are not a whole ",
    "empty file": "is empty: it holds no image",
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Dataset -> its root. Shared: copy before damaging anything."""
    base = tmp_path_factory.mktemp("whole")
    roots = {"pictures": write_records(base / "records"), "image_folder": write_folder(base / "folder")}
    WHOLE_SHARDS.update({path.name: path for path in shard_files(base / "records" / "pictures" / "1.0.0", "train")})
    return roots


Damage = Callable[[str, Sequence[int]], dict[str, Any]]


@pytest.fixture
def damage(whole: dict[str, Path], tmp_path: Path) -> Damage:
    """`damage(kind, numbers)`: a parser's arguments for a copy whose examples `numbers` are damaged."""

    def make(kind: str, numbers: Sequence[int]) -> dict[str, Any]:
        root = Path(shutil.copytree(whole[NAMES[kind]], tmp_path / "damaged"))
        for number in numbers:
            SPOILED[kind](root, number)
        return {"root": str(root), "name": NAMES[kind], "read": READ}

    return make


PREPROCESS = {"train": TrainPreprocess(size=8), "eval": EvalPreprocess(size=8), "none": None}
_undamaged: dict[Any, list[Row]] = {}


def undamaged(whole: dict[str, Path], arguments: dict[str, Any]) -> list[Row]:
    """Returns the rows of an epoch of the undamaged dataset, as one process reads it."""
    arguments = {**arguments, "root": str(whole[arguments["name"]]), "read": replace(READ, on_error="raise")}
    key = tuple(arguments.items())
    if key not in _undamaged:
        came = call_reader(read, arguments | {"batch_size": GLOBAL_BATCH}, [World()])
        assert came.error == ("", "")
        _undamaged[key] = [row for batch in came.pipelines[0] for row in batch]
    return _undamaged[key]


def with_replaced(rows: list[Row], damaged: Sequence[int], *, is_training: bool) -> list[Row]:
    """Returns the rows of an undamaged epoch after the next whole example by index took each damaged one's place."""
    by_index = {row.index: row for row in rows}
    expected = []
    for row in rows:
        index = row.index
        while index in damaged:
            index = (index + 1) % NUM_EXAMPLES
        taken = by_index[index]
        is_replaced = index != row.index
        expected.append(taken if is_training or not is_replaced else replace(taken, valid=False, label=PAD_LABEL))
    return expected


def read_world(
    arguments: dict[str, Any], num_replicas: int, num_workers: int, global_batch: int, start_batch: int = 0
) -> list[Row]:
    """Returns an epoch's rows in the order of the whole world, whose ranks must have full batches, equally many."""
    batch_size = global_batch // num_replicas
    came = call_reader(
        read, arguments | {"batch_size": batch_size}, grid(num_replicas, num_workers), start_batch=start_batch
    )
    assert came.error == ("", "")
    pipelines = iter(came.pipelines)
    # After a resume, worker 0 delivers the first batch that is left.
    ranks = [collect_rank([next(pipelines) for _ in range(num_workers)]) for _ in range(num_replicas)]
    assert [len(rank) for rank in ranks] == [NUM_EXAMPLES // global_batch - start_batch] * num_replicas
    assert {len(batch) for rank in ranks for batch in rank} <= {batch_size}
    return [row for batches in zip(*ranks, strict=True) for batch in batches for row in batch]


# What takes their place

DAMAGED = {"one": (5,), "three in a row, over two files": (14, 15, 16), "at the end": (22, 23), "around": (23, 0, 1)}


@pytest.mark.parametrize(
    ("kind", "preprocess", "numbers"),
    [
        ("image", "train", "three in a row, over two files"),
        ("checksum", "train", "around"),
        ("example", "none", "one"),
        ("file", "train", "at the end"),
    ],
)
def test_in_training_the_next_whole_example_takes_a_damaged_ones_place_and_no_other_row_changes(
    kind: str, preprocess: str, numbers: str, damage: Damage, whole: dict[str, Path]
) -> None:
    arguments = damage(kind, DAMAGED[numbers]) | {"is_training": True, "preprocess": PREPROCESS[preprocess]}
    expected = with_replaced(undamaged(whole, arguments), DAMAGED[numbers], is_training=True)
    assert read_world(arguments, 1, 1, GLOBAL_BATCH) == expected
    assert all(row.valid for row in expected)


@pytest.mark.parametrize("kind", ["image", pytest.param("checksum", marks=slow), pytest.param("file", marks=slow)])
@pytest.mark.parametrize(("num_replicas", "num_workers", "global_batch"), [(2, 2, 4), (1, 3, 4)])
def test_the_same_examples_take_their_places_in_every_world(
    kind: str, num_replicas: int, num_workers: int, global_batch: int, damage: Damage, whole: dict[str, Path]
) -> None:
    damaged = (6, 7, 15, 23)
    arguments = damage(kind, damaged) | {"is_training": True, "preprocess": PREPROCESS["train"]}
    expected = with_replaced(undamaged(whole, arguments), damaged, is_training=True)
    assert read_world(arguments, num_replicas, num_workers, global_batch) == expected


@pytest.mark.parametrize("kind", ["image", pytest.param("checksum", marks=slow), pytest.param("file", marks=slow)])
@pytest.mark.parametrize("num_workers", [1, pytest.param(2, marks=slow)])
def test_the_same_examples_take_their_places_after_a_resume_at_every_batch(
    kind: str, num_workers: int, damage: Damage, whole: dict[str, Path]
) -> None:
    damaged = (6, 7, 15, 23)
    arguments = damage(kind, damaged) | {"is_training": True, "preprocess": PREPROCESS["train"]}
    expected = with_replaced(undamaged(whole, arguments), damaged, is_training=True)
    assert len(expected) >= NUM_EXAMPLES
    for start_batch in range(NUM_EXAMPLES // 6 + 1):
        tail = read_world(arguments, 1, num_workers, 6, start_batch)
        assert tail == expected[start_batch * 6 :], f"from batch {start_batch} on"


@pytest.mark.parametrize(
    ("kind", "preprocess", "numbers"),
    [
        ("checksum", "eval", "three in a row, over two files"),
        ("image", "none", "around"),
    ],
)
def test_in_evaluation_what_takes_a_damaged_ones_place_is_not_valid_and_every_whole_example_is_once(
    kind: str, preprocess: str, numbers: str, damage: Damage, whole: dict[str, Path]
) -> None:
    damaged = DAMAGED[numbers]
    arguments = damage(kind, damaged) | {"preprocess": PREPROCESS[preprocess]}
    rows = read_world(arguments, 2, 1, GLOBAL_BATCH)
    one_process = with_replaced(undamaged(whole, arguments), damaged, is_training=False)
    assert sorted(rows, key=repr) == sorted(one_process, key=repr)
    assert sorted(row.index for row in rows if row.valid) == sorted({*range(NUM_EXAMPLES)} - {*damaged})
    assert [row.label for row in rows if not row.valid] == [PAD_LABEL] * len(damaged)


@pytest.mark.parametrize("remainder", ["pad", "keep"])
def test_an_evaluation_that_does_not_divide_counts_every_whole_example_once(remainder: str, damage: Damage) -> None:
    damaged = (0, 1, 23)  # Those that padding repeats, and the last one.
    arguments = damage("image", damaged) | {"preprocess": PREPROCESS["eval"], "remainder": remainder, "batch_size": 5}
    came = call_reader(read, arguments, grid(1 if remainder == "keep" else 2, 1))
    assert came.error == ("", "")
    sizes = [[len(batch) for batch in batches] for batches in came.pipelines]
    assert sizes == ([[5, 5, 5, 5, 4]] if remainder == "keep" else [[5, 5, 5]] * 2)
    rows = [row for batches in came.pipelines for batch in batches for row in batch]
    assert sorted(row.index for row in rows if row.valid) == list(range(2, 23))
    assert {row.label for row in rows if not row.valid} == {PAD_LABEL}


# What is told


@pytest.mark.parametrize(
    ("kind", "preprocess"),
    [
        *((kind, "eval") for kind in SPOILED),
        ("example", "none"),
    ],
)
def test_a_warning_names_file_record_index_and_id_and_what_takes_the_place(
    kind: str, preprocess: str, damage: Damage
) -> None:
    arguments = damage(kind, (15, 16)) | {"preprocess": PREPROCESS[preprocess], "batch_size": 8}
    came = call_reader(read, arguments, [World()])
    assert came.error == ("", "")
    assert len(came.warnings) == 2
    root, name = Path(arguments["root"]), arguments["name"]
    taken_id = id_of(root, name, 17)
    for count, (number, text) in enumerate(zip((15, 16), came.warnings, strict=True), 1):
        shard, record = place_of(number)
        file = f"pictures-train.tfrecord-{shard:05}-of-00004: record {record} "
        damaged_id = id_of(root, name, number)
        assert (f"{root / damaged_id} of image_folder" if "file" in kind else file) in text
        assert WORDS[kind] in text
        assert text.endswith(
            f" The place of example {number} (id {damaged_id}) is taken by example 17 (id {taken_id}): {count} of at "
            f"most 9 are replaced."
        )


def test_nothing_goes_on_reading_ahead_when_a_log_keeps_what_it_was_told(damage: Damage) -> None:
    arguments = damage("image", (2,)) | {"preprocess": PREPROCESS["eval"], "batch_size": 8}
    came = call_reader(read, arguments, [World()])
    assert len(came.warnings) == 1
    assert came.num_threads == 0


# What stays an error


@pytest.mark.parametrize(("kind", "preprocess"), [("image", "eval"), ("checksum", "none"), ("file", "eval")])
def test_one_damaged_example_more_than_allowed_is_an_error_that_names_it_and_the_budget(
    kind: str, preprocess: str, damage: Damage
) -> None:
    arguments = damage(kind, (3, 4, 20)) | {"preprocess": PREPROCESS[preprocess], "batch_size": 4}
    came = call_reader(read, arguments | {"read": replace(READ, max_replaced=2)}, [World()])
    assert len(came.warnings) == 2
    error, text = came.error
    assert error == "CorruptRecordError"
    assert WORDS[kind] in text
    assert text.endswith(
        f" It (index 20, id {id_of(Path(arguments['root']), arguments['name'], 20)}) is damaged example number 3 of "
        f"this worker's epoch, and ReadOptions allows max_replaced=2."
    )
    assert [row.index for batch in came.pipelines[0] for row in batch] == [0, 1, 2, 5, 5, *range(5, 20)]
    assert call_reader(read, arguments | {"read": replace(READ, max_replaced=3)}, [World()]).error == ("", "")


@pytest.mark.parametrize("kind", ["image", pytest.param("file", marks=slow)])
def test_where_nothing_near_is_whole_reading_ends_with_an_error(kind: str, damage: Damage) -> None:
    arguments = damage(kind, range(NUM_EXAMPLES)) | {"preprocess": PREPROCESS["eval"], "batch_size": 4}
    for most, num_tried in ((2, 3), (10**6, NUM_EXAMPLES - 1)):
        came = call_reader(read, arguments | {"read": replace(READ, max_replaced=most)}, [World()])
        assert came.error == (
            "CorruptRecordError",
            f"No whole example was found among the {num_tried} that follow the damaged example 0: the files are "
            f"damaged beyond what max_replaced={most} allows.",
        )
        assert came.warnings == []


@pytest.mark.parametrize("preprocess", ["eval", "none"])
def test_a_missing_image_file_is_an_error_all_the_same(preprocess: str, damage: Damage) -> None:
    arguments = damage("file", ()) | {"preprocess": PREPROCESS[preprocess], "batch_size": 4}
    path = Path(arguments["root"]) / id_of(Path(arguments["root"]), "image_folder", 5)
    error, text = call_reader(error_without, arguments, path)
    assert error == "ShardError"
    assert text.startswith(f"{path} of image_folder:1.0.0 is missing")


def error_without(arguments: dict[str, Any], path: Path) -> tuple[str, str]:
    """Returns type and text of what reading raises after a file was removed that had been listed."""
    parser = ParserTfds(**arguments)
    path.unlink()
    try:
        for _ in parser.batches():
            pass
    except TfdsTorchError as error:
        return type(error).__name__, str(error)
    return "", ""


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_streams_refuse_to_replace(mode: str, whole: dict[str, Path]) -> None:
    parser = ParserTfds(
        str(whole["pictures"]), "pictures", is_training=True, batch_size=4, read=replace(READ, mode=mode)
    )
    with pytest.raises(ConfigError) as caught:
        parser.batches()
    assert str(caught.value) == (
        f"on_error='replace' replaces damaged examples by their neighbours, and the read mode is {mode!r}: a stream "
        f"cannot go on behind a damaged record. Use mode 'index', or on_error='raise'."
    )
