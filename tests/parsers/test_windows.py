"""Windows of robots' episodes: bit for bit those that are cut out of what TFDS reads, by number, in any world."""

import io
import logging
import os
import pickle
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import check_resumes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tensorflow_datasets.proto import tf_example_pb2
from tfds_fixtures import write_shard
from zygote import forked_instead_of_fresh, tensorflow_zygote

from parsers.resuming import ParserLoader
from parsers.robot_episodes import LENGTHS, Robots, read_episodes, shard_paths, value_at, write_dataset_of
from tfds_torch import ParserMixture, ReadOptions
from tfds_torch.demo import prepare_fake
from tfds_torch.engines.batch import Batch
from tfds_torch.errors import ConfigError, CorruptRecordError
from tfds_torch.parsers.tfds.parser_tfds import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.plan.world import World
from tfds_torch.storage.tfrecord.framing import read_records

OFFSETS = st.lists(st.integers(-9, 20), min_size=1, max_size=5).map(tuple)


def step_fields(robots: Robots, name: str) -> list[str]:
    """Returns the keys of all features of steps."""

    def keys(value: Any, prefix: str = "") -> Iterator[str]:
        for key, inner in value.items():
            if isinstance(inner, dict):
                yield from keys(inner, f"{prefix}{key}/")
            else:
                yield prefix + key

    return sorted(keys(robots.episodes[name][0]["steps"][0]))


def expected_value(
    episode: Mapping[str, Any], key: str, step: int, offsets: Sequence[int] | None, pad: str = "edge"
) -> Any:
    """Returns what a window has of a feature, cut out of an episode as TFDS reads it."""
    steps = episode["steps"]
    values = []
    for offset in (0,) if offsets is None else offsets:
        at = step + offset
        value = value_at(steps[min(max(at, 0), len(steps) - 1)], key)
        if pad == "zero" and not 0 <= at < len(steps):
            value = type(value)() if isinstance(value, list | bytes) else np.zeros_like(value)
            value = value[:0] if key.startswith("objects") else value
        if np.ndim(value) == 3:
            value = np.moveaxis(value, -1, 0)
        values.append(value)
    return values[0] if offsets is None else values


def assert_equal(found: Any, expected: Any, where: str, tolerance: float = 0.0) -> None:
    """Asserts that values are equal in every bit; images of JPEG files within a few grey levels."""
    if isinstance(expected, list):
        assert len(found) == len(expected), where
        for our, their in zip(found, expected, strict=True):
            assert_equal(our, their, where, tolerance)
    elif isinstance(expected, bytes | str):
        assert found == expected, where
    elif tolerance:
        assert found.shape == expected.shape, where
        assert np.abs(found.astype(int) - expected.astype(int)).mean() <= tolerance, where
    else:
        their = np.asarray(expected)
        assert np.shape(found) == their.shape, where
        if their.dtype != object:
            assert np.asarray(found).dtype == their.dtype, where
        np.testing.assert_array_equal(found, their, where)


def check_batches(parser: ParserTfds, robots: Robots, name: str, keys: Sequence[str]) -> int:
    """Compares all windows of a parser with TFDS's; returns how many there are."""
    windows = parser.windows
    assert windows is not None
    padding = [f"{key}_pad" for key in keys if key in windows.offsets]
    count = 0
    for batch in parser.batches(fields=[*keys, *padding, "episode", "step"]):
        count += len(batch)
        for row, (number, step) in enumerate(
            zip(batch.features["episode"].tolist(), batch.features["step"].tolist(), strict=True)
        ):
            episode = robots.episodes[name][number]
            assert batch.id[row] == f"{episode['tfds_id'].decode()}/{step}"
            for key in keys:
                offsets = windows.offsets.get(key)
                expected = expected_value(episode, key, step, offsets, windows.pad)
                is_jpeg = key == "image" or key.startswith("observation/image_")
                tolerance = 2.0 if is_jpeg else 0.0  # TFDS decodes JPEG files in another way than Pillow.
                found = np.moveaxis(batch.image[row], -1, 0) if key == "image" else batch.features[key][row]
                assert_equal(found, expected, f"{key} of {batch.id[row]}", tolerance)
            for key in padding:
                outside = [not 0 <= step + offset < len(episode["steps"]) for offset in windows.offsets[key[:-4]]]
                assert batch.features[key][row].tolist() == outside
    return count


@pytest.mark.parametrize("name", LENGTHS)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    stride=st.integers(1, 4),
    pad=st.sampled_from(["edge", "zero"]),
    whole=st.booleans(),
    batch_size=st.integers(1, 9),
)
def test_windows_equal_those_of_the_episodes_that_tfds_reads(
    robots: Robots, name: str, data: st.DataObject, stride: int, pad: Any, whole: bool, batch_size: int
) -> None:
    keys = step_fields(robots, name)
    offsets = data.draw(st.dictionaries(st.sampled_from(keys), OFFSETS, max_size=4))
    asked = data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=5, unique=True))
    windows = Windows("steps", offsets, stride, pad, whole)
    lengths = [len(episode["steps"]) for episode in robots.episodes[name]]
    every = [offset for own in offsets.values() for offset in own]
    expected = sum(
        step + min([0, *every]) >= 0 and step + max([0, *every]) < length
        for length in lengths
        for step in range(0, length, stride)
        if whole
    )
    if whole and not expected:
        with pytest.raises(ConfigError, match="no window lies whole"):
            ParserTfds(robots.root, name, windows=windows, batch_size=batch_size)
        return
    parser = ParserTfds(robots.root, name, windows=windows, batch_size=batch_size)
    count = check_batches(parser, robots, name, asked)
    assert count == len(parser) == (expected if whole else sum(-(-length // stride) for length in lengths))


def test_every_feature_of_a_step_can_be_asked_for(robots: Robots) -> None:
    for name in LENGTHS:
        keys = step_fields(robots, name)
        offsets = dict.fromkeys(keys[::2], (-1, 0, 2))
        parser = ParserTfds(robots.root, name, windows=Windows(offsets=offsets), batch_size=7)
        assert check_batches(parser, robots, name, keys) == sum(LENGTHS[name])
        assert {*keys, *(f"{key}_pad" for key in offsets)} <= set(parser.element_spec.fields)


def test_element_spec_says_what_batches_hold(robots: Robots) -> None:
    windows = Windows(offsets={"action": range(16), "observation/image": [-1, 0]})
    parser = ParserTfds(robots.root, "libero_like", windows=windows, batch_size=5)
    specs = parser.element_spec.fields
    (batch, *_) = parser.batches(fields=[name for name in specs if name not in ("valid", "index", "id")])
    for name, values in batch.features.items():
        if isinstance(values, np.ndarray):
            assert (values.shape[1:], values.dtype) == (specs[name].shape, specs[name].dtype), name
    assert batch.features["action"].shape == (5, 16, 7)
    assert batch.features["action_pad"].shape == (5, 16)
    assert batch.features["observation/image"].shape == (5, 2, 3, 16, 16)
    assert batch.features["observation/wrist_image"].shape == (5, 3, 16, 16)
    assert batch.features["language_instruction"] == [
        robots.episodes["libero_like"][0]["steps"][step]["language_instruction"] for step in range(5)
    ]


def test_features_of_whole_episodes_come_with_each_window(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "droid_like", windows=Windows(), batch_size=82)
    fields = ["episode_metadata/file_path", "episode_metadata/tags", "episode_metadata/codes", "episode"]
    (batch,) = parser.batches(fields=fields)
    for row, number in enumerate(batch.features["episode"].tolist()):
        metadata = robots.episodes["droid_like"][number]["episode_metadata"]
        assert batch.features["episode_metadata/file_path"][row] == metadata["file_path"]
        assert list(batch.features["episode_metadata/tags"][row]) == list(metadata["tags"])
        assert batch.features["episode_metadata/codes"][row].tolist() == list(metadata["codes"])


def test_frames_of_jpeg_files_are_pillows(robots: Robots) -> None:
    windows = Windows(offsets={"observation/image_0": [-1, 0]})
    parser = ParserTfds(robots.root, "bridge_like", windows=windows, batch_size=56)
    (batch,) = parser.batches(fields=["observation/image_0", "observation/image_1", "step"])
    records = [
        tf_example_pb2.Example.FromString(record)
        for shard in shard_paths(robots.root, "bridge_like")
        for record in read_records(shard)
    ]
    stored: dict[str, list[bytes]] = {"image_0": [], "image_1": []}
    for name, files in stored.items():
        for record in records:
            files += record.features.feature[f"steps/observation/{name}"].bytes_list.value
    for row, step in enumerate(batch.features["step"].tolist()):
        last = row if step == 0 else row - 1
        for file, ours in (
            (stored["image_0"][last], batch.features["observation/image_0"][row, 0]),
            (stored["image_0"][row], batch.features["observation/image_0"][row, 1]),
            (stored["image_1"][row], batch.features["observation/image_1"][row]),
        ):
            with Image.open(io.BytesIO(file)) as image:
                np.testing.assert_array_equal(np.moveaxis(np.asarray(image), -1, 0), ours)


def test_names_of_ones_own_and_texts(robots: Robots) -> None:
    names = {
        "image": "observation/wrist_image",
        "image_primary": "steps/observation/image",
        "task": "language_instruction",
    }
    windows = Windows(offsets={"image_primary": [-1, 0], "language_instruction": [0, 1]}, texts=["task"])
    parser = ParserTfds(robots.root, "libero_like", windows=windows, fields=names, batch_size=55)
    (batch,) = parser.batches(fields=["image", "image_primary", "task", "observation/image", "step", "episode"])
    np.testing.assert_array_equal(batch.features["image_primary"], batch.features["observation/image"])
    for row, (number, step) in enumerate(
        zip(batch.features["episode"].tolist(), batch.features["step"].tolist(), strict=True)
    ):
        episode = robots.episodes["libero_like"][number]
        np.testing.assert_array_equal(batch.image[row], value_at(episode["steps"][step], "observation/wrist_image"))
        texts = expected_value(episode, "language_instruction", step, (0, 1))
        assert batch.features["task"][row] == [text.decode() for text in texts]
    assert {"image", "image_primary", "task", "image_primary_pad", "task_pad"} <= set(parser.element_spec.fields)
    assert "observation/image" not in parser.element_spec.fields


def test_zeros_stand_outside_of_an_episode(robots: Robots) -> None:
    windows = Windows(offsets={"observation/image": [-1, 0], "action": [0, 1]}, pad="zero")
    parser = ParserTfds(robots.root, "libero_like", windows=windows, batch_size=55)
    (batch,) = parser.batches(fields=["observation/image", "observation/image_pad", "action", "action_pad"])
    for name in ("observation/image", "action"):
        values, outside = batch.features[name], batch.features[f"{name}_pad"]
        assert outside.any()
        assert not outside.all()
        assert not values[outside].any()
        assert values[~outside].any(axis=tuple(range(1, values.ndim - 1))).all()


def test_windows_are_found_by_index_and_by_id(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "libero_like", windows=Windows(stride=2), batch_size=4)
    one = parser[9]
    assert one.index == 9
    assert parser[one.id].features["step"] == one.features["step"]
    assert parser.filenames() == [parser[at].id for at in range(len(parser))]
    again = pickle.loads(pickle.dumps(parser))
    np.testing.assert_array_equal(again[9].features["action"], one.features["action"])
    assert again.fingerprint == parser.fingerprint
    other = ParserTfds(robots.root, "libero_like", windows=Windows(stride=2, pad="zero"), batch_size=4)
    assert other.fingerprint != parser.fingerprint


def test_a_slice_of_a_split_has_the_windows_of_its_episodes(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "libero_like", "train[1:3]", windows=Windows(), batch_size=4)
    lengths = [len(episode["steps"]) for episode in robots.episodes["libero_like"][1:3]]
    assert len(parser) == sum(lengths)
    ids = [episode["tfds_id"].decode() for episode in robots.episodes["libero_like"][1:3]]
    expected = [f"{name}/{step}" for name, steps in zip(ids, lengths, strict=True) for step in range(steps)]
    assert parser.filenames() == expected


# Order, worlds and resumes.


def training(robots: Robots, **arguments: Any) -> ParserTfds:
    windows = Windows(offsets={"action": range(4), "observation/image_0": [-1, 0]})
    return ParserTfds(
        robots.root, "bridge_like", windows=windows, is_training=True, **{"batch_size": 3, "seed": 7, **arguments}
    )


def seen(batches: Sequence[Batch]) -> list[int]:
    return [number for batch in batches for number in batch.index[batch.valid].tolist()]


def test_every_window_comes_once_in_a_pass_in_an_order_of_its_own(robots: Robots) -> None:
    parser = training(robots, batch_size=8)
    orders = [seen(list(parser.batches(epoch=epoch, fields=["action"]))) for epoch in range(2)]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(56))
    assert orders[0] != orders[1]
    block = training(robots, batch_size=8, read=parser.read)
    assert seen(list(block.batches(fields=["action"]))) == orders[0]


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_global_batches_do_not_depend_on_ranks_and_workers(robots: Robots, num_ranks: int) -> None:
    whole = list(training(robots, batch_size=8).batches(fields=["action"]))
    parser = training(robots, batch_size=8 // num_ranks)
    for workers in (1, 3):
        parts = [
            [
                list(parser.batches(World(rank, num_ranks, worker, workers), fields=["action", "step"]))
                for worker in range(workers)
            ]
            for rank in range(num_ranks)
        ]
        for number, expected in enumerate(whole):
            found = [part[number % workers][number // workers] for part in parts]
            actions = np.concatenate([batch.features["action"] for batch in found])
            np.testing.assert_array_equal(actions, expected.features["action"])


def test_a_subset_an_epoch_size_and_weights_of_windows(robots: Robots) -> None:
    parser = training(robots)
    steps = np.concatenate([batch.features["step"] for batch in evaluation(robots).batches(fields=["step"])])
    first_halves = parser.subset(steps < 3)
    assert sorted(set(seen(list(first_halves.batches(fields=["step"]))))) == np.flatnonzero(steps < 3).tolist()
    assert len(list(training(robots, epoch_size=9).batches(fields=["step"]))) == 3
    drawn = seen(list(parser.weighted(np.arange(56) % 2).batches(fields=["step"])))
    assert {number % 2 for number in drawn} == {1}


def evaluation(robots: Robots) -> ParserTfds:
    return ParserTfds(robots.root, "bridge_like", windows=Windows(), batch_size=56)


def mixed(robots: Robots, **arguments: Any) -> ParserMixture:
    """Returns a mixture of three datasets, whose cameras and actions have equal names."""
    windows = Windows(offsets={"action": range(4), "image_primary": [-1, 0]})
    cameras = {"bridge_like": "observation/image_0", "libero_like": "observation/image"}
    members = {
        name: ParserTfds(robots.root, name, windows=windows, fields={"image_primary": camera})
        for name, camera in cameras.items()
    }
    members["again"] = ParserTfds(
        robots.root, "libero_like", "train[:2]", windows=windows, fields={"image_primary": "observation/wrist_image"}
    )
    weights = {"bridge_like": 0.5, "libero_like": 0.3, "again": 0.2}
    return ParserMixture(members, weights, is_training=True, epoch_size=30, **arguments)


def test_a_mixture_of_windows_has_their_values(robots: Robots) -> None:
    parser = mixed(robots, batch_size=6)
    names = ["bridge_like", "libero_like", "again"]
    fields = ["image_primary", "action", "action_pad", "episode", "step", "language_instruction", "member"]
    (batch, *_) = parser.batches(fields=fields)
    assert batch.features["image_primary"].shape == (6, 2, 3, 16, 16)
    assert batch.features["action"].shape == (6, 4, 7)
    assert {"image_primary", "action", "action_pad", "episode", "step"} <= set(parser.element_spec.fields)
    for row, member in enumerate(batch.features["member"].tolist()):
        name = "libero_like" if member else "bridge_like"
        episode = robots.episodes[name][batch.features["episode"][row]]
        step = int(batch.features["step"][row])
        expected = expected_value(episode, "action", step, range(4))
        assert_equal(batch.features["action"][row], expected, batch.id[row])
        assert batch.features["language_instruction"][row] == episode["steps"][step]["language_instruction"]
        assert batch.id[row] == f"{names[member]}/{episode['tfds_id'].decode()}/{step}"


def test_members_whose_windows_differ_are_refused(robots: Robots) -> None:
    members = {
        str(length): ParserTfds(robots.root, "libero_like", windows=Windows(offsets={"action": range(length)}))
        for length in (2, 3)
    }
    with pytest.raises(
        ConfigError, match=r"'action' is float32 \[2, 7\] in the member '2', and float32 \[3, 7\] in '3'"
    ):
        ParserMixture(members, {"2": 1, "3": 1}, is_training=True, batch_size=4).check_fields(["action"])


def test_images_of_one_step_are_one_array_in_a_mixture_too(robots: Robots) -> None:
    cameras = {"bridge_like": "observation/image_0", "libero_like": "observation/image"}
    members = {
        name: ParserTfds(robots.root, name, windows=Windows(), fields={"camera": camera})
        for name, camera in cameras.items()
    }
    parser = ParserMixture(members, "sizes", is_training=True, batch_size=8)
    assert parser.element_spec.fields["camera"].shape == (3, 16, 16)
    (batch, *_) = parser.batches(fields=["camera", "episode", "step", "member"])
    images = batch.features["camera"]
    assert (images.shape, images.dtype) == ((8, 3, 16, 16), np.uint8)
    for row, member in enumerate(batch.features["member"].tolist()):
        name = list(cameras)[member]
        alone = ParserTfds(robots.root, name, windows=Windows(), fields={"camera": cameras[name]}, batch_size=1)
        index = int(batch.index[row]) - (len(members["bridge_like"]) if member else 0)
        (expected,) = alone.subset([index]).batches(fields=["camera"])
        np.testing.assert_array_equal(images[row], expected.features["camera"][0])


@pytest.mark.parametrize(("grid", "other"), [((1, 1), (3, 2)), ((2, 2), (1, 3))])
@pytest.mark.parametrize("make", [training, mixed])
def test_every_state_goes_on_in_other_worlds(
    robots: Robots, make: Any, grid: tuple[int, int], other: tuple[int, int]
) -> None:
    make_parser = partial(make, robots)
    assert check_resumes(partial(ParserLoader, make_parser, grid, 6), partial(ParserLoader, make_parser, other, 6)) > 20


# Formats, and datasets that TFDS knows by name.


def test_array_record_files_give_the_same_windows(robots: Robots, tmp_path: Path) -> None:
    tensorflow_zygote().call(write_dataset_of, "libero_like", str(tmp_path), "array_record")
    offsets = {"action": range(-2, 5), "observation/image": [-1, 0], "language_instruction": [0, 3]}
    keys = [*offsets, "observation/state", "is_first", "observation/wrist_image"]
    parser = ParserTfds(tmp_path, "libero_like", windows=Windows(offsets=offsets), batch_size=8)
    episodes = [
        {**episode, "tfds_id": episode["tfds_id"].replace(b"tfrecord", b"array_record")}
        for episode in robots.episodes["libero_like"]
    ]
    assert check_batches(parser, Robots(tmp_path, {"libero_like": episodes}), "libero_like", keys) == 55


@pytest.mark.parametrize("name", ["d4rl_mujoco_ant", "robosuite_panda_pick_place_can", "rlu_control_suite"])
def test_datasets_that_tfds_knows_by_name(tmp_path: Path, name: str) -> None:
    with forked_instead_of_fresh(tensorflow_zygote):
        prepare_fake(name, num_examples=4, root=tmp_path, progress=False)
    robots = Robots(tmp_path, {name: tensorflow_zygote().call(read_episodes, str(tmp_path), name)})
    keys = step_fields(robots, name)
    for pad in ("edge", "zero"):
        windows = Windows(offsets={"action": range(-1, 3), keys[-1]: [0]}, pad=pad)
        parser = ParserTfds(tmp_path, name, windows=windows, batch_size=3)
        assert check_batches(parser, robots, name, keys) == len(parser) > 4


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


# What is refused.


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
        ({"windows": Windows(offsets={"action": [-100]})}, "leave every episode: the nearest one is -100"),
        ({"windows": Windows(offsets={"action": [69]}, whole=True)}, None),
        ({"windows": Windows(offsets={"action": [70]}, whole=True)}, "leave every episode"),
        ({"windows": Windows(texts=["action"])}, "texts= names 'action', which does not hold bytes"),
        ({"windows": Windows(), "fields": {"step": "action"}}, "the name 'step', which windows have"),
        ({"windows": Windows(), "fields": {"a": "b"}}, "windows have no field 'b'"),
        ({"windows": Windows(), "fields": ["a"]}, "fields=['a'] must be a dictionary of names"),
        ({"fields": {"a": "action"}}, "names the fields of windows: give windows=Windows('steps', ...), too"),
        ({"windows": "steps"}, "windows='steps' must be Windows, for example"),
        ({"windows": Windows(), "image_key": "x"}, "image_key='x' is for examples that are whole records"),
        ({"windows": Windows(), "target_key": "phase"}, "target_key='phase' is for examples that are whole records"),
        ({"windows": Windows(), "class_map": {1: 2}}, "class_map={1: 2} is for examples that are whole records"),
        (
            {"windows": Windows(offsets={"image": [0]}), "fields": {"image": "observation/wrist_image_left"}},
            "Give it another name, such as fields={'image_primary': 'observation/wrist_image_left'}",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused(robots: Robots, arguments: dict[str, Any], message: str | None) -> None:
    if message is None:
        assert len(ParserTfds(robots.root, "droid_like", **arguments)) == 1
        return
    with pytest.raises(ConfigError, match=re.escape(message)):
        ParserTfds(robots.root, "droid_like", **arguments)


def test_a_field_without_offsets_has_no_padding(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "droid_like", windows=Windows(offsets={"action": [0]}))
    with pytest.raises(ConfigError, match=r"no field 'phase_pad': 'phase' has no offsets, .* with offsets are action"):
        parser.check_fields(["phase_pad"])
    with pytest.raises(ConfigError, match="windows have no field 'image'"):
        parser.check_fields(["image"])
    with pytest.raises(ConfigError, match="windows have no field 'phase_apd'"):
        parser.check_fields(["phase_apd"])
