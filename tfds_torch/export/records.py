"""TFDS's metadata beside a dataset's shards, written for shards that are cut in another way.

Source: tensorflow_datasets/core/dataset_info.py and proto/dataset_info.proto, as JSON.
"""

import json
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.export.plan import ExportPlan, safe_name
from tfds_torch.export.shard_file import write_for_good
from tfds_torch.parsers.tfds.folder import FEATURES, INFO, Folder
from tfds_torch.parsers.tfds.info import read_info
from tfds_torch.runtime.printable import quoted

_OTHERS = ("*.labels.txt", "*.vocab", "*.subwords", "metadata.json")
"""Files of features (names of classes, vocabularies) and of the dataset's metadata."""
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def read_dataset_name(source: Folder) -> str:
    """Return the dataset's name in names of files; a ConfigError: TFDS would not find files of that name."""
    name = str(_read_info(source)["name"])
    if safe_name(name) != name:
        raise ConfigError(
            f"{INFO} in {source}: the dataset's name {quoted(name)} is not one of letters, digits and _, which TFDS "
            f"finds files by. Change it there, or use format='webdataset' or 'beton'."
        )
    return name


def metadata_names(source: Folder) -> list[str]:
    """Return the names of the files that `write_metadata` writes for a dataset, `dataset_info.json` first."""
    if not source.is_local:
        read_info(source)  # It reads all files of features, and a store lists no others.
    names = source.names()
    others = [name for form in (FEATURES, *_OTHERS) for name in names if fnmatch(name, form)]
    return [INFO, *others]


def write_metadata(
    source: Folder, folder: Path, plan: ExportPlan, shard_lengths: Sequence[int], num_bytes: int
) -> None:
    """Writes the metadata that TFDS needs to open a folder of complete shards; splits that are there already stay.

    `source` has the metadata of the dataset whose records the shards hold; `num_bytes` are those of all records.
    """
    info = _read_info(source)
    splits = {str(split.get("name")): split for split in _splits_there(folder)}
    splits[plan.split] = {
        "filepathTemplate": _TEMPLATE,
        "name": plan.split,
        "numBytes": str(num_bytes),
        "shardLengths": list(map(str, shard_lengths)),
    }
    info |= {"fileFormat": plan.format, "splits": list(splits.values())}
    for name in metadata_names(source)[1:]:
        write_for_good(folder / name, source.read(name) or b"")
    # Last: without it, the folder is not a dataset yet.
    write_for_good(folder / INFO, json.dumps(info, indent=2, ensure_ascii=False).encode())


def _splits_there(folder: Path) -> list[dict[str, Any]]:
    return list(_read_info(Folder(str(folder))).get("splits", [])) if (folder / INFO).exists() else []


def _read_info(folder: Folder) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads(folder.read(INFO) or b"")
        if not isinstance(info, dict) or "name" not in info:
            raise ValueError("it has no name")
        splits = info.get("splits", [])
        if not isinstance(splits, list) or not all(isinstance(one, dict) for one in splits):
            raise ValueError("its splits are not a list of objects")
    except (TfdsTorchError, ValueError, RecursionError) as error:
        raise ConfigError(f"{INFO} in {folder} cannot be read: {error}.") from None
    return info
