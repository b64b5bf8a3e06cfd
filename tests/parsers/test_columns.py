"""Columns: fields of all windows as arrays equal what TFDS reads, and conditions over them choose windows."""

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parsers.robot_episodes import LENGTHS, Robots, shard_paths, value_at
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.tfds import window_columns
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows

FIELDS = {
    "bridge_like": ["action", "observation/state", "language_embedding", "is_first", "language_instruction"],
    "droid_like": [
        *("observation/gripper_position", "action_dict/joint_velocity", "action_dict/zipped", "phase", "counter"),
        *("is_last", "reward", "language_instruction", "language_instruction_2"),
    ],
    "libero_like": ["action", "observation/joint", "is_terminal", "discount", "language_instruction"],
}
OF_EPISODES = {
    "bridge_like": ["file_path", "episode_id", "has_image_0"],
    "droid_like": ["file_path", "number"],
    "libero_like": ["file_path"],
}


def open_parser(robots: Robots, name: str, windows: Windows | None = None, **arguments: Any) -> ParserTfds:
    return ParserTfds(robots.root, name, windows=windows or Windows(), **{"batch_size": 4, **arguments})


def expected_column(robots: Robots, name: str, key: str, windows: Sequence[tuple[int, int]]) -> Any:
    """Returns what TFDS reads of a field, for windows that begin at (episode, step)."""
    episodes = robots.episodes[name]
    if key.startswith("episode_metadata/"):
        values = [value_at(episodes[episode], key) for episode, _ in windows]
    else:
        values = [value_at(episodes[episode]["steps"][step], key) for episode, step in windows]
    if values and isinstance(values[0], bytes):
        return [value.decode() for value in values]
    return np.array(values)


def check_columns(robots: Robots, name: str, parser: ParserTfds, keys: Sequence[str]) -> None:
    """Compares columns of a parser with what TFDS reads."""
    columns = parser.columns([*keys, "episode", "step"])
    assert list(columns) == [*keys, "episode", "step"]
    windows = list(zip(columns["episode"].tolist(), columns["step"].tolist(), strict=True))
    ids = [f"{robots.episodes[name][episode]['tfds_id'].decode()}/{step}" for episode, step in windows]
    assert list(parser.ids(parser.indices)) == ids
    for key in keys:
        expected, found = expected_column(robots, name, key, windows), columns[key]
        assert len(found) == len(parser), key
        if isinstance(expected, list):
            assert found.dtype == object, key
            assert found.tolist() == expected, key
        else:
            assert (found.dtype, found.shape[1:]) == (expected.dtype, expected.shape[1:]), key
            np.testing.assert_array_equal(found, expected, key)


@pytest.mark.parametrize("name", LENGTHS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), stride=st.integers(1, 4), num_threads=st.integers(1, 2), at_once=st.sampled_from([5, 1 << 14]))
def test_columns_equal_what_tfds_reads(
    robots: Robots, name: str, data: st.DataObject, stride: int, num_threads: int, at_once: int
) -> None:
    every = [*FIELDS[name], *(f"episode_metadata/{key}" for key in OF_EPISODES[name])]
    keys = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    offsets = data.draw(st.dictionaries(st.sampled_from(FIELDS[name]), st.just((-1, 0, 3))))
    windows = Windows(offsets=offsets, stride=stride, pad=data.draw(st.sampled_from(["edge", "zero"])))
    parser = open_parser(robots, name, windows, read=ReadOptions(num_threads=num_threads))
    if data.draw(st.booleans()):
        parser = parser.subset(data.draw(st.lists(st.integers(0, len(parser) - 1), unique=True, min_size=1)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window_columns, "_MOST_AT_ONCE", at_once)
        check_columns(robots, name, parser, keys)


def test_columns_are_those_of_the_windows_that_are_whole(robots: Robots) -> None:
    windows = Windows(offsets={"action": range(8)}, whole=True, stride=3)
    parser = open_parser(robots, "libero_like", windows)
    assert len(parser) == sum(-(-(length - 7) // 3) for length in LENGTHS["libero_like"] if length > 7)
    check_columns(robots, "libero_like", parser, FIELDS["libero_like"])
    assert not parser.columns(["action_pad"])["action_pad"].any()


def test_names_of_ones_own_and_padding(robots: Robots) -> None:
    windows = Windows(offsets={"act": range(3)}, texts=["task", "text"])
    names = {"act": "action", "state": "observation/state", "task": "language_instruction", "text": "code"}
    names["state_pad"] = "observation/state"  # A name of one's own comes before what it may stand for.
    parser = open_parser(robots, "libero_like", windows, fields=names)
    columns = parser.columns(["state", "state_pad", "act", "act_pad", "task", "text", "code", "steps/action"])
    np.testing.assert_array_equal(columns["state"], columns["state_pad"])
    np.testing.assert_array_equal(columns["act"], columns["steps/action"])
    assert columns["state"].shape == (55, 8)
    (batch,) = parser.with_batch_size(55).batches(fields=["act", "act_pad", "task", "text", "code"])
    np.testing.assert_array_equal(columns["act_pad"], batch.features["act_pad"])
    np.testing.assert_array_equal(columns["act"], batch.features["act"][:, 0])
    for name in ("task", "text", "code"):
        assert columns[name].tolist() == batch.features[name], name


def test_equal_texts_are_one_object(robots: Robots) -> None:
    paths = open_parser(robots, "droid_like").columns(["episode_metadata/file_path"])["episode_metadata/file_path"]
    assert len({id(path) for path in paths}) == len(set(paths)) <= len(LENGTHS["droid_like"])


def test_no_byte_of_an_image_is_read(robots: Robots, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = open_parser(robots, "libero_like")
    parser.columns(["action"])
    content = {path: path.read_bytes() for path in shard_paths(robots.root, "libero_like")}
    read: list[bytes] = []
    really_read = os.pread

    def note(descriptor: int, size: int, offset: int) -> bytes:
        found = really_read(descriptor, size, offset)
        read.append(found)
        return found

    monkeypatch.setattr(os, "pread", note)
    monkeypatch.setattr("tfds_torch.storage.tfrecord.source._GAP_BYTES", 0)
    texts = parser.columns(["action", "is_last", "language_instruction"])["language_instruction"]
    assert sum(map(len, read)) == len(parser) * (7 * 4 + 1) + sum(len(text.encode()) for text in texts)
    assert any(b"PNG" in one for one in content.values())
    assert not any(b"PNG" in one or b"IDAT" in one for one in read)


# Conditions over columns choose windows.


def seen(parser: ParserTfds) -> list[tuple[int, int]]:
    """Returns episode and step of every window that comes in a pass, ascending."""
    batches = list(parser.batches(fields=["episode", "step"]))
    return sorted(
        (episode, step)
        for batch in batches
        for episode, step in zip(batch.features["episode"].tolist(), batch.features["step"].tolist(), strict=True)
    )


def test_ranges_to_keep(robots: Robots) -> None:
    parser = open_parser(robots, "droid_like")
    ranges = {parser.columns(["episode_metadata/file_path"])["episode_metadata/file_path"][0]: [[3, 9], [20, 22]]}
    columns = parser.columns(["episode_metadata/file_path", "step"])
    kept = np.zeros(len(parser), bool)
    for path, own in ranges.items():
        for start, stop in own:
            is_inside = (columns["step"] >= start) & (columns["step"] < stop)
            kept |= (columns["episode_metadata/file_path"] == path) & is_inside
    assert seen(parser.subset(kept)) == [(0, step) for step in [*range(3, 9), 20, 21]]


def test_a_mask_of_a_subset_is_one_of_its_own_windows(robots: Robots) -> None:
    whole = open_parser(robots, "bridge_like")
    numbers = np.array([40, 3, 17, 5])
    steps = whole.columns(["step"])["step"][numbers]
    parser = whole.subset(numbers)
    assert parser.columns(["step"])["step"].tolist() == steps.tolist()
    later = parser.subset(parser.columns(["step"])["step"] > steps.min())
    assert later.indices.tolist() == numbers[steps > steps.min()].tolist()


def test_columns_of_a_mixture_are_those_of_its_members(robots: Robots) -> None:
    members = {name: open_parser(robots, name) for name in ("libero_like", "bridge_like")}
    members["bridge_like"] = members["bridge_like"].subset([7, 50, 2])
    mixture = ParserMixture(members, batch_size=4)
    columns = mixture.columns(["action", "member", "step", "language_instruction"])
    own = {name: parser.columns(["action", "step"]) for name, parser in members.items()}
    np.testing.assert_array_equal(columns["action"], np.concatenate([one["action"] for one in own.values()]))
    np.testing.assert_array_equal(columns["step"], np.concatenate([one["step"] for one in own.values()]))
    assert columns["member"].tolist() == [0] * 55 + [1] * 3
    late = mixture.subset(columns["step"] > 4)
    assert late.columns(["member", "step"])["step"].tolist() == columns["step"][columns["step"] > 4].tolist()
    assert late.indices.tolist() == mixture.indices[columns["step"] > 4].tolist()
    with pytest.raises(ConfigError, match="'language_embedding'"):
        mixture.columns(["language_embedding"])


def test_columns_of_a_mixture_that_cannot_be_one_array(robots: Robots) -> None:
    mixture = ParserMixture({name: open_parser(robots, name) for name in ("libero_like", "droid_like")}, batch_size=4)
    message = (
        r"'action' is float32 \[7\] in the member 'libero_like', and float64 \[7\] in 'droid_like'.*mixture.members"
    )
    with pytest.raises(ConfigError, match=message):
        mixture.columns(["action"])
    training = {name: open_parser(robots, name, is_training=True) for name in ("libero_like", "bridge_like")}
    weighted = ParserMixture(training, {"libero_like": 1, "bridge_like": 1}, is_training=True, batch_size=4)
    with pytest.raises(ConfigError, match=r"has weights.*mixture.members\['libero_like'\].columns\(\['action'\]\)"):
        weighted.columns(["action"])


def test_a_flipped_byte_is_an_error_that_names_episode_and_step(robots: Robots, tmp_path: Path) -> None:
    shutil.copytree(robots.root / "droid_like", tmp_path / "droid_like")
    parser = ParserTfds(tmp_path, "droid_like", windows=Windows(), batch_size=4)
    values = parser.columns(["action"])["action"]
    episode, step = 0, 66
    number = int(np.flatnonzero(parser.columns(["step"])["step"] == step)[0])
    assert parser.columns(["episode"])["episode"][number] == episode
    stored = values[number].astype("<f4").tobytes()
    (path,) = [path for path in shard_paths(tmp_path, "droid_like") if stored in path.read_bytes()]
    stamp, content = os.stat(path), bytearray(path.read_bytes())
    content[content.index(stored) + 3] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    message = rf"{re.escape(str(path))}: record 0 .*the window at step 64\): the \d+ bytes of 'steps/action' .*corrupt"
    with pytest.raises(CorruptRecordError, match=message):
        parser.columns(["action"])
    with pytest.raises(CorruptRecordError, match=message):
        parser.statistics(["action"])
    parser.columns(["action_dict/joint_velocity", "language_instruction"])  # The rest is whole.
    unchecked = parser.with_read(ReadOptions(verify_checksums=False)).columns(["action"])["action"]
    assert (unchecked != values).any(axis=1).tolist() == [at == number for at in range(len(values))]
