"""on_error="replace": what takes the place of damaged examples, in every world, and what is told of it.

That it does so in every source is in test_all_sources; here are its rules, over kinds of damage to files of TFDS.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storage.beton.made_files import flip
from tfds_fixtures import grid, record_offsets, shard_files, write_shard

from parsers.sources import FILES, NUM_EXAMPLES, PIXELS, SHARDS, SIDE, damaged, make_folder, make_records
from tfds_torch import EvalPreprocess, ParserTfds, ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError, ShardError
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord.framing import read_records

READ = ReadOptions(mode="index", num_threads=2, on_error="replace", max_replaced=9)
WHOLE = EvalPreprocess(size=SIDE, crop_pct=1.0)
Open = Callable[..., ParserTfds]


def place_of(number: int) -> tuple[int, int]:
    """Return the shard of an example, and its record there."""
    ends = np.cumsum(SHARDS)
    shard = int(np.searchsorted(ends, number, "right"))
    return shard, number - int(ends[shard]) + SHARDS[shard]


def spoil_records(root: Path, numbers: Sequence[int], *, checksum: bool) -> None:
    """Damage records: a bit of them is turned, or they are written as something else."""
    shards = shard_files(root / "pictures" / "1.0.0", "train")
    offsets = [record_offsets(path) for path in shards]  # Not read from a damaged one.
    for shard, record in map(place_of, numbers):
        if checksum:
            flip(shards[shard], offsets[shard][record] + 12 + 5)
        else:
            records = list(read_records(shards[shard]))
            records[record] = b"\xff" * len(records[record])
            write_shard(shards[shard], records)


WORDS = {
    "image": "cannot be decoded, though its checksum is right",
    "example": "cannot be decoded, though its checksum is right",
    "checksum": "checksum",
    "file": "cannot be decoded: it is damaged, or not an image. ",
    "empty file": "is empty: it holds no image",
}


@pytest.fixture
def spoil(tmp_path: Path) -> Callable[[str, Sequence[int]], Open]:
    """`spoil(kind, numbers)`: opens parsers of files whose examples `numbers`, by index, are damaged."""

    def spoil(kind: str, numbers: Sequence[int]) -> Open:
        if "file" in kind:
            made = make_folder(tmp_path, FILES)
            for number in numbers:
                path = tmp_path / made.make().filenames()[number]
                path.write_bytes(path.read_bytes()[:-300] if kind == "file" else b"")
            return made.make
        make: Open = make_records(tmp_path, damaged(*numbers) if kind == "image" else FILES).make
        if kind != "image":
            spoil_records(tmp_path, numbers, checksum=kind == "checksum")
        return lambda **more: make(**{"read": READ, **more})

    return spoil


def rows_of(parser: ParserTfds, worlds: Sequence[World] = (World(),), start: int = 0) -> list[tuple[int, int, bool]]:
    """Return index, label and validity of an epoch's rows in the order of the whole world; their pixels are right."""
    found: dict[int, list[tuple[int, int, bool]]] = {}
    for world in worlds:
        for batch in parser.batches(world, 0, start):
            assert batch.label is not None
            for image, label, valid in zip(batch.image, batch.label, batch.valid, strict=True):
                assert not valid or (image == PIXELS[label]).all()
            rows = zip(batch.index.tolist(), batch.label.tolist(), batch.valid.tolist(), strict=True)
            found.setdefault(batch.batch, []).extend(rows)
    return [row for number in sorted(found) for row in found[number]]


def next_whole(index: int, numbers: Sequence[int]) -> int:
    while index in numbers:
        index = (index + 1) % NUM_EXAMPLES
    return index


DAMAGED = {"one": (5,), "three in a row, over two files": (14, 15, 16), "around": (22, 23, 0, 1)}


@pytest.mark.parametrize("numbers", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("kind", WORDS)
def test_the_next_whole_example_takes_a_damaged_ones_place_in_every_world_and_after_every_resume(
    kind: str, numbers: tuple[int, ...], spoil: Callable[..., Open]
) -> None:
    make = spoil(kind, numbers)

    def open_parser(batch_size: int, **more: Any) -> ParserTfds:
        return make(**{"read": READ, "batch_size": batch_size, **more})

    planned = open_parser(6, is_training=True).plan(World())
    order = [int(at) for number in range(planned.num_batches) for at in planned.batch(0, number).index]
    training = rows_of(open_parser(6, is_training=True, preprocess=WHOLE))
    assert [index for index, _, _ in training] == [next_whole(index, numbers) for index in order]
    assert all(valid for _, _, valid in training)
    assert training == rows_of(open_parser(3, is_training=True), grid(2, 2))
    for start in range(1, len(training) // 6 + 1):
        assert rows_of(open_parser(6, is_training=True), start=start) == training[6 * start :], f"from batch {start} on"
    evaluation = rows_of(open_parser(6, preprocess=WHOLE), grid(2, 1))
    assert sorted(index for index, _, valid in evaluation if valid) == sorted({*range(NUM_EXAMPLES)} - {*numbers})
    assert [label for _, label, valid in evaluation if not valid] == [-100] * len(numbers)


@pytest.mark.parametrize("remainder", ["pad", "keep"])
def test_an_evaluation_that_does_not_divide_counts_every_whole_example_once(
    remainder: str, spoil: Callable[..., Open]
) -> None:
    make = spoil("image", (0, 1, 23))  # Those that padding repeats, and the last one.
    rows = rows_of(make(batch_size=5, remainder=remainder), grid(1 if remainder == "keep" else 2, 1))
    assert len(rows) == (NUM_EXAMPLES if remainder == "keep" else 30)
    assert sorted(index for index, _, valid in rows if valid) == list(range(2, 23))
    assert {label for _, label, valid in rows if not valid} == {-100}


# What is told


@pytest.mark.parametrize("kind", WORDS)
def test_a_warning_names_file_record_index_and_id_and_what_takes_the_place(
    kind: str, spoil: Callable[..., Open], caplog: pytest.LogCaptureFixture
) -> None:
    parser = spoil(kind, (15, 16))(batch_size=8, read=READ)
    with caplog.at_level(logging.WARNING):
        list(parser.batches())
    ids = parser.filenames()
    told = [record.getMessage() for record in caplog.records]
    for count, (number, text) in enumerate(zip((15, 16), told, strict=True), 1):
        shard, record = place_of(number)
        file = f"{ids[number]} of image_folder" if "file" in kind else f"{shard:05}-of-00004: record {record} "
        assert file in text
        assert WORDS[kind] in text
        assert text.endswith(
            f" The place of example {number} (id {ids[number]}) is taken by example 17 (id {ids[17]}): {count} of at "
            f"most 9 are replaced."
        )
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tfds_torch-decode")]


# What stays an error


@pytest.mark.parametrize("kind", ["image", "checksum", "file"])
def test_one_damaged_example_more_than_allowed_is_an_error_that_names_it_and_the_budget(
    kind: str, spoil: Callable[..., Open]
) -> None:
    parser = spoil(kind, (3, 4, 20))(batch_size=4, read=replace(READ, max_replaced=2))
    came: list[int] = []
    with pytest.raises(CorruptRecordError) as caught:
        came.extend(index for batch in parser.batches() for index in batch.index.tolist())
    assert WORDS[kind] in str(caught.value)
    assert str(caught.value).endswith(
        f" It (index 20, id {parser.filenames()[20]}) is damaged example number 3 of this worker's epoch, and "
        f"ReadOptions allows max_replaced=2."
    )
    assert came == [0, 1, 2, 5, 5, *range(5, 20)]
    assert len(rows_of(parser.with_read(replace(READ, max_replaced=3)))) == NUM_EXAMPLES


def test_where_nothing_near_is_whole_reading_ends_with_an_error(spoil: Callable[..., Open]) -> None:
    parser = spoil("image", range(NUM_EXAMPLES))(batch_size=4)
    for most, num_tried in ((2, 3), (10**6, NUM_EXAMPLES - 1)):
        with pytest.raises(CorruptRecordError) as caught:
            next(parser.with_read(replace(READ, max_replaced=most)).batches())
        assert str(caught.value) == (
            f"No whole example was found among the {num_tried} that follow the damaged example 0: the files are "
            f"damaged beyond what max_replaced={most} allows."
        )


def test_a_missing_image_file_is_an_error_all_the_same(spoil: Callable[..., Open], tmp_path: Path) -> None:
    parser = spoil("file", ())(batch_size=4, read=READ)
    path = tmp_path / parser.filenames()[5]
    path.unlink()
    with pytest.raises(ShardError, match=f"^{path} of image_folder:1.0.0 is missing"):
        list(parser.batches())


@pytest.mark.parametrize("mode", ["files", "examples"])
def test_streams_refuse_to_replace(mode: str, spoil: Callable[..., Open]) -> None:
    parser = spoil("image", ())(is_training=True, batch_size=4, read=replace(READ, mode=mode))
    with pytest.raises(ConfigError) as caught:
        parser.batches()
    assert str(caught.value) == (
        f"on_error='replace' replaces damaged examples by their neighbours, and the read mode is {mode!r}: a stream "
        f"cannot go on behind a damaged record. Use mode 'index', or on_error='raise'."
    )
