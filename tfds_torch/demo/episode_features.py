"""The episodes with the features of three well-known sets of robot data. Imports TFDS: for the process that builds."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from tfds_torch.demo.episodes import Episode, make_episode
from tfds_torch.demo.spec import Content, DemoSpec, Example

_SQUARE, _FLAT = (256, 256), (180, 320)
_WITHOUT_LANGUAGE = 10
"""Of bridge: one of so many episodes has an empty instruction."""

# How the arm's seven joints follow from its pose: made up, but always in the same way.
_JOINTS = np.random.default_rng(0).normal(0.0, 1.0, (6, 7))


@dataclass(frozen=True)
class FeatureTree:
    """The features of a dataset of episodes, and how they are filled.

    Attributes:
        metadata: features of `episode_metadata`.
        observation: features of `steps/observation`.
        more: other features of `steps`, beyond those that all datasets have.
        make_metadata: (episode, its number) -> the values of `episode_metadata`.
        make_steps: (episode, its number) -> key -> the values of all steps, nested as the features are.
    """

    metadata: Mapping[str, Any]
    observation: Mapping[str, Any]
    more: Mapping[str, Any]
    make_metadata: Callable[[Episode, int], Mapping[str, Any]]
    make_steps: Callable[[Episode, int], Mapping[str, Any]]


def make_episodes(spec: DemoSpec) -> Content:
    """Returns the episodes with the features of the spec's config."""
    tree = FEATURE_TREES[str(spec.config)]

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for index in range(spec.split_sizes[split]):
            episode = make_episode(index, spec.seed)
            columns = {**_make_marks(len(episode)), **tree.make_steps(episode, index)}
            yield index, {"episode_metadata": tree.make_metadata(episode, index), "steps": _split(columns)}

    marks = dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_)
    steps = {**marks, "reward": np.float32, "discount": np.float32, **tree.more, "observation": tree.observation}
    info = {
        "description": "Episodes of a made-up robot whose camera glides to a coloured disc on a photograph, with the "
        f"features of {spec.config}-like robot data (RLDS). One pixel is a millimetre. The photographs: 'china' by "
        "danielbuechele and 'flower' by vultilion, both CC BY 2.0.",
        "features": tfds.features.FeaturesDict(
            {"episode_metadata": tree.metadata, "steps": tfds.features.Dataset(steps)}
        ),
    }
    return Content(info, make_examples)


def _make_marks(num_steps: int) -> dict[str, Any]:
    step = np.arange(num_steps)
    is_last = step == num_steps - 1
    marks = {"is_first": step == 0, "is_last": is_last, "is_terminal": is_last}
    return {**marks, "reward": is_last.astype(np.float32), "discount": np.ones(num_steps, np.float32)}


def _split(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a dictionary for each step."""
    inner = {key: _split(value) for key, value in columns.items() if isinstance(value, Mapping)}
    columns = {**columns, **inner}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _look(episode: Episode, shape: tuple[int, int], *, is_wide: bool) -> list[bytes]:
    return [episode.look(step, *shape, is_wide=is_wide) for step in range(len(episode))]


def _image(shape: tuple[int, int]) -> Any:
    return tfds.features.Image(shape=(*shape, 3), encoding_format="jpeg")


def _vector(size: int, dtype: Any) -> Any:
    return tfds.features.Tensor(shape=(size,), dtype=dtype)


def _join(*parts: Any, dtype: Any) -> Any:
    """Returns columns side by side: [T, sum of their widths]."""
    return np.column_stack(parts).astype(dtype)


def _repeat(text: str, episode: Episode) -> list[str]:
    return [text] * len(episode)


def _make_bridge_steps(episode: Episode, index: int) -> dict[str, Any]:
    has_language = index % _WITHOUT_LANGUAGE != _WITHOUT_LANGUAGE - 1
    return {
        "action": _join(episode.move, episode.grip, dtype=np.float32),
        "language_instruction": _repeat(episode.instructions[0] if has_language else "", episode),
        "observation": {
            "image_0": _look(episode, _SQUARE, is_wide=True),
            "image_1": _look(episode, _SQUARE, is_wide=False),
            "state": _join(episode.pose, episode.gripper, dtype=np.float32),
        },
    }


def _make_bridge_metadata(episode: Episode, index: int) -> dict[str, Any]:
    has_language = index % _WITHOUT_LANGUAGE != _WITHOUT_LANGUAGE - 1
    return {
        "episode_id": index,
        "file_path": f"made_up/bridge/{index:06d}.npy",
        "has_image_0": True,
        "has_image_1": True,
        "has_language": has_language,
    }


def _make_droid_steps(episode: Episode, index: int) -> dict[str, Any]:
    del index
    gripper, joints = episode.gripper[:, None], episode.pose @ _JOINTS
    next_gripper = np.concatenate([gripper[1:], gripper[-1:]])
    return {
        "action": np.column_stack([episode.move, episode.grip]),
        "action_dict": {
            "cartesian_position": episode.pose + episode.move,
            "cartesian_velocity": episode.move,
            "gripper_position": episode.grip[:, None],
            "gripper_velocity": next_gripper - gripper,
            "joint_position": (episode.pose + episode.move) @ _JOINTS,
            "joint_velocity": episode.move @ _JOINTS,
        },
        "language_instruction": _repeat(episode.instructions[0], episode),
        "language_instruction_2": _repeat(episode.instructions[1], episode),
        "language_instruction_3": _repeat(episode.instructions[2], episode),
        "observation": {
            "cartesian_position": episode.pose,
            "exterior_image_1_left": _look(episode, _FLAT, is_wide=True),
            "gripper_position": gripper,
            "joint_position": joints,
            "wrist_image_left": _look(episode, _FLAT, is_wide=False),
        },
    }


def _make_droid_metadata(episode: Episode, index: int) -> dict[str, Any]:
    return {
        "file_path": f"made_up/droid/{index:06d}/trajectory.h5",
        "recording_folderpath": f"made_up/droid/{index:06d}/recordings/MP4",
    }


def _make_libero_steps(episode: Episode, index: int) -> dict[str, Any]:
    del index
    fingers = np.column_stack([episode.gripper, -episode.gripper]) * 0.04
    return {
        # As in LIBERO, the gripper is told -1 to open and 1 to close.
        "action": _join(episode.move, 1 - 2 * episode.grip, dtype=np.float32),
        "language_instruction": _repeat(episode.instructions[0], episode),
        "observation": {
            "image": _look(episode, _SQUARE, is_wide=True),
            "joint_state": (episode.pose @ _JOINTS).astype(np.float32),
            "state": _join(episode.pose, fingers, dtype=np.float32),
            "wrist_image": _look(episode, _SQUARE, is_wide=False),
        },
    }


_TEXT = tfds.features.Text()
_FLOATS, _DOUBLES = _vector(7, np.float32), _vector(7, np.float64)
_CARTESIAN, _GRIPPER = _vector(6, np.float64), _vector(1, np.float64)

FEATURE_TREES = {
    "bridge": FeatureTree(
        metadata={
            "episode_id": np.int32,
            "file_path": _TEXT,
            "has_image_0": np.bool_,
            "has_image_1": np.bool_,
            "has_language": np.bool_,
        },
        observation={"image_0": _image(_SQUARE), "image_1": _image(_SQUARE), "state": _FLOATS},
        more={"action": _FLOATS, "language_instruction": _TEXT},
        make_metadata=_make_bridge_metadata,
        make_steps=_make_bridge_steps,
    ),
    "droid": FeatureTree(
        metadata={"file_path": _TEXT, "recording_folderpath": _TEXT},
        observation={
            "cartesian_position": _CARTESIAN,
            "exterior_image_1_left": _image(_FLAT),
            "gripper_position": _GRIPPER,
            "joint_position": _DOUBLES,
            "wrist_image_left": _image(_FLAT),
        },
        more={
            "action": _DOUBLES,
            "action_dict": {
                "cartesian_position": _CARTESIAN,
                "cartesian_velocity": _CARTESIAN,
                "gripper_position": _GRIPPER,
                "gripper_velocity": _GRIPPER,
                "joint_position": _DOUBLES,
                "joint_velocity": _DOUBLES,
            },
            "language_instruction": _TEXT,
            "language_instruction_2": _TEXT,
            "language_instruction_3": _TEXT,
        },
        make_metadata=_make_droid_metadata,
        make_steps=_make_droid_steps,
    ),
    "libero": FeatureTree(
        metadata={"file_path": _TEXT},
        observation={
            "image": _image(_SQUARE),
            "joint_state": _FLOATS,
            "state": _vector(8, np.float32),
            "wrist_image": _image(_SQUARE),
        },
        more={"action": _FLOATS, "language_instruction": _TEXT},
        make_metadata=lambda episode, index: {"file_path": f"made_up/libero/{index:06d}.hdf5"},
        make_steps=_make_libero_steps,
    ),
}
