"""Made-up episodes: what TFDS reads of them is what was made, and what they are for can be learnt from them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from zygote import forked_instead_of_fresh, tensorflow_zygote

from demo.fresh import read_episodes
from tfds_torch.demo import prepare
from tfds_torch.demo.episodes import COLOURS, Episode, make_episode
from tfds_torch.demo.spec import EPISODE_CONFIGS

NUM_EPISODES, SEED = {"bridge": 10, "droid": 4, "libero": 4}, 3
SIZES = {"bridge": (256, 256), "droid": (180, 320), "libero": (256, 256)}
CAMERAS = {
    "bridge": ("image_0", "image_1"),
    "droid": ("exterior_image_1_left", "wrist_image_left"),
    "libero": ("image", "wrist_image"),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds all configs side by side."""
    root = tmp_path_factory.mktemp("episodes")
    with forked_instead_of_fresh():
        for config in EPISODE_CONFIGS:
            num_examples = NUM_EPISODES[config]
            prepare(f"episodes/{config}", root=root, num_examples=num_examples, num_shards=2, seed=SEED, progress=False)
    return root


@pytest.fixture(scope="module")
def read(root: Path) -> dict[str, list[dict[str, Any]]]:
    """Config -> episodes in the order in which they were made: `episode_metadata`, and `steps`, arrays [T, ...]."""
    found: dict[str, list[dict[str, Any]]] = tensorflow_zygote().call(
        read_episodes, {config: str(root / "episodes" / config / "1.0.0") for config in EPISODE_CONFIGS}, CAMERAS
    )
    return {config: sorted(own, key=lambda one: one["episode_metadata"]["file_path"]) for config, own in found.items()}


@pytest.fixture(scope="module")
def made() -> list[Episode]:
    return [make_episode(index, SEED) for index in range(max(NUM_EPISODES.values()))]


def test_the_default_config_is_bridge_and_the_others_lie_beside_it(root: Path) -> None:
    assert json.loads((root / "episodes" / ".config" / "metadata.json").read_text()) == {
        "default_config_name": "bridge"
    }
    assert prepare("episodes", root=root, num_examples=NUM_EPISODES["bridge"], num_shards=2, seed=SEED) == root
    assert sorted(folder.name for folder in (root / "episodes").glob("[a-z]*")) == list(EPISODE_CONFIGS)


@pytest.mark.parametrize("config", EPISODE_CONFIGS)
def test_every_episode_is_there_with_its_marks_and_images(
    config: str, read: dict[str, Any], made: list[Episode]
) -> None:
    assert len(read[config]) == NUM_EPISODES[config]
    for episode, own in zip(read[config], made, strict=False):
        steps, num_steps = episode["steps"], len(own)
        assert 60 < num_steps < 130
        np.testing.assert_array_equal(np.flatnonzero(steps["is_first"]), [0])
        for mark in ("is_last", "is_terminal", "reward"):
            np.testing.assert_array_equal(np.flatnonzero(steps[mark]), [num_steps - 1])
        assert steps["reward"].dtype == steps["discount"].dtype == np.float32
        assert (steps["discount"] == np.ones(num_steps)).all()
        for camera, is_wide in zip(CAMERAS[config], (True, False), strict=True):
            files = steps[f"observation/{camera}"]
            step = len(files) // 2
            assert files[step] == own.look(step, *SIZES[config], is_wide=is_wide)
            with Image.open(io.BytesIO(files[-1])) as image:
                assert (image.format, image.mode, image.size) == ("JPEG", "RGB", SIZES[config][::-1])


def stored(numbers: Any) -> Any:
    """As a TFRecord file keeps float64: as float32."""
    return numbers.astype(np.float32).astype(np.float64)


def test_bridge_has_its_values(read: dict[str, Any], made: list[Episode]) -> None:
    for index, (episode, own) in enumerate(zip(read["bridge"], made, strict=True)):
        steps, has_language = episode["steps"], index != 9
        expected = np.concatenate([own.move, own.grip[:, None]], axis=1).astype(np.float32)
        np.testing.assert_array_equal(steps["action"], expected, strict=True)
        expected = np.concatenate([own.pose, own.gripper[:, None]], axis=1).astype(np.float32)
        np.testing.assert_array_equal(steps["observation/state"], expected, strict=True)
        assert set(steps["language_instruction"]) == {own.instructions[0].encode() if has_language else b""}
        assert episode["episode_metadata"] == {
            "episode_id": index,
            "file_path": f"made_up/bridge/{index:06d}.npy".encode(),
            "has_image_0": True,
            "has_image_1": True,
            "has_language": has_language,
        }


def test_droid_has_its_values(read: dict[str, Any], made: list[Episode]) -> None:
    for episode, own in zip(read["droid"], made, strict=False):
        steps = episode["steps"]
        np.testing.assert_array_equal(steps["action"], stored(np.column_stack([own.move, own.grip])), strict=True)
        np.testing.assert_array_equal(steps["observation/cartesian_position"], stored(own.pose), strict=True)
        # Where a step is sent is where the next one is.
        for key in ("cartesian_position", "joint_position"):
            assert steps[f"action_dict/{key}"].dtype == np.float64
            np.testing.assert_allclose(steps[f"action_dict/{key}"][:-1], steps[f"observation/{key}"][1:], atol=1e-6)
        assert steps["action_dict/gripper_position"].shape == steps["observation/gripper_position"].shape
        for number, text in enumerate(own.instructions, start=1):
            key = "language_instruction" if number == 1 else f"language_instruction_{number}"
            assert set(steps[key]) == {text.encode()}


def test_libero_has_its_values(read: dict[str, Any], made: list[Episode]) -> None:
    for episode, own in zip(read["libero"], made, strict=False):
        steps = episode["steps"]
        assert steps["action"].dtype == steps["observation/state"].dtype == np.float32
        assert steps["observation/state"].shape == (len(own), 8)
        np.testing.assert_array_equal(steps["action"][:, 6], np.where(own.grip == 1, -1, 1))
        np.testing.assert_array_equal(steps["observation/state"][:, :6], own.pose.astype(np.float32))


# What an episode shows


def test_an_episode_is_a_function_of_seed_and_index() -> None:
    one, same, *others = (make_episode(index, seed) for index, seed in ((4, 1), (4, 1), (4, 2), (5, 1)))
    np.testing.assert_array_equal(one.pose, same.pose)
    np.testing.assert_array_equal(one.near, same.near)
    for different in others:
        assert (different.near != one.near).any()
        assert not np.array_equal(different.target, one.target)


def test_the_camera_glides_to_the_disc_and_follows_from_what_is_seen(made: list[Episode]) -> None:
    for episode in made:
        gap = episode.target - episode.camera
        assert (np.abs(gap).max(0) // 2 < (128, 90)).all(), "the disc is in every wide view"
        distance = np.hypot(*gap.T)
        assert distance[0] >= 120
        assert (distance[-5:] <= 4).all()
        assert (episode.move[-4:] == 0).all()
        np.testing.assert_allclose(episode.pose[:-1] + episode.move[:-1], episode.pose[1:])
        np.testing.assert_array_equal(episode.grip[-6:], [1, 0, 0, 0, 0, 0])
        # The gripper's middle, which is the view's, is on the disc at last.
        near = Image.open(io.BytesIO(episode.look(len(episode) - 1, 256, 256, is_wide=False)))
        colour = np.asarray(near)[118:138, 118:138].mean((0, 1))
        np.testing.assert_allclose(colour, COLOURS[episode.colour], atol=12)
    # By the least squares of what an image shows, most of the variance of the moves is explained.
    gaps = np.concatenate([own.target - own.camera for own in made])
    moves = np.concatenate([own.move[:, :2] for own in made])
    left = moves - gaps @ np.linalg.lstsq(gaps, moves, rcond=None)[0]
    assert (left.var(0) / moves.var(0) < 0.4).all()
