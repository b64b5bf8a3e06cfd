"""Episodes of a made-up robot, each a function of (seed, index) alone: its camera glides to a disc on a photograph.

(And of Pillow's, numpy's and libjpeg-turbo's versions, as `photographs`.)

The image decides the action: it is a share of the way to the disc, so that a small policy learns it from the images.
The robot rests for up to 5 steps, moves, and closes its gripper on the disc in the last 5 steps. One pixel of the
scene is a millimetre. Imports TFDS: for the process that builds.
"""

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simplejpeg
import tensorflow_datasets as tfds
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageEnhance

from tfds_torch.demo.photographs import LABELS, draw_tones, grain_field, load_photograph
from tfds_torch.demo.spec import Content, DemoSpec, Example

COLOURS = {"red": (214, 39, 40), "blue": (31, 100, 220), "yellow": (245, 200, 30), "green": (40, 160, 60)}

_WIDTH, _HEIGHT = 1024, 768  # Of a scene, pixels.
_MIDDLE = np.array([_WIDTH, _HEIGHT]) / 2
# Where the camera's middle may be: all views lie inside of the scene, and the wide ones show the disc.
_LEAST, _MOST = (320, 256), (704, 512)
_MOST_GAP, _LEAST_DISTANCE = (230, 160), 120
_RADIUS = 36
_COLOUR_LEFT = 0.4  # Of the photograph's own, so that the disc stands out.
_JPEG_QUALITY = 85

_RATE = 0.03  # Share of the way to the disc that a step covers,
_LEAST_SPEED = 1.0  # and the pixels that it covers at least.
_UNSTEADINESS = 0.3  # Standard deviation of a move, pixels.
_ARRIVED = 4.0
_MOST_REST, _NUM_CLOSING = 5, 5
_METRES = 1e-3
_TREMBLE = 0.01
_SQUARE, _FLAT = (256, 256), (180, 320)  # Views of the cameras: height and width.
_WITHOUT_LANGUAGE = 10  # Of bridge: one of so many episodes has an empty instruction.
# How the arm's seven joints follow from its pose: made up, but always in the same way.
_JOINTS = np.random.default_rng(0).normal(0.0, 1.0, (6, 7))

Values = Mapping[str, Any]
Float64Array = NDArray[np.float64]


@dataclass(frozen=True)
class Episode:
    """The actions, views and instructions of the robot. T is its number of steps.

    Attributes:
        colour: of the disc.
        instructions: three ways to say the same.
        pose: float64 [T, 6]: x, y and z in metres; roll, pitch and yaw in radians.
        move: float64 [T, 6]: from a step's pose to the next one's; zeros in the last step.
        gripper: float64 [T]: 1 is open, 0 is closed.
        grip: float64 [T]: where the gripper is told to go, 1 or 0.
        camera: int64 [T, 2]: the middle of the views, x and y in pixels of the scene.
        target: int64 [2]: the middle of the disc, as well.
        near: uint8 [H, W, 3]: the scene.
        wide: uint8 [H / 2, W / 2, 3]: the scene at half its size.
    """

    colour: str
    instructions: tuple[str, str, str]
    pose: Float64Array
    move: Float64Array
    gripper: Float64Array
    grip: Float64Array
    camera: NDArray[np.int64]
    target: NDArray[np.int64]
    near: NDArray[np.uint8]
    wide: NDArray[np.uint8]

    def __len__(self) -> int:
        """Number of steps."""
        return len(self.pose)

    def look(self, step: int, height: int, width: int, *, is_wide: bool) -> bytes:
        """Return the view of a camera at a step, a JPEG file; the gripper is in its middle.

        A wide view covers twice the width and height of a near one.
        """
        x, y = (self.camera[step] // 2 if is_wide else self.camera[step]) - (width // 2, height // 2)
        view = (self.wide if is_wide else self.near)[y : y + height, x : x + width]
        file: bytes = simplejpeg.encode_jpeg(
            np.ascontiguousarray(view), quality=_JPEG_QUALITY, colorspace="RGB", colorsubsampling="420"
        )
        return file

    def views(self, shape: tuple[int, int], *, is_wide: bool) -> list[bytes]:
        """Return the view of a camera at every step; shape is height and width."""
        return [self.look(step, *shape, is_wide=is_wide) for step in range(len(self))]


def make_episode(index: int, seed: int) -> Episode:
    """Return episode `index` of an endless series: 70 to 120 steps, about 90 on average."""
    rng = np.random.default_rng([seed, index])
    colour = str(rng.choice(list(COLOURS)))
    target = rng.integers(_LEAST, _MOST)
    camera = _draw_path(target, rng)
    gap = target - camera  # [T, 2]
    is_moving = np.any(np.diff(camera, axis=0, prepend=camera[:1]), axis=1)
    is_arrived = np.arange(len(camera)) >= len(camera) - _NUM_CLOSING
    # The hand turns towards the disc, and is still where it does not move.
    tremble = rng.normal(0.0, _TREMBLE, len(camera))[np.cumsum(is_moving)]
    height = 0.02 + 0.5 * _METRES * np.hypot(*gap.T)
    place = (camera - _MIDDLE) * _METRES
    pose = np.column_stack([place, height, tremble, 2 * _METRES * gap[:, ::-1]])
    closing = np.linspace(1.0, 0.0, _NUM_CLOSING)
    near, wide = _make_scene(LABELS[index % len(LABELS)], target, COLOURS[colour], rng)
    return Episode(
        colour=colour,
        instructions=(f"reach the {colour} disc", f"go to the {colour} disc and take it", f"grasp the {colour} one"),
        pose=pose,
        move=np.diff(pose, axis=0, append=pose[-1:]),
        gripper=np.concatenate([np.ones(len(camera) - _NUM_CLOSING), closing]),
        grip=np.where(is_arrived, 0.0, 1.0),
        camera=camera,
        target=target,
        near=near,
        wide=wide,
    )


def _draw_path(target: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the middle of the camera at every step: int64 [T, 2]."""
    start = target
    while np.any(np.abs(target - start) > _MOST_GAP) or np.hypot(*(target - start)) < _LEAST_DISTANCE:
        start = rng.integers(_LEAST, _MOST)
    path = [start] * (1 + int(rng.integers(0, _MOST_REST + 1)))
    while (distance := np.hypot(*(target - path[-1]))) > _ARRIVED:
        pixels = max(_LEAST_SPEED, _RATE * distance)
        move = (target - path[-1]) / distance * pixels + rng.normal(0.0, _UNSTEADINESS, 2)
        path.append(np.clip(path[-1] + np.rint(move).astype(np.int64), _LEAST, _MOST))
    return np.array(path + [path[-1]] * (_NUM_CLOSING - 1), np.int64)


def _make_scene(
    label: str, target: NDArray[np.int64], colour: tuple[int, int, int], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return a piece of a photograph with the disc on it, whole and at half its size."""
    photograph = load_photograph(label)
    scale = min(photograph.width / _WIDTH, photograph.height / _HEIGHT) * rng.uniform(0.7, 1.0)
    left = rng.uniform(0, photograph.width - _WIDTH * scale)
    top = rng.uniform(0, photograph.height - _HEIGHT * scale)
    box = (left, top, left + _WIDTH * scale, top + _HEIGHT * scale)
    image = photograph.resize((_WIDTH, _HEIGHT), Image.Resampling.BILINEAR, box=box)
    image = ImageEnhance.Color(image.point(draw_tones(rng))).enhance(_COLOUR_LEFT)
    corners = [*(target - _RADIUS), *(target + _RADIUS)]
    ImageDraw.Draw(image).ellipse(corners, fill=colour, outline=(255, 255, 255), width=4)
    first_row = rng.integers(0, len(grain_field(label)) - _HEIGHT)
    grain = grain_field(label)[first_row : first_row + _HEIGHT, :, None]  # [H, W, 1]
    return _add(image, grain), _add(image.reduce(2), grain)


def _add(image: Image.Image, grain: NDArray[np.int16]) -> NDArray[np.uint8]:
    pixels = np.asarray(image) + grain[: image.height, : image.width]  # [H, W, 3] int16
    return np.clip(pixels, 0, 255).astype(np.uint8)


# The features of three well-known sets of robot data


def make_episodes(spec: DemoSpec) -> Content:
    """Return the episodes with the features of the spec's config."""
    describe = _DESCRIPTIONS[str(spec.config)]

    def make_examples(split: str) -> Iterator[tuple[int, Example]]:
        for index in range(spec.split_sizes[split]):
            episode = make_episode(index, spec.seed)
            metadata, columns = describe(episode, index)
            steps = _split({**_make_marks(len(episode)), **columns})
            yield index, {"episode_metadata": metadata, "steps": steps}

    _, first = next(make_examples("train"))  # All have the same features.
    features = {
        "episode_metadata": _feature_of(first["episode_metadata"]),
        "steps": tfds.features.Dataset(_feature_of(first["steps"][0])),
    }
    info = {
        "description": "Episodes of a made-up robot whose camera glides to a coloured disc on a photograph, with the "
        f"features of {spec.config}-like robot data (RLDS). One pixel is a millimetre. The photographs: 'china' by "
        "danielbuechele and 'flower' by vultilion, both CC BY 2.0.",
        "features": tfds.features.FeaturesDict(features),
    }
    return Content(info, make_examples)


def _feature_of(value: Any) -> Any:
    """Return the TFDS feature of a value: JPEG bytes, a text, a number or an array, or a dictionary of these."""
    if isinstance(value, Mapping):
        return {key: _feature_of(inner) for key, inner in value.items()}
    if isinstance(value, bytes):
        with Image.open(io.BytesIO(value)) as image:
            return tfds.features.Image(shape=(image.height, image.width, 3), encoding_format="jpeg")
    if isinstance(value, str):
        return tfds.features.Text()
    array = np.asarray(value)
    return tfds.features.Tensor(shape=array.shape, dtype=array.dtype.type) if array.shape else array.dtype.type


def _make_marks(num_steps: int) -> dict[str, Any]:
    step = np.arange(num_steps)
    is_last = step == num_steps - 1
    marks = {"is_first": step == 0, "is_last": is_last, "is_terminal": is_last}
    return {**marks, "reward": is_last.astype(np.float32), "discount": np.ones(num_steps, np.float32)}


def _split(columns: Values) -> list[dict[str, Any]]:
    """Return a dictionary for each step."""
    inner = {key: _split(value) for key, value in columns.items() if isinstance(value, Mapping)}
    columns = {**columns, **inner}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _join(*parts: Any) -> NDArray[np.float32]:
    """Return columns side by side: float32 [T, sum of their widths]."""
    return np.column_stack(parts).astype(np.float32)


def _repeat(text: str, episode: Episode) -> list[str]:
    return [text] * len(episode)


def _describe_bridge(episode: Episode, index: int) -> tuple[Values, Values]:
    has_language = index % _WITHOUT_LANGUAGE != _WITHOUT_LANGUAGE - 1
    metadata = {
        "episode_id": np.int32(index),
        "file_path": f"made_up/bridge/{index:06d}.npy",
        "has_image_0": True,
        "has_image_1": True,
        "has_language": has_language,
    }
    return metadata, {
        "action": _join(episode.move, episode.grip),
        "language_instruction": _repeat(episode.instructions[0] if has_language else "", episode),
        "observation": {
            "image_0": episode.views(_SQUARE, is_wide=True),
            "image_1": episode.views(_SQUARE, is_wide=False),
            "state": _join(episode.pose, episode.gripper),
        },
    }


def _describe_droid(episode: Episode, index: int) -> tuple[Values, Values]:
    gripper, joints = episode.gripper[:, None], episode.pose @ _JOINTS
    next_gripper = np.concatenate([gripper[1:], gripper[-1:]])
    metadata = {
        "file_path": f"made_up/droid/{index:06d}/trajectory.h5",
        "recording_folderpath": f"made_up/droid/{index:06d}/recordings/MP4",
    }
    return metadata, {
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
            "exterior_image_1_left": episode.views(_FLAT, is_wide=True),
            "gripper_position": gripper,
            "joint_position": joints,
            "wrist_image_left": episode.views(_FLAT, is_wide=False),
        },
    }


def _describe_libero(episode: Episode, index: int) -> tuple[Values, Values]:
    fingers = np.column_stack([episode.gripper, -episode.gripper]) * 0.04
    return {"file_path": f"made_up/libero/{index:06d}.hdf5"}, {
        # As in LIBERO, the gripper is told -1 to open and 1 to close.
        "action": _join(episode.move, 1 - 2 * episode.grip),
        "language_instruction": _repeat(episode.instructions[0], episode),
        "observation": {
            "image": episode.views(_SQUARE, is_wide=True),
            "joint_state": (episode.pose @ _JOINTS).astype(np.float32),
            "state": _join(episode.pose, fingers),
            "wrist_image": episode.views(_SQUARE, is_wide=False),
        },
    }


_DESCRIPTIONS: dict[str, Callable[[Episode, int], tuple[Values, Values]]] = {
    "bridge": _describe_bridge,
    "droid": _describe_droid,
    "libero": _describe_libero,
}
"""Config -> values of `episode_metadata`, and columns of `steps`: key -> the values of all steps, nested."""
