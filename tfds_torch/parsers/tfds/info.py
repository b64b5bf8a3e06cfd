"""A prepared dataset as its files describe it: dataset_info.json is read here, and every value in it checked.

TFDS's own builder reads that file twice through protobuf's JSON parser, value by value, and believes what it finds.
"""

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow_datasets as tfds
from google.protobuf import json_format  # type: ignore[import-untyped, unused-ignore]
from tensorflow_datasets.core import constants
from tensorflow_datasets.core.features import feature as feature_lib
from tensorflow_datasets.core.proto import feature_pb2

from tfds_torch.parsers.tfds.features_json import read_features, read_json
from tfds_torch.parsers.tfds.shard_names import NamedSplit
from tfds_torch.runtime.printable import quoted

MOST_EXAMPLES = 2**48
"""The most examples of all splits together: sample keys of 32,768 passes fit into 64 bits."""

_MOST_SPLITS = 10_000
_LONGEST_NAME = 200  # Characters, of a dataset, config, version or split.
_MOST_DIGITS = 19


@dataclass(frozen=True, eq=False)
class Prepared:
    """The metadata of a version directory. It can be pickled."""

    name: str
    config_name: str
    version: str
    file_format: str
    features: Any
    splits: Any

    @property
    def full_name(self) -> str:
        """`name/config:version`, or `name:version` without a config."""
        config = f"/{self.config_name}" if self.config_name else ""
        return f"{self.name}{config}:{self.version}"


def read_prepared(version_dir: str | os.PathLike[str]) -> Prepared:
    """Returns the metadata of a version directory. It imports neither code of the dataset nor tensorflow.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged, or holds a value that cannot be.
    """
    folder = os.fspath(version_dir)
    info = read_json(tfds.core.Path(folder) / constants.DATASET_INFO_FILENAME)
    name, version = _name(info, "name"), _name(info, "version")
    tfds.core.Version(version)
    if blocked := _field(info, "isBlocked", str, ""):
        raise ValueError(f"TFDS blocks it: {quoted(blocked)}")
    file_format = _field(info, "fileFormat", str, "") or "tfrecord"
    template = tfds.core.ShardedFileTemplate(data_dir=folder, dataset_name=name, filetype_suffix=file_format)
    declared = _field(info, "splits", list, [])
    if len(declared) > _MOST_SPLITS:
        raise ValueError(f"it has {len(declared):,} splits, and {_MOST_SPLITS:,} is the most")
    found = [_split(one, template) for one in declared]
    (name_of_split, number), *_ = Counter(split.name for split in found).most_common(1) or [("", 0)]
    if number > 1:
        raise ValueError(f"it has the split {quoted(name_of_split)} {number} times")
    splits = tfds.core.SplitDict(found)
    total = sum(split.num_examples for split in splits.values())
    if total > MOST_EXAMPLES:
        raise ValueError(f"its splits have {total:,} examples, and {MOST_EXAMPLES:,} is the most")
    config = _name(info, "configName", is_optional=True)
    return Prepared(name, config, version, file_format, _features(folder, info), splits)


def _features(folder: str, info: Mapping[str, Any]) -> Any:
    if feature_lib.make_config_path(folder).exists():
        return read_features(folder)
    if "features" not in info:
        raise ValueError("it has no features.json: it was prepared by TFDS 3.2.1 or older")
    features = feature_lib.FeatureConnector.from_proto(json_format.ParseDict(info["features"], feature_pb2.Feature()))
    features.load_metadata(folder, feature_name=None)
    return features


def _split(declared: Any, template: Any) -> NamedSplit:
    if not isinstance(declared, dict):
        raise ValueError(f"a split is {quoted(declared)}")
    name = _name(declared, "name")
    num_bytes = _count(_field(declared, "numBytes", (int, str), 0), f"numBytes of the split {quoted(name)}")
    lengths = _field(declared, "shardLengths", list, [])
    what = f"a shard length of the split {quoted(name)}"
    return NamedSplit(
        name=name,
        shard_lengths=[_count(length, what) for length in lengths],
        num_bytes=num_bytes,
        filename_template=template.replace(
            split=name, template=_field(declared, "filepathTemplate", str, "") or template.template
        ),
    )


def _count(value: Any, what: str) -> int:
    """Returns a number >= 0; JSON has 64-bit integers as texts."""
    if type(value) is str and value.isdecimal() and len(value) <= _MOST_DIGITS:
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{what} is {quoted(value)}, which is not a number that can be")
    return value


def _name(info: Mapping[str, Any], key: str, *, is_optional: bool = False) -> str:
    name: str = _field(info, key, str, "")
    if (not name and not is_optional) or len(name) > _LONGEST_NAME or (name and not name.isprintable()):
        raise ValueError(
            f"its {key} is {quoted(name)}, which is not a name of 1 to {_LONGEST_NAME} printable characters"
        )
    return name


def _field(info: Mapping[str, Any], key: str, kind: Any, default: Any) -> Any:
    """Returns a field by its JSON name, or by the name that it has in protobuf (`shardLengths`, `shard_lengths`)."""
    other = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
    value = info.get(key, info.get(other))
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"its {key} is {quoted(value)}")
    return value
