"""Functions of one's own over windows: they get what the dataset has, run in workers, and their faults are named."""

import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from parsers.robot_episodes import Robots
from tfds_torch import ImageDataset, TrainPreprocess, Transform, create_loader
from tfds_torch.engines.options import ReadOptions
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.tfds.parser import ParserTfds
from tfds_torch.plan.windows import Windows
from tfds_torch.storage.source import FieldSpec

WINDOWS = Windows(offsets={"action": range(4), "observation/image": [-1, 0]}, texts=["language_instruction"])


def relative(window: dict[str, Any]) -> dict[str, Any]:
    """Actions as differences from the state."""
    window["action"][..., :6] -= window["observation/state"][:6]
    return {"action": window["action"], "is_long": len(window["language_instruction"]) > 20, "text": "to the right"}


RELATIVE = Transform(
    relative, reads=["action", "observation/state", "language_instruction"], gives=["action", "is_long", "text"]
)


def open_parser(robots: Robots, name: str = "libero_like", **arguments: Any) -> ParserTfds:
    return ParserTfds(robots.root, name, **{"windows": WINDOWS, "batch_size": 5, **arguments})


def expected_actions(stored: np.ndarray, state: np.ndarray) -> np.ndarray:
    """Returns float32 [n, 4, 7]."""
    found = stored.copy()
    found[..., :6] -= state[:, None, :6]
    return found


@pytest.mark.parametrize("num_threads", [1, 3])
def test_a_function_gets_the_fields_of_each_window(robots: Robots, num_threads: int) -> None:
    read = ReadOptions(num_threads=num_threads)
    raw = open_parser(robots, fields={"raw": "action"}, windows=Windows(offsets={"raw": range(4)}))
    parser = open_parser(robots, transform=RELATIVE, read=read)
    fields = ["action", "is_long", "text", "action_pad", "observation/state"]
    for batch, stored in zip(parser.batches(fields=fields), raw.batches(fields=["raw", "raw_pad"]), strict=True):
        own = batch.features
        expected = expected_actions(stored.features["raw"], own["observation/state"])
        assert own["action"].dtype == np.float32
        np.testing.assert_array_equal(own["action"], expected)
        np.testing.assert_array_equal(own["action_pad"], stored.features["raw_pad"])
        assert (own["is_long"].dtype, own["is_long"].shape) == (np.bool_, (len(batch),))
        assert own["text"] == ["to the right"] * len(batch)
    assert parser.fingerprint == open_parser(robots).fingerprint


def test_what_is_stored_stays_as_it_is_beside_it(robots: Robots) -> None:
    """The function changes its own copy."""

    def clear(window: dict[str, Any]) -> dict[str, Any]:
        window["action"][...] = 0
        return {"nothing": window["action"]}

    parser = open_parser(robots, transform=Transform(clear, ["action"], ["nothing"]))
    plain = open_parser(robots)
    for batch, other in zip(
        parser.batches(fields=["nothing", "action"]), plain.batches(fields=["action"]), strict=True
    ):
        assert not batch.features["nothing"].any()
        np.testing.assert_array_equal(batch.features["action"], other.features["action"])


def test_a_transform_belongs_to_the_name(robots: Robots) -> None:
    names = {"state": "observation/state", "target": "observation/state"}

    def relative_target(window: dict[str, Any]) -> dict[str, Any]:
        return {"target": window["target"] - window["state"]}

    parser = open_parser(
        robots,
        windows=Windows(offsets={"target": [1, 2]}),
        fields=names,
        transform=Transform(relative_target, ["target", "state"], ["target"]),
    )
    plain = open_parser(robots, windows=Windows(offsets={"observation/state": [0, 1, 2]}))
    stored = plain.batches(fields=["observation/state"])
    for batch, other in zip(parser.batches(fields=["state", "target"]), stored, strict=True):
        steps = other.features["observation/state"]
        np.testing.assert_array_equal(batch.features["state"], steps[:, 0])
        np.testing.assert_array_equal(batch.features["target"], steps[:, 1:] - steps[:, :1])


def test_images_are_cut_before_they_go_through_it(robots: Robots) -> None:
    def darken(window: dict[str, Any]) -> dict[str, Any]:
        return {"dark": window["observation/image"][-1] // 2}

    transform = Transform(darken, ["observation/image"], ["dark"])
    read = ReadOptions(jpeg_decoder="pillow")
    for preprocess, side in ((None, 16), ({"observation/image": TrainPreprocess(8)}, 8)):
        parser = open_parser(robots, transform=transform, preprocess=preprocess, is_training=True, read=read)
        for batch in parser.batches(fields=["dark", "observation/image"]):
            images = np.moveaxis(batch.features["observation/image"], -3, -1)
            assert batch.features["dark"].shape == (5, side, side, 3)
            np.testing.assert_array_equal(batch.features["dark"], images[:, -1] // 2)


def test_it_runs_where_a_loader_reads(robots: Robots) -> None:
    parser = open_parser(robots, transform=RELATIVE, is_training=True)
    fields = ("action", "is_long", "episode", "step")
    expected = list(create_loader(ImageDataset(parser, fields=fields)))
    with create_loader(ImageDataset(parser, fields=fields), num_workers=2) as loader:
        for ours, theirs in zip(loader, expected, strict=True):
            assert ours[0].shape == (5, 4, 7)
            assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))


def test_single_windows_and_pickled_parsers(robots: Robots) -> None:
    parser = open_parser(robots, transform=RELATIVE)
    (batch,) = parser.with_batch_size(55).batches(fields=["action"])
    for one in (parser, pickle.loads(pickle.dumps(parser))):
        assert {"text", "is_long", "observation/image"} <= set(one[7].features)
        np.testing.assert_array_equal(one[7].features["action"], batch.features["action"][7])


def test_specs_are_those_that_are_declared(robots: Robots) -> None:
    gives = {"action": ((4, 7), "float32"), "is_long": ((), bool), "text": None}
    transform = Transform(relative, ["action", "observation/state", "language_instruction"], gives)
    specs = open_parser(robots, transform=transform).element_spec.fields
    assert specs["action"] == FieldSpec((4, 7), np.dtype(np.float32))
    assert specs["is_long"] == FieldSpec((), np.dtype(np.bool_))
    assert specs["text"] is None
    assert specs["observation/state"] == FieldSpec((8,), np.float32)


def test_members_of_a_mixture_agree_by_their_transforms(robots: Robots) -> None:
    def narrow(window: dict[str, Any]) -> dict[str, Any]:
        return {"action": window["action"].astype(np.float32)}

    values: dict[str, Any] = {"windows": Windows(offsets={"action": range(4)}), "is_training": True, "batch_size": 6}
    members = {name: open_parser(robots, name, **values) for name in ("libero_like", "droid_like")}
    with pytest.raises(ConfigError, match="'action' is float32"):
        list(ParserMixture(members, "sizes", is_training=True, batch_size=6).batches(fields=["action"]))
    stored = [one.columns(["action"])["action"] for one in members.values()]
    own_steps = np.concatenate([one.astype(np.float32) for one in stored])
    members["droid_like"] = open_parser(robots, "droid_like", transform=Transform(narrow, ["action"]), **values)
    for batch in ParserMixture(members, "sizes", is_training=True, batch_size=6).batches(fields=["action"]):
        actions = batch.features["action"]
        assert (actions.dtype, actions.shape) == (np.float32, (6, 4, 7))
        np.testing.assert_array_equal(actions[:, 0], own_steps[batch.index])


# Columns and statistics.


def own_steps(parser: ParserTfds, name: str, place: int | None = 0) -> np.ndarray:
    """Returns what batches hold of a field, at a place in its axis of time."""
    batches = list(parser.subset(parser.indices).batches(fields=[name]))
    values = np.concatenate([batch.features[name] for batch in batches])
    return values if place is None else values[:, place]


def turn_gripper(window: dict[str, Any]) -> dict[str, Any]:
    action = window["action"].astype(np.float64)
    action[..., 6] = 1 - action[..., 6]
    return {"action": action}


TURNED = Transform(turn_gripper, ["action"])
OFFSETS = [[0, 1, 2, 3], [-2, -1, 0], [0]]


@pytest.mark.parametrize("offsets", OFFSETS)
def test_columns_and_statistics_are_what_batches_hold(robots: Robots, offsets: list[int]) -> None:
    windows = Windows(offsets={"action": offsets})
    plain = open_parser(robots, windows=windows)
    for _ in range(2):  # What is kept of what is stored is not taken for it.
        parser = open_parser(robots, windows=windows, transform=TURNED)
        columns, stored = parser.columns(["action", "observation/state"]), plain.columns(["action"])["action"]
        expected = stored.astype(np.float64)
        expected[:, 6] = 1 - expected[:, 6]
        assert (columns["action"].dtype, columns["action"].shape) == (np.float64, (55, 7))
        np.testing.assert_array_equal(columns["action"], expected)
        np.testing.assert_array_equal(columns["action"], own_steps(parser, "action", offsets.index(0)))
        np.testing.assert_array_equal(parser.columns(["action"], stored=True)["action"], stored)
        found, of_stored = parser.statistics(["action"])["action"], plain.statistics(["action"])["action"]
        np.testing.assert_allclose(found.mean, expected.mean(axis=0))
        np.testing.assert_allclose([found.min[6], found.max[6]], [1 - of_stored.max[6], 1 - of_stored.min[6]])
        of_stored_again = parser.statistics(["action"], stored=True)
        assert of_stored_again.as_dict() == plain.statistics(["action"]).as_dict()


def scale(window: dict[str, Any], by: float) -> dict[str, Any]:
    return {"action": window["action"] * by}


def test_statistics_are_of_the_function_that_is_there_now(robots: Robots) -> None:
    for factor in (2, 3):
        transform = Transform(partial(scale, by=factor), ["action"])
        found = open_parser(robots, transform=transform).statistics(["action"])["action"]
        np.testing.assert_allclose(found.max, open_parser(robots).columns(["action"])["action"].max(axis=0) * factor)


def test_fields_of_other_shapes_types_and_names(robots: Robots) -> None:
    """Of a field that the dataset does not have, the steps are those of what it is made of."""

    def widen(window: dict[str, Any]) -> dict[str, Any]:
        action = window["action"]
        return {
            "action": np.concatenate([action, action[:, :1] * 2], axis=1),
            "delta": action - window["observation/state"][:7],
            "gripper": action[:, 6],
            "moves": bool(np.abs(action[0, :6]).max() > 1),
            "state": window["observation/state"],
            "text": f"step {window['step']}",
        }

    gives = ["action", "delta", "gripper", "moves", "state", "text"]
    parser = open_parser(robots, transform=Transform(widen, ["action", "observation/state", "step"], gives))
    stored = open_parser(robots).columns(["action", "observation/state", "step"])
    found = parser.columns(gives)
    action, state = stored["action"], stored["observation/state"]
    expected = {
        "action": np.concatenate([action, action[:, :1] * 2], axis=1),
        "delta": action - state[:, :7],
        "gripper": action[:, 6],
        "moves": np.abs(action[:, :6]).max(axis=1) > 1,
        "state": state,
        "text": np.array([f"step {step}" for step in stored["step"].tolist()], object),
    }
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, name)
    apart = Transform(lambda window: {"past": window["observation/state"]}, ["observation/state"], ["past"])
    windows = Windows(offsets={"action": range(4), "observation/state": [-1, 0]})
    both = open_parser(robots, windows=windows, transform=[apart, Transform(turn_gripper, ["action"], ["action"])])
    assert {name: one.shape for name, one in both.columns(["past", "action"]).items()} == {
        "past": (55, 8),
        "action": (55, 7),
    }
    statistics = parser.statistics(["action", "gripper", "moves"])
    assert [statistics[name].mean.shape for name in statistics] == [(8,), (), ()]
    chosen = parser.subset(found["moves"])
    np.testing.assert_array_equal(chosen.columns(["action"])["action"], found["action"][found["moves"]])
    none = parser.subset(np.zeros(55, bool)).columns(["action", "text"])
    assert [none[name].shape for name in none] == [(0, 8), (0,)]
    with pytest.raises(ConfigError, match="the field 'text' is texts or bytes"):
        parser.statistics(["text"])


def test_the_own_step_is_that_of_the_field_whose_name_it_has(robots: Robots) -> None:
    def turn_past(window: dict[str, Any]) -> dict[str, Any]:
        return {"action": -window["past"]}

    windows = Windows(offsets={"action": [0, 1], "past": [-1, 0]})
    transform = Transform(turn_past, ["past"], ["action"])
    parser = open_parser(robots, windows=windows, fields={"past": "action"}, transform=transform)
    np.testing.assert_array_equal(parser.columns(["action"])["action"], own_steps(parser, "action", 0))


def test_columns_and_statistics_of_mixtures_are_what_batches_hold(robots: Robots) -> None:
    members = {name: open_parser(robots, f"{name}_like", windows=Windows()) for name in ("libero", "bridge")}
    turned = {**members, "libero": open_parser(robots, windows=Windows(), transform=TURNED)}
    turned["bridge"] = open_parser(robots, "bridge_like", windows=Windows(), transform=TURNED)
    mixture = ParserMixture(turned, batch_size=5)
    expected = {name: parser.columns(["action"])["action"].astype(np.float64) for name, parser in members.items()}
    stored = np.concatenate(list(expected.values())).copy()
    for own in expected.values():
        own[:, 6] = 1 - own[:, 6]
    columns = mixture.columns(["action", "member"])
    np.testing.assert_array_equal(columns["action"], np.concatenate(list(expected.values())))
    np.testing.assert_array_equal(mixture.columns(["action", "member"], stored=True)["action"], stored)
    for name, found in mixture.statistics(["action"]).items():
        np.testing.assert_allclose(found["action"].mean, expected[name].mean(axis=0))
    assert mixture.statistics(["action"], stored=True)["libero"].as_dict() == (
        members["libero"].statistics(["action"]).as_dict()
    )


def test_no_image_is_read_and_nothing_drawn_for_a_column(robots: Robots) -> None:
    def brightness(window: dict[str, Any]) -> dict[str, Any]:
        return {"mean": window["observation/image"].mean()}

    def shake(window: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
        return {"action": window["action"] + rng.random()}

    refused = [
        (Transform(brightness, ["observation/image"], ["mean"]), "mean", "reads the image 'observation/image'"),
        (Transform(shake, ["action"], ["action"]), "action", "draws random numbers, which belong to an epoch"),
        (turn_gripper, "action", r"does not say what it reads: with Transform\(function, reads="),
    ]
    for transform, name, why in refused:
        parser = open_parser(robots, transform=transform)
        with pytest.raises(ConfigError, match=rf"{why}.* What is stored comes with stored=True\."):
            parser.columns([name])
        assert parser.columns(["action"], stored=True)["action"].shape == (55, 7)
    assert parser.dataset.columns_at(["episode"], np.arange(3))["episode"].tolist() == [0, 0, 0]


def test_values_that_are_no_column_are_refused(robots: Robots) -> None:
    def uneven(window: dict[str, Any]) -> dict[str, Any]:
        return {"uneven": np.zeros(window["step"])}

    parser = open_parser(robots, transform=Transform(uneven, ["step"], {"uneven": ((None,), "float64")}))
    with pytest.raises(ConfigError, match="does not give values of one size and dtype in every window"):
        parser.columns(["uneven"])
    ahead = open_parser(robots, windows=Windows(offsets={"action": [1, 2]}), transform=TURNED)
    with pytest.raises(ConfigError, match=r"gives values of the steps \[1, 2\]"):
        ahead.statistics(["action"])
    assert ahead.columns(["action"], stored=True)["action"].shape == (55, 7)


def fail_late(window: dict[str, Any]) -> dict[str, Any]:
    return {"action": window["action"] if window["step"] < 6 else window["stat"]}


def test_a_function_that_fails_is_named_with_the_window(robots: Robots) -> None:
    transform = Transform(fail_late, ["action", "step"], ["action"])
    parser = open_parser(robots, transform=transform, read=ReadOptions(on_error="replace"))
    message = (
        r"the transform fail_late cannot be used for the example '.*__\d/6'. It failed: KeyError: 'stat'. It got the "
        r"fields action, step."
    )
    reads: list[Callable[[], object]] = [
        lambda: list(parser.batches(fields=["action"])),
        lambda: parser.statistics(["action"]),
    ]
    for read in reads:
        with pytest.raises(ConfigError, match=message) as raised:
            read()
        assert isinstance(raised.value.__cause__, KeyError)
