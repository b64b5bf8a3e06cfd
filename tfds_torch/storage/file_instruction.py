"""Where a split's examples lie: runs of consecutive records of shard files."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RecordRun:
    """Consecutive records of one shard file, or consecutive images of one split of an image folder.

    Attributes:
        path: the shard, a local path or a URL that tensorflow can read; or the split's folder.
        skip: records before the first one.
        take: number of records.
        first_index: index of the first one in the split.
        num_in_shard: records that the whole shard holds by `dataset_info.json`; images of the whole split.
        pass_number: the pass over the split in which they are read, where that matters.
    """

    path: str
    skip: int
    take: int
    first_index: int
    num_in_shard: int
    pass_number: int = 0


def is_local(path: str) -> bool:
    """Whether a path names a file of this machine rather than a URL (`gs://...`)."""
    return "://" not in path
