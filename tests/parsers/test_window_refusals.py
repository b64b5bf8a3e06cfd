"""Windows that cannot be had, and damaged episodes: typed errors that name what is there, the place and the remedy."""

import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refused import said_of
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard

from parsers.robot_episodes import Robots, shard_paths
from tfds_torch import EvalPreprocess, ParserMixture, ReadOptions, TrainPreprocess, Transform, Views
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.tfrecord.framing import read_records

Ask = Callable[[ParserTfds], object]
Open = Callable[[Path], object]
CROP = TrainPreprocess(8)
CAMERAS = {"primary": "observation/image", "wrist": "observation/wrist_image"}
TURNED: Any = Transform(lambda window: {"action": -window["action"]}, ["action"])


def droid(ask: Ask = len, **arguments: Any) -> Open:
    return lambda root: ask(ParserTfds(root, "droid_like", **{"windows": Windows(), "batch_size": 4, **arguments}))


def libero(ask: Ask = len, **arguments: Any) -> Open:
    return lambda root: ask(ParserTfds(root, "libero_like", **{"windows": Windows(), "batch_size": 4, **arguments}))


def columns(*fields: str, **arguments: Any) -> Ask:
    return lambda parser: parser.columns(["is_last", *fields], **arguments)


def statistics(*fields: str) -> Ask:
    return lambda parser: parser.statistics(fields)


def fields(name: str) -> Ask:
    return lambda parser: parser.check_fields([name])


def offsets(windows: dict[str, Sequence[int]], **others: Any) -> dict[str, Any]:
    return {"windows": Windows(offsets=windows, **others)}


def mix_lengths(root: Path) -> None:
    members = {str(n): ParserTfds(root, "libero_like", **offsets({"action": range(n)})) for n in (2, 3)}
    ParserMixture(members, {"2": 1, "3": 1}, is_training=True, batch_size=4).check_fields(["action"])


REFUSED: list[tuple[Open, str]] = [
    # The sequence.
    (droid(windows=Windows("stps")), "There is no sequence 'stps'"),
    (droid(windows=Windows("stps")), "Did you mean 'steps'? Its sequences are: episode_metadata/codes, episode_metada"),
    (droid(windows=Windows("episode_metadata")), "windows are taken out of a sequence, and 'episode_metadata' is"),
    (droid(windows=Windows("steps/objects")), "is a sequence within a sequence, 'steps'"),
    (droid(windows="steps"), "windows='steps' must be Windows, for example"),
    (
        droid(windows=None, image_key="observation"),
        "Its records are episodes: their steps are examples with windows=Windows('st",
    ),
    # Names.
    (droid(fields={"a": "b"}), "windows have no field 'b'"),
    (
        droid(fields={"a": "observation"}),
        "Ask for those that are needed: observation/cartesian_position, observation/d",
    ),
    (droid(fields=["a"]), "fields=['a'] must be a dictionary of names"),
    (droid(fields={"step": "action"}), "the name 'step', which windows have"),
    (droid(fields={"id": "action"}), "the name 'id', which windows have"),
    (
        droid(fields={"action": "arm"}),
        "fields= are names of your own -> features, and 'action' is a feature: give fields={'arm': 'action'}.",
    ),
    (droid(windows=Windows("episode_metadata/tags"), fields={"a": "action"}), "windows have no field 'action'"),
    (
        droid(windows=None, fields={"a": "action"}),
        "names the fields of windows: give windows=Windows('steps', ...), to",
    ),
    (droid(fields("steps/observation")), "'steps/observation' holds several features, and a field of windows is one"),
    (droid(fields("label")), "no field 'label' unless a feature is given this name. Name the fields that are wanted"),
    (
        droid(fields("phase_pad"), **offsets({"action": [0]})),
        "no field 'phase_pad': 'phase' has no offsets, so no step of it is outside of an episode. Fields with offsets "
        "are action.",
    ),
    (droid(fields("phase_apd")), "windows have no field 'phase_apd'"),
    (droid(fields("action_pad_pad"), **offsets({"action": [0]})), "windows have no field 'action_pad_pad'"),
    # Offsets and texts.
    (droid(**offsets({"actoin": [0]})), "windows have no field 'actoin'"),
    (droid(**offsets({"actoin": [0]})), "Did you mean 'action'?"),
    (droid(**offsets({"episode_metadata/file_path": [0]})), "is one value an episode, and offsets are"),
    (droid(**offsets({"observation": [0]})), "'observation' holds several features"),
    (
        droid(**offsets({"action": [0], "steps/action": [1]})),
        "has two lists of offsets. Give the feature two names, ea",
    ),
    (droid(**offsets({"action": [0], "steps/action": [1]})), "fields={'past': 'action', 'future': 'act"),
    (droid(**offsets({"action": [-100]})), "leave every episode: the nearest one is -100"),
    (droid(**offsets({"action": [69]}, whole=True)), "nothing: 1"),
    (droid(**offsets({"action": [70]}, whole=True)), "leave every episode"),
    (droid(windows=Windows(texts=["action"])), "texts= names 'action', which does not hold bytes"),
    # The field `image`, and cameras.
    (droid(fields={"image": "action"}), "'image' must be one uint8 image a step, and 'action' is"),
    (droid(fields={"image": "observation/depth"}), "'image' must be one uint8 image a step"),
    (
        droid(fields={"image": "observation/wrist_image_left"}, **offsets({"image": [0]})),
        "Ask for it by another name, such as fields={'image_primary': 'observation/wrist_image_left'}",
    ),
    (
        droid(preprocess=CROP),
        "Give each camera its own: preprocess={'observation/exterior_image_1_left': TrainPreprocess(...)}.",
    ),
    (libero(preprocess=CROP, fields=CAMERAS), "Give each camera its own: preprocess={'primary': TrainPreprocess(...)}"),
    (
        droid(preprocess={"wrist": CROP}),
        "preprocess names 'wrist', which is not a camera: uint8 images, one a step. Its cameras are 'observation/",
    ),
    (
        droid(preprocess={"action": CROP}),
        "fields={'image_primary': 'observation/exterior_image_1_left'} gives one a name.",
    ),
    (
        libero(preprocess={"action": CROP}, fields=CAMERAS),
        "'action', which is not a camera: uint8 images, one a step. Its cameras are 'primary', 'wrist'.",
    ),
    (droid(preprocess={1: CROP}), "preprocess names 1, which is not a camera"),
    (libero(preprocess={"wrist": 8}, fields=CAMERAS), "preprocess=8 must be a TrainPreprocess"),
    (libero(preprocess={"wrist": CROP}, fields=CAMERAS, batch_size=None), "A preprocess needs batch_size"),
    (
        libero(preprocess={"wrist": TrainPreprocess(8, also=("primary",))}, fields=CAMERAS),
        "the images 'wrist' of windows cannot go through",
    ),
    (libero(preprocess={"wrist": Views((CROP, 2))}, fields=CAMERAS), "the images 'wrist' of windows cannot go through"),
    (
        libero(preprocess=TrainPreprocess(8, also=("wrist",)), fields={"image": "observation/image"}),
        "the preprocess names 'wrist', but only the images of windows are cut: leave out also and boxes.",
    ),
    (
        droid(windows=None, preprocess={"wrist": EvalPreprocess(8)}),
        "preprocess is a dictionary of 'wrist', and only windows have cameras. Give windows=Windows('steps', ...)",
    ),
    # What is for whole records, or streams.
    (droid(image_key="x"), "image_key='x' is for examples that are whole records"),
    (droid(target_key="phase"), "target_key='phase' is for examples that are whole records"),
    (droid(class_map={1: 2}), "class_map={1: 2} is for examples that are whole records"),
    (
        droid(cache=True),
        "cache=True is for examples that are whole records, and this parser has windows. Images of win",
    ),
    (droid(decoders=1), "decoders=1 is for examples that are whole records, and this parser has windows. Use decode="),
    (
        droid(read=ReadOptions(mode="files")),
        "windows are read by their numbers, and read mode 'files' streams whole records. Use mode 'index' or",
    ),
    (
        droid(lambda parser: parser.with_read(ReadOptions(mode="examples"))),
        "read mode 'examples' streams whole records",
    ),
    (mix_lengths, "'action' is float32 [2, 7] in the member '2', and float32 [3, 7] in '3'"),
    # Transforms.
    (droid(transform=Transform(dict, ["actoin"])), "windows have no field 'actoin'"),
    (droid(transform=Transform(dict, ["action"], ["episode"])), "gives 'episode', which examples have anyway"),
    (
        droid(columns("new", stored=True), transform=Transform(dict, ["action", "step"], ["new"])),
        "with stored=True columns are what is stored, and 'new' is given by a transform. Leave out stored=True, or",
    ),
    (
        droid(columns("action"), transform=TURNED, **offsets({"action": [1, 2]})),
        "gives values of the steps [1, 2], counted from the window's own, and a column is of the own one. Give it the "
        "name of a field whose offsets have 0, or read batches(). What is stored of a field comes with stored=True.",
    ),
    (
        droid(
            columns("new"),
            transform=Transform(
                lambda window: {"new": window["action"]}, ["action", "observation/cartesian_position"], ["new"]
            ),
            **offsets({"action": [0, 1], "observation/cartesian_position": [-1, 0]}),
        ),
        "columns: the transform that gives 'new' gives values of the steps [",
    ),
    # Columns.
    (libero(columns("actoin")), "Did you mean 'action'?"),
    (libero(columns("observation/image")), "columns: the field 'observation/image' is an image: columns are the numbe"),
    (droid(columns("observation/depth")), "'observation/depth' is an image"),
    (droid(columns("observation")), "'observation' holds several features"),
    (droid(columns("objects/box")), "which does not have one size in every step: it cannot be one array"),
    (droid(columns("episode_metadata/tags")), "does not have one size in every step"),
    (droid(columns("episode_metadata/codes")), "does not have one size in every step"),
    (droid(columns("episode_metadata/marks/at")), "does not have one size in every step"),
    (droid(columns("action_pad")), "'action' has no offsets"),
    (droid(lambda parser: parser.columns("action")), "fields='action' must be a list"),
    (
        libero(columns("action"), windows=None, image_key=None, target_key=None),
        "whole records. Give ParserTfds windows=Windows('steps')",
    ),
    # Statistics.
    (
        libero(statistics("language_instruction")),
        "statistics are of numbers, and the field 'language_instruction' is t",
    ),
    (libero(statistics("observation/image")), "'observation/image' is an image"),
    (libero(statistics("actoin")), "Did you mean 'action'?"),
    (libero(lambda parser: parser.statistics("action")), "fields='action' must be a list of the names of fields"),
    (
        libero(lambda parser: parser.subset(np.zeros(55, bool)).statistics(["action"])),
        "there are no windows, and so no statistics",
    ),
    (libero(statistics("action"), windows=None, image_key=None, target_key=None), "Give ParserTfds windows"),
]


def test_what_cannot_work_is_refused_with_what_is_there_and_what_to_do(robots: Robots) -> None:
    found = [(message, said_of(ConfigError, call, robots.root)) for call, message in REFUSED]
    wrong = [(message, said) for message, said in found if message not in said]
    assert not wrong, str(wrong)


# Damage.


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


def test_a_flipped_bit_of_a_frame_is_an_error_that_names_its_step_or_is_replaced(
    robots: Robots, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(robots.root / "libero_like", tmp_path / "libero_like")
    shard = damage_frame(tmp_path, 0, 7)
    windows = offsets({"observation/image": [-1, 0]})
    parser = ParserTfds(tmp_path, "libero_like", batch_size=7, **windows)
    batches = parser.batches(fields=["observation/image"])
    next(batches)
    with pytest.raises(
        CorruptRecordError, match=rf"{shard}: record 0 .* 'steps/observation/image' at step 7 from byte"
    ):
        next(batches)
    assert len(list(parser.batches(fields=["action", "observation/wrist_image"]))) == 8
    training: dict[str, Any] = {"is_training": True, "shuffle": False, "read": ReadOptions(on_error="replace")}
    with caplog.at_level(logging.WARNING):
        (batch,) = ParserTfds(tmp_path, "libero_like", batch_size=55, **windows, **training).batches(
            fields=["observation/image", "step"]
        )
    assert "at step 7 from byte" in caplog.text
    assert batch.features["step"][5:11].tolist() == [5, 6, 9, 9, 9, 10]


def test_a_frame_that_is_no_image_is_named(robots: Robots, tmp_path: Path) -> None:
    shutil.copytree(robots.root / "libero_like", tmp_path / "libero_like")
    (path, *_) = shard_paths(tmp_path, "libero_like")
    records = list(read_records(path))
    example = tf_example_pb2.Example.FromString(records[0])
    example.features.feature["steps/observation/image"].bytes_list.value[4] = b"not an image"
    write_shard(path, [example.SerializeToString(), *records[1:]])
    parser = ParserTfds(tmp_path, "libero_like", batch_size=9, **offsets({"observation/image": [-1, 0, 1]}))
    message = r"the window at step 3 of record 0 .*Image 2 of the 3 of 'steps/observation/image'"
    with pytest.raises(CorruptRecordError, match=message):
        next(parser.batches(fields=["observation/image"]))
