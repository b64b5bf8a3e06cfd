"""Small files of values that were read from a dataset once, in the user's cache folder: used again, or made again.

Layout: a digest of the content (16 bytes), and the content. A file that is damaged, or in a folder where another user
may have put it, is not used.
"""

import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfds_torch.runtime.atomic_file import write_atomically
from tfds_torch.runtime.identity import digest_of
from tfds_torch.runtime.own_folder import ForeignFolderError, cache_folder, check_own_folder, own_folder

_DIGEST_BYTES = 16
_logger = logging.getLogger(__name__)


def kept_path(kind: str, identity: Sequence[Any], suffix: str) -> Path:
    """Return where values are kept.

    Args:
        kind: the kind of values, the name of a folder.
        identity: plain JSON values, which differ where other values are to be kept, as after a file has changed.
        suffix: the end of the file's name.
    """
    return cache_folder(kind) / f"{digest_of(*identity)}{suffix}"


def load_kept(file: Path) -> bytes | None:
    """Return the content that is kept; None where there is none, or it is damaged or may be another user's."""
    try:
        check_own_folder(file.parent)
        content = file.read_bytes()
    except (OSError, ValueError):
        return None
    digest, body = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    return body if _digest(body) == digest else None


def store_kept(file: Path, content: bytes, what: str) -> None:
    """Keep values; without a writable cache folder they are read again next time.

    Args:
        file: the path that `kept_path` returned.
        content: the bytes to keep.
        what: the name of the values in messages, like "Targets".
    """
    try:
        own_folder(file.parent)
        write_atomically(file, _digest(content) + content, follows_link=False)
    except ForeignFolderError as error:
        _logger.warning("%s are not kept: %s is not this user's own: %s.", what, error.filename, error.strerror)
    except OSError as error:
        _logger.info("%s could not be kept in %s: %s", what, file, error)


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
