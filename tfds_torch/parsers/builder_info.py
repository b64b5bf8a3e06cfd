"""What a builder says of a dataset on disk: its name, sizes, format, files and feature shapes.

The builder is TFDS's, passed in, or the `ImageFolder` that has its shape: this module does not import
tensorflow_datasets.
"""

import os
from shlex import quote
from typing import Any

from tfds_torch.errors import ConfigError
from tfds_torch.parsers.example_files import ExampleFiles, RecordShards
from tfds_torch.parsers.image_folder import FolderFiles, ImageFolder
from tfds_torch.parsers.parser import FieldSpec
from tfds_torch.plan.arguments import did_you_mean
from tfds_torch.records.record_reader import FORMATS_WITH_RANDOM_ACCESS
from tfds_torch.records.record_run import RecordRun


def dataset_name(builder: Any) -> str:
    """Returns `name/config:version`, or `name:version` without a config."""
    info = builder.info
    config = f"/{info.config_name}" if info.config_name else ""
    return f"{info.name}{config}:{info.version}"


def mean_example_bytes(builder: Any) -> int:
    """Returns the mean size of an encoded example over all splits."""
    splits = builder.info.splits.values()
    num_bytes, num_examples = (
        sum(int(getattr(split, key)) for split in splits) for key in ("num_bytes", "num_examples")
    )
    return num_bytes // max(1, num_examples)


def file_format(builder: Any) -> str:
    """Returns the format of the shards: `tfrecord` or `array_record`.

    Raises:
        ConfigError: they have another format.
    """
    found = builder.info.file_format
    if found is None:  # An image folder.
        return FORMATS_WITH_RANDOM_ACCESS[0]
    if found.value not in FORMATS_WITH_RANDOM_ACCESS:
        raise ConfigError(
            f"{dataset_name(builder)} is stored as {found.value!r}, and what can be read is "
            f"{' or '.join(map(repr, FORMATS_WITH_RANDOM_ACCESS))}. Convert it "
            f"with: tfds convert_format --dataset_dir={quote(os.fspath(builder.data_path))} --out_file_format=tfrecord "
            f"--out_path=..."
        )
    return str(found.value)


def split_files(builder: Any, split: str) -> ExampleFiles:
    """Returns a split's files, with runs of records in the order of TFDS's file instructions.

    Args:
        builder: of a dataset on disk.
        split: a TFDS split expression.

    Raises:
        ConfigError: the expression is malformed, names no split, or a slice does not lie within its split.
    """
    if not isinstance(split, str):
        raise ConfigError(f"split={split!r} must be a TFDS split expression, such as 'train' or 'train[:10%]'.")
    runs = _runs(builder, split)
    if isinstance(builder, ImageFolder):
        return FolderFiles(dataset_name(builder), runs, mean_example_bytes(builder), builder.listing)
    return RecordShards(dataset_name(builder), runs, mean_example_bytes(builder), file_format(builder))


def _runs(builder: Any, split: str) -> tuple[RecordRun, ...]:
    there = {name: info.num_examples for name, info in builder.info.splits.items()}
    try:
        instructions = builder.info.splits[split].file_instructions
    except (ValueError, KeyError, AssertionError) as error:
        unknown = [bare for part in split.split("+") if (bare := part.partition("[")[0].strip()) not in there]
        hint = did_you_mean(unknown[0], there) if unknown else ""
        listed = ", ".join(f"{name} ({number} examples)" for name, number in there.items())
        reason = str(error).splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{dataset_name(builder)}: split {split!r}: {reason}. The splits are: {listed}.{hint}"
        ) from None
    runs: list[RecordRun] = []
    first_index = 0
    for item in instructions:
        if item.take:
            runs.append(RecordRun(os.fspath(item.filename), item.skip, item.take, first_index, item.examples_in_shard))
        first_index += item.take
    return tuple(runs)


def field_spec(connector: Any) -> Any:
    """Returns a FieldSpec for a feature connector, or a dictionary of them."""
    return _tensor_spec(connector.get_tensor_info())


def _tensor_spec(info: Any) -> Any:
    if isinstance(info, dict):
        return {key: _tensor_spec(inner) for key, inner in sorted(info.items())}
    return FieldSpec(tuple(info.shape), info.np_dtype)
