"""Datasets of robots as RLDS stores them, built by TFDS itself, and the episodes that TFDS reads from them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds
from run_folder import built_once, computed_once
from tfds_fixtures import iterate_tfds
from zygote import tensorflow_zygote

LENGTHS = {"bridge_like": (5, 38, 1, 12), "droid_like": (70, 3, 9), "libero_like": (20, 7, 1, 1, 26)}
"""Steps of the episodes of each dataset."""


def draw_frame(number: int, side: int = 16, channels: int = 3) -> np.ndarray:
    """Returns uint8 [side, side, channels]."""
    y, x, c = np.mgrid[:side, :side, :channels]
    return (x * 3 + y * 4 + c * 20 + number * 13 % 97).astype(np.uint8)


def _image(side: int = 16, channels: int = 3, encoding: str = "png", dtype: Any = np.uint8) -> Any:
    return tfds.features.Image(shape=(side, side, channels), dtype=dtype, encoding_format=encoding)


def _flags() -> dict[str, Any]:
    return {
        **dict.fromkeys(("is_first", "is_last", "is_terminal"), np.bool_),
        "reward": np.float32,
        "discount": np.float32,
        "language_instruction": tfds.features.Text(),
    }


def _vector(size: int, dtype: Any = np.float32, **options: Any) -> Any:
    return tfds.features.Tensor(shape=(size,), dtype=dtype, **options)


def bridge_features() -> Any:
    """The features of Bridge: four cameras, of which episodes may lack some, and an embedding of the instruction."""
    cameras = {f"image_{number}": _image(encoding="jpeg") for number in range(2)}
    return tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": {**cameras, "state": _vector(7)},
                    "action": _vector(7),
                    "language_embedding": _vector(512),
                    **_flags(),
                }
            ),
            "episode_metadata": {
                "file_path": tfds.features.Text(),
                "episode_id": np.int32,
                "has_image_0": np.bool_,
            },
        }
    )


def droid_features() -> Any:
    """The features of DROID: nested actions in float64, and values that are stored with an encoding."""
    f = tfds.features
    return f.FeaturesDict(
        {
            "steps": f.Dataset(
                {
                    "observation": {
                        "wrist_image_left": _image(8),
                        "exterior_image_1_left": _image(),
                        "depth": _image(4, 1, dtype=np.uint16),
                        "grey": _image(4, 1),
                        "cartesian_position": _vector(6, np.float64),
                        "gripper_position": _vector(1, np.float64),
                    },
                    "action_dict": {
                        "joint_velocity": _vector(7, np.float64),
                        "zipped": _vector(3, np.int32, encoding="zlib"),
                    },
                    "action": _vector(7, np.float64),
                    "language_instruction_2": f.Text(),
                    "phase": f.ClassLabel(num_classes=5),
                    "counter": np.int64,
                    "objects": f.Sequence({"box": f.BBoxFeature(), "name": f.Text(), "crop": _image(4)}),
                    **_flags(),
                }
            ),
            "counter": np.int64,  # A step has one, too, which comes first.
            "episode_metadata": {
                "file_path": f.Text(),
                "tags": f.Sequence(f.Text()),
                "codes": f.Sequence(np.int64),
                "marks": f.Sequence({"at": np.int64}),
                "number": np.int64,
            },
        }
    )


def libero_features() -> Any:
    """The features of LIBERO."""
    return tfds.features.FeaturesDict(
        {
            "steps": tfds.features.Dataset(
                {
                    "observation": {
                        "image": _image(),
                        "wrist_image": _image(),
                        "state": _vector(8),
                        "joint": _vector(7),
                    },
                    "action": _vector(7),
                    "code": tfds.features.Tensor(shape=(), dtype=np.object_),
                    **_flags(),
                }
            ),
            "episode_metadata": {"file_path": tfds.features.Text()},
        }
    )


FEATURES = {"bridge_like": bridge_features, "droid_like": droid_features, "libero_like": libero_features}


def _value(feature: Any, number: int) -> Any:
    """Returns a value of a feature that depends on a number."""
    f = tfds.features
    numbers = np.random.default_rng(number)
    if isinstance(feature, f.FeaturesDict):
        return {key: _value(inner, number * 31 + at) for at, (key, inner) in enumerate(sorted(feature.items()))}
    if isinstance(feature, f.Image):
        pixels = draw_frame(number, *feature.shape[1:])
        return pixels.astype(np.uint16) * 257 if feature.np_dtype == np.uint16 else pixels
    if isinstance(feature, f.Sequence):
        return [_value(feature.feature, number + at) for at in range(number % 4)]
    if isinstance(feature, f.BBoxFeature):
        return f.BBox(0.1, 0.2, 0.3 + number % 5 / 10, 0.9)
    if isinstance(feature, f.Text):
        return "" if number % 5 == 0 else f"grün, number {number}"
    if isinstance(feature, f.ClassLabel):
        return number % feature.num_classes
    dtype = np.dtype(feature.np_dtype)
    if dtype.kind == "O":
        return f"grün, code {number}".encode()
    if dtype.kind == "f":
        return numbers.normal(size=feature.shape).astype(dtype)
    if dtype.kind == "b":
        return np.bool_(number % 3 == 0)
    if dtype.kind == "u":
        return numbers.integers(0, np.iinfo(dtype).max, feature.shape, dtype, endpoint=True)
    return numbers.integers(-(2 ** (8 * dtype.itemsize - 1)), 2 ** (8 * dtype.itemsize - 1), feature.shape, dtype)


def make_episode(features: Any, num_steps: int, number: int) -> dict[str, Any]:
    """Returns an episode as TFDS encodes it."""
    steps = features["steps"].feature
    first = 1000 * number
    return {
        "steps": [_value(steps, first + step) for step in range(num_steps)],
        **{key: _value(feature, first) for key, feature in features.items() if key != "steps"},
    }


def write_dataset(
    root: str, dataset: str, features: Any, lengths: Sequence[int], file_format: str = "tfrecord"
) -> None:
    """Writes a dataset of episodes, in two shards where there are several."""

    class Robot(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
        name = dataset
        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            return tfds.core.DatasetInfo(builder=self, features=features)

        def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[Any]]:
            return {"train": ((number, make_episode(features, n, number)) for number, n in enumerate(lengths))}

        def _generate_examples(self) -> Iterator[Any]:
            raise NotImplementedError

    tfds.disable_progress_bar()
    builder = Robot(data_dir=root, file_format=file_format)
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=min(2, len(lengths)), try_download_gcs=False)
    )


def write_dataset_of(name: str, root: str, file_format: str = "tfrecord") -> None:
    """Writes one of the datasets of `LENGTHS`."""
    write_dataset(root, name, FEATURES[name](), LENGTHS[name], file_format)


def write_datasets(root: str) -> None:
    """Writes the datasets of `LENGTHS`."""
    for name in FEATURES:
        write_dataset_of(name, root)


def read_episodes(root: str, name: str, split: str = "train") -> list[dict[str, Any]]:
    """Returns what TFDS reads: `steps` is a list of steps."""
    return [
        {key: _plain(value) if key != "steps" else [_plain(step) for step in value] for key, value in episode.items()}
        for episode in iterate_tfds(root, name, split)
    ]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    return value.to_list() if hasattr(value, "to_list") else value


@dataclass(frozen=True)
class Robots:
    """Datasets of robots.

    Attributes:
        root: TFDS data directory.
        episodes: name -> episodes as TFDS reads them.
    """

    root: Path
    episodes: Mapping[str, list[dict[str, Any]]]


@pytest.fixture(scope="session")
def robots(tmp_path_factory: pytest.TempPathFactory) -> Robots:
    """The datasets, built once per run."""

    def write(folder: Path) -> None:
        tensorflow_zygote().call(write_datasets, str(folder))

    def read() -> dict[str, list[dict[str, Any]]]:
        return {name: tensorflow_zygote().call(read_episodes, str(root), name) for name in LENGTHS}

    root = built_once(tmp_path_factory, "robots", write, sources=[Path(__file__)])
    return Robots(root, computed_once(tmp_path_factory, "episodes", read))


def value_at(step: Any, key: str) -> Any:
    """Returns the value of a feature by its key."""
    for part in key.split("/"):
        step = step[part]
    return step


def shard_paths(root: Path, name: str) -> list[Path]:
    """Returns the shards of a dataset, in order."""
    return sorted((root / name / "1.0.0").glob("*-of-*"))
