"""Statistics of windows equal numpy's over what TFDS reads; they are kept, and have the layout of Octo and OpenVLA."""

import hashlib
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.robot_episodes import LENGTHS, Robots, shard_paths, value_at
from tfds_torch.errors import ConfigError
from tfds_torch.parsers.mixture import ParserMixture
from tfds_torch.parsers.statistics import FieldStatistics, compute_statistics
from tfds_torch.parsers.tfds import window_columns
from tfds_torch.parsers.tfds.parser import ParserTfds, TfdsWindows
from tfds_torch.plan.windows import Windows

NAMES = ("mean", "std", "min", "max", "q01", "q99")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder without statistics of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def open_parser(robots: Robots, name: str, **arguments: Any) -> ParserTfds:
    return ParserTfds(robots.root, name, **{"batch_size": 4, "windows": Windows(), **arguments})


def all_values(robots: Robots, name: str, key: str) -> np.ndarray:
    """Returns a field of all steps as TFDS reads it, float64 [n, ...]."""
    steps = [step for episode in robots.episodes[name] for step in episode["steps"]]
    return np.array([value_at(step, key) for step in steps], np.float64)


def check_statistics(found: FieldStatistics, values: np.ndarray) -> None:
    """Compares statistics with numpy's of float64 [n, ...]."""
    expected = {
        "mean": values.mean(axis=0),
        "std": values.std(axis=0),
        "min": values.min(axis=0),
        "max": values.max(axis=0),
        "q01": np.quantile(values, 0.01, axis=0),
        "q99": np.quantile(values, 0.99, axis=0),
    }
    for name, value in expected.items():
        own = getattr(found, name)
        assert (own.dtype, own.shape) == (np.float64, np.shape(value)), name
        tolerance = 0 if name in ("min", "max") else 1e-12
        np.testing.assert_allclose(own, value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", LENGTHS)
def test_statistics_are_numpys_of_what_tfds_reads(robots: Robots, name: str) -> None:
    state = {"droid_like": "observation/cartesian_position"}.get(name, "observation/state")
    keys = ["action", state, "reward", "is_last"]
    windows = Windows(offsets={"action": range(16)})
    found = open_parser(robots, name, windows=windows).statistics(keys)
    assert list(found) == keys
    for key in keys:
        check_statistics(found[key], all_values(robots, name, key))
    assert (found.num_transitions, found.num_trajectories) == (sum(LENGTHS[name]), len(LENGTHS[name]))


@given(
    rows=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    shape=st.sampled_from([(), (1,), (3,), (2, 2)]),
)
def test_statistics_of_any_numbers(rows: int, seed: int, dtype: Any, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(seed).normal(scale=50, size=(rows, *shape)) + 100).astype(dtype)
    check_statistics(compute_statistics(values), values.astype(np.float64))


def test_a_subset_has_statistics_of_its_own(robots: Robots) -> None:
    parser = open_parser(robots, "bridge_like")
    episode = parser.columns(["episode"])["episode"]
    values = all_values(robots, "bridge_like", "action")
    for number in (0, 1):
        found = parser.subset(episode == number).statistics(["action"])
        check_statistics(found["action"], values[episode == number])
        assert (found.num_transitions, found.num_trajectories) == (int((episode == number).sum()), 1)


def test_they_are_kept_as_long_as_the_files_are_the_same(
    robots: Robots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(robots.root / "bridge_like", tmp_path / "bridge_like")

    def open_copy() -> ParserTfds:
        return ParserTfds(tmp_path, "bridge_like", windows=Windows(), batch_size=4)

    first = open_copy().statistics(["action"])
    with monkeypatch.context() as patch:
        patch.setattr(window_columns, "read_examples", None)
        again = open_copy().statistics(["action"])
        for name in NAMES:
            assert getattr(again["action"], name).tobytes() == getattr(first["action"], name).tobytes()
        with pytest.raises(TypeError):
            open_copy().statistics(["action", "reward"])
        with pytest.raises(TypeError):
            open_copy().subset([0, 1]).statistics(["action"])
        os.utime(shard_paths(tmp_path, "bridge_like")[0])
        with pytest.raises(TypeError):
            open_copy().statistics(["action"])
    assert open_copy().statistics(["action", "reward"]).as_dict()["action"] == first.as_dict()["action"]


def test_names_of_ones_own_are_no_part_of_what_is_kept(robots: Robots) -> None:
    one = open_parser(robots, "libero_like", fields={"x": "action"}).statistics(["x"])
    other = open_parser(robots, "libero_like", fields={"x": "observation/joint"}).statistics(["x"])
    assert one["x"].mean.tolist() != other["x"].mean.tolist()
    check_statistics(other["x"], all_values(robots, "libero_like", "observation/joint"))


@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_damaged_statistics_are_computed_again(robots: Robots, own_cache: Path, damage: str) -> None:
    expected = open_parser(robots, "libero_like").statistics(["action"]).as_dict()
    (file,) = (own_cache / "tfds_torch" / "statistics").iterdir()
    content = file.read_bytes()
    flipped = content[:-3] + bytes([content[-3] ^ 1]) + content[-2:]
    file.write_bytes({"cut": content[:-1], "flipped": flipped, "other": b"no statistics"}[damage])
    assert open_parser(robots, "libero_like").statistics(["action"]).as_dict() == expected
    assert file.read_bytes() == content


def test_planted_statistics_are_neither_read_nor_replaced(robots: Robots, own_cache: Path) -> None:
    expected = open_parser(robots, "libero_like").statistics(["action"]).as_dict()
    (file,) = (own_cache / "tfds_torch" / "statistics").iterdir()
    other = file.read_bytes()[16:].replace(b"0", b"1")
    planted = hashlib.blake2b(other, digest_size=16).digest() + other
    file.write_bytes(planted)
    file.parent.chmod(0o777)
    assert open_parser(robots, "libero_like").statistics(["action"]).as_dict() == expected
    assert file.read_bytes() == planted


# The layout of other loaders.


def test_the_layout_of_openvla_and_octo(robots: Robots) -> None:
    statistics = open_parser(robots, "libero_like").statistics(["action", "observation/state"])
    found = json.loads(statistics.as_json(mask=[True] * 6 + [False]))
    assert set(found) == {"action", "proprio", "num_transitions", "num_trajectories"}
    assert set(found["action"]) == {*NAMES, "mask"}
    assert set(found["proprio"]) == set(NAMES)
    assert found["action"]["mask"] == [True] * 6 + [False]
    for name in NAMES:
        assert found["action"][name] == getattr(statistics["action"], name).tolist()
        assert found["proprio"][name] == getattr(statistics["observation/state"], name).tolist()
    assert (found["num_transitions"], found["num_trajectories"]) == (55, 5)
    octo = statistics.as_dict("octo")
    assert set(octo["action"]) == {"mean", "std", "min", "max", "p01", "p99"}
    assert octo["proprio"]["p99"] == found["proprio"]["q99"]
    named = json.loads(statistics.as_json(name="libero_like"))
    assert named == {"libero_like": statistics.as_dict()}


def test_which_field_is_proprio(robots: Robots) -> None:
    parser = open_parser(robots, "droid_like", fields={"act": "action_dict/joint_velocity"})
    one, other = "observation/cartesian_position", "observation/gripper_position"
    statistics = parser.statistics(["act", one, other])
    assert set(statistics.as_dict(action="act", proprio=other)) >= {"action", "proprio", one}
    assert isinstance(parser.statistics(["reward"]).as_dict(action="reward")["action"]["mean"], float)
    assert set(parser.statistics(["act"]).as_dict(action="act")) == {"action", "num_transitions", "num_trajectories"}
    with pytest.raises(ConfigError, match=r"several fields could be `proprio`: observation/cartesian_position, obs"):
        statistics.as_dict(action="act")
    with pytest.raises(ConfigError, match=r"no statistics of 'action' here: they are of act, "):
        statistics.as_dict()
    with pytest.raises(ConfigError, match=r"Did you mean 'observation/gripper_position'"):
        statistics.as_dict(action="act", proprio="observation/griper_position")
    named = open_parser(robots, "libero_like", fields={"proprio": "observation/state"})
    own = named.statistics(["action", "proprio", "reward"]).as_dict()
    assert {"action", "proprio", "reward"} < set(own)


def test_masks_that_do_not_fit_and_unknown_layouts_are_refused(robots: Robots) -> None:
    found, unknown = open_parser(robots, "libero_like").statistics(["action"]), dict[str, Any](layout="openvl")
    masks: list[Any] = [[True] * 6, [1] * 7, [[True] * 7], "yes"]
    for mask in masks:
        with pytest.raises(ConfigError, match=r"must have one bool for each number of the action, of the shape \(7,\)"):
            found.as_dict(mask=mask)
    with pytest.raises(ConfigError, match=r"layout='openvl' must be 'openvla' or 'octo'"):
        found.as_json(**unknown)


def test_members_of_a_mixture_have_statistics_of_their_own(robots: Robots) -> None:
    members = {name: open_parser(robots, name, is_training=True) for name in ("libero_like", "bridge_like")}
    mixture = ParserMixture(members, {"libero_like": 2, "bridge_like": 1}, is_training=True, batch_size=4)
    found = mixture.statistics(["action", "observation/state"])
    assert list(found) == ["libero_like", "bridge_like"]
    masks = {"bridge_like": [True] * 6 + [False]}
    written = json.loads(found.as_json(mask=masks))
    for name, parser in members.items():
        expected = parser.statistics(["action", "observation/state"]).as_dict(mask=masks.get(name))
        assert found.as_dict(mask=masks)[name] == written[name] == expected
        check_statistics(found[name]["action"], all_values(robots, name, "action"))
    with pytest.raises(ConfigError, match=r"mask= names the member 'bridge': the mixture has libero_like, bridge_like"):
        found.as_dict(mask={"bridge": [True] * 7})


# What is refused.


@pytest.mark.parametrize(("field", "place"), [("action", 2), ("reward", ...)])
def test_values_that_are_not_finite_are_named_with_the_remedy(
    robots: Robots, monkeypatch: pytest.MonkeyPatch, field: str, place: Any
) -> None:
    parser = open_parser(robots, "libero_like")
    really_read = TfdsWindows.columns_at

    def with_nan(self: TfdsWindows, names: Any, index: Any) -> dict[str, np.ndarray]:
        columns = really_read(self, names, index)
        if field in columns:
            columns[field][np.isin(index, [3, 9]), place] = math.nan
        return columns

    monkeypatch.setattr(TfdsWindows, "columns_at", with_nan)
    (id_,) = parser.ids(np.array([3]))
    with pytest.raises(
        ConfigError, match=rf"2 of 55 values of '{field}' are not finite, the first one at {id_}\. Leave"
    ) as raised:
        parser.statistics([field])
    remedy = str(raised.value).partition("Leave these steps out: ")[2].rstrip(".")
    assert eval(remedy, {"parser": parser, "np": np}).statistics([field]).num_transitions == 53
