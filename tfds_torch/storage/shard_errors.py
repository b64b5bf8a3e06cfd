"""The errors of shard files, with the same words wherever they are found."""

import errno
import os
import stat

from tfds_torch.errors import ShardError

PREPARE_AGAIN = "Prepare the dataset again."
"""The remedy for a missing shard of a prepared dataset; other formats have other remedies."""

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def wrong_count(path: str, found: int, expected: int, dataset: str) -> ShardError:
    """Return the error for a shard that holds another number of records than promised."""
    return ShardError(
        f"{path} holds {found} of {expected} examples: dataset_info.json of {dataset} promises {expected}. "
        f"The file was cut or exchanged; prepare the dataset again."
    )


def unreadable(path: str | os.PathLike[str], error: OSError, remedy: str = PREPARE_AGAIN) -> ShardError:
    """Return the error for a shard that cannot be opened or read."""
    if isinstance(error, FileNotFoundError):
        return ShardError(f"The shard file {path} is missing. {remedy}")
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return ShardError(
            f"The shard file {path} cannot be opened: {error.strerror}. Let the process open more files (`ulimit -n`, "
            f"now {allowed_files()}), or use fewer loaders at a time."
        )
    return ShardError(f"The shard file {path} cannot be read: {error.strerror}.")


def shard_status(path: str | os.PathLike[str], remedy: str = PREPARE_AGAIN) -> os.stat_result:
    """Return the status of a shard; to be called before opening it, as opening a FIFO waits for ever."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error, remedy) from error
    kind = other_kind(status)
    if kind is not None:
        raise ShardError(f"The shard file {path} is {kind}, not a regular file. {remedy}")
    return status


def other_kind(status: os.stat_result) -> str | None:
    """Return the kind of a file that is not a regular file; None for a regular file."""
    if stat.S_ISREG(status.st_mode):
        return None
    return next((kind for is_kind, kind in _KINDS if is_kind(status.st_mode)), "a special file")


def allowed_files() -> int | None:
    """Return how many files this process may have open; None where there is no limit."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if allowed == resource.RLIM_INFINITY else allowed
