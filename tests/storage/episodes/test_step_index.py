"""The index of steps: where values lie, with a checksum each; built once, and built again when it must be."""

import itertools
import logging
import os
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from storage.example_writer import write_example
from storage.made_episodes import (
    ACTION,
    COUNT,
    FLAG,
    IMAGE,
    LAYOUT,
    SPECS,
    TASK,
    TEXT,
    WIDE,
    made_episode,
    write_episode,
    write_episodes,
)
from storage.made_shards import DATASET, MadeSplit
from storage.tfrecord_writer import write

from tfds_torch.errors import CorruptRecordError, ShardError
from tfds_torch.storage.array_record.source import ArrayRecordSource
from tfds_torch.storage.episodes.layout import EpisodeLayout, Numbers
from tfds_torch.storage.episodes.step_index import StepIndex, open_step_index
from tfds_torch.storage.episodes.wire import read_floats, read_varints
from tfds_torch.storage.open_files import stamp_of
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.tfrecord.source import TfrecordSource

LENGTHS = [[3, 0, 70], [], [129]]


def source_of(split: MadeSplit, file_format: str = "tfrecord") -> RecordSource:
    kind = TfrecordSource if file_format == "tfrecord" else ArrayRecordSource
    return kind(DATASET, split.instructions, SPECS, mean_example_bytes=1000)


def open_index(split: MadeSplit, source: RecordSource | None = None) -> StepIndex:
    source = source or source_of(split)
    paths = list(split.records)
    stamps = [stamp_of(os.stat(path)) for path in paths]
    counts = [len(records) for records in split.records.values()]
    return open_step_index(LAYOUT, DATASET, paths, stamps, counts, source.scan)


@pytest.fixture
def split(tmp_path: Path, cache_home: Path) -> MadeSplit:
    return write_episodes(tmp_path / "data", LENGTHS)


def units_of(index: StepIndex, record: bytes, place: int, key: str, count: int) -> list[bytes]:
    """The first units of a feature of a record, each compared with its checksum."""
    first = int(index.first_units(key, np.array([place]))[0])
    found = []
    for offset, length, crc in index.units[first : first + count].tolist():
        found.append(record[offset : offset + length])
        assert google_crc32c.value(found[-1]) == crc
    return found


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_every_value_lies_where_the_index_says(tmp_path: Path, cache_home: Path, file_format: str) -> None:
    split = write_episodes(tmp_path / "data", LENGTHS, file_format)
    index = open_index(split, source_of(split, file_format))
    records = [record for own in split.records.values() for record in own]
    assert index.num_steps.tolist() == [3, 0, 70, 129]
    for place, (record, num_steps) in enumerate(zip(records, index.num_steps.tolist(), strict=True)):
        episode = made_episode(num_steps, place)
        assert units_of(index, record, place, IMAGE, num_steps) == episode[IMAGE]
        assert units_of(index, record, place, TEXT, num_steps) == episode[TEXT]
        for key, numbers in LAYOUT.numbers.items():
            read: Callable[[bytes], Any] = read_floats if numbers.is_float else read_varints
            blocks = units_of(index, record, place, key, -(-num_steps // numbers.steps_of_block))
            rows = [read(block).reshape(-1, numbers.row_size) for block in blocks]
            assert all(len(block) == numbers.steps_of_block for block in rows[:-1])
            assert [one.tolist() for row in rows for one in row] == np.asarray(episode[key]).tolist()
        (task,) = units_of(index, record, place, TASK, 1)
        assert task.endswith(episode[TASK])
        assert (units_of(index, record, place, "rank", 1) == [b""]) == (place % 2 == 0)


def test_an_index_takes_less_than_40_bytes_a_step_and_camera() -> None:
    cameras, flags = ("steps/front", "steps/wrist"), ("is_first", "is_last", "is_terminal")
    numbers = {
        name: Numbers(size, True) for name, size in [("action", 7), ("state", 8), ("reward", 1), ("discount", 1)]
    }
    layout = EpisodeLayout(
        "steps", (*cameras, "steps/text"), numbers | {name: Numbers(1, False) for name in flags}, ("path",)
    )
    assert 12 * int(layout.num_units(np.array([100]))[0]) <= 40 * 100 * len(cameras)


def test_it_is_built_once_and_then_read(split: MadeSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    built = open_index(split)
    monkeypatch.setattr(TfrecordSource, "scan", None)  # A scan would be an error.
    again = open_index(split)
    assert again.units.tolist() == built.units.tolist()
    assert again.value_bytes.tolist() == built.value_bytes.tolist()
    assert not again.units.flags.writeable


def test_it_is_built_again_when_a_shard_has_changed(split: MadeSplit) -> None:
    open_index(split)
    path = next(iter(split.records))
    split.records[path] = [write_episode(made_episode(5, 9))] * 3
    write(Path(path), split.records[path])
    assert open_index(split).num_steps.tolist() == [5, 5, 5, 129]


@pytest.mark.parametrize("damage", ["cut", "other", "flipped"])
def test_a_damaged_index_is_built_again(
    split: MadeSplit, cache_home: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = open_index(split).units.tolist()
    (path,) = (cache_home / "tfds_torch" / "record_index").glob("*.index")
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-5] ^= 4
    path.write_bytes({"cut": bytes(content[:-12]), "other": b"no index", "flipped": bytes(content)}[damage])
    with caplog.at_level(logging.WARNING):
        assert open_index(split).units.tolist() == expected
    assert "is built again" in caplog.text


def test_indexes_of_other_features_are_kept_apart(split: MadeSplit) -> None:
    open_index(split)
    paths, counts = list(split.records), [len(own) for own in split.records.values()]
    stamps = [stamp_of(os.stat(path)) for path in paths]
    fewer = EpisodeLayout("steps", (IMAGE,), {ACTION: Numbers(7, True)}, ())
    for _ in range(2):
        index = open_step_index(fewer, DATASET, paths, stamps, counts, source_of(split).scan)
        assert len(index.units) == index.num_units == sum(one + -(-one // 64) for one in (3, 0, 70, 129))


def test_building_needs_memory_for_two_indexes_at_most(cache_home: Path) -> None:
    layout = EpisodeLayout("steps", (IMAGE, TEXT), {}, ())
    record = np.frombuffer(write_example({IMAGE: [b"a"] * 500, TEXT: [b"b"] * 500}), np.uint8)
    paths, stamps = [f"shard {number}" for number in range(8)], [(1, 1)] * 8
    tracemalloc.start()
    try:
        index = open_step_index(layout, DATASET, paths, stamps, [20] * 8, lambda *_: itertools.repeat(record, 20))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index.units) == 8 * 20 * 1000
    assert peak_bytes < 2.5 * index.units.nbytes


# What is refused.


def scan_one(record: bytes) -> Callable[..., Iterator[NDArray[np.uint8]]]:
    return lambda *_: iter([np.frombuffer(record, np.uint8)])


def refused(record: bytes, layout: EpisodeLayout = LAYOUT) -> str:
    with pytest.raises(CorruptRecordError) as raised:
        open_step_index(layout, DATASET, ["shard"], [(1, 1)], [1], scan_one(record))
    return str(raised.value)


def test_features_of_unequal_lengths_are_named(cache_home: Path) -> None:
    episode = made_episode(4, 1)
    message = refused(write_episode(episode | {TEXT: [b"one"]}))
    assert message == (
        "shard: record 0 is not an episode that can be read step by step, though its checksum is right: it was written "
        "that way. The features of its 'steps' have different numbers of steps: 'steps/text' has 1, 'steps/image' has "
        "4."
    )
    assert "'steps/text' has 0" in refused(write_episode({k: v for k, v in episode.items() if k != TEXT}))


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        (ACTION, [0.5] * 8, "'steps/action' has 8 numbers, and a step has 7."),
        (ACTION, [1] * 7, "'steps/action': It holds int64 values instead of float values."),
        (COUNT, [0.5] * 2, "'steps/count': It holds float values instead of int64 values."),
        (IMAGE, [1, 2], "'steps/image': It holds int64 values instead of bytes values."),
    ],
)
def test_a_feature_of_another_kind_is_named(cache_home: Path, key: str, values: list[Any], message: str) -> None:
    assert message in refused(write_example({key: values}))


def test_a_record_that_is_no_example_is_refused(cache_home: Path) -> None:
    assert "It is not a tf.train.Example" in refused(b"\x0a\x05abc")


def test_a_shard_with_another_number_of_records_is_refused(split: MadeSplit) -> None:
    split.records[next(iter(split.records))].pop()
    with pytest.raises(ShardError, match=r"holds 3 of 2 examples: dataset_info.json of fake/plain:1.0.0 promises 2"):
        open_index(split)


@pytest.mark.parametrize("file_format", ["tfrecord", "array_record"])
def test_a_flipped_bit_is_found_while_it_is_built(tmp_path: Path, cache_home: Path, file_format: str) -> None:
    split = write_episodes(tmp_path / "data", [[9, 9]], file_format)
    source = source_of(split, file_format)
    (path,) = map(Path, split.records)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptRecordError, match=r"record \d.*corrupt"):
        open_index(split, source)


@given(num_steps=st.integers(0, 300))
def test_units_are_counted_as_they_are_found(num_steps: int) -> None:
    units = array("I")
    layout = EpisodeLayout("steps", (), {FLAG: Numbers(1, False), WIDE: Numbers(100, True)}, (TASK,))
    record = write_example({FLAG: [3] * num_steps, WIDE: [0.0] * 100 * num_steps, TASK: [b"t"]})
    assert layout.find_units(np.frombuffer(record, np.uint8), units) == (num_steps, [])
    assert len(units) == 3 * int(layout.num_units(np.array([num_steps]))[0])
