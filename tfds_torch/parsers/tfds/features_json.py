"""features.json and the files of class names, as TFDS's connectors, without tensorflow.

TFDS's own Audio and Video import tensorflow when they are constructed, which happens when their dataset is opened. This
module has its own connectors for these two; all other connectors that features.json declares are TFDS's.
"""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from tensorflow_datasets.core.features import feature as feature_lib
from tensorflow_datasets.core.proto import feature_pb2

from tfds_torch.errors import DatasetNotFoundError
from tfds_torch.parsers.tfds.folder import FEATURES, DamagedError, Folder, one_line
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.remote.store import RefusedError

MOST_CLASSES = 2**22

_logger = logging.getLogger(__name__)
_DEEPEST = 200  # JSON objects and lists; protobuf itself takes 100 messages.
_LONGEST_TYPE = 32  # Characters.
_MOST_SHOWN = 5
_TYPES_OF_ML_DTYPES = ("bfloat16", "int4", "uint4", "float8_e5m2", "float8_e4m3fn")
_TYPES_OF_TFDS = ("string", "half", "double", "resource", "variant", "qint8", "quint8", "qint16", "quint16", "qint32")
"""Types that numpy alone does not know; for most of them TFDS imports tensorflow."""
_TYPED = ("TensorFeature", "ImageFeature")
_OF_TFDS = "tensorflow_datasets."
_CLASS_KEYS = ("pythonClassName", "python_class_name", "type")  # The last one is in files of TFDS before 4.3.
_CONTENTS = {
    name
    for field in feature_pb2.Feature.DESCRIPTOR.oneofs_by_name["content"].fields
    for name in (field.name, field.json_name)
}


def read_connectors(folder: Folder, declared: Mapping[str, Any]) -> Any:
    """Return the TFDS `FeaturesDict` that features.json declares, with the names of its classes.

    Args:
        folder: the folder of the dataset, which has the files of class names.
        declared: the content of features.json.

    Raises:
        DamagedError: the file is damaged or absurd.
        DatasetNotFoundError: a newer TFDS wrote it, or the dataset's own connector cannot be imported or made.
        UnreadableError, ShardError: a file of class names cannot be read.
    """
    classes: set[str] = set()
    unknown: list[str] = []
    try:
        declared = _replace_classes(declared, classes)
        if "type" not in declared:
            declared, unknown = without_unknown(declared, feature_pb2.Feature.DESCRIPTOR)
    except ValueError as error:
        raise DamagedError.of(folder, FEATURES, str(error)) from None
    except _NewerError as error:
        raise DatasetNotFoundError(f"The dataset in {folder} cannot be opened: {error} {_UPGRADE}") from None
    for name in sorted(classes):
        _check_class(folder, name)
    features = _make(folder, declared, classes)
    warn_of_keys(folder, FEATURES, unknown)
    _load_class_names(folder, features)
    return features


def _make(folder: Folder, declared: Mapping[str, Any], classes: set[str]) -> Any:
    try:
        if "type" in declared:
            features = feature_lib.FeatureConnector.from_json(declared)
        else:
            features = feature_lib.FeatureConnector.from_proto(json_format.ParseDict(declared, feature_pb2.Feature()))
        if not isinstance(features.get_serialized_info(), Mapping):
            raise TypeError(f"an example is not a dictionary of features but {quoted(features)}")
        return features
    except Exception as error:  # TFDS does not check its metadata: a damaged file may raise anything.
        what = f"The dataset in {folder} cannot be opened: making the features of its {FEATURES} raises"
        if isinstance(error, ImportError | MemoryError | OSError):
            raise DatasetNotFoundError(
                f"{what} {one_line(error)}. Open it again when the machine has what is missing: the file is not the "
                f"cause."
            ) from error
        own = sorted(name for name in classes if not name.startswith((_OF_TFDS, __name__)))
        if own and not isinstance(error, json_format.ParseError):
            raise DatasetNotFoundError(
                f"{what} {one_line(error)}, and it has connectors of its own: {_shown(own)}. Install the version of "
                f"their code that prepared the dataset, or prepare it again."
            ) from error
        raise DamagedError.of(folder, FEATURES, error) from error


def _replace_classes(declared: Any, classes: set[str], depth: int = 0) -> Any:
    """Return a declaration with this module's connectors, and note the classes; raise ValueError for absurd values."""
    if depth > _DEEPEST:
        raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
    if isinstance(declared, list):
        return [_replace_classes(inner, classes, depth + 1) for inner in declared]
    if not isinstance(declared, dict):
        return declared
    replaced = {key: _replace_classes(inner, classes, depth + 1) for key, inner in declared.items()}
    for key, value in declared.items():
        if key in _CLASS_KEYS and isinstance(value, str) and (key != "type" or "content" in declared):
            own = _REPLACED.get(value)
            replaced[key] = value if own is None else f"{__name__}.{own.__name__}"
            classes.add(replaced[key])
        elif key == "dtype" and isinstance(value, str):
            _check_dtype(value)
        elif key in ("numClasses", "num_classes"):
            text = str(value)[:_LONGEST_TYPE]
            if not text.isdecimal() or int(text) > MOST_CLASSES:
                raise ValueError(f"it declares {quoted(value)} classes, and {MOST_CLASSES:,} is the most")
    return replaced


def _check_dtype(name: str) -> None:
    """Raise ValueError for a type that neither numpy nor TFDS knows: TFDS itself would import tensorflow to say so."""
    if name in _TYPES_OF_ML_DTYPES:
        import ml_dtypes  # noqa: F401 (numpy knows these names from then on, and TFDS imports no tensorflow)
    if name in _TYPES_OF_ML_DTYPES or name in _TYPES_OF_TFDS:
        return
    try:
        is_type = len(name) <= _LONGEST_TYPE and np.dtype(name).shape == () and np.dtype(name).names is None
    except (TypeError, ValueError, SyntaxError):
        is_type = False
    if not is_type:
        raise ValueError(f"it has the dtype {quoted(name)}, which is not a type of numpy or TFDS")


def _check_class(folder: Folder, name: str) -> None:
    """Raise DatasetNotFoundError unless a connector's class can be imported; a dataset's own class runs its code."""
    try:
        feature_lib.FeatureConnector.cls_from_name(name)
    except Exception as error:  # The code of a dataset may raise anything.
        cause = error.__cause__ or error
        missing = cause.name if isinstance(cause, ImportError) else None
        what = f"The dataset in {folder} cannot be opened: its {FEATURES} has the connector {quoted(name)}, which"
        if name.startswith(_OF_TFDS) and (missing is None or missing.startswith(_OF_TFDS)):
            raise DatasetNotFoundError(f"{what} TFDS {tfds.__version__} lacks. {_UPGRADE}") from error
        raise DatasetNotFoundError(
            f"{what} cannot be imported ({one_line(cause)}). Install the package that has it, or put the folder of its "
            f"module on PYTHONPATH."
        ) from error


class Video(tfds.features.Sequence):  # type: ignore[misc]
    """A video that is stored as encoded frames: the part of `tfds.features.Video` that a reader needs."""

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
        """Make the feature that features.json declares."""
        if isinstance(value, dict):
            return cls(tuple(value["shape"]), encoding_format=value["encoding_format"])
        return cls(
            feature_lib.from_shape_proto(value.shape),
            feature_lib.dtype_from_str(value.dtype or "uint8"),
            value.encoding_format or None,
            value.use_colormap,
        )


class Audio(tfds.features.Tensor):  # type: ignore[misc]
    """Samples of audio: the part of `tfds.features.Audio` that a reader needs."""

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
        """Make the feature that features.json declares."""
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


_REPLACED = {
    "tensorflow_datasets.core.features.video_feature.Video": Video,
    "tensorflow_datasets.core.features.audio_feature.Audio": Audio,
}
"""TFDS's name of a connector -> the class that it is read as."""


# Keys of a newer TFDS

_UPGRADE = "A newer one wrote this file: pip install --upgrade tensorflow-datasets."


class _NewerError(Exception):
    """A feature whose content is of a kind that this TFDS does not know; the message is a sentence."""


def without_unknown(declared: Any, message: Any) -> tuple[Any, list[str]]:
    """Return a declaration without the keys that a message of TFDS lacks, and the paths of these keys.

    Args:
        declared: the message in JSON.
        message: the protobuf descriptor of the message.

    Raises:
        ValueError: a tensor or an image has no type.
    """
    unknown: list[str] = []
    return _keep_known(declared, message, "", unknown), unknown


def _keep_known(declared: Any, message: Any, path: str, unknown: list[str]) -> Any:
    """Return the declaration at a path without the keys that a message of TFDS lacks, and note their paths."""
    if not isinstance(declared, dict):
        return declared
    fields = {name: field for field in message.fields for name in (field.name, field.json_name)}
    known: dict[str, Any] = {}
    for key, value in declared.items():
        place = f"{path}/{key}" if path else key
        if key not in fields:
            unknown.append(place)
            continue
        kind = fields[key].message_type
        is_map = kind is not None and kind.GetOptions().map_entry
        inner = kind.fields_by_name["value"].message_type if is_map else kind
        if inner is None or not inner.full_name.startswith(_OF_TFDS):  # Schemas and statistics are large, and unused.
            known[key] = value
        elif is_map and isinstance(value, dict):
            known[key] = {name: _keep_known(one, inner, f"{place}/{name}", unknown) for name, one in value.items()}
        elif isinstance(value, list):
            known[key] = [_keep_known(one, inner, f"{place}/{number}", unknown) for number, one in enumerate(value)]
        else:
            known[key] = _keep_known(value, inner, place, unknown)
    if message.name in _TYPED and not known.get("dtype"):  # TFDS itself would import tensorflow to say so.
        raise ValueError(f"{quoted(path)} has no dtype")
    lacking = [key for key in declared if key not in fields]
    if lacking and message.full_name == feature_pb2.Feature.DESCRIPTOR.full_name and not _CONTENTS & known.keys():
        raise _NewerError(
            f"TFDS {tfds.__version__} knows no content of a feature of its {FEATURES}, {quoted(path)}: its keys are "
            f"{_shown(lacking)}."
        )
    return known


def warn_of_keys(folder: Folder, file: str, keys: Sequence[str]) -> None:
    """Log that keys of a file are ignored, if there are any."""
    if keys:
        _warn_once(
            f"{folder}: {file} has keys that TFDS {tfds.__version__} does not know, and that are ignored: "
            f"{_shown(keys)}. A newer TFDS wrote it: see there whether they matter to you."
        )


def _shown(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_SHOWN:,} others" if len(names) > _MOST_SHOWN else ""
    return ", ".join(map(quoted, names[:_MOST_SHOWN])) + more


@cache
def _warn_once(text: str) -> None:
    """Log a warning, once a process: a dataset is often opened several times."""
    _logger.warning("%s", text)


# Names of classes


def _load_class_names(folder: Folder, features: Any) -> None:
    """Give labels the names of their classes, as far as there are files of them."""
    labels = list(_labels(folder, features, None))
    folder.expect([file for file, _ in labels])
    for file, label in labels:
        names = _read_class_names(folder, file)
        if names and label.num_classes not in (None, 0, len(names)):
            raise DamagedError.of(
                folder, file, f"{FEATURES} declares {label.num_classes} classes, and it has {len(names)} names"
            )
        if names is not None:
            with contextlib.suppress(ValueError):  # Like TFDS, which accepts names that come twice.
                label.names = names


def _labels(folder: Folder, feature: Any, name: str | None) -> Iterator[tuple[str, Any]]:
    """Yield (file of class names, label) for each label of a feature.

    A connector that reads files in its own way reads them here, and yields nothing.
    """
    if type(feature).load_metadata not in _LOADS:
        if folder.is_local:
            with contextlib.suppress(Exception):  # Like TFDS, which drops the errors of all features.
                feature.load_metadata(folder.path, feature_name=name)
    elif isinstance(feature, tfds.features.Sequence):
        yield from _labels(folder, feature.feature, name)
    elif isinstance(feature, tfds.features.FeaturesDict):
        for child, one in feature.items():
            yield from _labels(folder, one, feature_lib.convert_feature_name_to_filename(child, name))
    elif isinstance(feature, tfds.features.ClassLabel | tfds.features.LabeledImage):
        label = feature if isinstance(feature, tfds.features.ClassLabel) else feature._class_label
        yield tfds.features.ClassLabel.get_names_filepath("", name).name, label


_LOADS = {
    kind.load_metadata
    for kind in (
        tfds.features.FeatureConnector,
        tfds.features.FeaturesDict,
        tfds.features.Sequence,
        tfds.features.ClassLabel,
        tfds.features.LabeledImage,
        tfds.features.Text,
    )
}
"""TFDS's own ways to read the files of a feature: names of classes, or none."""


def _read_class_names(folder: Folder, file: str) -> list[str] | None:
    try:
        content = folder.read(file)
    except RefusedError:  # Where objects may not be listed, stores answer so for missing objects, too.
        return None
    if content is None:
        return None
    if (num_lines := content.count(b"\n")) > MOST_CLASSES:
        raise DamagedError.of(folder, file, f"{num_lines:,} class names, and {MOST_CLASSES:,} is the most")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:  # TFDS would have the names "0", "1", ...
        reason = f"is not UTF-8 (byte {error.start}): save its class names as UTF-8"
    else:
        if not text.startswith("\ufeff"):
            return [name.strip() for name in text.replace("\r", "\n").split("\n") if name.strip()]
        reason = "begins with a byte order mark: save it as UTF-8 without one"
    raise DatasetNotFoundError(f"The dataset in {folder} cannot be opened: {file} {reason}.")
