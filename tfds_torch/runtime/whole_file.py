"""Writing a file that is there whole or not at all."""

import os
import secrets
import stat
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Puts content in the place of a file; its mode stays, and that of a new file is the user's own.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    path = path.resolve()  # A link stays, and its target is replaced.
    beside = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        beside.write_bytes(content)
        if path.is_file():
            beside.chmod(stat.S_IMODE(path.stat().st_mode))
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
