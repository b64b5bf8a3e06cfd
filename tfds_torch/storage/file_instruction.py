"""Where a split's examples lie: consecutive records of files, as TFDS's file instructions say it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FileInstruction:
    """Consecutive records of one shard file, or consecutive images of one split of an image folder.

    Attributes:
        path: the shard, a local path or a URL that tensorflow can read; or the split's folder.
        skip: records before the first one.
        take: number of records.
        first_index: index of the first one in the split.
        num_in_shard: records that the whole shard holds by `dataset_info.json`; images of the whole split.
    """

    path: str
    skip: int
    take: int
    first_index: int
    num_in_shard: int


def is_local(path: str) -> bool:
    """Whether a path names a file of this machine rather than a URL (`gs://...`)."""
    return "://" not in path
