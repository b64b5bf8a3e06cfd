"""Whether the files of a prepared demo dataset are what was written."""

import json
import os
import re
from pathlib import Path
from typing import Any

from tfds_torch.errors import ShardError
from tfds_torch.storage.tfrecord.shard_counts import check_shards

# What TFRecord adds to each record: its length, and a checksum of each of both.
_RECORD_OVERHEAD_BYTES = 16
# How the messages of the room `records` end; here more is known.
_GENERAL_REMEDY = re.compile(r"[.;] [Pp]repare the dataset again\.$")


def check_files(folder: Path) -> None:
    """Holds the sizes of the shards against `dataset_info.json`: cheap, and enough to see a lost or cut file.

    Only where they differ are the records counted, to name the shard.

    Args:
        folder: a version directory.

    Raises:
        ShardError: `dataset_info.json` cannot be read, or a shard is missing, cut, grown or exchanged.
        CorruptRecordError: a shard ends inside a record.
    """
    remedy = "Delete that folder and prepare the dataset again."
    try:
        info = json.loads((folder / "dataset_info.json").read_text(encoding="utf-8"))
        for split in info["splits"]:
            _check_split(folder, info["name"], split)
    except ShardError as error:
        what = _GENERAL_REMEDY.sub(".", str(error))
        raise type(error)(f"The demo dataset in {folder} is damaged: {what} {remedy}") from None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ShardError(
            f"The demo dataset in {folder} is damaged: dataset_info.json cannot be read ({error}). {remedy}"
        ) from error


def _check_split(folder: Path, name: str, split: dict[str, Any]) -> None:
    lengths = [int(length) for length in split["shardLengths"]]
    num_bytes = int(split["numBytes"]) + _RECORD_OVERHEAD_BYTES * sum(lengths)
    prefix = f"{name}-{split['name']}.tfrecord-"
    shards = [folder / f"{prefix}{shard:05}-of-{len(lengths):05}" for shard in range(len(lengths))]
    found = {path: path.stat().st_size for path in folder.glob(f"{prefix}*")}
    if set(found) == set(shards) and sum(found.values()) == num_bytes:
        return
    check_shards({os.fspath(path): length for path, length in zip(shards, lengths, strict=True)}, name)
    surplus = ", ".join(sorted(path.name for path in set(found) - set(shards)))
    raise ShardError(
        f"split '{split['name']}' has {len(found)} shard(s) with {sum(found.values())} bytes, and should have "
        f"{len(shards)} with {num_bytes}{f'; {surplus} does not belong to it' if surplus else ''}."
    )
