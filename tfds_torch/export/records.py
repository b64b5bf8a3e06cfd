"""Shards of records that are copied as they are stored, and TFDS's metadata beside them.

Source: tensorflow_datasets/core/dataset_info.py and proto/dataset_info.proto, as JSON.
"""

import errno
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np

from tfds_torch.errors import ConfigError, TfdsTorchError
from tfds_torch.export.folder import ShardFile, WriteRefusedError, read_file, refusals_named, write_for_good
from tfds_torch.export.plan import PREFIX, ExportPlan, safe_name
from tfds_torch.export.samples import SampleOrder
from tfds_torch.parsers.tfds.folder import FEATURES, INFO, Folder
from tfds_torch.parsers.tfds.info import read_info
from tfds_torch.plan.order import Int64Array
from tfds_torch.runtime.metrics import StageMetrics
from tfds_torch.runtime.printable import quoted
from tfds_torch.storage.array_record.writer import ArrayRecordFileWriter
from tfds_torch.storage.record_source import RecordSource
from tfds_torch.storage.tfrecord.framing import TfrecordWriter, framed_bytes

_PIECE_BYTES = 3 * 2**19  # Of records that are read at a time.

_OTHERS = ("*.labels.txt", "*.vocab", "*.subwords", "metadata.json")
"""Files of features (names of classes, vocabularies) and of the dataset's metadata."""
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


@dataclass(frozen=True)
class RecordContent:
    """Records of a dataset, copied as they are stored; file_format is tfrecord or array_record."""

    source: RecordSource
    order: SampleOrder
    file_format: str

    def write(self, places: range, file: ShardFile, metrics: StageMetrics) -> tuple[int, int, int]:
        """Write the records of these places; return the file's size, its crc32c, and the bytes of the records."""
        if self.file_format == "tfrecord":
            content_bytes = _copy(self._records(places, metrics), TfrecordWriter(file.write))
            return *file.end(), content_bytes
        with refusals_named():
            writer = ArrayRecordFileWriter(str(file.beside))
        try:
            content_bytes = _copy(self._records(places, metrics), writer)
            with refusals_named():
                writer.close()
        finally:
            writer.discard()
        written = read_file(file.beside, metrics)
        if written is None:
            raise WriteRefusedError(errno.EIO, f"{file.beside} cannot be read again")
        return *written, content_bytes

    def sizes(self, places: range, metrics: StageMetrics) -> Int64Array:  # noqa: D102
        return np.array([framed_bytes(len(record)) for record in self._records(places, metrics)], np.int64)

    def _records(self, places: range, metrics: StageMetrics) -> Iterator[bytes]:
        piece = max(1, _PIECE_BYTES // max(1, self.source.mean_example_bytes))
        for start in range(places.start, places.stop, piece):
            numbers = self.order.at(range(start, min(start + piece, places.stop)))
            with metrics.at_work.reading(numbers):
                yield from self.source.records(numbers)
            metrics.add_batch(len(numbers))


def _copy(records: Iterator[bytes], writer: TfrecordWriter | ArrayRecordFileWriter) -> int:
    content_bytes = 0
    for record in records:
        with refusals_named():
            writer.add(record)
        content_bytes += len(record)
    return content_bytes


# TFDS's metadata


def read_dataset_name(source: Folder) -> str:
    """Return the dataset's name in names of files; raise ConfigError where TFDS would not find files of that name."""
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
    """Write the metadata that TFDS needs to open a folder of complete shards; splits that are there already stay.

    `source` has the metadata of the dataset whose records the shards hold; `num_bytes` are those of all records.
    """
    info, prefix = _read_info(source), f".{PREFIX}{plan.split}."
    splits = {str(split.get("name")): split for split in _splits_there(folder)}
    splits[plan.split] = {
        "filepathTemplate": _TEMPLATE,
        "name": plan.split,
        "numBytes": str(num_bytes),
        "shardLengths": list(map(str, shard_lengths)),
    }
    info |= {"fileFormat": plan.format, "splits": list(splits.values())}
    for name in metadata_names(source)[1:]:
        write_for_good(folder / name, source.read(name) or b"", prefix)
    # Last: without it, the folder is not a dataset yet.
    write_for_good(folder / INFO, json.dumps(info, indent=2, ensure_ascii=False).encode(), prefix)


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
