"""Windows of robots' episodes: bit for bit those that are cut out of what TFDS reads, by number, in any world."""

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance import check_resumes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zygote import forked_instead_of_fresh, tensorflow_zygote

from parsers.resuming import ParserLoader
from parsers.robot_episodes import (
    LENGTHS,
    Robots,
    bridge_features,
    droid_features,
    read_episodes,
    value_at,
    write_dataset_of,
)
from parsers.window_values import assert_equal, check_batches, expected_value, step_fields
from tfds_torch import ParserMixture
from tfds_torch.demo import prepare_fake
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.tfds.connectors import plain_features
from tfds_torch.parsers.tfds.feature_tree import Dictionary, Feature, Repeated
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.parsers.tfds.windows import episode_features, find_sequence
from tfds_torch.plan.windows import Windows

OFFSETS = st.lists(st.integers(-9, 20), min_size=1, max_size=5).map(tuple)


@pytest.mark.parametrize("name", LENGTHS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_element_spec_says_what_batches_hold(robots: Robots) -> None:
    windows = Windows(offsets={"action": range(16), "observation/image": [-1, 0]})
    parser = ParserTfds(robots.root, "libero_like", windows=windows, batch_size=5)
    specs = parser.element_spec.fields
    (batch, *_) = parser.batches(fields=[name for name in specs if name not in ("valid", "index", "id")])
    for name, values in batch.features.items():
        if isinstance(values, np.ndarray):
            assert (values.shape[1:], values.dtype) == (specs[name].shape, specs[name].dtype), name
    assert batch.features["action"].shape == (5, 16, 7)
    assert batch.features["observation/image"].shape == (5, 2, 3, 16, 16)
    steps = robots.episodes["libero_like"][0]["steps"][:5]
    assert batch.features["language_instruction"] == [step["language_instruction"] for step in steps]


def test_features_of_whole_episodes_come_with_each_window(robots: Robots) -> None:
    parser = ParserTfds(robots.root, "droid_like", windows=Windows(), batch_size=82)
    fields = ["episode_metadata/file_path", "episode_metadata/tags", "episode_metadata/codes", "episode"]
    (batch,) = parser.batches(fields=fields)
    for row, number in enumerate(batch.features["episode"].tolist()):
        metadata = robots.episodes["droid_like"][number]["episode_metadata"]
        assert batch.features["episode_metadata/file_path"][row] == metadata["file_path"]
        assert list(batch.features["episode_metadata/tags"][row]) == list(metadata["tags"])
        assert batch.features["episode_metadata/codes"][row].tolist() == list(metadata["codes"])


def test_any_sequence_of_a_record_can_hold_the_steps(robots: Robots) -> None:
    stored = [episode["episode_metadata"]["marks"]["at"] for episode in robots.episodes["droid_like"]]
    windows = Windows("episode_metadata/marks")
    parser = ParserTfds(robots.root, "droid_like", windows=windows, fields={"own": "at"}, batch_size=9)
    (batch,) = parser.batches(fields=["at", "own", "episode_metadata/number"])
    assert len(batch) == len(np.concatenate(stored)) > 1
    for name in ("at", "own", "episode_metadata/marks/at"):
        np.testing.assert_array_equal(parser.columns([name])[name], np.concatenate(stored))
        assert name not in batch.features or batch.features[name].tolist() == np.concatenate(stored).tolist()


def test_names_of_ones_own_and_texts(robots: Robots) -> None:
    names = {
        "image": "observation/wrist_image",
        "image_primary": "steps/observation/image",
        "task": "language_instruction",
    }
    windows = Windows(offsets={"image_primary": [-1, 0], "task": [0, 1]}, texts=["task"])
    parser = ParserTfds(robots.root, "libero_like", windows=windows, fields=names, batch_size=55)
    (batch,) = parser.batches(fields=["image", "image_primary", "task", "observation/image", "step", "episode"])
    np.testing.assert_array_equal(batch.features["image_primary"][:, 1], batch.features["observation/image"])
    for row, (number, step) in enumerate(
        zip(batch.features["episode"].tolist(), batch.features["step"].tolist(), strict=True)
    ):
        episode = robots.episodes["libero_like"][number]
        np.testing.assert_array_equal(batch.image[row], value_at(episode["steps"][step], "observation/wrist_image"))
        texts = expected_value(episode, "language_instruction", step, (0, 1))
        assert batch.features["task"][row] == [text.decode() for text in texts]
    assert {"image", "image_primary", "task", "image_primary_pad", "task_pad"} <= set(parser.element_spec.fields)
    assert "observation/image" not in parser.element_spec.fields


def steps_at(robots: Robots, name: str, key: str, offsets: Sequence[int]) -> np.ndarray:
    """Returns what TFDS reads of a feature at steps of every window, [n, T, ...]; the ends of an episode repeat."""
    return np.array(
        [
            [value_at(episode["steps"][min(max(0, at + offset), len(episode["steps"]) - 1)], key) for offset in offsets]
            for episode in robots.episodes[name]
            for at in range(len(episode["steps"]))
        ]
    )


STATES = {"state": "observation/state", "target": "observation/state"}
TARGET = [1, 2, 3]


@pytest.mark.parametrize(
    ("names", "offsets"),
    [
        (STATES, {"target": TARGET}),
        ({**STATES, "past": "steps/observation/state"}, {"target": TARGET, "past": [-1, 0]}),
        ({"target": "observation/state"}, {"target": TARGET}),
        ({"state": "observation/state"}, {"observation/state": TARGET}),
        ({"state": "observation/state", "past": "observation/state"}, {"steps/observation/state": TARGET, "past": [0]}),
    ],
)
@pytest.mark.parametrize("pad", ["edge", "zero"])
def test_offsets_belong_to_the_name_and_not_to_its_feature(
    robots: Robots, names: dict[str, str], offsets: dict[str, Any], pad: Any
) -> None:
    windows = Windows(offsets=offsets, pad=pad)
    parser = ParserTfds(robots.root, "libero_like", windows=windows, fields=names, batch_size=55)
    fields = [*names, "observation/state", "steps/observation/state"]
    given = {name.removeprefix("steps/"): steps for name, steps in offsets.items()}
    padding = [f"{name}_pad" for name in fields if name.removeprefix("steps/") in given]
    (batch,) = parser.batches(fields=[*fields, *padding])
    columns = parser.columns(fields)
    own_steps = steps_at(robots, "libero_like", "observation/state", [0])[:, 0]
    for name in fields:
        found, steps = batch.features[name], given.get(name.removeprefix("steps/"))
        np.testing.assert_array_equal(columns[name], own_steps)
        if steps is None:
            np.testing.assert_array_equal(found, own_steps, name)
            with pytest.raises(ConfigError, match="has no offsets"):
                parser.check_fields([f"{name}_pad"])
            continue
        outside = batch.features[f"{name}_pad"]
        expected = steps_at(robots, "libero_like", "observation/state", steps)
        if pad == "zero":
            expected[outside] = 0
        np.testing.assert_array_equal(found, expected, name)
    specs = parser.element_spec.fields
    for name in {*names, *given}:
        assert (specs[name].shape, specs[name].dtype) == (batch.features[name].shape[1:], np.float32)
        assert (f"{name}_pad" in specs) == (name in given)


def test_every_kind_of_feature_can_have_two_names(robots: Robots) -> None:
    for dataset in LENGTHS:
        keys = step_fields(robots, dataset)
        names = {f"{key.replace('/', '_')}_{way}": key for key in keys for way in ("now", "then")}
        offsets = {name: [0, 2] for name in names if name.endswith("_then")}
        windows = Windows(offsets=offsets, texts=[name for name in names if "instruction_then" in name])
        parser = ParserTfds(robots.root, dataset, windows=windows, fields=names, batch_size=9)
        assert {*names, *(f"{name}_pad" for name in offsets)} <= set(parser.element_spec.fields)
        for batch in parser.batches(fields=[*names, "episode", "step"]):
            places = zip(batch.features["episode"].tolist(), batch.features["step"].tolist(), strict=True)
            for row, (number, step) in enumerate(places):
                episode = robots.episodes[dataset][number]
                for name, key in names.items():
                    expected = expected_value(episode, key, step, offsets.get(name))
                    if name in windows.texts:
                        expected = [text.decode() for text in expected]
                    is_jpeg = key.startswith("observation/image_")
                    assert_equal(batch.features[name][row], expected, name, 2.0 if is_jpeg else 0.0)


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


OTHERS = ("robosuite_panda_pick_place_can", "rlu_control_suite")


@pytest.mark.parametrize("name", ["d4rl_mujoco_ant", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_datasets_that_tfds_knows_by_name(tmp_path: Path, name: str) -> None:
    with forked_instead_of_fresh(tensorflow_zygote):
        prepare_fake(name, num_examples=4, root=tmp_path, progress=False)
    robots = Robots(tmp_path, {name: tensorflow_zygote().call(read_episodes, str(tmp_path), name)})
    keys = step_fields(robots, name)
    for pad in ("edge", "zero"):
        windows = Windows(offsets={"action": range(-1, 3), keys[-1]: [0]}, pad=pad)
        parser = ParserTfds(tmp_path, name, windows=windows, batch_size=3)
        assert check_batches(parser, robots, name, keys) == len(parser) > 4


# Orders and mixtures are those of all parsers.


def training(robots: Robots, **arguments: Any) -> ParserTfds:
    windows = Windows(offsets={"action": range(4), "observation/image_0": [-1, 0]})
    return ParserTfds(robots.root, "bridge_like", windows=windows, is_training=True, seed=7, **arguments)


def mixed(robots: Robots, **arguments: Any) -> ParserMixture:
    """Returns a mixture of three datasets, whose cameras and actions have equal names."""
    windows = Windows(offsets={"action": range(4), "image_primary": [-1, 0]})
    cameras = {"bridge_like": "observation/image_0", "libero_like": "observation/image"}
    members = {
        name: ParserTfds(robots.root, name, windows=windows, fields={"image_primary": camera, "now": camera})
        for name, camera in cameras.items()
    }
    wrist = dict.fromkeys(("image_primary", "now"), "observation/wrist_image")
    members["again"] = ParserTfds(robots.root, "libero_like", "train[:2]", windows=windows, fields=wrist)
    weights = {"bridge_like": 0.5, "libero_like": 0.3, "again": 0.2}
    return ParserMixture(members, weights, is_training=True, epoch_size=30, **arguments)


def test_a_mixture_of_windows_has_their_values(robots: Robots) -> None:
    parser = mixed(robots, batch_size=6)
    names = ["bridge_like", "libero_like", "again"]
    fields = ["image_primary", "now", "action", "action_pad", "episode", "step", "language_instruction", "member"]
    (batch, *_) = parser.batches(fields=fields)
    images = batch.features["image_primary"]
    assert images.shape == (6, 2, 3, 16, 16)
    np.testing.assert_array_equal(batch.features["now"], images[:, 1])
    assert set(fields) <= set(parser.element_spec.fields)
    for row, member in enumerate(batch.features["member"].tolist()):
        name = "libero_like" if member else "bridge_like"
        episode = robots.episodes[name][batch.features["episode"][row]]
        step = int(batch.features["step"][row])
        expected = expected_value(episode, "action", step, range(4))
        assert_equal(batch.features["action"][row], expected, batch.id[row])
        assert batch.features["language_instruction"][row] == episode["steps"][step]["language_instruction"]
        assert batch.id[row] == f"{names[member]}/{episode['tfds_id'].decode()}/{step}"


@pytest.mark.parametrize(
    ("make", "grid", "other"),
    [
        (training, (1, 1), (3, 2)),
        pytest.param(training, (2, 2), (1, 3), marks=pytest.mark.slow),
        pytest.param(mixed, (1, 1), (3, 2), marks=pytest.mark.slow),
        (mixed, (2, 2), (1, 3)),
    ],
)
def test_every_state_goes_on_in_other_worlds(
    robots: Robots, make: Any, grid: tuple[int, int], other: tuple[int, int]
) -> None:
    make_parser = cache(partial(make, robots))  # A parser has no position: one is opened for each batch size.
    assert check_resumes(partial(ParserLoader, make_parser, grid, 6), partial(ParserLoader, make_parser, other, 6)) > 20


def turned_round(feature: Feature) -> Feature:
    """The same features, which dictionaries hold in the opposite order."""
    if isinstance(feature, Repeated):
        return replace(feature, feature=turned_round(feature.feature))
    if isinstance(feature, Dictionary):
        turned = {key: turned_round(inner) for key, inner in reversed(list(feature.features.items()))}
        return replace(feature, features=turned)
    return feature


@pytest.mark.parametrize("make_features", [bridge_features, droid_features])
def test_the_layout_does_not_depend_on_the_order_in_which_features_were_read(make_features: Callable[[], Any]) -> None:
    """TFDS reads them in another order in each process, and the index of steps is kept for all of them."""
    features = plain_features(make_features())
    found, turned = (
        episode_features(one, find_sequence(one, "steps", "made"), "made") for one in (features, turned_round(features))
    )
    assert found == turned
    assert list(found.layout.numbers) == list(turned.layout.numbers)
    assert list(found.stored_as) == list(turned.stored_as)
