"""The bucket of the suite `remote`: the paths in it, and the folder that the server takes for it.

The standard library alone: competitors with packages of their own import it, too.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUCKET = "bench"
TFDS, TARS, MDS, LITDATA = "tfds", "tars", "mds", "litdata"
"""Folders of the bucket: a dataset of TFDS, and the same encoded images in the formats of competitors."""

_INFO = "dataset_info.json"


@dataclass(frozen=True)
class RemoteWork:
    """What a task says about a server and about the ranks that read from it.

    Attributes:
        url: the server's; "": files are local.
        cache_dir: where remote files are kept on this machine.
        max_bytes: of that folder; None: not limited.
        rank: of this process.
        num_ranks: how many processes read an epoch together.
        meeting_dir: where ranks wait for each other before their first epoch; "": they do not.
        first_batch: an epoch is resumed there.
        most_batches: after which an epoch is left; None: it is read to its end.
    """

    url: str = ""
    cache_dir: str = ""
    max_bytes: int | None = None
    rank: int = 0
    num_ranks: int = 1
    meeting_dir: str = ""
    first_batch: int = 0
    most_batches: int | None = None


def link_files(source: Path, target: Path) -> None:
    """Puts the files of a folder into another one, without a copy where both are on one disk."""
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        if path.is_file():
            _link(path, target / path.name)


def link_dataset(source: Path, target: Path, num_copies: int = 1) -> int:
    """Puts a dataset of TFDS into another folder, each shard under several names, and returns the bytes of its shards.

    It is that many times as large then, and takes the room of one.

    Args:
        source: the folder of its version, `<data_dir>/<name>/<version>`, with one split, `train`, in TFRecord files.
        target: the same in another data dir.
        num_copies: names of each shard.
    """
    target.mkdir(parents=True)
    shards = sorted(source.glob("*-train.tfrecord-*"))
    num_shards = len(shards) * num_copies
    for number in range(num_shards):
        shard = shards[number % len(shards)]
        name = f"{shard.name.partition('.tfrecord-')[0]}.tfrecord-{number:05d}-of-{num_shards:05d}"
        _link(shard, target / name)
    for path in source.iterdir():
        if path not in shards:
            shutil.copyfile(path, target / path.name)
    info: dict[str, Any] = json.loads((source / _INFO).read_text(encoding="utf-8"))
    (split,) = info["splits"]
    split["shardLengths"] = split["shardLengths"] * num_copies
    split["numBytes"] = str(int(split["numBytes"]) * num_copies)
    (target / _INFO).write_text(json.dumps(info), encoding="utf-8")
    return sum(shard.stat().st_size for shard in shards) * num_copies


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # They are on different disks, or this one has no links.
        shutil.copyfile(source, target)
