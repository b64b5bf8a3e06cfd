"""DatasetInfo: a dataset as its metadata describes it, and the Source of each of its splits.

TFDS's own builder reads dataset_info.json twice through protobuf's JSON parser, value by value, and does not check
it. Here every value is checked, and neither code of the dataset nor tensorflow is imported.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow_datasets as tfds
from tensorflow_datasets.core.proto import dataset_info_pb2

from tfds_torch.errors import ConfigError, DatasetNotFoundError
from tfds_torch.parsers.tfds.connectors import plain_features, stored_specs
from tfds_torch.parsers.tfds.feature_tree import Feature
from tfds_torch.parsers.tfds.features_json import read_connectors, warn_of_keys, without_unknown
from tfds_torch.parsers.tfds.folder import FEATURES, INFO, LABELS, DamagedError, Folder
from tfds_torch.parsers.tfds.splits import BadTemplateError, NamedSplit, check_slices
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.arguments import did_you_mean
from tfds_torch.runtime.printable import quoted, shortened
from tfds_torch.storage.map_style.image_folder import FILENAME, IMAGE, LABEL, list_image_folder
from tfds_torch.storage.shard_files import LOCAL, ShardFiles
from tfds_torch.storage.source import FieldSpec, FileInstruction, Source, source_type

MOST_EXAMPLES = 2**48
"""The largest number of examples of all splits together: sample keys of 32,768 passes fit into 64 bits."""
IMAGE_FOLDER, IMAGE_FOLDER_VERSION = "image_folder", "1.0.0"

_MOST_SPLITS = 10_000
_LONGEST_NAME = 200  # Characters, of a dataset, config, version or split.
_MOST_DIGITS = 19


@dataclass(frozen=True, eq=False)
class DatasetInfo:
    """A dataset, as its files describe it.

    Attributes:
        base_name: name of the dataset, without config and version.
        config: the config of the dataset, or an empty text.
        version: the version of the dataset.
        directory: path or URL of the version directory, or the root of an image folder.
        features: the features of an example.
        specs: the fields of an example, as they are stored; empty for an image folder.
        splits: TFDS's `SplitDict`.
        file_format: how examples are stored, a name of the registry of `storage/source.py`.
        files: where the shards lie.
        listing: the listing of an image folder, else None.
        directories: those of a dataset that lies in several; `directory` is the first.
        lacking: split -> the directories that lack it, for splits that not all directories have.
        labels: key of a feature of labels -> for each directory, the meaning of its labels; see `RecordSource`.
        others: names of the further directories' datasets, where they differ.
    """

    base_name: str
    config: str
    version: str
    directory: str
    features: Feature
    specs: Mapping[str, FieldSpec]
    splits: Any
    file_format: str
    files: ShardFiles = LOCAL
    listing: Any = None
    directories: Sequence[str] = ()
    lacking: Mapping[str, Sequence[str]] = field(default_factory=dict)
    labels: Mapping[str, Sequence[Int64Array | None]] = field(default_factory=dict)
    others: Sequence[str] = ()

    @property
    def name(self) -> str:
        """`name/config:version`, or `name:version` without a config; those of several directories with " + "."""
        return " + ".join([_full_name(self.base_name, self.config, self.version), *self.others])

    @property
    def mean_example_bytes(self) -> int:
        """Mean size of an encoded example over all splits."""
        num_bytes, num_examples = (
            sum(int(getattr(split, key)) for split in self.splits.values()) for key in ("num_bytes", "num_examples")
        )
        return num_bytes // max(1, num_examples)

    def source(self, split: str, *, verify_checksums: bool = True) -> Source:
        """Return the encoded examples of a split, in the order of TFDS's file instructions.

        Raises:
            ConfigError: the expression is malformed, names no split, or a slice does not lie within its split.
        """
        try:
            instructions, empty_files = self._instructions(split)
        except BadTemplateError as error:
            raise ConfigError(f"{self.name}: {error}") from None
        make: Any = source_type(self.file_format)
        if self.listing is not None:
            return make(self.name, instructions, self.listing, self.mean_example_bytes)  # type: ignore[no-any-return]
        self.files.look_ahead(item.path for item in instructions)
        return make(  # type: ignore[no-any-return]
            self.name,
            instructions,
            self.specs,
            mean_example_bytes=self.mean_example_bytes,
            empty_files=empty_files,
            verify_checksums=verify_checksums,
            files=self.files,
            folders=self.directories,
            labels=self.labels,
        )

    def _instructions(self, split: str) -> tuple[tuple[FileInstruction, ...], tuple[str, ...]]:
        """Return a split's examples by file, and the files of its splits that are promised to be empty."""
        there = {name: info.num_examples for name, info in self.splits.items()}
        try:
            found = self.splits[split].file_instructions
        except (ValueError, KeyError, AssertionError) as error:
            unknown = [bare for part in split.split("+") if (bare := part.partition("[")[0].strip()) not in there]
            for name in unknown:
                if name in self.lacking:
                    raise ConfigError(
                        f"{self.name}: the split {quoted(name)} is not in {', '.join(self.lacking[name])}, and a "
                        f"dataset in several directories has the splits that all of them have: {', '.join(there)}."
                    ) from None
            hint = did_you_mean(unknown[0], there) if unknown else ""
            listed = ", ".join(f"{name} ({number} examples)" for name, number in there.items())
            reason = str(error).splitlines()[0].rstrip(".")
            raise ConfigError(
                f"{self.name}: split {quoted(split)}: {shortened(reason)}. The splits are: {listed}.{hint}"
            ) from None
        names = dict.fromkeys(check_slices(split, self.splits, self.name))
        instructions: list[FileInstruction] = []
        first_index = 0
        for item in found:
            if item.take:
                instructions.append(
                    FileInstruction(item.filename, item.skip, item.take, first_index, item.examples_in_shard)
                )
            first_index += item.take
        empty_files = [
            path
            for info in (() if self.listing is not None else map(self.splits.__getitem__, names))
            for path, length in zip(info.filepaths, info.shard_lengths, strict=True)
            if not length
        ]
        return tuple(instructions), tuple(empty_files)


def read_info(folder: Folder) -> DatasetInfo:
    """Return the description of the dataset whose version directory a folder is.

    Raises:
        DatasetNotFoundError: there is no dataset, or it cannot be opened; its subclasses tell damaged metadata from
            metadata that cannot be read.
        ConfigError: it is stored in a format that is not read.
        ShardError: an object store refuses a file, or does not answer.
    """
    folder.expect([INFO, FEATURES, LABELS])
    info = read_json(folder, INFO)
    if info is None:
        raise DatasetNotFoundError(
            f"There is no dataset at {folder}: it has no {INFO}. Give the folder of a version, such as name/1.0.0."
        )
    try:
        name, version, config = _name(info, "name"), _name(info, "version"), _name(info, "configName", is_optional=True)
        tfds.core.Version(version)
        blocked = _field(info, "isBlocked", str, "")
        file_format = _field(info, "fileFormat", str, "") or "tfrecord"
        splits = _splits(folder, info, name, file_format)
    except ValueError as error:
        raise DamagedError.of(folder, INFO, str(error)) from None
    if blocked:
        raise DatasetNotFoundError(
            f"The dataset in {folder} cannot be opened: TFDS blocks it: {quoted(blocked)}. Take another version."
        )
    try:
        source_type(file_format)
    except ConfigError as error:
        raise ConfigError(f"{_full_name(name, config, version)} in {folder}: {error}") from None
    info, unknown = without_unknown(info, dataset_info_pb2.DatasetInfo.DESCRIPTOR)
    warn_of_keys(folder, INFO, unknown)
    declared = read_json(folder, FEATURES)
    if declared is None:
        declared = info.get("features")
    if declared is None:
        raise DatasetNotFoundError(
            f"The dataset in {folder} cannot be opened: it has no {FEATURES}, which TFDS 3.2.1 and older do not write. "
            f"Copy that file to there, or prepare the dataset by a newer TFDS."
        )
    connectors = read_connectors(folder, declared)
    features, specs = plain_features(connectors), stored_specs(connectors)
    return DatasetInfo(name, config, version, folder.path, features, specs, splits, file_format, folder.shards())


def read_json(folder: Folder, file: str) -> dict[str, Any] | None:
    """Return a JSON object of TFDS's metadata; None if there is no such file.

    Raises:
        DamagedError: the file is not one of TFDS's, or absurd.
        UnreadableError, ShardError: the file cannot be read.
    """
    content = folder.read(file)
    if content is None:
        return None
    try:
        declared = json.loads(content)
    except RecursionError:
        raise DamagedError.of(folder, file, f"{file} is nested too deeply") from None
    except ValueError as error:
        raise DamagedError.of(folder, file, error) from None
    if not isinstance(declared, dict):
        raise DamagedError.of(folder, file, f"{file} is not a JSON object")
    return declared


def list_images(root: str) -> DatasetInfo:
    """Return the description of an image folder, `root/<split>/<label>/<image>.jpg`, as `tfds.ImageFolder` lists it.

    `tfds.ImageFolder` itself loads tensorflow, reads whole splits only, and takes no read_config.

    Raises:
        DatasetNotFoundError: the folder is not an image folder.
    """
    listing = list_image_folder(root)
    features = tfds.features.FeaturesDict(
        {
            IMAGE: tfds.features.Image(),
            LABEL: tfds.features.ClassLabel(names=list(listing.class_names)),
            FILENAME: tfds.features.Text(),
        }
    )
    # TFDS's own arithmetic of split expressions: a split is one shard, its folder, and an image is one record.
    template = _template("{SPLIT}", IMAGE_FOLDER, "tfrecord")
    splits = [
        NamedSplit(name, [split.num_examples], split.num_bytes, template, folder=root)
        for name, split in listing.splits.items()
    ]
    return DatasetInfo(
        base_name=IMAGE_FOLDER,
        config="",
        version=IMAGE_FOLDER_VERSION,
        directory=root,
        features=plain_features(features),
        specs={},
        splits=tfds.core.SplitDict(splits),
        file_format=IMAGE_FOLDER,
        listing=listing,
    )


def _full_name(name: str, config: str, version: str) -> str:
    return f"{name}{f'/{config}' if config else ''}:{version}"


def _splits(folder: Folder, info: Mapping[str, Any], name: str, file_format: str) -> Any:
    declared = _field(info, "splits", list, [])
    if len(declared) > _MOST_SPLITS:
        raise ValueError(f"it has {len(declared):,} splits, and {_MOST_SPLITS:,} is the most")
    found = [_split(folder, one, name, file_format) for one in declared]
    (twice, number), *_ = Counter(split.name for split in found).most_common(1) or [("", 0)]
    if number > 1:
        raise ValueError(f"it has the split {quoted(twice)} {number} times")
    total = sum(split.num_examples for split in found)
    if total > MOST_EXAMPLES:
        raise ValueError(f"its splits have {total:,} examples, and {MOST_EXAMPLES:,} is the most")
    return tfds.core.SplitDict(found)


def _split(folder: Folder, declared: Any, dataset: str, file_format: str) -> NamedSplit:
    if not isinstance(declared, dict):
        raise ValueError(f"a split is {quoted(declared)}")
    name = _name(declared, "name")
    num_bytes = _count(_field(declared, "numBytes", (int, str), 0), f"numBytes of the split {quoted(name)}")
    what = f"a shard length of the split {quoted(name)}"
    lengths = [_count(length, what) for length in _field(declared, "shardLengths", list, [])]
    template = _template(_field(declared, "filepathTemplate", str, ""), dataset, file_format)
    return NamedSplit(name, lengths, num_bytes, template, folder=folder.path)


def _template(template: str, dataset: str, file_format: str) -> Any:
    return tfds.core.ShardedFileTemplate(
        data_dir="/", template=template, dataset_name=dataset, filetype_suffix=file_format
    )


def _count(value: Any, what: str) -> int:
    """Return a number >= 0; JSON has 64-bit integers as texts."""
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
    """Return a field by its JSON name, or by the name that it has in protobuf (`shardLengths`, `shard_lengths`)."""
    other = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
    value = info.get(key, info.get(other))
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"its {key} is {quoted(value)}")
    return value
