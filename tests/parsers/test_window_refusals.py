"""Windows that cannot be had, and damaged episodes: typed errors that name the place."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refused import said_of
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard
from zygote import tensorflow_zygote

from parsers.robot_episodes import Robots, shard_paths, write_dataset_of
from tfds_torch import ReadOptions, TrainPreprocess
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.tfrecord.framing import read_records

CASES: list[tuple[dict[str, Any], str]] = [
    ({"windows": Windows("stps")}, "There is no sequence 'stps'"),
    ({"windows": Windows("stps")}, "Did you mean 'steps'?"),
    ({"windows": Windows("episode_metadata")}, "windows are taken out of a sequence, and 'episode_metadata' is"),
    ({"windows": Windows("steps/objects")}, "is a sequence within a sequence, 'steps'"),
    ({"windows": Windows("episode_metadata/tags"), "fields": {"a": "action"}}, "windows have no field 'action'"),
    ({"windows": Windows(offsets={"actoin": [0]})}, "windows have no field 'actoin'"),
    ({"windows": Windows(offsets={"actoin": [0]})}, "Did you mean 'action'?"),
    ({"windows": Windows(offsets={"episode_metadata/file_path": [0]})}, "is one value an episode, and offsets are"),
    ({"windows": Windows(offsets={"observation": [0]})}, "'observation' holds several features"),
    ({"windows": Windows(offsets={"action": [0], "steps/action": [1]})}, "has two lists of offsets"),
    ({"windows": Windows(offsets={"action": [0], "steps/action": [1]})}, "fields={'past': 'action', 'future': 'act"),
    ({"windows": Windows(offsets={"action": [-100]})}, "leave every episode: the nearest one is -100"),
    ({"windows": Windows(offsets={"action": [69]}, whole=True)}, "nothing: it has 1 window."),
    ({"windows": Windows(offsets={"action": [70]}, whole=True)}, "leave every episode"),
    ({"windows": Windows(texts=["action"])}, "texts= names 'action', which does not hold bytes"),
    ({"windows": Windows(), "fields": {"step": "action"}}, "the name 'step', which windows have"),
    ({"windows": Windows(), "fields": {"a": "b"}}, "windows have no field 'b'"),
    (
        {"windows": Windows(), "fields": {"action": "arm"}},
        "fields= are names of your own -> features, and 'action' is a feature: give fields={'arm': 'action'}.",
    ),
    (
        {"windows": Windows(), "batch_size": 2, "preprocess": TrainPreprocess(8)},
        "Give each camera its own: preprocess={'observation/exterior_image_1_left': TrainPreprocess(...)}.",
    ),
    (
        {"windows": Windows(), "batch_size": 2, "preprocess": {"wrist": TrainPreprocess(8)}},
        "preprocess names 'wrist', which is not a camera: uint8 images, one a step. Its cameras are 'observation/",
    ),
    (
        {"windows": Windows(), "batch_size": 2, "preprocess": {"action": TrainPreprocess(8)}},
        "fields={'image_primary': 'observation/exterior_image_1_left'} gives one a name.",
    ),
    (
        {"batch_size": 2, "preprocess": {"wrist": TrainPreprocess(8)}},
        "preprocess has one for each of 'wrist': cameras are those of windows. Give windows=Windows('steps', ...)",
    ),
    ({"image_key": "observation"}, "Its records are episodes: their steps are examples with windows=Windows('st"),
    ({"windows": Windows(), "fields": ["a"]}, "fields=['a'] must be a dictionary of names"),
    ({"fields": {"a": "action"}}, "names the fields of windows: give windows=Windows('steps', ...), too"),
    ({"windows": "steps"}, "windows='steps' must be Windows, for example"),
    ({"windows": Windows(), "image_key": "x"}, "image_key='x' is for examples that are whole records"),
    ({"windows": Windows(), "target_key": "phase"}, "target_key='phase' is for examples that are whole records"),
    ({"windows": Windows(), "class_map": {1: 2}}, "class_map={1: 2} is for examples that are whole records"),
    (
        {"windows": Windows(), "read": ReadOptions(mode="files")},
        "windows are read by their numbers, and read mode 'files' streams whole records. Use mode 'index' or",
    ),
    (
        {"windows": Windows(), "fields": {"image": "action"}},
        "'image' must be one uint8 image a step, and 'action' is",
    ),
    ({"windows": Windows(), "fields": {"image": "observation/depth"}}, "'image' must be one uint8 image a step"),
    (
        {"windows": Windows(offsets={"image": [0]}), "fields": {"image": "observation/wrist_image_left"}},
        "Ask for it by another name, such as fields={'image_primary': 'observation/wrist_image_left'}",
    ),
]


def test_arguments_that_cannot_work_are_refused(robots: Robots) -> None:
    def count_windows(**arguments: Any) -> str:
        return f"it has {len(ParserTfds(robots.root, 'droid_like', **arguments))} window."

    found = [(message, said_of(ConfigError, count_windows, **arguments)) for arguments, message in CASES]
    wrong = [(message, said) for message, said in found if message not in said]
    assert not wrong, str(wrong)


def test_windows_cannot_be_turned_into_a_stream(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "droid_like", windows=Windows())
    with pytest.raises(ConfigError, match="read mode 'examples' streams whole records"):
        parser.with_read(ReadOptions(mode="examples"))


def test_a_field_without_offsets_has_no_padding(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "droid_like", windows=Windows(offsets={"action": [0]}))
    with pytest.raises(ConfigError, match=r"no field 'phase_pad': 'phase' has no offsets, .* with offsets are action"):
        parser.check_fields(["phase_pad"])
    with pytest.raises(ConfigError, match="windows have no field 'image'"):
        parser.check_fields(["image"])
    with pytest.raises(ConfigError, match="windows have no field 'phase_apd'"):
        parser.check_fields(["phase_apd"])


# Damage.


@pytest.fixture
def own(robots: Robots, tmp_path: Path) -> Path:
    """A copy of `libero_like` of the test's own."""
    shutil.copytree(robots.root / "libero_like", tmp_path / "libero_like")
    return tmp_path


def damage_frame(root: Path, episode: int, step: int) -> str:
    """Flips a bit of a frame after its dataset was indexed; returns the name of the shard."""
    windows = ParserTfds(root, "libero_like", windows=Windows())
    number = windows.source.find(f"{windows.source.episodes.ids(np.array([episode]))[0]}/{step}")
    (frame,) = windows.source.read(np.array([number]), ["steps/observation/image"])["steps/observation/image"]
    for path in shard_paths(root, "libero_like"):
        content, stamp = bytearray(path.read_bytes()), path.stat()
        at = content.find(frame)
        if at >= 0:
            content[at + 40] ^= 1
            path.write_bytes(content)
            os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            return path.name
    raise AssertionError("the frame is in no shard")


def test_a_flipped_bit_of_a_frame_is_an_error_that_names_its_step(own: Path) -> None:
    shard = damage_frame(own, 0, 7)
    windows = Windows(offsets={"observation/image": [-1, 0]})
    parser = ParserTfds(own, "libero_like", windows=windows, batch_size=7)
    batches = parser.batches(fields=["observation/image"])
    next(batches)
    with pytest.raises(
        CorruptRecordError, match=rf"{shard}: record 0 .* 'steps/observation/image' at step 7 from byte"
    ):
        next(batches)
    assert len(list(parser.batches(fields=["action", "observation/wrist_image"]))) == 8


def test_windows_with_a_damaged_frame_can_be_replaced(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage_frame(own, 0, 7)
    windows = Windows(offsets={"observation/image": [-1, 0]})
    read = ReadOptions(on_error="replace")
    parser = ParserTfds(own, "libero_like", windows=windows, batch_size=55, is_training=True, shuffle=False, read=read)
    with caplog.at_level(logging.WARNING):
        (batch,) = parser.batches(fields=["observation/image", "step"])
    assert "at step 7 from byte" in caplog.text
    assert batch.features["step"][5:11].tolist() == [5, 6, 9, 9, 9, 10]


def test_a_frame_that_is_no_image_is_named(tmp_path: Path) -> None:
    tensorflow_zygote().call(write_dataset_of, "libero_like", str(tmp_path), "tfrecord")
    (path, *_) = shard_paths(tmp_path, "libero_like")
    records = list(read_records(path))
    example = tf_example_pb2.Example.FromString(records[0])
    example.features.feature["steps/observation/image"].bytes_list.value[4] = b"not an image"
    write_shard(path, [example.SerializeToString(), *records[1:]])
    windows = Windows(offsets={"observation/image": [-1, 0, 1]})
    parser = ParserTfds(tmp_path, "libero_like", windows=windows, batch_size=9)
    message = r"the window at step 3 of record 0 .*Image 2 of the 3 of 'steps/observation/image'"
    with pytest.raises(CorruptRecordError, match=message):
        next(parser.batches(fields=["observation/image"]))
