"""What an export of shards says of a write that the system refused: why, what was missing, and how to go on."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

from tfds_torch.errors import ExportError
from tfds_torch.export.manifest import Shard
from tfds_torch.export.plan import ExportPlan

KEPT = "The shards that are complete stay: the same command goes on with the others."


def describe_refusal(
    error: OSError, path: Path, plan: ExportPlan, done: Sequence[Shard], mean_bytes: int, kept: str = KEPT
) -> ExportError:
    """Returns the error of an export.

    Args:
        error: the system's.
        path: of the folder.
        plan: what was to be written.
        done: shards that are complete.
        mean_bytes: of an example, where none is; 0: not known.
        kept: what stays, and how to go on.
    """
    what = f"The export to {path} failed: {error.strerror or error}."
    if error.errno == errno.EFBIG:
        return ExportError(
            f"{what} No file of that size is allowed there, by a limit (ulimit -f) or the file system: raise the limit "
            f"and give the same command again, or write elsewhere, or smaller shards (--max-count, with --overwrite)."
        )
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return ExportError(f"{what} {kept}")
    num_done = sum(len(plan.places(shard.number)) for shard in done)
    num_left = plan.num_examples - num_done
    mean = sum(shard.num_bytes for shard in done) // num_done if num_done else mean_bytes
    needed = f"About {mean * num_left:,} bytes are needed" if mean else "Room is needed"
    return ExportError(
        f"{what} {needed} for {num_left:,} of {plan.num_examples:,} examples, and {_free_bytes(path)} are free: make "
        f"room, or write elsewhere. {kept}"
    )


def _free_bytes(path: Path) -> str:
    try:
        status = os.statvfs(path if path.exists() else path.absolute().parent)
    except OSError:
        return "an unknown number of bytes"
    return f"{status.f_bavail * status.f_frsize:,}"
