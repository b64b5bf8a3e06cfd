"""Scanning the shards of a split for their records."""

from collections.abc import Sequence

import numpy as np

from tfds_torch.plan.order import Int64Array
from tfds_torch.storage.open_files import Stamp
from tfds_torch.storage.shard_errors import wrong_count
from tfds_torch.storage.shard_scans import Advance, scan_shards
from tfds_torch.storage.tfrecord.framing import scan_offsets


def find_records(paths: Sequence[str], stamps: Sequence[Stamp], counts: Sequence[int], dataset: str) -> Int64Array:
    """Reads the headers of every shard.

    Args:
        paths: local TFRecord files.
        stamps: size in bytes and modification time in ns that each file must have.
        counts: number of records that each file must hold.
        dataset: what the files belong to, for messages.

    Returns:
        int64 [sum of (count + 1)]: for each shard the offsets of its records, and its size.

    Raises:
        ShardError: a file is missing, cannot be read, is not the one of its stamp, or holds another number of records.
        CorruptRecordError: a file ends inside a record, or a length does not have its checksum.
    """

    def scan(place: int, advance: Advance) -> Int64Array:
        offsets = scan_offsets(paths[place], advance, stamps[place])
        if len(offsets) - 1 != counts[place]:
            raise wrong_count(paths[place], len(offsets) - 1, counts[place], dataset)
        return offsets

    found = scan_shards(scan, [size for size, _ in stamps], dataset)
    return np.concatenate(found) if found else np.empty(0, np.int64)
