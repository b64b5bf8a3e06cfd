"""Opening a prepared dataset without tensorflow: its features as features.json declares them, and TFDS's builder.

TFDS's own Audio and Video import tensorflow where they are constructed, which is where their dataset is opened. What
features.json says of them is read as the connectors of this module instead; all others are TFDS's.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from tensorflow_datasets.core import dataset_info, read_only_builder
from tensorflow_datasets.core.features import feature as feature_lib
from tensorflow_datasets.core.proto import feature_pb2
from tensorflow_datasets.core.utils import error_utils

from tfds_torch.parsers.tfds.audio_files import decode_audio

_DECLARED = "tensorflow_datasets.core.features."
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # The last one in files of TFDS before 4.3.


def read_features(version_dir: str | os.PathLike[str]) -> Any:
    """Returns the TFDS `FeaturesDict` of a prepared dataset, with the names of its classes.

    Args:
        version_dir: where its features.json is.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged, or a connector of its own cannot be imported.
    """
    features = feature_lib.FeatureConnector.from_proto(_read_proto(version_dir))
    features.load_metadata(os.fspath(version_dir), feature_name=None)
    return features


def open_directory(version_dir: str | os.PathLike[str]) -> Any:
    """Returns the builder of a prepared dataset, as `tfds.builder_from_directory` does.

    Raises:
        Exception: of any kind, as TFDS raises where the files are missing or damaged.
    """
    return DirectoryBuilder(os.fspath(version_dir))


def find_version_dir(name: str, data_dir: str | os.PathLike[str] | None, **arguments: Any) -> str | None:
    """Returns the version directory of a prepared dataset, found as `tfds.builder` finds it; None: there is none.

    Args:
        name: of the dataset, alone.
        data_dir: the root; None: TFDS's own.
        arguments: `config` and `version`, where they are asked for.

    Raises:
        ValueError: it is there several times, in other data dirs of TFDS.
    """
    with error_utils.record_error_context():
        found = read_only_builder._find_builder_dir(name, data_dir=data_dir, **arguments)
    return None if found is None else os.fspath(found)


class DirectoryBuilder(read_only_builder.ReadOnlyBuilder, skip_registration=True):  # type: ignore[misc, call-arg]
    """TFDS's builder of a prepared dataset, with the features of `read_features`. Can be pickled.

    Args:
        builder_dir: the version directory.
    """

    def __init__(self, builder_dir: str) -> None:
        proto = dataset_info.read_proto_from_builder_dir(builder_dir)
        if feature_lib.make_config_path(builder_dir).exists():
            proto.features.CopyFrom(_read_proto(builder_dir))
        super().__init__(builder_dir=builder_dir, info_proto=proto)


class Video(tfds.features.Sequence):  # type: ignore[misc]
    """A video, stored as encoded frames; what `tfds.features.Video` is to a reader.

    Args:
        shape: frames, height, width, channels; None where a side varies.
        dtype: of the frames.
        encoding_format: of the frames.
        use_colormap: for TFDS's tables.
    """

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: Any = np.uint8,
        encoding_format: str | None = None,
        use_colormap: bool = False,
    ) -> None:
        frames, *frame_shape = shape
        image = tfds.features.Image(
            shape=tuple(frame_shape), dtype=dtype, encoding_format=encoding_format, use_colormap=use_colormap
        )
        super().__init__(image, length=frames)

    @classmethod
    def from_json_content(cls, value: Any) -> "Video":
        """Returns what features.json declares."""
        if isinstance(value, dict):
            return cls(tuple(value["shape"]), encoding_format=value["encoding_format"])
        return cls(
            feature_lib.from_shape_proto(value.shape),
            feature_lib.dtype_from_str(value.dtype or "uint8"),
            value.encoding_format or None,
            value.use_colormap,
        )

    def to_json_content(self) -> Any:
        """Returns the declaration of `tfds.features.Video`."""
        image = self.feature
        return feature_pb2.VideoFeature(
            shape=feature_lib.to_shape_proto(self.shape),
            dtype=feature_lib.dtype_to_str(image.np_dtype),
            encoding_format=image.encoding_format,
            use_colormap=image.use_colormap,
        )


class Audio(tfds.features.Tensor):  # type: ignore[misc]
    """Samples of audio; what `tfds.features.Audio` is to a reader.

    Args:
        shape: samples, or samples and channels.
        dtype: of a sample.
        encoding: of the stored samples, as `tfds.features.Tensor` has it.
        sample_rate: in Hz; None or 0: not declared.
        file_format: of the files that the samples come from.
        serialized: how they are stored, where that is not as samples.
    """

    def __init__(
        self,
        shape: Sequence[int | None],
        dtype: Any,
        encoding: str = "none",
        sample_rate: int | None = None,
        file_format: str | None = None,
        **serialized: Any,
    ) -> None:
        super().__init__(shape=shape, dtype=dtype, encoding=encoding, **serialized)
        self.sample_rate = sample_rate
        self.file_format = file_format

    @classmethod
    def from_json_content(cls, value: Any) -> "Audio":
        """Returns what features.json declares."""
        if not isinstance(value, dict):
            value = {
                "shape": feature_lib.from_shape_proto(value.shape),
                **{key: getattr(value, key) for key in ("dtype", "encoding", "sample_rate", "file_format")},
                "lazy_decode": value.lazy_decode,
            }
        arguments = {key: value.get(key) or None for key in ("sample_rate", "file_format")}
        kind = AudioFile if value.get("lazy_decode") else Audio
        return kind(
            tuple(value["shape"]),
            feature_lib.dtype_from_str(value["dtype"]) if isinstance(value["dtype"], str) else value["dtype"],
            (value.get("encoding") or "none").lower(),
            **arguments,
        )

    def to_json_content(self) -> Any:
        """Returns the declaration of `tfds.features.Audio`."""
        return feature_pb2.AudioFeature(
            shape=feature_lib.to_shape_proto(self.shape),
            dtype=feature_lib.dtype_to_str(self.np_dtype),
            file_format=self.file_format,
            sample_rate=self.sample_rate,
            encoding=self._encoding.name,
            lazy_decode=isinstance(self, AudioFile),
        )


class AudioFile(Audio):
    """Audio that is stored as the bytes of a file, and decoded where it is read (`lazy_decode=True`)."""

    def __init__(self, shape: Sequence[int | None], dtype: Any, encoding: str = "none", **arguments: Any) -> None:
        super().__init__(shape, dtype, encoding, **arguments, serialized_dtype=np.object_, serialized_shape=())

    def decode_example_np(self, example_data: bytes) -> Any:
        """Returns samples of `dtype`: [samples], or [samples, channels] where channels are declared.

        Raises:
            ValueError: the file is not one of audio.
            ConfigError: a package is missing that reads such files.
        """
        shape = self.shape
        samples = decode_audio(example_data, shape[1] if len(shape) > 1 else None)
        return samples.astype(self.np_dtype)


_OWN = {f"{_DECLARED}video_feature.Video": Video, f"{_DECLARED}audio_feature.Audio": Audio}
"""TFDS's name of a connector -> what it is read as."""


def _read_proto(version_dir: str | os.PathLike[str]) -> Any:
    """Returns the `Feature` message of a features.json."""
    declared = _replace_classes(json.loads(feature_lib.make_config_path(version_dir).read_text()))
    if "type" in declared:
        return feature_lib.FeatureConnector.from_json(declared).to_proto()
    return json_format.ParseDict(declared, feature_pb2.Feature())


def _replace_classes(declared: Any) -> Any:
    if isinstance(declared, list):
        return [_replace_classes(inner) for inner in declared]
    if not isinstance(declared, dict):
        return declared
    replaced = {key: _replace_classes(inner) for key, inner in declared.items()}
    for key in _CLASS_KEYS:
        if isinstance(name := declared.get(key), str) and name in _OWN:
            replaced[key] = f"{__name__}.{_OWN[name].__name__}"
    return replaced
