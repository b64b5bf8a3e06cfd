"""WindowSource: windows equal those that are cut out of whole episodes, and damage is an error with its place."""

import os
import pickle
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from storage.made_episodes import (
    ACTION,
    COUNT,
    FLAG,
    IMAGE,
    LAYOUT,
    SPECS,
    TAGS,
    TASK,
    TEXT,
    WIDE,
    made_episode,
    write_episode,
    write_episodes,
)
from storage.made_shards import DATASET, MadeSplit
from storage.tfrecord_writer import write

from tfds_torch.errors import ConfigError, CorruptRecordError, ExampleNotFoundError, ShardError
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.array_record.source import ArrayRecordSource
from tfds_torch.storage.episodes import units
from tfds_torch.storage.episodes.source import WindowSource
from tfds_torch.storage.episodes.window_reader import EPISODE, STEP, WindowFeatures, padding_key
from tfds_torch.storage.source import FileInstruction
from tfds_torch.storage.tfrecord.source import TfrecordSource

LENGTHS = [[3, 0, 70], [], [129, 1]]
STEPS = [3, 0, 70, 129, 1]
FIELDS = (IMAGE, TEXT, ACTION, COUNT, FLAG, WIDE, TAGS, TASK, "rank")
STORED_AS = {TAGS: (f"{TAGS}/ragged_flat_values", f"{TAGS}/ragged_row_lengths_0")}
OFFSETS = {IMAGE: (-1, 0), ACTION: tuple(range(16)), TAGS: (0, 2), FLAG: (5,)}


def open_source(split: MadeSplit, windows: Windows, offsets: dict[str, tuple[int, ...]] = OFFSETS) -> WindowSource:
    path = next(iter(split.records))
    kind = ArrayRecordSource if "array_record" in path else TfrecordSource
    episodes = kind(DATASET, split.instructions, SPECS, mean_example_bytes=1000)
    return WindowSource(episodes, windows, WindowFeatures(LAYOUT, offsets, STORED_AS))


@pytest.fixture(scope="module", params=["tfrecord", "array_record"])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeSplit]:
    """Episodes that no test changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield write_episodes(tmp_path_factory.mktemp("data"), LENGTHS, request.param)


@pytest.fixture
def split(tmp_path: Path, cache_home: Path) -> MadeSplit:
    return write_episodes(tmp_path / "data", LENGTHS)


def expected_value(key: str, episode: int, step: int, offsets: tuple[int, ...] | None) -> Any:
    """What a window has of a feature, cut out of its whole episode."""
    whole = made_episode(STEPS[episode], episode)
    if key in (TASK, "rank"):
        return whole.get(key, -1)
    rows = [min(max(step + offset, 0), STEPS[episode] - 1) for offset in offsets or (0,)]
    taken = [np.ravel(whole[key][row]).tolist() if key in (FLAG, TAGS) else whole[key][row] for row in rows]
    taken = [row[0] for row in taken] if key == FLAG else [as_list(row) for row in taken]
    return taken if offsets else taken[0]


def check_windows(source: WindowSource, index: Sequence[int], fields: Sequence[str] = FIELDS) -> None:
    """Asserts that windows are those that are cut out of whole episodes."""
    keys = [padding_key(key) for key in source.features.offsets]
    columns = source.read(np.array(index, np.int64), [*fields, *keys, EPISODE, STEP])
    for row, number in enumerate(index):
        episode, step = int(columns[EPISODE][row]), int(columns[STEP][row])
        assert source.find(source.ids(np.array([number]))[0]) == number
        for key in fields:
            offsets = source.features.offsets.get(key)
            found = columns[key][row]
            found = [as_list(one) for one in found] if isinstance(found, list) else as_list(found)
            assert found == expected_value(key, episode, step, offsets), (key, episode, step)
        for key, own in source.features.offsets.items():
            outside = [not 0 <= step + offset < STEPS[episode] for offset in own]
            assert columns[padding_key(key)][row].tolist() == outside
    for key in fields:
        values, spec = columns[key], source.specs[key]
        if isinstance(values, np.ndarray):
            assert (values.dtype, values.shape[1:]) == (spec.dtype, spec.shape)


def as_list(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


OFFSET = st.lists(st.integers(-9, 20), min_size=1, max_size=5).map(tuple)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    offsets=st.dictionaries(st.sampled_from([IMAGE, TEXT, ACTION, COUNT, FLAG, WIDE, TAGS]), OFFSET),
    stride=st.integers(1, 4),
    whole=st.booleans(),
)
def test_windows_equal_those_cut_out_of_whole_episodes(
    shared: MadeSplit, data: st.DataObject, offsets: dict[str, tuple[int, ...]], stride: int, whole: bool
) -> None:
    assume(not whole or sum(max(map(abs, own)) for own in offsets.values()) < 100)
    source = open_source(shared, Windows(stride=stride, whole=whole), offsets)
    index = data.draw(st.lists(st.integers(0, len(source) - 1), max_size=12))
    check_windows(source, index)
    source.announce(np.array(index, np.int64))


def test_every_window_is_there_once(shared: MadeSplit) -> None:
    source = open_source(shared, Windows(stride=3))
    assert len(source) == 1 + 24 + 43 + 1
    columns = source.read(np.arange(len(source)), [EPISODE, STEP])
    found = list(zip(columns[EPISODE].tolist(), columns[STEP].tolist(), strict=True))
    assert found == [(episode, step) for episode, steps in enumerate(STEPS) for step in range(0, steps, 3)]
    assert len(set(source.ids(np.arange(len(source))))) == len(source)
    first, _, last = [os.path.basename(path) for path in shared.records]
    parts = [(os.path.basename(item.path), item.skip, item.take, item.first_index) for item in source.instructions]
    assert parts == [(first, 0, 25, 0), (last, 0, 44, 25)]


def test_all_steps_of_the_episodes_of_windows(shared: MadeSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(shared, Windows(stride=3, whole=True), {ACTION: tuple(range(16))})
    assert len(source) < sum(STEPS)
    monkeypatch.setattr("tfds_torch.storage.episodes.source.open_step_index", None)  # The index is open already.
    steps = source.steps()
    assert len(steps) == sum(STEPS)
    check_windows(steps, range(0, len(steps), 7))
    assert steps.read(np.arange(2), [ACTION])[ACTION].shape == (2, 7)
    steps.check()


def test_windows_of_a_part_of_a_split_are_those_of_its_records(shared: MadeSplit) -> None:
    first, _, last = shared.records
    part = MadeSplit([FileInstruction(last, 1, 1, 0, 2), FileInstruction(first, 0, 1, 1, 3)], [], shared.records)
    source = open_source(part, Windows(), {ACTION: tuple(range(16))})
    assert len(source) == 4
    assert source.instructions == (FileInstruction(last, 129, 1, 0, 130), FileInstruction(first, 0, 3, 1, 73))
    columns = source.read(np.arange(4), [EPISODE, STEP, ACTION])
    assert columns[EPISODE].tolist() == [0, 1, 1, 1]
    np.testing.assert_array_equal(columns[ACTION][0], np.repeat(made_episode(1, 4)[ACTION], 16, axis=0))


def test_only_the_bytes_of_a_window_are_read(split: MadeSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(split, Windows())
    source.read(np.array([0]), [ACTION])
    made: list[int] = []
    really_read = os.pread

    def read(descriptor: int, size: int, offset: int) -> bytes:
        made.append(size)
        return really_read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", read)
    source.read(np.array([100]), [ACTION])
    assert made == [64 * 28]  # One block of steps, out of a record of 330 kB.


def test_what_is_announced_is_what_is_read(split: MadeSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(split, Windows())
    index = np.array([150, 3, 70, 4, 71])
    asked: dict[str, list[tuple[int, ...]]] = {}
    really_read = source.episodes.read_parts

    def note(name: str, *parts: np.ndarray) -> None:
        asked[name] = sorted(zip(*(part.tolist() for part in parts), strict=True))

    def read(*parts: np.ndarray) -> list[bytes]:
        note("read", *parts)
        return really_read(*parts)

    monkeypatch.setattr(source.episodes, "read_parts", read)
    monkeypatch.setattr(source.episodes, "announce_parts", lambda *parts: note("announced", *parts))
    source.read(index, [ACTION, IMAGE])
    source.announce(index)
    assert asked["announced"] == asked["read"]
    assert len(set(asked["read"])) == len(asked["read"])


def test_every_byte_that_is_handed_over_was_compared(shared: MadeSplit, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_source(shared, Windows())
    compared: set[bytes] = set()

    def note(content: bytes) -> int:
        compared.add(content)
        return int(google_crc32c.value(content))

    len(source)
    monkeypatch.setattr(units, "_crc32c", note)
    columns = source.read(np.arange(len(source)), FIELDS)
    for key in (IMAGE, TEXT):
        values = np.concatenate(columns[key]) if key in OFFSETS else columns[key]
        assert set(values) <= compared
    assert {row.astype("<f4").tobytes() for row in columns[WIDE]} <= compared


def test_a_pickled_source_reads_the_same(split: MadeSplit) -> None:
    source = open_source(split, Windows())
    check_windows(source, [0])
    again = pickle.loads(pickle.dumps(source))
    check_windows(again, [5, 100])
    assert repr(again.identity) == repr(source.identity)


def test_identity_tells_windows_apart(split: MadeSplit) -> None:
    kinds = [Windows(), Windows(stride=2), Windows(pad="zero"), Windows(whole=True)]
    identities = [repr(open_source(split, windows).identity) for windows in kinds]
    assert len(set(identities)) == len(kinds)
    assert repr(open_source(split, Windows(), {}).identity) not in identities


def test_threads_may_share_one(split: MadeSplit) -> None:
    source = open_source(split, Windows())
    threads = [threading.Thread(target=check_windows, args=(source, range(at, 200, 8))) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# What is refused.


def test_what_is_not_there_is_named(split: MadeSplit) -> None:
    source = open_source(split, Windows(stride=2))
    name = f"{os.path.basename(next(iter(split.records)))}__0"
    with pytest.raises(ExampleNotFoundError, match=r"has no window 103 here: the split has 103 windows"):
        source.read(np.array([103]), [ACTION])
    with pytest.raises(ConfigError, match="A window has no field 'steps/other': its fields are steps/image"):
        source.read(np.array([0]), ["steps/other"])
    with pytest.raises(ExampleNotFoundError, match=r"ids have the form '<shard file>__<record>/<step>', such as "):
        source.find(name)
    with pytest.raises(ExampleNotFoundError, match="no window begins there: the episode has 3 steps, and Windows"):
        source.find(f"{name}/1")
    assert source.find(f"{name}/2") == 1


def test_offsets_that_leave_every_episode_are_refused(split: MadeSplit) -> None:
    message = r"offsets of 'steps/action' leave every episode: the nearest one is -129, .* has 129 steps"
    with pytest.raises(ConfigError, match=message):
        len(open_source(split, Windows(), {ACTION: (-200, -129)}))
    assert len(open_source(split, Windows(), {ACTION: (-200, 128)})) == 203


def test_windows_none_of_which_is_whole_are_refused(split: MadeSplit) -> None:
    message = r"no window lies whole in its episode: .* needs 100 steps before its own and 29 after it, .* 129 steps"
    with pytest.raises(ConfigError, match=message):
        len(open_source(split, Windows(whole=True), {ACTION: (-100, 0), IMAGE: (29,)}))
    assert len(open_source(split, Windows(whole=True), {ACTION: (-100, 28)})) == 1


def test_an_episode_without_steps_has_no_window(tmp_path: Path, cache_home: Path) -> None:
    source = open_source(write_episodes(tmp_path / "data", [[0, 0]]), Windows())
    assert len(source) == 0
    assert source.instructions == ()
    assert len(source.read(np.empty(0, np.int64), [ACTION, IMAGE])[ACTION]) == 0


@contextmanager
def unchanged_time(path: str) -> Iterator[bytearray]:
    """Changes a file without a trace in its size and time."""
    stamp, content = os.stat(path), bytearray(Path(path).read_bytes())
    yield content
    Path(path).write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))


@pytest.mark.parametrize("key", [IMAGE, ACTION, COUNT, FLAG, TASK, TAGS])
def test_a_flipped_byte_is_found_with_its_place(split: MadeSplit, key: str) -> None:
    source = open_source(split, Windows(), {})
    window = 3 + 7
    opened = source.reader
    episode, step = (numbers for numbers in opened.table.locate(np.array([window])))
    unit = int(opened._units_of(key, episode, step).units[0, 0])
    offset = int(opened.index.units[unit, 0])
    path = next(iter(split.records))
    begin = Path(path).read_bytes().index(split.records[path][2])
    with unchanged_time(path) as content:
        content[begin + offset] ^= 1
    stored = STORED_AS.get(key, (key,))[0]
    place = "at step 7 " if key == IMAGE else ""
    with pytest.raises(CorruptRecordError) as raised:
        source.read(np.array([0, window]), [key])
    message = str(raised.value)
    assert message.startswith(f"{path}: record 2 ({DATASET}, the window at step 7): the ")
    assert re.search(rf"bytes of '{stored if key != TAGS else key}' {place}from byte {offset} of the record", message)
    source.read(np.array([0, window]), [WIDE])  # The rest of the record is whole.


def test_a_record_that_was_exchanged_is_not_read(split: MadeSplit) -> None:
    source = open_source(split, Windows())
    len(source)
    path = next(iter(split.records))
    records = list(split.records[path])
    records[0] = write_episode(made_episode(3, 0) | {ACTION: made_episode(3, 8)[ACTION]})
    stamp = os.stat(path)
    write(Path(path), records)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    with pytest.raises(
        ShardError, match=r"is whole, and not the one whose steps were indexed: .*Run `touch "
    ) as raised:
        source.read(np.array([0]), [ACTION])
    assert not isinstance(raised.value, CorruptRecordError)


def test_a_file_that_changed_since_its_steps_were_counted_is_refused(split: MadeSplit) -> None:
    source = open_source(split, Windows())
    len(source)
    os.utime(next(iter(split.records)))
    with pytest.raises(ShardError, match="changed since its steps were counted: it was written to"):
        source.check()
    with pytest.raises(ShardError, match="changed"):
        len(pickle.loads(pickle.dumps(source)))


def test_checksums_can_be_left_out(split: MadeSplit) -> None:
    source = open_source(split, Windows(), {})
    fast = source.with_checksums(False)
    len(source)
    path = next(iter(split.records))
    image = made_episode(3, 0)[IMAGE][1]
    with unchanged_time(path) as content:
        content[content.index(image)] ^= 1
    (found,) = fast.read(np.array([1]), [IMAGE])[IMAGE]
    assert found[1:] == image[1:]
    with pytest.raises(CorruptRecordError):
        source.read(np.array([1]), [IMAGE])
    assert "was not verified" in str(fast.undecodable(1, "It is no image."))
