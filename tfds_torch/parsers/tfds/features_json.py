"""The features of a prepared dataset as features.json declares them, without tensorflow; and where a dataset lies.

TFDS's own Audio and Video import tensorflow when they are constructed, that is when their dataset is opened. What
features.json declares as these is read as the connectors of this module; all others are TFDS's.
"""

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from tensorflow_datasets.core import read_only_builder
from tensorflow_datasets.core.features import feature as feature_lib
from tensorflow_datasets.core.proto import feature_pb2
from tensorflow_datasets.core.utils import error_utils

from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.source import is_local

_DECLARED = "tensorflow_datasets.core.features."
MOST_BYTES = 64 * 2**20
"""The largest file of metadata: 2,000,000 shards take half of it."""
MOST_CLASSES = 2**22
_DEEPEST = 200  # JSON objects and lists; protobuf itself takes 100 messages.
_LONGEST_TYPE = 32  # Characters.
_TYPES_OF_ML_DTYPES = ("bfloat16", "int4", "uint4", "float8_e5m2", "float8_e4m3fn")
_TYPES_OF_TFDS = ("string", "half", "double", "resource", "variant", "qint8", "quint8", "qint16", "quint16", "qint32")
"""Types that numpy alone does not know; for most of them TFDS imports tensorflow."""
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # The last one in files of TFDS before 4.3.


def read_features(version_dir: str | os.PathLike[str]) -> Any:
    """Returns the TFDS `FeaturesDict` of a prepared dataset, with the names of its classes.

    Raises:
        OSError: it cannot be read.
        ValueError: it is damaged or absurd, or a connector of its own cannot be imported.
    """
    declared = _replace_classes(read_json(feature_lib.make_config_path(version_dir)))
    if "type" in declared:
        features = feature_lib.FeatureConnector.from_json(declared)
    else:
        features = feature_lib.FeatureConnector.from_proto(json_format.ParseDict(declared, feature_pb2.Feature()))
    load_class_names(features, version_dir)
    return features


def load_class_names(features: Any, version_dir: str | os.PathLike[str]) -> None:
    """Gives features the names of their classes, as far as files of a version directory have them.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is too large to be one of names, or is not UTF-8.
    """
    _check_class_names(version_dir)
    features.load_metadata(os.fspath(version_dir), feature_name=None)


def find_version_dir(name: str, data_dir: str | os.PathLike[str] | None, **arguments: Any) -> str | None:
    """Returns the version directory of a prepared dataset, found as `tfds.builder` finds it; None: there is none.

    Raises:
        ValueError: it is there several times, in other data dirs of TFDS.
    """
    with error_utils.record_error_context():
        found = read_only_builder._find_builder_dir(name, data_dir=data_dir, **arguments)
    return None if found is None else os.fspath(found)


class Video(tfds.features.Sequence):  # type: ignore[misc]
    """A video, stored as encoded frames; what `tfds.features.Video` is to a reader."""

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
        """Makes the feature that features.json declares."""
        if isinstance(value, dict):
            return cls(tuple(value["shape"]), encoding_format=value["encoding_format"])
        return cls(
            feature_lib.from_shape_proto(value.shape),
            feature_lib.dtype_from_str(value.dtype or "uint8"),
            value.encoding_format or None,
            value.use_colormap,
        )


class Audio(tfds.features.Tensor):  # type: ignore[misc]
    """Samples of audio; what `tfds.features.Audio` is to a reader."""

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
        """Makes the feature that features.json declares."""
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


class AudioFile(Audio):
    """Audio that is stored as the bytes of a file, and decoded where it is read (`lazy_decode=True`)."""

    def __init__(self, shape: Sequence[int | None], dtype: Any, encoding: str = "none", **arguments: Any) -> None:
        super().__init__(shape, dtype, encoding, **arguments, serialized_dtype=np.object_, serialized_shape=())


_OWN = {f"{_DECLARED}video_feature.Video": Video, f"{_DECLARED}audio_feature.Audio": Audio}
"""TFDS's name of a connector -> what it is read as."""


def read_json(path: os.PathLike[str]) -> dict[str, Any]:
    """Returns a JSON object of TFDS's metadata.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not such an object, or larger than any of TFDS's.
    """
    file = tfds.core.Path(path)
    num_bytes = _size_of(file)
    if num_bytes > MOST_BYTES:
        raise ValueError(f"{file.name} has {num_bytes:,} bytes, and {MOST_BYTES:,} is the most")
    try:
        declared = json.loads(file.read_text())
    except RecursionError:
        raise ValueError(f"{file.name} is nested too deeply") from None
    if not isinstance(declared, dict):
        raise ValueError(f"{file.name} is not a JSON object")
    return declared


def _size_of(file: Any) -> int:
    """Returns a file's size in bytes; TFDS's `stat` also asks for its owner's name, which a container may not know."""
    path = os.fspath(file)
    return os.stat(path).st_size if is_local(path) else int(file.stat().length)


def _check_class_names(version_dir: str | os.PathLike[str]) -> None:
    """Raises ValueError where a file of class names is too large to be one, or not the UTF-8 that TFDS reads."""
    for file in tfds.core.Path(version_dir).glob("*.labels.txt"):
        num_bytes = _size_of(file)
        if num_bytes > MOST_BYTES:
            raise ValueError(f"{file.name} has {num_bytes:,} bytes, and {MOST_BYTES:,} is the most")
        content = file.read_bytes()
        if (num_lines := content.count(b"\n")) > MOST_CLASSES:
            raise ValueError(f"{file.name} has {num_lines:,} class names, and {MOST_CLASSES:,} is the most")
        try:
            has_mark = content.decode().startswith("\ufeff")
        except UnicodeDecodeError as error:  # TFDS would have the names "0", "1", ...
            raise ValueError(f"{file.name} is not UTF-8 (byte {error.start}): save its class names as UTF-8") from None
        if has_mark:
            raise ValueError(f"{file.name} begins with a byte order mark: save it as UTF-8 without one")


def _replace_classes(declared: Any, depth: int = 0) -> Any:
    """Returns a declaration with connectors of this module; raises ValueError where a value is absurd."""
    if depth > _DEEPEST:
        raise ValueError(f"features.json is nested more than {_DEEPEST} levels deep")
    if isinstance(declared, list):
        return [_replace_classes(inner, depth + 1) for inner in declared]
    if not isinstance(declared, dict):
        return declared
    replaced = {key: _replace_classes(inner, depth + 1) for key, inner in declared.items()}
    for key, value in declared.items():
        if key in _CLASS_KEYS and isinstance(value, str) and value in _OWN:
            replaced[key] = f"{__name__}.{_OWN[value].__name__}"
        elif key == "dtype" and isinstance(value, str):
            _check_dtype(value)
        elif key in ("numClasses", "num_classes"):
            _check_num_classes(value)
    return replaced


def _check_dtype(name: str) -> None:
    """Raises ValueError for a type that neither numpy nor TFDS knows: TFDS itself would import tensorflow to say so."""
    if name in _TYPES_OF_ML_DTYPES:
        import ml_dtypes  # noqa: F401 (numpy knows these names from then on, and TFDS imports no tensorflow)
    if name in _TYPES_OF_ML_DTYPES or name in _TYPES_OF_TFDS:
        return
    try:
        is_type = len(name) <= _LONGEST_TYPE and np.dtype(name).shape == () and np.dtype(name).names is None
    except (TypeError, ValueError, SyntaxError):
        is_type = False
    if not is_type:
        raise ValueError(f"features.json has the dtype {quoted(name)}, which is not a type of numpy or TFDS")


def _check_num_classes(value: Any) -> None:
    text = str(value)[:_LONGEST_TYPE]
    if not text.isdecimal() or int(text) > MOST_CLASSES:
        raise ValueError(f"features.json declares {quoted(value)} classes, and {MOST_CLASSES:,} is the most")
