"""The errors of shard files, worded alike wherever they are found."""

import errno
import os

from tfds_torch.errors import ShardError


def wrong_count(path: str, found: int, expected: int, dataset: str) -> ShardError:
    """Returns the error for a shard that holds another number of records than promised."""
    return ShardError(
        f"{path} holds {found} of {expected} examples: dataset_info.json of {dataset} promises {expected}. "
        f"The file was cut or exchanged; prepare the dataset again."
    )


def unreadable(path: str | os.PathLike[str], error: OSError) -> ShardError:
    """Returns the error for a shard that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return ShardError(f"The shard file {path} is missing. Prepare the dataset again.")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ShardError(
            f"The shard file {path} cannot be opened: {error.strerror}. Let the process open more files (`ulimit -n`, "
            f"now {allowed_files()}), or use fewer loaders at a time."
        )
    return ShardError(f"The shard file {path} cannot be read: {error.strerror}.")


def allowed_files() -> int | None:
    """Returns how many files this process may have open, or None where nothing says so."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if allowed == resource.RLIM_INFINITY else allowed
